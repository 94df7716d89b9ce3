//! The bulk engine as the face of the package calls it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bulk::{Access, Bulk, BulkError, Cause, File, Knees, Options, Place, Request, Route, Store};
use gpu::{CudaGpu, CudaOptions, DeviceMemory, Gpu};
use mem::Region;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors;
use crate::memory::{self, Memory};
use crate::waiting::{Batched, Expected, Named, Pending, Started, sweep, wait};

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
        self.file.bytes().map_err(|e| errors::of_file(py, &e, self.file.path()))
    }

    /// Makes what was written durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.file.sync()).map_err(|e| errors::of_file(py, &e, self.file.path()))
    }

    /// Sets its length.
    fn resize(&self, py: Python<'_>, bytes: u64) -> PyResult<()> {
        self.file.set_bytes(bytes).map_err(|e| errors::of_file(py, &e, self.file.path()))
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
    /// Starts to read all, each to its last byte.
    pub fn start_all(
        &self,
        py: Python<'_>,
        requests: Vec<Request>,
        asked: Arc<Vec<Expected>>,
        write: bool,
        owners: Vec<Py<PyAny>>,
    ) -> Started {
        sweep(py);
        let batch = py.detach(|| self.bulk.submit_many(requests));
        Started::new(Batched { batch, asked, write }, owners)
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
        let file = py.detach(|| self.bulk.open_file(&path, access));
        Ok(Handle { file: file.map_err(|e| errors::of_file(py, &e, &path))? })
    }

    /// Starts to move all.
    fn start(&self, py: Python<'_>, asked: Vec<Asked<'_>>, write: bool) -> PyResult<Started> {
        let name = |asked: &Asked<'_>| (asked.0.get().file.path().to_owned(), asked.1, asked.3);
        let names = Arc::new(asked.iter().map(name).collect());
        let requests: Result<Vec<Request>, BulkError> =
            asked.iter().map(|asked| request(asked, write)).collect();
        let requests = requests.map_err(|e| errors::engine(py, &e))?;
        let owners = asked.into_iter().map(|asked| asked.5).collect();
        Ok(self.start_all(py, requests, names, write, owners))
    }

    /// Moves one, and waits. A short one is moved by this thread.
    fn run(&self, py: Python<'_>, asked: Asked<'_>, write: bool) -> PyResult<u64> {
        if asked.3 > self.bulk.knees().inline_bytes_max {
            let request = request(&asked, write).map_err(|e| errors::engine(py, &e))?;
            let transfer = py.detach(|| self.bulk.submit(request));
            let path = asked.0.get().file.path().to_owned();
            return wait(py, Named { transfer, path }, None, vec![asked.5]);
        }
        let (handle, offset, address, bytes, on_device, _keeps_it) = asked;
        let place = memory::place(address, bytes, on_device).map_err(|e| errors::engine(py, &e))?;
        let file = &handle.get().file;
        let moved = py.detach(|| match write {
            true => self.bulk.write(file, offset, place),
            false => self.bulk.read(file, offset, place),
        });
        moved.map_err(|e| errors::of_file(py, &e, file.path()))
    }

    /// Starts one.
    fn submit(&self, py: Python<'_>, asked: Asked<'_>, write: bool) -> PyResult<Pending> {
        sweep(py);
        let request = request(&asked, write).map_err(|e| errors::engine(py, &e))?;
        let transfer = py.detach(|| self.bulk.submit(request));
        Ok(Pending::new(transfer, asked.0.get().file.path().to_owned(), asked.5))
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
        Ok(Pending::new(transfer, asked.0.get().file.path().to_owned(), asked.5))
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
        wait(py, Named { transfer, path: file.path().to_owned() }, None, vec![owner])
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

    /// The same for memory that nobody has: aligned as large allocations are, and touched by nobody.
    fn explain_size(
        &self,
        py: Python<'_>,
        handle: &Bound<'_, Handle>,
        offset: u64,
        bytes: u64,
    ) -> PyResult<String> {
        let place = match &self.gpu {
            Some(_) => {
                let address = 1 << 40;
                Place::memory(&DeviceMemory { address, bytes, window: None, keeper: None })
            }
            None => {
                let len =
                    usize::try_from(bytes).map_err(|e| PyValueError::new_err(e.to_string()))?;
                let made = Region::map_private(len);
                Place::host(made.map_err(|e| PyValueError::new_err(e.to_string()))?)
            }
        };
        let file = &handle.get().file;
        let plan = py.detach(|| self.bulk.plan(&Request::read(file, offset, place)));
        Ok(plan.map_err(|e| errors::of_file(py, &e, file.path()))?.explain())
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
