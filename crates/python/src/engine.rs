//! The bulk engine as the face of the package calls it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bulk::{
    Access, Batch, Bulk, BulkError, Cause, File, Knees, Options, Request, Route, Store, Transfer,
};
use gpu::{CudaGpu, CudaOptions, Gpu};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors;
use crate::memory::{self, Memory};

/// How long a call waits before it looks for signals again.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);
/// How long a cancelled transfer may take to end; its chunks in flight are few and small.
const CANCEL_LIMIT: Duration = Duration::from_secs(30);

/// Runs `work` on another thread without the GIL; a signal sets `stop`, and its exception is raised when
/// `work` has ended.
pub fn wait_unlocked<T: Send>(
    py: Python<'_>,
    stop: &AtomicBool,
    work: impl FnOnce() -> T + Send,
) -> PyResult<T> {
    std::thread::scope(|scope| {
        let (sender, receiver) = sync_channel(1);
        scope.spawn(move || {
            // The receiver waits for this below, whatever happens.
            let _received = sender.send(work());
        });
        let mut signal = Ok(());
        // What goes into `detach` must be `Sync`, which a receiver alone is not.
        let receiver = Mutex::new(receiver);
        loop {
            let received = py.detach(|| match receiver.lock() {
                Ok(receiver) => receiver.recv_timeout(SIGNALS_EVERY),
                Err(_) => Err(RecvTimeoutError::Disconnected),
            });
            match received {
                Ok(result) => return signal.map(|()| result),
                Err(RecvTimeoutError::Disconnected) => panic!("the worker's own panic"),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if signal.is_ok() {
                signal = py.check_signals();
                stop.store(signal.is_err(), Ordering::Relaxed);
            }
        }
    })
}

/// What is waited for: one transfer or many.
trait Waited: Sync {
    fn wait(&self, limit: Duration) -> Option<Result<u64, BulkError>>;
    fn moved(&self) -> u64;
    fn cancel(&self);
}

impl Waited for Transfer {
    fn wait(&self, limit: Duration) -> Option<Result<u64, BulkError>> {
        self.wait(limit).transpose()
    }
    fn moved(&self) -> u64 {
        self.moved()
    }
    fn cancel(&self) {
        self.cancel();
    }
}

/// Waits without the GIL; looks for signals and tells of progress meanwhile. After a signal, the memory
/// is its owner's again before the exception is raised.
fn wait(
    py: Python<'_>,
    on: impl Waited + Send + 'static,
    progress: Option<&Py<PyAny>>,
    owners: Vec<Py<PyAny>>,
) -> PyResult<u64> {
    loop {
        if let Some(ended) = py.detach(|| on.wait(SIGNALS_EVERY)) {
            let moved = ended.map_err(|e| errors::engine(py, &e))?;
            if let Some(progress) = progress {
                progress.call1(py, (moved,))?;
            }
            return Ok(moved);
        }
        let told = progress.map(|progress| progress.call1(py, (on.moved(),))).transpose();
        if let Err(signal) = told.and_then(|_| py.check_signals()) {
            on.cancel();
            py.detach(|| on.wait(CANCEL_LIMIT));
            leave(Box::new(on), owners);
            return Err(signal);
        }
    }
}

/// An open file.
#[pyclass(frozen, module = "sidecore._sidecore")]
pub struct Handle {
    file: File,
}

impl Handle {
    /// A descriptor of its own.
    pub fn file(&self) -> std::io::Result<std::fs::File> {
        self.file.descriptor().try_clone_to_owned().map(Into::into)
    }
}

#[pymethods]
impl Handle {
    /// The descriptor, as long as this object lasts.
    fn fileno(&self) -> i32 {
        std::os::fd::AsRawFd::as_raw_fd(&self.file.descriptor())
    }

    /// Its length in bytes now.
    fn bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.file.bytes().map_err(|e| errors::engine(py, &e))
    }

    /// Makes what was written durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.file.sync()).map_err(|e| errors::engine(py, &e))
    }

    /// Sets its length.
    fn resize(&self, py: Python<'_>, bytes: u64) -> PyResult<()> {
        self.file.set_bytes(bytes).map_err(|e| errors::engine(py, &e))
    }

    /// How it can be read and written here, and why not better.
    fn explain(&self) -> String {
        self.file.explain()
    }
}

/// File, offset, address, bytes, whether on the GPU, owner.
type Asked<'py> = (Bound<'py, Handle>, u64, u64, u64, bool, Py<PyAny>);
/// Address, bytes, whether on the GPU, owner.
pub type Target = (u64, u64, bool, Py<PyAny>);

fn request(asked: &Asked<'_>, write: bool) -> Result<Request, BulkError> {
    let (handle, offset, address, bytes, on_device, _) = asked;
    let place = memory::place(*address, *bytes, *on_device)?;
    let file = &handle.get().file;
    Ok(match write {
        true => Request::write(file, *offset, place),
        false => Request::read(file, *offset, place),
    })
}

