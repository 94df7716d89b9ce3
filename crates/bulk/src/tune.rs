//! Measuring the knees: at which thread counts and sizes a file system and a GPU give what they can.
//!
//! A file is made, read and written as the engine does it, again and again. Of thread counts, the fewest
//! within 3 % of the best rate are chosen; of two ways, the one that is faster at a size, from the
//! smallest size up.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu::{DeviceMemory, Gpu};
use mem::{MemoryKind, Region};
use serde::Serialize;

use crate::engine::Bulk;
use crate::error::BulkError;
use crate::file::{Access, CachePolicy, File};
use crate::interference::Interference;
use crate::knees::Knees;
use crate::log::Log;
use crate::place::Place;
use crate::request::{Options, POOL_BYTES_MAX, Request};
use crate::save::make_temporary;
use crate::transfer::Transfer;

/// Thread counts that are tried.
pub const THREADS: [usize; 5] = [1, 2, 4, 8, 16];
/// Slots that are tried.
const SLOTS: [u64; 5] = [256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];
/// The fewest within this share of the best are chosen.
const WITHIN: f64 = 0.97;
/// Sizes at which two ways are compared: 4 KiB to 16 MiB.
const SIZES: [u64; 7] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];

/// What is measured, and with what.
#[derive(Clone)]
pub struct TuneOptions {
    /// Where the file is made: on the file system that is meant.
    pub directory: PathBuf,
    /// The GPU; host memory without one.
    pub gpu: Option<Arc<dyn Gpu>>,
    /// Length of the file.
    pub bytes: u64,
    /// Times that each thing is measured; the best one counts.
    pub repeats: u32,
    /// Asked now and then whether to end early.
    pub stop: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
    /// Faults on purpose, for tests.
    pub interference: Option<Arc<dyn Interference>>,
}

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// What was done.
    pub what: &'static str,
    /// With how many threads.
    pub threads: usize,
    /// With how many bytes a request, or a slot.
    pub bytes: u64,
    /// Bytes a second.
    pub bytes_per_s: f64,
}

/// What came out.
#[derive(Clone, Debug)]
pub struct Tuned {
    /// The knees.
    pub knees: Knees,
    /// What they were chosen by.
    pub measured: Vec<Measured>,
}

/// Measures the knees.
///
/// # Errors
/// [`BulkError::Misuse`] for a file shorter than the largest request that is measured,
/// [`BulkError::Cancelled`]; no room for the file, or what the engine may say.
pub fn tune(options: &TuneOptions) -> Result<Tuned, BulkError> {
    let mut bench = Bench::new(options)?;
    let mut knees = Knees::default();
    let rates = bench.by_threads("cached", knees, CachePolicy::Auto)?;
    knees.threads_cached = fewest(&rates);
    let mut slots = Vec::new();
    for slot_bytes in SLOTS {
        let with = Knees { slot_bytes, ..knees };
        let rate = bench.rate("slot", with, CachePolicy::Auto, slot_bytes, knees.threads_cached)?;
        slots.push((slot_bytes, rate));
    }
    knees.slot_bytes = fewest(&slots);
    if bench.has_direct() {
        let rates = bench.by_threads("direct", knees, CachePolicy::Direct)?;
        knees.threads_direct = fewest(&rates);
        knees.direct_bytes_min = bench.direct_from(knees)?;
    }
    let rates = bench.writes(knees)?;
    knees.threads_write = fewest(&rates);
    knees.window_bytes_max = bench.window_up_to(knees)?;
    knees.inline_bytes_max = bench.inline_up_to(knees)?;
    let measured = std::mem::take(&mut bench.measured);
    Ok(Tuned { knees, measured })
}

/// The smallest choice whose rate is within 3 % of the best.
fn fewest<T: Copy>(rates: &[(T, f64)]) -> T {
    let best = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let good = rates.iter().find(|(_, rate)| *rate >= best * WITHIN);
    good.expect("the best is good").0
}

/// Memory that is read into and written from.
enum Target {
    Device(DeviceMemory),
    Host(Region),
}

impl Target {
    fn part(&self, bytes: u64) -> Result<Place, BulkError> {
        let whole = match self {
            Self::Device(memory) => Place::memory(memory),
            Self::Host(region) => Place::host(region.clone()),
        };
        whole.part(0, bytes)
    }
}

struct Bench<'a> {
    options: &'a TuneOptions,
    target: Target,
    path: PathBuf,
    measured: Vec<Measured>,
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.path);
    }
}

