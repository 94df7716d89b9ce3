//! The engine as its user sees it.

use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::batch::{Batch, Spot, Spots};
use crate::counters::{self, Counters};
use crate::error::BulkError;
use crate::file::{Access, CachePolicy, File, Inner};
use crate::job::{Job, Outcomes, RowMap, Source, What, chunks_of};
use crate::knees::{Knees, PAGE_BYTES};
use crate::place::{Kind, Place};
use crate::plan::{self, Plan};
use crate::request::{From, Options, Request, check_range};
use crate::route::{Cause, Op, Route};
use crate::runs::{self, Rules, Way};
use crate::seat::route_of;
use crate::store::Store;
use crate::threads::Core;
use crate::transfer::Transfer;

/// Bytes of small reads that share a slot: enough for a good copy, few enough for all threads to have some.
const GATHER_BYTES: u64 = 1 << 20;
/// Longest single wait of the calls that wait until the end.
const LONG: Duration = Duration::from_secs(3600);

/// The bulk engine; clones share it, and the last one to go ends its threads.
#[derive(Clone)]
pub struct Bulk(Arc<Owner>);

struct Owner {
    core: Arc<Core>,
    require: Option<Route>,
    cache: CachePolicy,
    process: u32,
}

impl Drop for Owner {
    fn drop(&mut self) {
        if std::process::id() == self.process {
            self.core.stop();
        } else {
            // Threads, streams and pinned memory are the parent's.
            std::mem::forget(Arc::clone(&self.core));
        }
    }
}

impl Bulk {
    /// Opens the engine. Nothing is allocated, and no thread started, before it is needed.
    ///
    /// # Errors
    /// [`BulkError::Misuse`] for a pool, threads or knees that cannot be.
    pub fn open(options: Options) -> Result<Self, BulkError> {
        options.check()?;
        let Options { gpu, threads, pool_bytes, require, cache, interference, .. } = options;
        let counters = counters::Shared::new(options.log);
        let stored = || options.stored.and_then(|(store, key)| look_up(&store, &key, &counters));
        let mut knees = options.knees.or_else(stored).unwrap_or_default().admissible();
        if let Some(threads) = threads {
            knees.threads_cached = threads;
            knees.threads_direct = threads;
            knees.threads_write = threads;
            knees.threads_rows = threads;
        }
        let Knees { threads_cached, threads_direct, threads_write, threads_rows, .. } = knees;
        let wanted = threads_cached.max(threads_direct).max(threads_write).max(threads_rows);
        let (knees, threads_max, shrunk) = knees.within(pool_bytes, wanted);
        if shrunk || threads_max < wanted {
            counters.fell_back(Cause::PoolSmall, || {
                format!(
                    "{pool_bytes} bytes of pinned memory: {threads_max} threads with {} slots of {} bytes",
                    knees.slots, knees.slot_bytes
                )
            });
        }
        let core = Arc::new(Core::new(gpu, knees, threads_max, counters, interference));
        let process = std::process::id();
        Ok(Self(Arc::new(Owner { core, require, cache, process })))
    }

    fn core(&self) -> Result<&Arc<Core>, BulkError> {
        if std::process::id() != self.0.process {
            return Err(BulkError::Forked { parent: self.0.process });
        }
        Ok(&self.0.core)
    }

    /// Opens a file or block device.
    ///
    /// # Errors
    /// [`BulkError::Os`], [`BulkError::Unsupported`] for what is neither, [`BulkError::Forked`].
    pub fn open_file(&self, path: &Path, access: Access) -> Result<File, BulkError> {
        self.core()?.open(path, access).map(|inner| File(Arc::new(inner)))
    }

    /// Reads as many bytes as the place has, and waits for them: the bytes that arrived, fewer only where
    /// the file ended.
    ///
    /// # Errors
    /// As [`Bulk::submit`].
    pub fn read(&self, file: &File, offset: u64, place: Place) -> Result<u64, BulkError> {
        self.run(Request::read(file, offset, place))
    }

    /// Writes all bytes of the place, and waits for it: they are in the page cache, and durable after
    /// [`File::sync`].
    ///
    /// # Errors
    /// As [`Bulk::submit`].
    pub fn write(&self, file: &File, offset: u64, place: Place) -> Result<u64, BulkError> {
        self.run(Request::write(file, offset, place))
    }

