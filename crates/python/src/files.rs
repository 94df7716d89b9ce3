//! Many whole files at once: their lengths, their places in one block of memory, and their bytes.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bulk::{BulkError, Request};
use pyo3::prelude::*;

use crate::engine::{Engine, Target};
use crate::waiting::{Expected, Started};
use crate::{errors, memory};

/// How many files a thread measures at a time.
const GROUP: usize = 256;
/// More threads gain nothing: each call is short, and the kernel's own locks are shared.
const THREADS_MAX: usize = 16;

/// Files that are to be read whole, each to a place of its own.
#[pyclass(frozen, module = "sidecore._sidecore")]
pub struct FileList {
    sizes: Vec<u64>,
    /// Where each begins in the memory.
    offsets: Vec<u64>,
    /// Those that are not empty.
    full: Arc<Vec<Expected>>,
    /// Bytes of all files, without what lies between them.
    #[pyo3(get)]
    payload: u64,
    /// Bytes of the memory that they need.
    #[pyo3(get)]
    nbytes: u64,
}

#[pymethods]
impl FileList {
    /// Looks at each file; releases the GIL. Each place begins at a multiple of `alignment`.
    #[new]
    fn new(py: Python<'_>, paths: Vec<PathBuf>, alignment: u64) -> PyResult<Self> {
        let measured = py.detach(|| measure(&paths));
        let sizes = measured.map_err(|(path, error)| errors::named(&error, &path))?;
        let (mut payload, mut end) = (0_u64, 0_u64);
        let place = |bytes: &u64| {
            let offset = end.next_multiple_of(alignment.max(1));
            end = offset + bytes;
            payload += bytes;
            offset
        };
        let offsets: Vec<u64> = sizes.iter().map(place).collect();
        let full = paths.into_iter().zip(&sizes).filter(|(_, bytes)| **bytes > 0);
        let full = full.map(|(path, bytes)| (path, 0, *bytes)).collect();
        let nbytes = end.next_multiple_of(alignment.max(1));
        Ok(Self { sizes, offsets, full: Arc::new(full), payload, nbytes })
    }

    /// Lengths of the files.
    fn sizes(&self) -> Vec<u64> {
        self.sizes.clone()
    }

    /// Places of the files.
    fn offsets(&self) -> Vec<u64> {
        self.offsets.clone()
    }

    /// Starts to read all into memory of `nbytes`; a file that has become shorter is an error.
    fn start(&self, py: Python<'_>, engine: &Engine, target: Target) -> PyResult<Started> {
        let (address, bytes, on_device, owner) = target;
        let place = memory::place(address, bytes, on_device).map_err(|e| errors::engine(py, &e))?;
        let requests: Result<Vec<Request>, BulkError> = py.detach(|| {
            let places = self.offsets.iter().zip(&self.sizes).filter(|(_, bytes)| **bytes > 0);
            let each = places.zip(&*self.full);
            each.map(|((offset, bytes), (path, ..))| {
                Ok(Request::read_path(path, 0, place.part(*offset, *bytes)?))
            })
            .collect()
        });
        let requests = requests.map_err(|e| errors::engine(py, &e))?;
        Ok(engine.start_all(py, requests, Arc::clone(&self.full), false, vec![owner]))
    }
}

/// The length of each file, by several threads.
fn measure(paths: &[PathBuf]) -> Result<Vec<u64>, (PathBuf, std::io::Error)> {
    let groups = paths.len().div_ceil(GROUP);
    let next = AtomicUsize::new(0);
    let lengths = Mutex::new(vec![0; paths.len()]);
    let failed = Mutex::new(None);
    let work = || loop {
        let begin = next.fetch_add(1, Ordering::Relaxed) * GROUP;
        let Some(group) = paths.get(begin..paths.len().min(begin + GROUP)) else { return };
        if group.is_empty() {
            return;
        }
        let mut found = Vec::with_capacity(group.len());
        for path in group {
            match std::fs::metadata(path) {
                Ok(facts) => found.push(facts.len()),
                Err(error) => {
                    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                    failed.get_or_insert((path.clone(), error));
                    return next.store(groups, Ordering::Relaxed);
                }
            }
        }
        let mut lengths = lengths.lock().unwrap_or_else(PoisonError::into_inner);
        lengths[begin..begin + found.len()].copy_from_slice(&found);
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 1..threads.min(THREADS_MAX).min(groups) {
            scope.spawn(work);
        }
        work();
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(failed) => Err(failed),
        None => Ok(lengths.into_inner().unwrap_or_else(PoisonError::into_inner)),
    }
}
