//! A path whose requests come from CPU threads: workers over the queues of one storage.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use abi::bench::BenchResult;
use anyhow::{Context, Result, bail, ensure};
use gpu::Gpu;
use mem::{MemoryKind, Region};
use storage::{Counters, QueueOptions, Storage};

use crate::args::RouteName;
use crate::bench::copier::{Copier, Current};
use crate::bench::round::{Bill, Description, Destination, Round, RoundOutcome, Runner};
use crate::bench::worker::{Done, Job, Transport, Worker, WorkerOptions};

/// Staging that a queue has at least, as far as that is 2 to 32 I/Os.
const STAGING_BYTES: usize = 4 << 20;

/// How a path of CPU threads is opened.
pub struct QueueRunnerOptions {
    /// Where the data is.
    pub storage: Arc<dyn Storage>,
    /// The GPU, unless the payload stays in host memory.
    pub gpu: Option<Arc<dyn Gpu>>,
    /// How the payload reaches the GPU; ignored for host memory.
    pub route: RouteName,
    /// Threads, each with a queue.
    pub queues: u32,
    /// I/Os in flight a queue.
    pub depth: u32,
    /// Largest I/O.
    pub io_bytes: u32,
    /// Bytes of destination.
    pub destination_bytes: usize,
    /// After this an I/O without an answer ends as an error.
    pub limit: Duration,
    /// Most pinned memory that staging may take.
    pub pinned_max: u64,
    /// What holds the data, for the row.
    pub drive: String,
    /// CPU seconds of the emulated drive so far, where there is one.
    pub device_cpu_seconds: Box<dyn Fn() -> f64>,
    /// Bytes of request that the submitter writes an I/O: an SQE, a command.
    pub request_bytes: u64,
}

struct Thread {
    jobs: Option<Sender<Job>>,
    done: Receiver<Done>,
    handle: Option<JoinHandle<()>>,
    counters: Counters,
}

/// CPU threads over one storage.
pub struct QueueRunner {
    threads: Vec<Thread>,
    copier: Option<Copier>,
    destination: Destination,
    options: QueueRunnerOptions,
    route: &'static str,
    bill: Bill,
}

impl QueueRunner {
    /// Opens the queues and starts the threads.
    ///
    /// # Errors
    /// No memory, no queue, no thread; a route that this path does not have.
    pub fn open(options: QueueRunnerOptions) -> Result<Self> {
        let destination = match &options.gpu {
            Some(gpu) => Destination::device(gpu, options.destination_bytes)?,
            None => Destination::host(options.destination_bytes)?,
        };
        let (route, copier) = match (&destination, options.route) {
            (Destination::Host(_), _) => ("host", None),
            (Destination::Device(device), RouteName::Auto | RouteName::Bounce) => {
                let gpu = options.gpu.clone().context("device memory has its GPU")?;
                let copier = Copier::start(gpu, device.memory.clone()).context("a thread")?;
                ("bounce", Some(copier))
            }
            (Destination::Device(_), RouteName::Window) => ("window", None),
            (Destination::Device(_), RouteName::Direct) => ("direct", None),
            (_, RouteName::Pull | RouteName::Push) => {
                bail!("route {} needs GPU lanes: only path ring has it", options.route.name())
            }
        };
        let mut runner = Self {
            threads: Vec::new(),
            copier,
            destination,
            options,
            route,
            bill: Bill::default(),
        };
        for index in 0..runner.options.queues {
            let thread = runner.start_thread(index)?;
            runner.threads.push(thread);
        }
        Ok(runner)
    }

    fn slots(&self) -> usize {
        match self.route {
            "bounce" => {
                let few = STAGING_BYTES / self.options.io_bytes as usize;
                (self.options.depth as usize * 2).max(few.clamp(2, 32))
            }
            _ => self.options.depth as usize,
        }
    }

    fn start_thread(&self, index: u32) -> Result<Thread> {
        let o = &self.options;
        let (transport, registered) = self.transport()?;
        let options = WorkerOptions {
            workers: o.queues as usize,
            depth: o.depth as usize,
            slots: self.slots(),
            limit: o.limit,
        };
        let storage = Arc::clone(&o.storage);
        let how = QueueOptions { depth: o.depth, registered };
        let (jobs, inbox) = channel::<Job>();
        let (outbox, done) = channel();
        let (opened, result) = channel();
        let handle = std::thread::Builder::new()
            .name(format!("bench-{index}"))
            .spawn(move || {
                // A queue belongs to the thread that opens it.
                let queue = match storage.open_queue(&how) {
                    Ok(queue) => queue,
                    Err(error) => return drop(opened.send(Err(error))),
                };
                let mut worker = Worker::new(queue, transport, options);
                if opened.send(Ok(())).is_err() {
                    return;
                }
                while let Ok(job) = inbox.recv() {
                    if outbox.send(worker.run(&job)).is_err() {
                        break;
                    }
                }
            })
            .context("starting a thread")?;
        result.recv().context("a thread of the path panicked")??;
        Ok(Thread { jobs: Some(jobs), done, handle: Some(handle), counters: Counters::default() })
    }

