//! Places in the order of somebody else's stream: what came before has ended, what comes after waits.
//!
//! A gate puts an event into the stream, and behind it a wait for a word of pinned host memory. Nobody
//! is blocked by making one. Words are used again and again with growing values: a stream waits until
//! its word has at least its value, so that a word can serve the next gate as soon as it was opened.
//! Where a stream cannot wait for words, a host function waits instead.
// UNSAFETY: calls the driver.
#![expect(unsafe_code, reason = "calls the driver; a stream calls back")]

use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use mem::Region;

use crate::api::{Opaque, call};
use crate::device::{Context, Device};
use crate::error::CudaError;
use crate::event::{Event, SLEEPING};
use crate::memory::HostBlock;

/// Gates that can be closed at once.
const WORDS: u16 = 4096;
/// At least, in the cyclic order of 32 bits. Source: `CU_STREAM_WAIT_VALUE_GEQ`.
const AT_LEAST: u32 = 0;

/// Where gates come from.
#[derive(Debug)]
pub struct Gates {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    context: Arc<Context>,
    words: Region,
    /// Words of which no stream waits for more than they hold.
    free: Mutex<Vec<u16>>,
    events: Mutex<Vec<Event>>,
    by_words: bool,
}

/// How a stream is let go on.
#[derive(Debug)]
enum Latch {
    Function(Arc<(Mutex<bool>, Condvar)>),
    Word(u16),
}

/// A place in a stream's order. Dropping it opens it.
#[derive(Debug)]
pub struct Gate {
    shared: Arc<Shared>,
    event: Option<Event>,
    latch: Latch,
}

unsafe extern "C" fn wait_for_latch(argument: *mut c_void) {
    // SAFETY: the pointer is that of `Arc::into_raw` in `Gates::wait_by_function`, taken back once.
    let latch = unsafe { Arc::from_raw(argument.cast::<(Mutex<bool>, Condvar)>().cast_const()) };
    let mut open = latch.0.lock().unwrap_or_else(PoisonError::into_inner);
    while !*open {
        open = latch.1.wait(open).unwrap_or_else(PoisonError::into_inner);
    }
}

impl Gates {
    /// Allocates the words. With `by_words` false, host functions are used, as where the device has no
    /// waits for words.
    ///
    /// # Errors
    /// `Call`.
    pub fn new(device: &Device, by_words: bool) -> Result<Self, CudaError> {
        let words = HostBlock::allocate(device, usize::from(WORDS) * 4)?;
        let shared = Shared {
            context: Arc::clone(&device.context),
            words,
            free: Mutex::new((0..WORDS).rev().collect()),
            events: Mutex::new(Vec::new()),
            by_words,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Puts a gate at the end of a stream: a handle of this device's context, 0 for the NULL stream.
    ///
    /// The handle is taken on trust, as an address in a kernel's arguments is.
    ///
    /// # Errors
    /// `Misuse` where too many gates are closed, `Call`.
    pub fn close(&self, stream: u64) -> Result<Gate, CudaError> {
        let shared = Arc::clone(&self.shared);
        let stream = usize::try_from(stream)
            .map_err(|e| CudaError::Misuse(format!("stream {stream:#x}: {e}")))?;
        let stream: Opaque = std::ptr::with_exposed_provenance_mut(stream);
        let spare = shared.events.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let event = match spare {
            Some(event) => event,
            None => Event::new(&shared.context, SLEEPING)?,
        };
        event.record(stream)?;
        let latch = if shared.by_words {
            match self.wait_by_word(stream) {
                // The device has no such waits.
                Err(CudaError::Call { code: 801, .. }) => self.wait_by_function(stream)?,
                latch => latch?,
            }
        } else {
            self.wait_by_function(stream)?
        };
        Ok(Gate { shared, event: Some(event), latch })
    }

    fn wait_by_word(&self, stream: Opaque) -> Result<Latch, CudaError> {
        let shared = &self.shared;
        let word = shared.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let word = word.ok_or_else(|| {
            let why = format!("{WORDS} transfers wait for streams already; wait for some of them");
            CudaError::Misuse(why)
        })?;
        let offset = usize::from(word) * 4;
        let value = shared.words.u32_at(offset).load(Ordering::Relaxed).wrapping_add(1);
        let address = shared.words.address() + offset as u64;
        let _visit = shared.context.visit()?;
        let done = call!(shared.context.api, stream_wait_value(stream, address, value, AT_LEAST));
        if let Err(error) = done {
            shared.free.lock().unwrap_or_else(PoisonError::into_inner).push(word);
            return Err(error);
        }
        Ok(Latch::Word(word))
    }

    fn wait_by_function(&self, stream: Opaque) -> Result<Latch, CudaError> {
        let latch = Arc::new((Mutex::new(false), Condvar::new()));
        let argument = Arc::into_raw(Arc::clone(&latch)).cast_mut().cast::<c_void>();
        let context = &self.shared.context;
        let _visit = context.visit()?;
        let done = call!(context.api, stream_call(stream, wait_for_latch, argument));
        if let Err(error) = done {
            // SAFETY: the pointer of the line above, which the driver did not take.
            drop(unsafe { Arc::from_raw(argument.cast::<(Mutex<bool>, Condvar)>().cast_const()) });
            return Err(error);
        }
        Ok(Latch::Function(latch))
    }
}

impl Gate {
    /// Whether everything before it in the stream has ended.
    ///
    /// # Errors
    /// `Call`: something before it failed.
    pub fn is_reached(&self) -> Result<bool, CudaError> {
        self.event.as_ref().map_or(Ok(true), Event::is_reached)
    }

    /// Whether its stream waits for a word, not in a host function.
    pub fn is_word(&self) -> bool {
        matches!(self.latch, Latch::Word(_))
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        match &self.latch {
            Latch::Word(word) => {
                let cell = self.shared.words.u32_at(usize::from(*word) * 4);
                // What was copied before is seen by whoever sees the word: the copies have ended.
                let next = cell.load(Ordering::Relaxed).wrapping_add(1);
                cell.store(next, Ordering::Release);
                self.shared.free.lock().unwrap_or_else(PoisonError::into_inner).push(*word);
            }
            Latch::Function(latch) => {
                *latch.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
                latch.1.notify_all();
            }
        }
        if let Some(event) = self.event.take() {
            self.shared.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        }
    }
}
