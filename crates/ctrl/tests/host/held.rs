//! Storage whose requests end only when the test says so.
#![allow(dead_code, reason = "each test uses its part")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use spec::Status;
use storage::{
    Completion, Counters, Geometry, Lent, MemoryStorage, Op, QueueOptions, Rejected, Request,
    Storage, StorageError, StorageQueue,
};

#[derive(Default)]
struct Desk {
    /// Taken and not released.
    held: Vec<Request>,
    /// To be completed by the next poll.
    released: Vec<Request>,
    cancelled: Vec<Request>,
    log: Vec<(Op, u64, u32)>,
    ignore_cancel: bool,
    quiesced: u32,
    depth: usize,
}

/// The storage, and the test's handle on it.
#[derive(Clone)]
pub struct Held {
    inner: Arc<MemoryStorage>,
    desk: Arc<Mutex<Desk>>,
}

impl Held {
    pub fn new(inner: MemoryStorage) -> Self {
        Self { inner: Arc::new(inner), desk: Arc::default() }
    }

    pub fn held(&self) -> usize {
        self.desk.lock().expect("no panic").held.len()
    }

    /// Lets the oldest `count` requests end well.
    pub fn release(&self, count: usize) {
        let mut desk = self.desk.lock().expect("no panic");
        let count = count.min(desk.held.len());
        let released: Vec<Request> = desk.held.drain(..count).collect();
        desk.released.extend(released);
    }

    /// Lets the youngest request end well.
    pub fn release_last(&self) {
        let mut desk = self.desk.lock().expect("no panic");
        let last = desk.held.pop();
        desk.released.extend(last);
    }

    pub fn ignore_cancel(&self) {
        self.desk.lock().expect("no panic").ignore_cancel = true;
    }

    pub fn quiesced(&self) -> u32 {
        self.desk.lock().expect("no panic").quiesced
    }

    /// Everything that was asked for so far.
    pub fn log(&self) -> Vec<(Op, u64, u32)> {
        self.desk.lock().expect("no panic").log.clone()
    }
}

impl Storage for Held {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn StorageQueue>, StorageError> {
        self.desk.lock().expect("no panic").depth = options.depth as usize;
        let inner = self.inner.open_queue(options)?;
        Ok(Box::new(HeldQueue { inner, desk: Arc::clone(&self.desk) }))
    }

    fn explain(&self) -> String {
        "held by a test".to_owned()
    }
}

struct HeldQueue {
    inner: Box<dyn StorageQueue>,
    desk: Arc<Mutex<Desk>>,
}

impl HeldQueue {
    fn aborted(request: &Request) -> Completion {
        Completion { token: request.token, status: Status::ABORT_REQUESTED, bytes: 0, errno: 0 }
    }
}

impl StorageQueue for HeldQueue {
    fn try_submit(&mut self, request: Lent<'_>) -> Result<(), Rejected> {
        let mut desk = self.desk.lock().expect("no panic");
        if desk.held.len() + desk.released.len() + desk.cancelled.len() >= desk.depth {
            return Err(Rejected::QueueFull);
        }
        let mut recent = desk.held.iter().rev().take(64);
        assert!(recent.all(|other| other.token != request.token), "a unique token");
        desk.log.push((request.op, request.offset, request.bytes));
        desk.held.push(request.keep());
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        let mut desk = self.desk.lock().expect("no panic");
        for request in desk.released.drain(..) {
            assert!(
                self.inner.try_submit(request.lend()).is_ok(),
                "the test asks for what can be done"
            );
        }
        completions.extend(desk.cancelled.drain(..).map(|r| Self::aborted(&r)));
        self.inner.poll(completions);
    }

    fn wait_for_completion(&mut self, _limit: Duration) {}

    fn cancel(&mut self, token: u64) {
        let mut desk = self.desk.lock().expect("no panic");
        if desk.ignore_cancel {
            return;
        }
        if let Some(at) = desk.held.iter().position(|r| r.token == token) {
            let request = desk.held.remove(at);
            desk.cancelled.push(request);
        }
    }

    fn quiesce(&mut self, completions: &mut Vec<Completion>) {
        let mut desk = self.desk.lock().expect("no panic");
        desk.quiesced += 1;
        let all: Vec<Request> = desk.held.drain(..).collect();
        completions.extend(all.iter().map(Self::aborted));
        drop(desk);
        self.poll(completions);
    }

    fn in_flight(&self) -> u32 {
        let desk = self.desk.lock().expect("no panic");
        u32::try_from(desk.held.len() + desk.released.len() + desk.cancelled.len()).expect("few")
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }
}
