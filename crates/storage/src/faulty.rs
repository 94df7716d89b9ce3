//! A wrapper that makes any storage misbehave by a script.
//!
//! The faults strike between the inner queue and its user, so that payload and completions are as
//! wrong as a broken drive would make them, while the promises of [`StorageQueue`] about memory
//! hold: whatever the script, after a request was cancelled *and* answered, or after `quiesce`,
//! nothing touches its memory any more. In particular:
//!
//! * `lost` and `stuck` requests stay in flight until `cancel`, `quiesce` or a reset ends them; a
//!   lost one whose inner request is still running is answered when that has ended.
//! * `late` counts from the inner completion, by the clock given to [`Faulty::new`]; there is no
//!   other clock here, so simulated time works.
//! * `duplicate` sends the second completion with the next `poll`, when the token may be in use again.
//! * `reset` strikes all queues of the storage, each in its next `poll`.
//! * `flip` never changes the caller's memory on a write: a copy is flipped.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mem::{MemoryKind, Region};
use spec::Status;

use crate::admit::{admit, status};
use crate::faults::{Action, FaultScript, Injector, IoShape};
use crate::queue::{
    Completion, Counters, Geometry, Lent, Op, QueueOptions, Rejected, Storage, StorageError,
    StorageQueue,
};

/// A monotonic clock in nanoseconds, real or simulated.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Storage that misbehaves by a script.
pub struct Faulty {
    inner: Arc<dyn Storage>,
    injector: Arc<Injector>,
    clock: Clock,
    /// Counts resets; each queue compares with what it has seen.
    resets: Arc<AtomicU64>,
    script: String,
}

impl Faulty {
    /// Wraps `inner`. `clock` is asked only where the script has late completions.
    pub fn new(inner: Arc<dyn Storage>, script: &FaultScript, clock: Clock) -> Self {
        let injector = Arc::new(Injector::new(script, inner.geometry().block_bytes));
        Self { inner, injector, clock, resets: Arc::default(), script: script.to_string() }
    }

    /// The injector, whose counters say what was injected so far.
    pub fn injector(&self) -> &Arc<Injector> {
        &self.injector
    }
}

impl Storage for Faulty {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn StorageQueue>, StorageError> {
        Ok(Box::new(FaultyQueue {
            inner: self.inner.open_queue(options)?,
            geometry: self.inner.geometry(),
            injector: Arc::clone(&self.injector),
            clock: Arc::clone(&self.clock),
            resets: Arc::clone(&self.resets),
            resets_seen: self.resets.load(Ordering::Acquire),
            depth: options.depth,
            in_flight: 0,
            stuck: false,
            fates: HashMap::new(),
            held: Vec::new(),
            ready: Vec::new(),
            again: Vec::new(),
            decided: None,
            scratch: Vec::new(),
        }))
    }

    fn explain(&self) -> String {
        let inner = self.inner.explain();
        if self.script.is_empty() { inner } else { format!("{inner}; faults: {}", self.script) }
    }
}

/// What awaits a request that the inner queue is carrying out.
enum Fate {
    Duplicate,
    Flip { memory: Region, memory_offset: usize, byte: u32, mask: u8 },
    Late { delay_ns: u64 },
    Lost,
    Replaced(Status),
}

/// An accepted request of which nothing runs any more, and which is not answered yet.
struct Held {
    completion: Completion,
    /// When to answer; `None`: not before somebody asks for its end.
    due_ns: Option<u64>,
}

struct FaultyQueue {
    inner: Box<dyn StorageQueue>,
    geometry: Geometry,
    injector: Arc<Injector>,
    clock: Clock,
    resets: Arc<AtomicU64>,
    resets_seen: u64,
    depth: u32,
    /// Accepted and not yet answered, wherever they are.
    in_flight: u32,
    stuck: bool,
    /// By token, for requests that the inner queue has.
    fates: HashMap<u64, Fate>,
    held: Vec<Held>,
    /// First answers to be given by the next `poll`.
    ready: Vec<Completion>,
    /// Second answers to be given by the next `poll`.
    again: Vec<Completion>,
    /// A decision whose request the inner queue had no room for.
    decided: Option<(IoShape, Option<Action>)>,
    scratch: Vec<Completion>,
}

