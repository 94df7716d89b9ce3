//! A queue on a file over a bounded pool of threads, for where io_uring is refused.
//!
//! A queue hands its requests to the pool in batches, one lock a batch; a thread carries one request
//! out from beginning to end and leaves the completion with the queue. A request that no thread has
//! begun can be taken back; one that a thread is working on ends by itself.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::blocking;
use super::residency::Map;
use super::target::{Route, Target};
use crate::admit::status;
use crate::queue::{Completion, Counters, Lent, Op, QueueOptions, Rejected, Request, StorageQueue};

/// Longest that `quiesce` waits for what a thread is working on.
const QUIESCE_LIMIT: Duration = Duration::from_secs(30);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Job {
    queue: Arc<Shared>,
    request: Request,
    route: Route,
}

#[derive(Default)]
struct Work {
    jobs: VecDeque<Job>,
    closing: bool,
}

#[derive(Default)]
struct Bench {
    work: Mutex<Work>,
    arrived: Condvar,
}

/// Threads that wait for requests; they end with the last owner of the pool.
pub(super) struct Pool {
    bench: Arc<Bench>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    pub(super) fn start(threads: usize) -> std::io::Result<Arc<Self>> {
        let mut pool = Self { bench: Arc::default(), threads: Vec::new() };
        for index in 0..threads {
            let bench = Arc::clone(&pool.bench);
            let builder = std::thread::Builder::new().name(format!("sidecore-io-{index}"));
            pool.threads.push(builder.spawn(move || serve(&bench))?);
        }
        Ok(Arc::new(pool))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.bench.work).closing = true;
        self.bench.arrived.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so already.
            let _ = thread.join();
        }
    }
}

fn serve(bench: &Bench) {
    loop {
        let mut work = lock(&bench.work);
        let job = loop {
            if let Some(job) = work.jobs.pop_front() {
                break job;
            }
            if work.closing {
                return;
            }
            work = bench.arrived.wait(work).unwrap_or_else(PoisonError::into_inner);
        };
        drop(work);
        let mut syscalls = 0;
        let Job { queue, request, route } = job;
        let completion = blocking::execute(&queue.target, &request.lend(), route, &mut syscalls);
        let mut results = lock(&queue.results);
        results.count(&request, &completion, syscalls);
        results.done.push(completion);
        // The memory is let go before anybody can see the end of the request.
        drop(request);
        drop(results);
        queue.ended.notify_all();
    }
}

#[derive(Default)]
struct Results {
    done: Vec<Completion>,
    counters: Counters,
}

impl Results {
    fn count(&mut self, request: &Request, completion: &Completion, syscalls: u64) {
        self.counters.ios_at_device += 1;
        self.counters.syscalls += syscalls;
        match request.op {
            Op::Read => self.counters.bytes_read += u64::from(completion.bytes),
            Op::Write | Op::WriteZeroes => {
                self.counters.bytes_written += u64::from(completion.bytes);
            }
            Op::Flush => {}
        }
    }
}

/// What a queue shares with the threads that work for it.
struct Shared {
    target: Arc<Target>,
    results: Mutex<Results>,
    ended: Condvar,
}

pub(super) struct PoolQueue {
    pool: Arc<Pool>,
    shared: Arc<Shared>,
    map: Map,
    depth: u32,
    /// Accepted, and not yet handed to the pool.
    buffered: Vec<Job>,
    ready: Vec<Completion>,
    in_flight: u32,
    probes: u64,
    polled: u64,
}

impl PoolQueue {
    pub(super) fn new(pool: Arc<Pool>, target: Arc<Target>, options: &QueueOptions) -> Self {
        let map = Map::new(target.bytes());
        let results = Mutex::default();
        let shared = Arc::new(Shared { target, results, ended: Condvar::new() });
        let depth = options.depth;
        let (buffered, ready) = (Vec::new(), Vec::new());
        Self { pool, shared, map, depth, buffered, ready, in_flight: 0, probes: 0, polled: 0 }
    }

    fn hand_over(&mut self) {
        if self.buffered.is_empty() {
            return;
        }
        lock(&self.pool.bench.work).jobs.extend(self.buffered.drain(..));
        self.pool.bench.arrived.notify_all();
    }

    /// Takes back what no thread has begun, where `wanted` says so.
    fn take_back(&mut self, wanted: impl Fn(&Request) -> bool) {
        let mut jobs: Vec<Job> = self.buffered.extract_if(.., |j| wanted(&j.request)).collect();
        let mut work = lock(&self.pool.bench.work);
        let ours = |j: &Job| Arc::ptr_eq(&j.queue, &self.shared) && wanted(&j.request);
        let (taken, left) = work.jobs.drain(..).partition(|j| ours(j));
        work.jobs = left;
        drop(work);
        let taken: VecDeque<Job> = taken;
        jobs.extend(taken);
        let aborted = jobs.iter().map(|job| aborted(job.request.token));
        self.ready.extend(aborted);
    }

    fn wait_for_end(&self, limit: Duration) {
        let results = lock(&self.shared.results);
        let waited = self.shared.ended.wait_timeout_while(results, limit, |r| r.done.is_empty());
        drop(waited);
    }

    fn collect(&mut self) {
        self.ready.append(&mut lock(&self.shared.results).done);
    }

    fn deliver(&mut self, completions: &mut Vec<Completion>) {
        let count = u32::try_from(self.ready.len()).expect("at most the depth");
        self.in_flight -= count;
        self.polled += u64::from(count);
        completions.append(&mut self.ready);
    }
}

fn aborted(token: u64) -> Completion {
    Completion { token, status: status::ABORT_REQUESTED, bytes: 0, errno: 0 }
}

impl StorageQueue for PoolQueue {
    fn try_submit(&mut self, request: Lent<'_>) -> Result<(), Rejected> {
        if self.in_flight >= self.depth {
            return Err(Rejected::QueueFull);
        }
        let target = &self.shared.target;
        if let Err(status) = target.admit(&request) {
            return Err(Rejected::Invalid(status));
        }
        let route = target.choose(&request, &mut self.map, &mut self.probes);
        self.buffered.push(Job { queue: Arc::clone(&self.shared), request: request.keep(), route });
        self.in_flight += 1;
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.hand_over();
        self.collect();
        self.deliver(completions);
    }

    /// Returns at once where nothing is in flight.
    fn wait_for_completion(&mut self, limit: Duration) {
        self.hand_over();
        if self.in_flight == 0 || !self.ready.is_empty() {
            return;
        }
        self.wait_for_end(limit);
    }

    fn cancel(&mut self, token: u64) {
        self.take_back(|request| request.token == token);
    }

    /// What a thread has begun is waited for, up to 30 seconds; its memory stays alive with it.
    fn quiesce(&mut self, completions: &mut Vec<Completion>) {
        self.take_back(|_| true);
        let begin = Instant::now();
        self.collect();
        while self.ready.len() < self.in_flight as usize {
            let left = QUIESCE_LIMIT.saturating_sub(begin.elapsed());
            if left.is_zero() {
                break;
            }
            self.wait_for_end(left);
            self.collect();
        }
        self.deliver(completions);
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn counters(&self) -> Counters {
        let counters = lock(&self.shared.results).counters;
        Counters {
            syscalls: counters.syscalls + self.probes,
            completions_polled: self.polled,
            ..counters
        }
    }
}

impl Drop for PoolQueue {
    fn drop(&mut self) {
        self.take_back(|_| true);
    }
}