    fn run(&self, request: Request) -> Result<u64, BulkError> {
        let (core, prepared) = (self.core()?, self.prepare(request)?);
        let job = Arc::new(self.job(core, prepared, 0)?);
        core.counters.started(1);
        let small = job.chunks == 1 && job.bytes <= core.knees.inline_bytes_max;
        if !small || !core.carry_out_if_free(&job) {
            core.submit(&job);
        }
        wait_for(&job)
    }

    /// Starts a request.
    ///
    /// Its end says: [`BulkError::Os`] with the system's reason (no room, a drive's error),
    /// [`BulkError::Gpu`], [`BulkError::Misuse`] where the range or the memory is not one,
    /// [`BulkError::RouteRefused`], [`BulkError::Cancelled`], [`BulkError::Closed`],
    /// [`BulkError::Forked`].
    pub fn submit(&self, request: Request) -> Transfer {
        self.submit_among(request, 0)
    }

    /// Starts a request in the order of a stream: it begins when all that was in the stream before has
    /// ended, and what comes after waits for its end. Returns at once; the first time, after
    /// [`Bulk::prepare_streams`].
    ///
    /// Of an interface whose streams cannot wait, a host function of the stream waits: then streams of
    /// that device wait for each other.
    ///
    /// # Errors
    /// What is known at once; else as [`Bulk::submit`].
    pub fn submit_on_stream(&self, request: Request, stream: u64) -> Result<Transfer, BulkError> {
        self.start(request, Some(stream), 0)
    }

    /// Makes all that transfers in the order of streams need: threads, pinned memory, queues of copies. Waits
    /// for the GPU where the driver does, so that it is best called before kernels run.
    ///
    /// # Errors
    /// No GPU, no memory, no thread.
    pub fn prepare_streams(&self) -> Result<(), BulkError> {
        let core = self.core()?;
        let gpu = core.gpu.as_ref().ok_or_else(|| {
            BulkError::Misuse("streams are a GPU's, and the engine has none".to_owned())
        })?;
        core.prepare()?;
        // The first gate makes what all gates share.
        gpu.stream_gate(0).map(drop).map_err(|e| BulkError::gpu("preparing streams", &e))
    }

    /// Starts a request of a batch of so many bytes: together they have chunks for all threads.
    fn submit_among(&self, request: Request, together: u64) -> Transfer {
        self.start(request, None, together).unwrap_or_else(Transfer::refused)
    }

    fn start(
        &self,
        request: Request,
        stream: Option<u64>,
        together: u64,
    ) -> Result<Transfer, BulkError> {
        let (core, prepared) = (self.core()?, self.prepare(request)?);
        let mut job = self.job(core, prepared, together)?;
        job.gated = stream.is_some();
        let job = Arc::new(job);
        if let Some(stream) = stream {
            let gpu = core.gpu.as_ref().ok_or_else(|| {
                BulkError::Misuse("a stream is named, and the engine has no GPU".to_owned())
            })?;
            core.prepare()?;
            let gate = gpu.stream_gate(stream);
            let gate = gate.map_err(|e| BulkError::gpu(format!("stream {stream:#x}"), &e))?;
            if !gate.is_word() {
                core.counters.fell_back(Cause::StreamWords, || {
                    "the device's streams cannot wait for words; host functions wait".to_owned()
                });
            }
            *job.gate.lock().unwrap_or_else(PoisonError::into_inner) = Some(gate);
        }
        core.counters.started(1);
        core.submit(&job);
        Ok(Transfer { end: Arc::clone(&job.end), job: Some(job) })
    }