/// Transfers that nobody waits for any more, with what keeps their memory until they end.
static ORPHANS: Mutex<Vec<Orphan>> = Mutex::new(Vec::new());

type Orphan = (Box<dyn Waited + Send>, Vec<Py<PyAny>>);

/// Lets go of what belonged to transfers that have ended since.
fn sweep(py: Python<'_>) {
    let ended = {
        let mut orphans = ORPHANS.lock().unwrap_or_else(PoisonError::into_inner);
        if orphans.is_empty() {
            return;
        }
        let (ended, going): (Vec<_>, Vec<_>) =
            orphans.drain(..).partition(|(transfer, _)| transfer.wait(Duration::ZERO).is_some());
        *orphans = going;
        ended
    };
    // Outside the lock: an object that goes may run code that comes back here.
    for (_, owners) in ended {
        owners.into_iter().for_each(|owner| owner.drop_ref(py));
    }
}

/// Keeps a transfer's memory until it ends, if it has not.
fn leave(transfer: Box<dyn Waited + Send>, owners: Vec<Py<PyAny>>) {
    if transfer.wait(Duration::ZERO).is_none() {
        ORPHANS.lock().unwrap_or_else(PoisonError::into_inner).push((transfer, owners));
    }
}

/// A request that must move all of its bytes; its name is known for the error.
struct Batched {
    batch: Batch,
    asked: Vec<Expected>,
    write: bool,
}

/// A file, an offset, and how many bytes must be there.
pub type Expected = (PathBuf, u64, u64);

impl Waited for Batched {
    fn wait(&self, limit: Duration) -> Option<Result<u64, BulkError>> {
        let results = self.batch.wait(limit)?;
        let mut total = 0;
        for (result, (target, offset, bytes)) in results.into_iter().zip(&self.asked) {
            match result {
                Ok(moved) if moved < *bytes && !self.write => {
                    let (end, wanted) = (offset + moved, offset + bytes);
                    let target = target.display().to_string();
                    return Some(Err(BulkError::Truncated { target, end, wanted }));
                }
                Ok(moved) => total += moved,
                Err(error) => return Some(Err(error)),
            }
        }
        Some(Ok(total))
    }
    fn moved(&self) -> u64 {
        self.batch.moved()
    }
    fn cancel(&self) {
        self.batch.cancel();
    }
}

/// A transfer that goes on by itself.
#[pyclass(frozen, module = "sidecore._sidecore")]
pub struct Pending {
    transfer: Transfer,
    owner: Option<Py<PyAny>>,
}

impl Drop for Pending {
    fn drop(&mut self) {
        leave(Box::new(self.transfer.clone()), self.owner.take().into_iter().collect());
    }
}

impl Pending {
    /// Waits for the end. A signal ends the wait, not the transfer.
    fn wait(&self, py: Python<'_>) -> PyResult<u64> {
        loop {
            if let Some(ended) = py.detach(|| Waited::wait(&self.transfer, SIGNALS_EVERY)) {
                return ended.map_err(|e| errors::engine(py, &e));
            }
            py.check_signals()?;
        }
    }
}