fn ended(token: u64, status: Status) -> Completion {
    Completion { token, status, bytes: 0, errno: 0 }
}

impl FaultyQueue {
    fn decide(&mut self, shape: IoShape) -> Option<Action> {
        match self.decided.take() {
            Some((known, action)) if known == shape => action,
            _ => self.injector.decide(&shape),
        }
    }

    /// Hands a request to the inner queue, under a fate.
    fn pass(&mut self, request: Lent<'_>, fate: Option<Fate>) -> Result<(), Rejected> {
        let token = request.token;
        self.inner.try_submit(request)?;
        self.in_flight += 1;
        if let Some(fate) = fate {
            self.fates.insert(token, fate);
        }
        Ok(())
    }

    fn hold(&mut self, token: u64) {
        let completion = ended(token, status::ABORT_REQUESTED);
        self.held.push(Held { completion, due_ns: None });
        self.in_flight += 1;
    }

    fn answer(&mut self, token: u64, status: Status) {
        self.ready.push(ended(token, status));
        self.in_flight += 1;
    }

    fn apply(&mut self, request: Lent<'_>, action: Action) -> Result<(), Rejected> {
        let token = request.token;
        match action {
            Action::Duplicate => self.pass(request, Some(Fate::Duplicate))?,
            Action::Error(status) => self.answer(token, status),
            Action::Flip { byte, mask } => return self.flip(request, byte, mask),
            Action::Late { delay_ns } => self.pass(request, Some(Fate::Late { delay_ns }))?,
            Action::Lost => self.pass(request, Some(Fate::Lost))?,
            Action::Reset => {
                // Pairs with the Acquire in `meet_reset`: who sees the count resets.
                self.resets.fetch_add(1, Ordering::Release);
                self.hold(token);
            }
            Action::Stuck => {
                self.stuck = true;
                self.hold(token);
            }
            Action::Torn { bytes: 0, status } => self.answer(token, status),
            Action::Torn { bytes, status } => {
                self.pass(Lent { bytes, ..request }, Some(Fate::Replaced(status)))?;
            }
        }
        Ok(())
    }

    fn flip(&mut self, request: Lent<'_>, byte: u32, mask: u8) -> Result<(), Rejected> {
        let Lent { memory, memory_offset, .. } = request;
        if request.op == Op::Read {
            let memory = memory.clone();
            let fate = Fate::Flip { memory, memory_offset, byte, mask };
            return self.pass(request, Some(fate));
        }
        let bytes = request.bytes as usize;
        let Ok(copy) = Region::map_anonymous(bytes, MemoryKind::Host) else {
            return Err(Rejected::Invalid(status::INTERNAL_ERROR));
        };
        copy.copy_from(0, memory, memory_offset, bytes);
        flip_bits(&copy, byte as usize, mask);
        self.pass(Lent { memory: &copy, memory_offset: 0, ..request }, None)
    }

    /// Takes an inner completion to its fate.
    fn finish(&mut self, completion: Completion) {
        match self.fates.remove(&completion.token) {
            None => self.ready.push(completion),
            Some(Fate::Duplicate) => {
                self.ready.push(completion);
                self.again.push(completion);
            }
            Some(Fate::Flip { memory, memory_offset, byte, mask }) => {
                if completion.bytes > 0 {
                    let byte = (byte % completion.bytes) as usize;
                    flip_bits(&memory, memory_offset + byte, mask);
                }
                self.ready.push(completion);
            }
            Some(Fate::Late { delay_ns }) => {
                let due_ns = Some((self.clock)().saturating_add(delay_ns));
                self.held.push(Held { completion, due_ns });
            }
            Some(Fate::Lost) => self.held.push(Held { completion, due_ns: None }),
            Some(Fate::Replaced(status)) => {
                // What was cancelled before it began is not an injected error.
                let status =
                    if completion.status.is_success() { status } else { completion.status };
                self.ready.push(Completion { status, bytes: 0, ..completion });
            }
        }
    }