impl<'a> Bench<'a> {
    fn new(options: &'a TuneOptions) -> Result<Self, BulkError> {
        let refused = |why: String| BulkError::Misuse(format!("memory to tune with: {why}"));
        let (bytes, least) = (options.bytes, SIZES[SIZES.len() - 1]);
        if bytes < least {
            let why = format!("a file of {bytes} bytes to tune with: at least {least} are needed");
            return Err(BulkError::Misuse(why));
        }
        let target = match &options.gpu {
            Some(gpu) => {
                Target::Device(gpu.allocate_device(bytes).map_err(|e| refused(e.to_string()))?)
            }
            None => {
                let len = usize::try_from(bytes).map_err(|e| refused(e.to_string()))?;
                let region = Region::map_anonymous(len, MemoryKind::Host);
                Target::Host(region.map_err(|e| refused(e.to_string()))?)
            }
        };
        let path = make_temporary(&options.directory).map_err(|e| {
            BulkError::os("making a file in", options.directory.display().to_string(), &e)
        })?;
        let bench = Self { options, target, path, measured: Vec::new() };
        let bulk = bench.engine(Knees::default(), CachePolicy::Cached, 4)?;
        let file = bulk.open_file(&bench.path, Access::ReadWrite)?;
        let write = Request::write(&file, 0, bench.target.part(options.bytes)?);
        bench.end_of(&bulk.submit(write))?;
        file.sync()?;
        Ok(bench)
    }

    fn engine(&self, knees: Knees, cache: CachePolicy, threads: usize) -> Result<Bulk, BulkError> {
        Bulk::open(Options {
            gpu: self.options.gpu.clone(),
            threads: Some(threads),
            pool_bytes: POOL_BYTES_MAX,
            knees: Some(knees),
            cache,
            log: Log::Quiet,
            interference: self.options.interference.clone(),
            ..Options::default()
        })
    }

    /// Waits for a transfer, and looks whether to end early meanwhile.
    fn end_of(&self, transfer: &Transfer) -> Result<(), BulkError> {
        while transfer.wait(Duration::from_millis(50))?.is_none() {
            if self.stopped() {
                transfer.cancel();
            }
        }
        Ok(())
    }

    fn stopped(&self) -> bool {
        self.options.stop.as_ref().is_some_and(|stop| stop())
    }

    fn has_direct(&self) -> bool {
        let file = self.engine(Knees::default(), CachePolicy::Direct, 1);
        let file = file.and_then(|bulk| bulk.open_file(&self.path, Access::Read));
        file.is_ok_and(|file| file.0.direct().is_some())
    }

    /// The best rate of some repeats of `run`, which moves `bytes` bytes.
    fn best(
        &self,
        bytes: u64,
        mut run: impl FnMut() -> Result<(), BulkError>,
    ) -> Result<f64, BulkError> {
        let mut best: f64 = 0.0;
        for _ in 0..self.options.repeats.max(1) {
            if self.stopped() {
                return Err(BulkError::Cancelled);
            }
            let begin = Instant::now();
            run()?;
            best = best.max(bytes as f64 / begin.elapsed().as_secs_f64().max(1e-9));
        }
        Ok(best)
    }

    fn note(&mut self, what: &'static str, threads: usize, bytes: u64, bytes_per_s: f64) {
        self.measured.push(Measured { what, threads, bytes, bytes_per_s });
    }

    /// The rate of the whole file; its first reading warms up.
    fn rate(
        &mut self,
        what: &'static str,
        knees: Knees,
        cache: CachePolicy,
        label: u64,
        threads: usize,
    ) -> Result<f64, BulkError> {
        let bulk = self.engine(knees, cache, threads)?;
        let file = bulk.open_file(&self.path, Access::Read)?;
        let bytes = self.options.bytes;
        let run = || {
            let part = self.target.part(bytes)?;
            self.end_of(&bulk.submit(Request::read(&file, 0, part)))
        };
        run()?;
        let rate = self.best(bytes, run)?;
        self.note(what, threads, label, rate);
        Ok(rate)
    }

    fn by_threads(
        &mut self,
        what: &'static str,
        knees: Knees,
        cache: CachePolicy,
    ) -> Result<Vec<(usize, f64)>, BulkError> {
        let bytes = self.options.bytes;
        let rate = |threads| Ok((threads, self.rate(what, knees, cache, bytes, threads)?));
        THREADS.into_iter().map(rate).collect()
    }

    fn writes(&mut self, knees: Knees) -> Result<Vec<(usize, f64)>, BulkError> {
        let bytes = self.options.bytes;
        let mut rates = Vec::new();
        for threads in THREADS {
            let bulk = self.engine(knees, CachePolicy::Auto, threads)?;
            let file = bulk.open_file(&self.path, Access::ReadWrite)?;
            let run = || {
                let part = self.target.part(bytes)?;
                self.end_of(&bulk.submit(Request::write(&file, 0, part)))
            };
            let rate = self.best(bytes, run)?;
            self.note("write", threads, bytes, rate);
            rates.push((threads, rate));
        }
        Ok(rates)
    }