#[pymethods]
impl Pending {
    /// Waits for the end.
    #[pyo3(signature = (timeout=None))]
    fn get(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<u64> {
        let Some(seconds) = timeout else {
            // This object keeps the memory.
            return self.wait(py);
        };
        let limit = Duration::try_from_secs_f64(seconds.max(0.0))
            .map_err(|e| PyValueError::new_err(e.to_string()))?;
        let begin = std::time::Instant::now();
        loop {
            let left = limit.saturating_sub(begin.elapsed());
            let slice = left.min(SIGNALS_EVERY);
            if let Some(ended) = py.detach(|| Waited::wait(&self.transfer, slice)) {
                return ended.map_err(|e| errors::engine(py, &e));
            }
            py.check_signals()?;
            if left.is_zero() {
                let why = format!("the transfer goes on after {seconds} s");
                return Err(pyo3::exceptions::PyTimeoutError::new_err(why));
            }
        }
    }

    /// Whether it has ended.
    fn done(&self) -> bool {
        self.transfer.is_done()
    }

    /// Asks for its end.
    fn cancel(&self) {
        self.transfer.cancel();
    }
}

/// A bulk engine: of the host, or of a GPU.
#[pyclass(frozen, module = "sidecore._sidecore")]
pub struct Engine {
    bulk: Bulk,
    gpu: Option<Arc<dyn Gpu>>,
}

fn access(mode: &str) -> PyResult<Access> {
    Ok(match mode {
        "r" => Access::Read,
        "r+" => Access::ReadWrite,
        "w" => Access::Write { create: true, truncate: true },
        "a" => Access::Write { create: true, truncate: false },
        mode => return Err(PyValueError::new_err(format!("mode {mode:?}"))),
    })
}

/// The knees that were measured for a file system and a GPU.
fn stored(path: &Path, gpu: Option<&dyn Gpu>) -> Option<(String, Knees)> {
    let name = gpu.map(|gpu| gpu.describe().name);
    let key = Store::key(path, name.as_deref()).ok()?;
    let knees = Store::of_user()?.get(&key).ok()??;
    Some((key, knees))
}

impl Engine {
    /// Reads all, each to its last byte, and waits.
    pub fn read_all(
        &self,
        py: Python<'_>,
        requests: Vec<Request>,
        asked: Vec<Expected>,
        progress: Option<&Py<PyAny>>,
        owners: Vec<Py<PyAny>>,
    ) -> PyResult<u64> {
        sweep(py);
        let batch = py.detach(|| self.bulk.submit_many(requests));
        wait(py, Batched { batch, asked, write: false }, progress, owners)
    }
}

#[pymethods]
impl Engine {
    /// Opens an engine; the GPU's driver is loaded here, everything else when it is first needed.
    #[new]
    #[pyo3(signature = (device=None, threads=None, pool_bytes=None, require=None, quiet=None, near=None))]
    fn new(
        py: Python<'_>,
        device: Option<u32>,
        threads: Option<usize>,
        pool_bytes: Option<u64>,
        require: Option<&str>,
        quiet: Option<bool>,
        near: Option<PathBuf>,
    ) -> PyResult<Self> {
        let require =
            require.map(str::parse::<Route>).transpose().map_err(PyValueError::new_err)?;
        let gpu: Option<Arc<dyn Gpu>> = match device {
            Some(index) => {
                let options = CudaOptions { index, window: false };
                let opened = py.detach(|| CudaGpu::open(options));
                let unavailable = pyo3::exceptions::PyRuntimeError::new_err::<String>;
                Some(Arc::new(opened.map_err(|e| unavailable(e.to_string()))?))
            }
            None => None,
        };
        let knees = near.and_then(|path| stored(&path, gpu.as_deref())).map(|(_, knees)| knees);
        let mut options =
            Options { gpu: gpu.clone(), threads, require, knees, ..Options::default() };
        if let Some(bytes) = pool_bytes {
            options.pool_bytes = bytes;
        }
        if quiet == Some(true) {
            options.log = bulk::Log::Quiet;
        }
        let bulk = py.detach(|| Bulk::open(options)).map_err(|e| errors::engine(py, &e))?;
        Ok(Self { bulk, gpu })
    }

    /// Under which name knees are stored for the file system of `path` and this GPU; none where
    /// nothing was measured. What is wrong with the store is for `sidecore tune` to say.
    fn tuned(&self, path: PathBuf) -> Option<String> {
        stored(&path, self.gpu.as_deref()).map(|(key, _)| key)
    }

    /// Opens a file or a block device.
    fn open(&self, py: Python<'_>, path: PathBuf, mode: &str) -> PyResult<Handle> {
        let access = access(mode)?;
        let file =
            py.detach(|| self.bulk.open_file(&path, access)).map_err(|e| errors::engine(py, &e))?;
        Ok(Handle { file })
    }