    fn transport(&self) -> Result<(Transport, Vec<Region>)> {
        let o = &self.options;
        let whole = match &self.destination {
            Destination::Host(region) => Some(region.clone()),
            Destination::Device(device) => device.memory.window.clone(),
        };
        let whole = whole.context("this GPU has no window onto its memory");
        if matches!(self.route, "host" | "direct") {
            let region = whole?;
            return Ok((Transport::Straight(region.clone()), vec![region]));
        }
        let bytes = self.slots() * o.io_bytes as usize;
        let all = bytes as u64 * u64::from(o.queues);
        ensure!(
            all <= o.pinned_max,
            "staging for {} queues of depth {} with {} bytes an I/O takes {all} bytes of pinned \
             memory, --pinned-max is {}",
            o.queues,
            o.depth,
            o.io_bytes,
            o.pinned_max
        );
        let staging = match &o.gpu {
            Some(gpu) => gpu.allocate_host(bytes as u64)?,
            None => Region::map_anonymous(bytes, MemoryKind::Host)?,
        };
        let registered = vec![staging.clone()];
        let transport = match &self.copier {
            Some(copier) => {
                let (reply, done) = channel();
                Transport::Bounce { staging, engine: copier.sender(), done, reply }
            }
            None => Transport::Window { target: whole?, staging },
        };
        Ok((transport, registered))
    }

    fn settle(&mut self, round: &Round, done: Vec<Done>) -> Result<RoundOutcome> {
        let unset =
            BenchResult { latency_ns: 0, status: abi::status::NOT_SUBMITTED, flags: 0, detail: 0 };
        let mut results = vec![unset; round.plan.len()];
        let mut count = 0;
        let mut end_ns = 0;
        for (thread, done) in self.threads.iter_mut().zip(done) {
            count += done.results.len();
            for (index, result) in done.results {
                results[index] = result;
            }
            end_ns = end_ns.max(done.end_ns);
            self.bill.cpu_path_s += done.cpu_s;
            self.bill.in_flight_ns += done.in_flight_ns;
            thread.counters = done.counters;
        }
        ensure!(count == results.len(), "{count} of {} I/Os ended", results.len());
        let good = results.iter().filter(|r| r.status == abi::status::SUCCESS).count() as u64;
        let moved = good * u64::from(round.io_bytes);
        match self.route {
            "host" => self.bill.bytes_host += moved,
            "bounce" => self.bill.bytes_bounce += moved,
            "window" => self.bill.bytes_window += moved,
            _ => self.bill.bytes_direct += moved,
        }
        self.bill.request_bytes += self.options.request_bytes * count as u64;
        Ok(RoundOutcome { results, seconds: end_ns as f64 * 1e-9 })
    }
}

impl Runner for QueueRunner {
    fn run(&mut self, round: &Arc<Round>) -> Result<RoundOutcome> {
        let next = Arc::new(AtomicUsize::new(0));
        let device_before = (self.options.device_cpu_seconds)();
        let start = Instant::now();
        if let Some(copier) = &self.copier {
            copier.begin(Current { round: Arc::clone(round), start });
        }
        for thread in &self.threads {
            let job = Job { round: Arc::clone(round), next: Arc::clone(&next), start };
            let jobs = thread.jobs.as_ref().context("the path is open")?;
            jobs.send(job).context("a thread of the path has ended")?;
        }
        let mut done = Vec::with_capacity(self.threads.len());
        for thread in &self.threads {
            done.push(thread.done.recv().context("a thread of the path panicked")?);
        }
        self.bill.cpu_device_s += (self.options.device_cpu_seconds)() - device_before;
        self.settle(round, done)
    }

    fn bill(&self) -> Bill {
        let sum = |value: fn(&Counters) -> u64| -> u64 {
            self.threads.iter().map(|thread| value(&thread.counters)).sum()
        };
        Bill {
            ios_at_device: sum(|c| c.ios_at_device),
            syscalls: sum(|c| c.syscalls),
            doorbells_cpu: sum(|c| c.doorbells),
            completions_polled_cpu: sum(|c| c.completions_polled),
            cpu_gpu_s: self.copier.as_ref().map_or(0.0, Copier::cpu_seconds),
            ..self.bill
        }
    }

    fn describe(&self) -> Description {
        let gpu = self.options.gpu.as_ref().map_or("none".to_owned(), |gpu| gpu.describe().name);
        Description {
            route: self.route.to_owned(),
            gpu,
            drive: self.options.drive.clone(),
            explain: self.options.storage.explain(),
            queues: self.options.queues,
            depth: self.options.depth,
            ..Description::default()
        }
    }

    fn destination(&mut self) -> &mut Destination {
        &mut self.destination
    }

    fn in_flight_max(&self) -> usize {
        self.options.queues as usize * self.options.depth as usize
    }
}

impl Drop for QueueRunner {
    fn drop(&mut self) {
        for thread in &mut self.threads {
            thread.jobs = None;
            if let Some(handle) = thread.handle.take() {
                // A panic there has been printed and has failed the run already.
                let _ = handle.join();
            }
        }
        if let Some(copier) = self.copier.take() {
            copier.end();
        }
    }
}