    /// Starts many requests. Small reads share slots, and go from there to their places by one call: those
    /// that are neighbours in memory as one copy.
    pub fn submit_many(&self, requests: Vec<Request>) -> Batch {
        let knees = &self.0.core.knees;
        let small_max = knees.gather_bytes_max.min(knees.slot_bytes / 4);
        let is_small = |r: &Request| r.op == Op::Read && r.place.bytes() <= small_max;
        if requests.iter().all(is_small) {
            let spots = Spots::Items(requests.len());
            return Batch { transfers: vec![self.submit_gathered(requests)], spots };
        }
        let (mut small, mut transfers, mut spots) = (Vec::new(), Vec::new(), Vec::new());
        let together = requests.iter().map(|r| r.place.bytes()).fold(0, u64::saturating_add);
        for request in requests {
            if is_small(&request) {
                spots.push(Spot::Item(small.len()));
                small.push(request);
            } else {
                transfers.push(self.submit_among(request, together));
                // The first one will be that of the small reads.
                spots.push(Spot::Transfer(transfers.len()));
            }
        }
        transfers.insert(0, self.submit_gathered(small));
        Batch { transfers, spots: Spots::Each(spots) }
    }

    fn submit_gathered(&self, requests: Vec<Request>) -> Transfer {
        let core = match self.core() {
            Ok(core) => core,
            Err(error) => return Transfer::refused(error),
        };
        let outcomes = Outcomes::new(requests.len());
        if self.0.require.is_some() {
            for (item, request) in requests.iter().enumerate() {
                if let Err(error) = self.check_route(core, request) {
                    outcomes.set(item, Err(error));
                }
            }
        }
        core.counters.started(requests.len() as u64);
        let cuts = cuts_of(&requests, core.knees.slot_bytes.min(GATHER_BYTES));
        let what = What::Items { requests, cuts, outcomes };
        // Each is looked at, asked for its pages, and its file for its length, when it is read.
        let rules = self.rules(core, u64::MAX);
        let mut job = Job::new(Op::Read, what, rules, core.knees.slot_bytes);
        job.threads = core.knees.threads_cached.max(core.knees.threads_direct);
        let job = Arc::new(job);
        core.submit(&job);
        Transfer { end: Arc::clone(&job.end), job: Some(job) }
    }

    /// Whether a request would go the required way.
    fn check_route(&self, core: &Core, request: &Request) -> Result<(), BulkError> {
        let Prepared { op, file, offset, place } = self.prepare(request.clone())?;
        let plan = self.plan_of(core, op, &Source::Open(file), offset, &place)?;
        self.check_required(&plan)
    }

    /// Reads rows of equal length by their indices into a dense place, and waits for them.
    ///
    /// # Errors
    /// [`BulkError::Misuse`] where the place has another length than all rows, or a row is not inside the
    /// file, before anything is moved; else as [`Bulk::submit`].
    pub fn read_rows(
        &self,
        file: &File,
        indices: &[u64],
        row_bytes: u64,
        place: Place,
    ) -> Result<u64, BulkError> {
        let transfer = self.submit_rows(file, indices.to_vec(), row_bytes, place);
        loop {
            if let Some(bytes) = transfer.wait(LONG)? {
                return Ok(bytes);
            }
        }
    }

    /// Starts reading rows, as [`Bulk::read_rows`] does.
    pub fn submit_rows(
        &self,
        file: &File,
        indices: Vec<u64>,
        row_bytes: u64,
        place: Place,
    ) -> Transfer {
        self.start_rows(file, indices, row_bytes, place).unwrap_or_else(Transfer::refused)
    }

