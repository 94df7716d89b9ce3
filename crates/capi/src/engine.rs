//! The engine: side cores, started and stopped; sources and buffers, registered and deregistered.
// UNSAFETY: exported C functions.
#![expect(unsafe_code, reason = "functions that C calls")]

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use abi::ring::Id;
use sidecore::{Engine, Retirement, Rights};
use zerocopy::{Immutable, IntoBytes};

use crate::failure::{Failure, guard, swallow};
use crate::gpu_edge::sidecore_gpu;
use crate::handle::{self, borrow, bytes_mut, destroy, options, place};
use crate::memory::sidecore_memory;
use crate::storage_edge::sidecore_storage;

/// Requests may read from a source, into a buffer.
pub const SIDECORE_READ: u32 = 1;
/// Requests may write from a buffer, into a source.
pub const SIDECORE_WRITE: u32 = 2;

/// Options of an engine. Zero the structure, set `struct_bytes`, then what shall differ from the
/// defaults.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct sidecore_engine_options {
    /// sizeof(sidecore_engine_options).
    pub struct_bytes: u32,
    /// Side cores; default: the CPUs that this process may use less one, at least 1.
    pub side_cores: u32,
    /// 1: tie each side core to one CPU, from `first_cpu` up.
    pub pin: u32,
    /// See `pin`.
    pub first_cpu: u32,
    /// How long a side core may stand still before it is given up, in ms; default 2,000.
    pub stall_ms: u32,
    /// Zero.
    pub reserved: u32,
}

impl handle::Options for sidecore_engine_options {
    fn struct_bytes(&self) -> u32 {
        self.struct_bytes
    }
}

/// Side cores, and what is registered with them.
pub struct sidecore_engine {
    pub(crate) engine: Engine,
    /// Deregistrations that were not over in time, by what they are of.
    retiring: Mutex<HashMap<(Kind, u32), Retirement>>,
}

/// What is registered.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Buffer,
    Source,
}

impl sidecore_engine {
    /// Deregisters, or goes on with what was begun, and waits.
    fn deregister(&self, kind: Kind, id: u32, limit_ms: u32) -> Result<(), Failure> {
        let retiring = || self.retiring.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = retiring().remove(&(kind, id));
        let retirement = match (begun, kind) {
            (Some(retirement), _) => retirement,
            (None, Kind::Buffer) => self.engine.deregister_buffer(Id::from_bits(id))?,
            (None, Kind::Source) => self.engine.deregister_source(Id::from_bits(id))?,
        };
        let waited = retirement.wait(Duration::from_millis(limit_ms.into()));
        if waited.is_err() {
            retiring().insert((kind, id), retirement);
        }
        Ok(waited?)
    }
}

/// Copies a view out, of which the caller says how long it is by its own header.
///
/// # Safety
/// `to` follows the rule for places, for `bytes` bytes.
pub(crate) unsafe fn give_view<T: IntoBytes + Immutable>(
    view: &T,
    to: *mut c_void,
    bytes: usize,
) -> Result<(), Failure> {
    let own = view.as_bytes();
    if own.len() != bytes {
        let text = format!("the view takes {} bytes, not {bytes}: another header?", own.len());
        return Err(Failure::misuse(text));
    }
    // SAFETY: this function's own condition.
    unsafe { bytes_mut(to.cast(), bytes, "view") }?.copy_from_slice(own);
    Ok(())
}

fn rights(bits: u32) -> Result<Rights, Failure> {
    match bits {
        SIDECORE_READ => Ok(Rights::READ),
        SIDECORE_WRITE => Ok(Rights::WRITE),
        3 => Ok(Rights::READ_WRITE),
        other => Err(Failure::misuse(format!("rights {other}: 1, 2 and 3 are known"))),
    }
}

/// Starts side cores.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_engine_start(
    gpu: *const sidecore_gpu,
    given: *const sidecore_engine_options,
    engine: *mut *mut sidecore_engine,
) -> c_int {
    guard(|| {
        // SAFETY: the rule for pointers, see the crate's documentation; so in all functions here.
        let place = unsafe { place(engine, "engine") }?;
        // SAFETY: as above.
        let gpu = unsafe { borrow(gpu, "gpu") }?;
        // SAFETY: as above.
        let given = unsafe { options(given, "options") }?;
        let mut builder = Engine::builder(Arc::clone(&gpu.gpu));
        if given.side_cores != 0 {
            builder = builder.side_cores(given.side_cores);
        }
        if given.pin != 0 {
            builder = builder.pin_from(given.first_cpu);
        }
        if given.stall_ms != 0 {
            builder = builder.stall(Duration::from_millis(given.stall_ms.into()));
        }
        let engine = builder.start()?;
        place.give_handle(sidecore_engine { engine, retiring: Mutex::default() });
        Ok(())
    })
}

