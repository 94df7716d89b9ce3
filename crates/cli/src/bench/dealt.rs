//! Several controllers over the same blocks, as one storage: one drive that has several cores inside.
//!
//! A queue has a queue pair at each of a few controllers and deals its requests to them in turn, since what
//! one thread of a software drive moves is no limit that a drive has.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mem::Region;
use storage::{
    Completion, Counters, Geometry, Lent, NvmeStorage, QueueOptions, Rejected, Storage,
    StorageError, StorageQueue,
};

/// Controllers of one queue, at most.
const CONTROLLERS: usize = 4;
/// Requests in a row to one controller, so that it has several a doorbell.
const RUN: u32 = 4;

/// The drive.
pub struct Dealt {
    controllers: Vec<NvmeStorage>,
    next: AtomicUsize,
}

impl Dealt {
    /// One drive of these; at least one.
    pub fn new(controllers: Vec<NvmeStorage>) -> Self {
        Self { controllers, next: AtomicUsize::new(0) }
    }
}

impl Storage for Dealt {
    fn geometry(&self) -> Geometry {
        self.controllers[0].geometry()
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn StorageQueue>, StorageError> {
        let count = self.controllers.len().min(CONTROLLERS);
        let first = self.next.fetch_add(count, Ordering::Relaxed);
        let controllers = self.controllers.iter().cycle().skip(first % self.controllers.len());
        let queues = controllers.take(count).map(|controller| controller.open_queue(options));
        let queues = queues.collect::<Result<_, _>>()?;
        let depth = options.depth;
        let ready = Vec::with_capacity(depth as usize);
        Ok(Box::new(DealtQueue { queues, depth, in_flight: 0, turn: 0, run: 0, ready }))
    }

    fn explain(&self) -> String {
        format!(
            "{} controllers over the same blocks, requests of a queue dealt to {}: {}",
            self.controllers.len(),
            self.controllers.len().min(CONTROLLERS),
            self.controllers[0].explain()
        )
    }
}

struct DealtQueue {
    queues: Vec<Box<dyn StorageQueue>>,
    depth: u32,
    in_flight: u32,
    /// Whose turn it is, and how many requests it has had.
    turn: usize,
    run: u32,
    /// What has ended and nobody has taken.
    ready: Vec<Completion>,
}

impl DealtQueue {
    fn turn(&mut self) {
        self.turn = (self.turn + 1) % self.queues.len();
        self.run = 0;
    }

    /// Takes what has ended.
    fn gather(&mut self) {
        for queue in &mut self.queues {
            queue.poll(&mut self.ready);
        }
    }

    fn deliver(&mut self, completions: &mut Vec<Completion>) {
        let ended = u32::try_from(self.ready.len()).expect("at most the depth");
        self.in_flight -= ended;
        completions.append(&mut self.ready);
    }
}

impl StorageQueue for DealtQueue {
    fn try_submit(&mut self, request: Lent<'_>) -> Result<(), Rejected> {
        if self.in_flight >= self.depth {
            return Err(Rejected::QueueFull);
        }
        // All have room for as many as may be in flight, unless one is recovering.
        let mut taken = Err(Rejected::QueueFull);
        for _ in 0..self.queues.len() {
            taken = self.queues[self.turn].try_submit(request);
            if taken != Err(Rejected::QueueFull) {
                break;
            }
            self.turn();
        }
        if taken.is_ok() {
            self.in_flight += 1;
            self.run += 1;
            if self.run == RUN {
                self.turn();
            }
        }
        taken
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.gather();
        self.deliver(completions);
    }

    fn wait_for_completion(&mut self, limit: Duration) {
        let until = Instant::now() + limit;
        self.gather();
        while self.ready.is_empty() && Instant::now() < until {
            std::thread::yield_now();
            self.gather();
        }
    }

    fn cancel(&mut self, token: u64) {
        for queue in &mut self.queues {
            queue.cancel(token);
        }
    }

    fn quiesce(&mut self, completions: &mut Vec<Completion>) {
        for queue in &mut self.queues {
            queue.quiesce(&mut self.ready);
        }
        self.deliver(completions);
    }

    fn reach(&mut self, window: &Region) -> bool {
        let all = self.queues.iter_mut().all(|queue| queue.reach(window));
        if !all {
            self.forget(window);
        }
        all
    }

    fn forget(&mut self, window: &Region) {
        for queue in &mut self.queues {
            queue.forget(window);
        }
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn counters(&self) -> Counters {
        self.queues.iter().map(|queue| queue.counters()).fold(Counters::default(), |sum, more| {
            Counters {
                ios_at_device: sum.ios_at_device + more.ios_at_device,
                syscalls: sum.syscalls + more.syscalls,
                bytes_read: sum.bytes_read + more.bytes_read,
                bytes_written: sum.bytes_written + more.bytes_written,
                doorbells: sum.doorbells + more.doorbells,
                completions_polled: sum.completions_polled + more.completions_polled,
            }
        })
    }
}