    /// Moves all, and waits.
    fn transfer(
        &self,
        py: Python<'_>,
        asked: Vec<Asked<'_>>,
        write: bool,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<u64> {
        sweep(py);
        let name = |asked: &Asked<'_>| (asked.0.get().file.path().to_owned(), asked.1, asked.3);
        let names = asked.iter().map(name).collect();
        let requests: Result<Vec<Request>, BulkError> =
            asked.iter().map(|asked| request(asked, write)).collect();
        let requests = requests.map_err(|e| errors::engine(py, &e))?;
        let owners = asked.into_iter().map(|asked| asked.5).collect();
        let batch = py.detach(|| self.bulk.submit_many(requests));
        wait(py, Batched { batch, asked: names, write }, progress.as_ref(), owners)
    }

    /// Moves one, and waits. A short one is moved by this thread.
    fn run(&self, py: Python<'_>, asked: Asked<'_>, write: bool) -> PyResult<u64> {
        if asked.3 > self.bulk.knees().inline_bytes_max {
            let request = request(&asked, write).map_err(|e| errors::engine(py, &e))?;
            let transfer = py.detach(|| self.bulk.submit(request));
            return wait(py, transfer, None, vec![asked.5]);
        }
        let (handle, offset, address, bytes, on_device, _keeps_it) = asked;
        let place = memory::place(address, bytes, on_device).map_err(|e| errors::engine(py, &e))?;
        let file = &handle.get().file;
        let moved = py.detach(|| match write {
            true => self.bulk.write(file, offset, place),
            false => self.bulk.read(file, offset, place),
        });
        moved.map_err(|e| errors::engine(py, &e))
    }

    /// Starts one.
    fn submit(&self, py: Python<'_>, asked: Asked<'_>, write: bool) -> PyResult<Pending> {
        sweep(py);
        let request = request(&asked, write).map_err(|e| errors::engine(py, &e))?;
        let transfer = py.detach(|| self.bulk.submit(request));
        Ok(Pending { transfer, owner: Some(asked.5) })
    }

    /// Starts one in the order of a stream.
    fn submit_on_stream(
        &self,
        py: Python<'_>,
        asked: Asked<'_>,
        write: bool,
        stream: u64,
    ) -> PyResult<Pending> {
        sweep(py);
        let request = request(&asked, write).map_err(|e| errors::engine(py, &e))?;
        let transfer = py.detach(|| self.bulk.submit_on_stream(request, stream));
        let transfer = transfer.map_err(|e| errors::engine(py, &e))?;
        Ok(Pending { transfer, owner: Some(asked.5) })
    }

    /// Gathers rows; the indices are copied first.
    fn read_rows(
        &self,
        py: Python<'_>,
        handle: &Bound<'_, Handle>,
        indices: (u64, u64, Py<PyAny>),
        row_bytes: u64,
        target: Target,
    ) -> PyResult<u64> {
        let (address, count, _keeps_them) = indices;
        let indices = memory::numbers(address, count).map_err(|e| errors::engine(py, &e))?;
        let (address, bytes, on_device, owner) = target;
        let place = memory::place(address, bytes, on_device).map_err(|e| errors::engine(py, &e))?;
        let file = &handle.get().file;
        let transfer = py.detach(|| self.bulk.submit_rows(file, indices, row_bytes, place));
        wait(py, transfer, None, vec![owner])
    }

    /// Makes now what the first transfers would make: threads, pinned memory, queues of copies.
    fn prepare(&self, py: Python<'_>) -> PyResult<()> {
        if self.gpu.is_none() {
            return Ok(());
        }
        py.detach(|| self.bulk.prepare_streams()).map_err(|e| errors::engine(py, &e))
    }

    /// Which way a request would go, and why.
    fn explain(&self, py: Python<'_>, asked: Asked<'_>, write: bool) -> PyResult<String> {
        let request = request(&asked, write).map_err(|e| errors::engine(py, &e))?;
        let plan = py.detach(|| self.bulk.plan(&request));
        Ok(plan.map_err(|e| errors::engine(py, &e))?.explain())
    }

    /// The same for memory that the engine makes for the question; it touches none of it.
    fn explain_size(
        &self,
        py: Python<'_>,
        handle: &Bound<'_, Handle>,
        offset: u64,
        bytes: u64,
    ) -> PyResult<String> {
        let memory = self.allocate(py, bytes.max(1))?;
        let (address, owner) = (memory.address(), Bound::new(py, memory)?.into_any().unbind());
        self.explain(py, (handle.clone(), offset, address, bytes, self.gpu.is_some(), owner), false)
    }

    /// Memory on the engine's side: the GPU's, or the host's.
    fn allocate(&self, py: Python<'_>, bytes: u64) -> PyResult<Memory> {
        py.detach(|| match &self.gpu {
            Some(gpu) => Memory::device(&**gpu, bytes),
            None => Memory::host(bytes),
        })
    }

    /// What was moved, by route, and why not otherwise.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        counters(py, &self.bulk.counters())
    }
}

/// Counters of an engine that has done nothing.
#[pyfunction]
pub fn no_counters(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    counters(py, &bulk::Counters::default())
}

fn counters<'py>(py: Python<'py>, counters: &bulk::Counters) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    let routes = PyDict::new(py);
    for route in Route::ALL {
        let count = counters.route(route);
        let row = PyDict::new(py);
        row.set_item("bytes_read", count.bytes_read)?;
        row.set_item("bytes_written", count.bytes_written)?;
        row.set_item("ios", count.ios)?;
        routes.set_item(route.name(), row)?;
    }
    all.set_item("routes", routes)?;
    let fallbacks = PyDict::new(py);
    for cause in Cause::ALL {
        fallbacks.set_item(cause.name(), counters.fallbacks(cause))?;
    }
    all.set_item("fallbacks", fallbacks)?;
    for (name, value) in [
        ("requests", counters.requests),
        ("hot_bytes", counters.hot_bytes),
        ("cold_bytes", counters.cold_bytes),
        ("pinned_bytes", counters.pinned_bytes),
        ("pinned_bytes_max", counters.pinned_bytes_max),
        ("in_flight", counters.in_flight),
        ("in_flight_max", counters.in_flight_max),
        ("threads", counters.threads),
        ("copies", counters.copies),
    ] {
        all.set_item(name, value)?;
    }
    Ok(all)
}