    fn start_rows(
        &self,
        file: &File,
        indices: Vec<u64>,
        row_bytes: u64,
        place: Place,
    ) -> Result<Transfer, BulkError> {
        let core = self.core()?;
        file.0.check_access(Op::Read)?;
        let rows = indices.len() as u64;
        if rows.checked_mul(row_bytes) != Some(place.bytes()) || (row_bytes == 0 && rows > 0) {
            return Err(BulkError::Misuse(format!(
                "{rows} rows of {row_bytes} bytes do not make the {} bytes of the place",
                place.bytes()
            )));
        }
        let file_bytes = file.bytes()?;
        if let Some(last) = indices.iter().max() {
            let end = last.checked_add(1).and_then(|rows| rows.checked_mul(row_bytes));
            if end.is_none_or(|end| end > file_bytes) {
                return Err(BulkError::Misuse(format!(
                    "row {last} of {row_bytes} bytes is not inside {}, which has {file_bytes} bytes",
                    file.0.name()
                )));
            }
        }
        let place = place.resolve(core.gpu.as_deref())?;
        let device = !place.is_host();
        let rules = self.rules(core, file_bytes);
        if let Some(wanted) = self.0.require {
            let source = Source::Open(Arc::clone(&file.0));
            for row in &indices {
                let plan = self.plan_rows(core, &source, row * row_bytes, row_bytes, device);
                if plan != wanted {
                    return Err(refused(wanted, plan, &file.0, "rows take it"));
                }
            }
        }
        let (file, map) = (Arc::clone(&file.0), RowMap::new(file_bytes));
        let what = What::Rows { file, indices, row_bytes, place, map };
        let threads = core.knees.threads_rows;
        let chunk_bytes = core.knees.chunk_bytes(rows * row_bytes, threads).min(GATHER_BYTES);
        let chunk_bytes = chunk_bytes.min(rows_in_slot(&core.knees, row_bytes));
        let mut job = Job::new(Op::Read, what, rules, chunk_bytes);
        job.threads = threads;
        let job = Arc::new(job);
        core.counters.started(1);
        core.submit(&job);
        Ok(Transfer { end: Arc::clone(&job.end), job: Some(job) })
    }

    /// What would be done with a request now. The page cache may change afterwards.
    ///
    /// # Errors
    /// As a refusal by [`Bulk::submit`].
    pub fn plan(&self, request: &Request) -> Result<Plan, BulkError> {
        let core = self.core()?;
        let Prepared { op, file, offset, place } = self.prepare(request.clone())?;
        self.plan_of(core, op, &Source::Open(file), offset, &place)
    }

    /// What was done so far.
    pub fn counters(&self) -> Counters {
        self.0.core.counters.read()
    }

    /// The knees in use, after the bounds of the pool.
    pub fn knees(&self) -> Knees {
        self.0.core.knees
    }

    /// Checks a request, and opens its file where it is not open.
    fn prepare(&self, request: Request) -> Result<Prepared, BulkError> {
        let core = self.core()?;
        let Request { op, from, offset, place } = request;
        let file = match from {
            From::File(file) => file.0,
            From::Path(path) => Arc::new(core.open(&path, Access::Read)?),
        };
        file.check_access(op)?;
        check_range(offset, place.bytes())?;
        let place = place.resolve(core.gpu.as_deref())?;
        Ok(Prepared { op, file, offset, place })
    }

    fn rules(&self, core: &Core, file_bytes: u64) -> Rules {
        let direct_bytes_min = core.knees.direct_bytes_min;
        Rules { policy: self.0.cache, direct_bytes_min, file_bytes }
    }

    fn job(&self, core: &Core, prepared: Prepared, together: u64) -> Result<Job, BulkError> {
        if self.0.require.is_some() {
            let Prepared { op, file, offset, place } = &prepared;
            let plan = self.plan_of(core, *op, &Source::Open(Arc::clone(file)), *offset, place)?;
            self.check_required(&plan)?;
        }
        let Prepared { op, file, offset, place } = prepared;
        let length =
            |file: &Inner| file.bytes().map_err(|e| BulkError::os("measuring", file.name(), &e));
        let rules = self.rules(core, if op == Op::Read { length(&file)? } else { 0 });
        let bytes = place.bytes();
        let window = self.window_of(core, op, &file, rules, offset, &place);
        let (threads, chunk_bytes) = plan::shape(core, op, &file, rules, offset, bytes);
        let chunk_bytes = chunk_bytes.max(core.knees.chunk_bytes(together, threads));
        let what = What::Range { file, offset, place };
        let mut job = Job::new(op, what, rules, chunk_bytes);
        job.window = window;
        // One chunk may go to whoever is free.
        job.threads = if job.chunks > 1 { threads } else { usize::MAX };
        Ok(job)
    }