/// CPU time of side cores and supervisor so far, in ns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_engine_cpu_ns(engine: *const sidecore_engine) -> u64 {
    // SAFETY: as in `sidecore_engine_start`.
    let seconds = unsafe { borrow(engine, "engine") }.map_or(0.0, |e| e.engine.cpu_seconds());
    u64::try_from(Duration::from_secs_f64(seconds.max(0.0)).as_nanos()).unwrap_or(u64::MAX)
}

/// Ends the side cores. Rings that are still open are closed: what is in flight there ends with an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_engine_stop(engine: *mut sidecore_engine) {
    // SAFETY: as in `sidecore_engine_start`.
    swallow(|| unsafe { destroy(engine, "engine") });
}

/// Makes a storage usable in requests; `view` gets its sidecore::abi::SourceView, `id` what names it here
/// (it may be null).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_source_register(
    engine: *const sidecore_engine,
    storage: *const sidecore_storage,
    rights_bits: u32,
    view: *mut c_void,
    bytes: usize,
    id: *mut u32,
) -> c_int {
    guard(|| {
        // SAFETY: as in `sidecore_engine_start`.
        let engine = unsafe { borrow(engine, "engine") }?;
        // SAFETY: as in `sidecore_engine_start`.
        let storage = unsafe { borrow(storage, "storage") }?;
        let rights = rights(rights_bits)?;
        let source = engine.engine.register_source(Arc::clone(&storage.storage), rights)?;
        // SAFETY: as in `sidecore_engine_start`.
        let given = unsafe { give_view(&source.view(), view, bytes) };
        if let Err(failure) = given {
            drop(engine.engine.deregister_source(source.id()));
            return Err(failure);
        }
        // SAFETY: as in `sidecore_engine_start`; null is no place.
        if let Ok(place) = unsafe { place(id, "id") } {
            place.give(source.id().bits());
        }
        Ok(())
    })
}

/// Makes memory usable in requests; `view` gets its sidecore::abi::BufferView, `id` what names it here (it
/// may be null).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_buffer_register(
    engine: *const sidecore_engine,
    memory: *const sidecore_memory,
    rights_bits: u32,
    view: *mut c_void,
    bytes: usize,
    id: *mut u32,
) -> c_int {
    guard(|| {
        // SAFETY: as in `sidecore_engine_start`.
        let engine = unsafe { borrow(engine, "engine") }?;
        // SAFETY: as in `sidecore_engine_start`.
        let memory = unsafe { borrow(memory, "memory") }?;
        let rights = rights(rights_bits)?;
        let buffer = engine.engine.register_buffer(memory.device.clone(), rights)?;
        // SAFETY: as in `sidecore_engine_start`.
        let given = unsafe { give_view(&buffer.view(), view, bytes) };
        if let Err(failure) = given {
            drop(engine.engine.deregister_buffer(buffer.id()));
            return Err(failure);
        }
        // SAFETY: as in `sidecore_engine_start`; null is no place.
        if let Ok(place) = unsafe { place(id, "id") } {
            place.give(buffer.id().bits());
        }
        Ok(())
    })
}

/// Refuses new requests that name the source, and waits until no side core touches it any more, at most
/// `limit_ms`; after SIDECORE_TIMED_OUT the same call waits again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_source_deregister(
    engine: *const sidecore_engine,
    id: u32,
    limit_ms: u32,
) -> c_int {
    guard(|| {
        // SAFETY: as in `sidecore_engine_start`.
        unsafe { borrow(engine, "engine") }?.deregister(Kind::Source, id, limit_ms)
    })
}

/// The same for a buffer: after success its memory may be freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_buffer_deregister(
    engine: *const sidecore_engine,
    id: u32,
    limit_ms: u32,
) -> c_int {
    guard(|| {
        // SAFETY: as in `sidecore_engine_start`.
        unsafe { borrow(engine, "engine") }?.deregister(Kind::Buffer, id, limit_ms)
    })
}