    /// Ends everything in flight, what was neither done nor answered with `status`.
    fn end_all(&mut self, status: Status) {
        let mut found = std::mem::take(&mut self.scratch);
        self.inner.quiesce(&mut found);
        for completion in found.drain(..) {
            self.finish(completion);
        }
        self.scratch = found;
        self.ready.extend(self.held.drain(..).map(|h| ended(h.completion.token, status)));
        self.stuck = false;
    }

    fn meet_reset(&mut self) {
        // Pairs with the Release in `apply`.
        let resets = self.resets.load(Ordering::Acquire);
        if resets != self.resets_seen {
            self.resets_seen = resets;
            let before = self.ready.len();
            self.end_all(status::ABORTED_QUEUE_DELETED);
            let ended = self.ready[before..].iter().filter(|c| !c.status.is_success());
            self.injector.note_ended_by_reset(ended.count() as u64);
        }
    }

    fn release_due(&mut self) {
        if self.held.iter().all(|h| h.due_ns.is_none()) {
            return;
        }
        let now_ns = (self.clock)();
        let due = |h: &mut Held| h.due_ns.is_some_and(|due_ns| due_ns <= now_ns);
        self.ready.extend(self.held.extract_if(.., due).map(|h| h.completion));
    }

    fn deliver(&mut self, completions: &mut Vec<Completion>) {
        self.in_flight -= u32::try_from(self.ready.len()).expect("at most the depth");
        completions.append(&mut self.ready);
    }
}

fn flip_bits(memory: &Region, offset: usize, mask: u8) {
    let mut byte = [0];
    memory.read_bytes(offset, &mut byte);
    memory.write_bytes(offset, &[byte[0] ^ mask]);
}

impl StorageQueue for FaultyQueue {
    fn try_submit(&mut self, request: Lent<'_>) -> Result<(), Rejected> {
        if self.in_flight >= self.depth {
            return Err(Rejected::QueueFull);
        }
        if let Err(status) = admit(&self.geometry, &request) {
            return Err(Rejected::Invalid(status));
        }
        if self.stuck {
            self.hold(request.token);
            return Ok(());
        }
        let bytes = if request.op == Op::Flush { 0 } else { request.bytes };
        let shape = IoShape { op: request.op, offset: request.offset, bytes };
        let action = self.decide(shape);
        let taken = match action {
            None => self.pass(request, None),
            Some(action) => self.apply(request, action),
        };
        if taken.is_err() {
            self.decided = Some((shape, action));
        }
        taken
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.again);
        self.meet_reset();
        let mut found = std::mem::take(&mut self.scratch);
        self.inner.poll(&mut found);
        for completion in found.drain(..) {
            self.finish(completion);
        }
        self.scratch = found;
        self.release_due();
        self.deliver(completions);
    }

    fn wait_for_completion(&mut self, limit: Duration) {
        let reset = self.resets.load(Ordering::Acquire) != self.resets_seen;
        if reset || !self.ready.is_empty() || !self.again.is_empty() {
            return;
        }
        let due_ns = self.held.iter().filter_map(|h| h.due_ns).min();
        let limit = due_ns.map_or(limit, |due_ns| {
            limit.min(Duration::from_nanos(due_ns.saturating_sub((self.clock)())))
        });
        if self.inner.in_flight() > 0 {
            self.inner.wait_for_completion(limit);
        } else if !self.held.is_empty() {
            std::thread::sleep(limit);
        }
    }

    fn cancel(&mut self, token: u64) {
        if let Some(at) = self.held.iter().position(|h| h.completion.token == token) {
            self.held.swap_remove(at);
            self.ready.push(ended(token, status::ABORT_REQUESTED));
            return;
        }
        if let Some(fate @ (Fate::Lost | Fate::Late { .. })) = self.fates.get_mut(&token) {
            // Answered when the inner request has ended: until then memory may be touched.
            *fate = Fate::Replaced(status::ABORT_REQUESTED);
        }
        self.inner.cancel(token);
    }

    fn quiesce(&mut self, completions: &mut Vec<Completion>) {
        self.end_all(status::ABORT_REQUESTED);
        completions.append(&mut self.again);
        self.deliver(completions);
    }

    fn reach(&mut self, window: &Region) -> bool {
        self.inner.reach(window)
    }

    fn forget(&mut self, window: &Region) {
        self.inner.forget(window);
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }
}

#[cfg(test)]
mod tests;