    /// The window, where the request is to go through it.
    fn window_of(
        &self,
        core: &Core,
        op: Op,
        file: &Inner,
        rules: Rules,
        offset: u64,
        place: &Place,
    ) -> Option<mem::Region> {
        let bytes = place.bytes();
        let Kind::Device { window, .. } = &place.kind else { return None };
        let small = op == Op::Read && bytes > 0 && bytes <= core.knees.window_bytes_max;
        let (_, chunk_bytes) = plan::shape(core, op, file, rules, offset, bytes);
        if !small || chunks_of(offset, bytes, chunk_bytes) != 1 {
            return None;
        }
        let Some(window) = window else {
            core.counters.fell_back(Cause::NoWindow, || {
                "the CPU has no mapping of this device memory; by pinned memory".to_owned()
            });
            return None;
        };
        let cached = |run: &runs::Run| run.way == Way::Cached;
        let found = runs::to_read(file, rules, offset, bytes);
        found.runs.iter().all(cached).then(|| window.clone())
    }

    fn plan_of(
        &self,
        core: &Core,
        op: Op,
        source: &Source,
        offset: u64,
        place: &Place,
    ) -> Result<Plan, BulkError> {
        let opened;
        let file = match source {
            Source::Open(file) => file,
            Source::Path(path) => {
                opened = Arc::new(core.open(path, Access::Read)?);
                &opened
            }
        };
        plan::make(core, self.0.cache, op, file, offset, place)
    }

    fn plan_rows(
        &self,
        core: &Core,
        source: &Source,
        offset: u64,
        bytes: u64,
        device: bool,
    ) -> Route {
        let Source::Open(file) = source else { return Route::Staged };
        let rules = Rules { direct_bytes_min: 0, ..self.rules(core, offset + bytes) };
        let found = runs::to_read(file, rules, offset, bytes);
        let direct = found.runs.iter().any(|run| run.way == Way::Direct);
        route_of(!device, if direct { Way::Direct } else { Way::Cached }, false)
    }

    fn check_required(&self, plan: &Plan) -> Result<(), BulkError> {
        let Some(wanted) = self.0.require else { return Ok(()) };
        let other = plan.parts.iter().find(|part| part.route != wanted && part.bytes > 0);
        let Some(other) = other else { return Ok(()) };
        Err(BulkError::RouteRefused {
            wanted,
            found: other.route,
            what: format!("{} of {} bytes of {}", plan.op.name(), plan.bytes, plan.file),
            why: plan.reasons.join("; "),
        })
    }
}

/// The knees that were stored; where there are none, that is said.
fn look_up(store: &Store, key: &str, counters: &counters::Shared) -> Option<Knees> {
    match store.get(key) {
        Ok(Some(knees)) => return Some(knees),
        Ok(None) => counters.fell_back(Cause::KneesMissing, || {
            format!("{key}: never measured, so defaults are used; run sidecore tune")
        }),
        Err(error) => counters.fell_back(Cause::KneesUnreadable, || error.to_string()),
    }
    None
}

/// Bytes of rows that a slot takes, with the whole pages around rows that do not begin where pages do.
fn rows_in_slot(knees: &Knees, row_bytes: u64) -> u64 {
    let pages = if row_bytes.is_multiple_of(PAGE_BYTES) { 0 } else { 2 };
    knees.slot_bytes - pages * PAGE_BYTES
}

/// A request that was checked.
struct Prepared {
    op: Op,
    file: Arc<Inner>,
    offset: u64,
    place: Place,
}

/// Where one slot's worth of small reads ends and the next begins; the first is 0, the last their number.
fn cuts_of(requests: &[Request], slot_bytes: u64) -> Vec<usize> {
    let (mut cuts, mut bytes) = (vec![0], 0);
    for (item, request) in requests.iter().enumerate() {
        let more = request.place.bytes();
        if bytes + more > slot_bytes {
            cuts.push(item);
            bytes = 0;
        }
        bytes += more;
    }
    if !requests.is_empty() {
        cuts.push(requests.len());
    }
    cuts
}

fn refused(wanted: Route, found: Route, file: &Inner, why: &str) -> BulkError {
    BulkError::RouteRefused {
        wanted,
        found,
        what: format!("rows of {}", file.name()),
        why: why.to_owned(),
    }
}

fn wait_for(job: &Job) -> Result<u64, BulkError> {
    loop {
        if let Some(result) = job.end.wait(LONG) {
            return result;
        }
    }
}

impl std::fmt::Debug for Bulk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bulk({:?}, at most {} threads)", self.knees(), self.0.core.threads_max)
    }
}
