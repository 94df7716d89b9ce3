//! Kernels that do not end: what stands where, and an end of the case within a bound all the same.

use std::cell::RefCell;
use std::fmt::Write;
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use abi::queue::{CID_RETIRED, CID_TAKEN, QUEUE_CLOSED, QueuePairView, QueueState};
use gpu::{Gpu, Launch};
use mem::Region;

use crate::bed;

/// How long lanes may take to notice that their queues are closed.
const CLOSING: Duration = Duration::from_secs(2);
/// Entries, and command ids, that are listed.
const LISTED: u64 = 16;

thread_local! {
    /// Who is told of a kernel that does not end even so.
    static WATCHER: RefCell<Option<Sender<String>>> = const { RefCell::new(None) };
}

/// Makes this thread's stuck kernels known to the receiver, which hears nothing more once the thread is
/// over.
pub(crate) fn watch(watcher: Sender<String>) {
    WATCHER.with(|slot| *slot.borrow_mut() = Some(watcher));
}

/// A channel for [`watch`].
pub(crate) fn watching() -> (Sender<String>, Receiver<String>) {
    channel()
}

/// Waits for a kernel. Where it takes too long: `standing` says what stands where, `close` is what
/// lanes should end by.
///
/// # Panics
/// Where it took too long. Where it does not end by `close` either, memory that it uses must not be
/// given back: then a watched thread stands still for good.
pub fn finish(
    gpu: &Arc<dyn Gpu>,
    launch: &mut dyn Launch,
    name: &str,
    standing: impl FnOnce() -> String,
    close: impl FnOnce(),
) {
    let limit = bed::limit(gpu);
    if let Some(ended) = launch.wait(limit) {
        return ended.unwrap();
    }
    let why = format!("{name} hangs: it did not end within {limit:?}\n{}", standing());
    close();
    let ended = launch.wait(CLOSING).is_some();
    assert!(!ended, "{why}\nit ended by a close");
    launch.abort();
    let why = format!("{why}\nit did not end by a close either");
    let told = |to: &Sender<String>| to.send(why.clone()).is_ok();
    if WATCHER.with(|watcher| watcher.borrow().as_ref().is_some_and(told)) {
        loop {
            std::thread::park();
        }
    }
    panic!("{why}");
}

/// Sets a flag when it is dropped.
pub(crate) struct Until<'a>(pub &'a AtomicBool);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A queue pair that the host looks at while lanes may be at it: all values are of moments of their own.
pub struct Standing<'a> {
    /// What lanes are told.
    pub view: &'a QueuePairView,
    /// State, marks, command ids and completion words, as the CPU sees them.
    pub device: &'a Region,
    /// The completion entries, and where they begin.
    pub cq: (&'a Region, usize),
}

impl Standing<'_> {
    fn word(&self, address: u64, index: u64) -> u64 {
        let at = usize::try_from(address - self.view.state + 8 * index).expect("an offset");
        self.device.u64_at(at).load(Ordering::Relaxed)
    }

    /// Closes the pair for its lanes.
    pub fn close(&self) {
        let at = offset_of!(QueueState, state);
        let epoch = self.device.u64_at(at).load(Ordering::Relaxed) >> 32 << 32;
        self.device.u64_at(at).store(epoch | u64::from(QUEUE_CLOSED), Ordering::Relaxed);
        mem::fence_payload();
    }

    /// Positions, locks, entries with their marks, and command ids in use, in words.
    pub fn tell(&self) -> String {
        let view = self.view;
        let s = |offset: usize| self.word(view.state, offset as u64 / 8);
        let mut text = String::new();
        macro_rules! fields {
            ($($name:ident)*) => {$(
                let _ = write!(text, "{} {:#x}, ", stringify!($name), s(offset_of!(QueueState, $name)));
            )*};
        }
        fields!(state in_ticket tail sq_head cq_head tail_lock head_lock inside cid_next);
        fields!(sq_doorbells cq_doorbells adopted returned fence_wanted fence_done fence_lock);
        fields!(drained strays);
        let (depth, head) = (1u64 << view.depth_log2, s(offset_of!(QueueState, cq_head)));
        for position in (head..).take(usize::try_from(depth.min(LISTED)).expect("16 at most")) {
            let slot = position % depth;
            let at = self.cq.1 + usize::try_from(slot).expect("a slot") * 16 + 8;
            let answer = self.cq.0.u64_at(at).load(Ordering::Relaxed);
            let new = (answer >> 48 & 1 == 1) == ((position >> view.depth_log2) & 1 == 0);
            let taken = self.word(view.head_marks, slot) == position;
            let cid = answer >> 32 & 0xffff;
            let _ = write!(text, "\nCQ {position:#x}: new {new}, taken {taken}, id {cid}");
        }
        let tail = s(offset_of!(QueueState, tail));
        for position in tail..s(offset_of!(QueueState, in_ticket)).min(tail + LISTED) {
            let marked = self.word(view.tail_marks, position % depth) == position;
            let _ = write!(text, "\nSQ {position:#x}: marked {marked}");
        }
        let mut counts = [0u32; 2];
        for cid in 0..1u64 << view.cid_log2 {
            let (entry, done) = (self.word(view.cids, cid), self.word(view.completions, cid));
            let kinds = [CID_TAKEN, CID_RETIRED];
            let Some(kind) = kinds.iter().position(|kind| u64::from(*kind) == entry & 0xff) else {
                continue;
            };
            counts[kind] += 1;
            if u64::from(counts[kind]) <= LISTED {
                let _ = write!(text, "\nid {cid}: {entry:#x}, completion {done:#x}");
            }
        }
        let _ = write!(text, "\n{} ids taken, {} retired", counts[0], counts[1]);
        text
    }
}