    /// Rates of single requests of each size, two ways, one after the other each time.
    fn compare(
        &mut self,
        names: [&'static str; 2],
        sizes: &[u64],
        mut ways: [&mut dyn FnMut(u64) -> Result<(), BulkError>; 2],
    ) -> Result<Vec<(u64, [f64; 2])>, BulkError> {
        let mut rates = Vec::new();
        for bytes in sizes.iter().copied().filter(|bytes| *bytes <= self.options.bytes) {
            let mut pair = [0.0; 2];
            for (at, way) in ways.iter_mut().enumerate() {
                way(bytes)?;
                pair[at] = self.best(bytes, || way(bytes))?;
                self.note(names[at], 1, bytes, pair[at]);
            }
            rates.push((bytes, pair));
        }
        Ok(rates)
    }

    /// The smallest size from which on cold bytes come faster around the page cache.
    fn direct_from(&mut self, knees: Knees) -> Result<u64, BulkError> {
        let cold = |file: &File, bytes: u64| {
            let (fd, len) = (&file.0.buffered, NonZeroU64::new(bytes));
            // Pages that stay make the cached way look better than it is; nothing else.
            let _stays = rustix::fs::fadvise(fd, 0, len, rustix::fs::Advice::DontNeed);
        };
        let engines = [CachePolicy::Direct, CachePolicy::Cached]
            .map(|cache| self.engine(knees, cache, knees.threads_direct));
        let [direct, cached] = engines;
        let (direct, cached) = (direct?, cached?);
        let file = direct.open_file(&self.path, Access::Read)?;
        let target = self.target.part(SIZES[SIZES.len() - 1])?;
        let read = |bulk: &Bulk, bytes: u64| {
            cold(&file, bytes);
            bulk.read(&file, 0, target.part(0, bytes)?).map(drop)
        };
        let names = ["cold-direct", "cold-cached"];
        let (mut by_direct, mut by_cache) =
            (|bytes| read(&direct, bytes), |bytes| read(&cached, bytes));
        let rates = self.compare(names, &SIZES, [&mut by_direct, &mut by_cache])?;
        let last_slow = rates.iter().rposition(|(_, [direct, cached])| direct < cached);
        let first = last_slow.map_or(0, |at| at + 1);
        Ok(rates.get(first).map_or(u64::MAX, |(bytes, _)| *bytes))
    }

    /// The largest size up to which the window is faster; 0 where there is none.
    fn window_up_to(&mut self, knees: Knees) -> Result<u64, BulkError> {
        if !matches!(&self.target, Target::Device(memory) if memory.window.is_some()) {
            return Ok(0);
        }
        let window =
            self.engine(Knees { window_bytes_max: u64::MAX, ..knees }, CachePolicy::Cached, 1)?;
        let staged = self.engine(Knees { window_bytes_max: 0, ..knees }, CachePolicy::Cached, 1)?;
        let file = window.open_file(&self.path, Access::Read)?;
        let target = self.target.part(SIZES[SIZES.len() - 1])?;
        let read = |bulk: &Bulk, bytes: u64| bulk.read(&file, 0, target.part(0, bytes)?).map(drop);
        let (mut by_window, mut by_copy) =
            (|bytes| read(&window, bytes), |bytes| read(&staged, bytes));
        let rates =
            self.compare(["window", "staged"], &SIZES[..5], [&mut by_window, &mut by_copy])?;
        let faster = rates.iter().take_while(|(_, [window, staged])| window > staged);
        Ok(faster.last().map_or(0, |(bytes, _)| *bytes))
    }

    /// The largest size up to which the waiting thread is faster than a worker.
    fn inline_up_to(&mut self, knees: Knees) -> Result<u64, BulkError> {
        let bulk =
            self.engine(Knees { inline_bytes_max: u64::MAX, ..knees }, CachePolicy::Cached, 1)?;
        let file = bulk.open_file(&self.path, Access::Read)?;
        let target = self.target.part(SIZES[SIZES.len() - 1])?;
        let mut by_caller = |bytes| bulk.read(&file, 0, target.part(0, bytes)?).map(drop);
        let ended = |transfer: Transfer| loop {
            if transfer.wait(Duration::from_secs(60))?.is_some() {
                return Ok(());
            }
        };
        let mut by_worker =
            |bytes| ended(bulk.submit(Request::read(&file, 0, target.part(0, bytes)?)));
        let sizes: Vec<_> = SIZES.into_iter().filter(|bytes| *bytes <= knees.slot_bytes).collect();
        let rates = self.compare(["inline", "worker"], &sizes, [&mut by_caller, &mut by_worker])?;
        let faster = rates.iter().take_while(|(_, [inline, worker])| inline >= worker);
        Ok(faster.last().map_or(0, |(bytes, _)| *bytes))
    }
}
