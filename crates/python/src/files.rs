//! Many whole files at once: their lengths, their places in one block of memory, and their bytes.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use bulk::{BulkError, Request};
use pyo3::prelude::*;

use crate::engine::{Engine, Target};
use crate::{errors, memory};

/// How many files a thread measures at a time.
const GROUP: usize = 256;
/// More threads gain nothing: each call is short, and the kernel's own locks are shared.
const THREADS_MAX: usize = 16;

struct Entry {
    path: PathBuf,
    bytes: u64,
    /// Where its bytes go.
    offset: u64,
}

/// Files that are to be read whole, each to a place of its own.
#[pyclass(frozen, module = "sidecore._sidecore")]
pub struct FileList {
    entries: Vec<Entry>,
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
        let lengths = measured.map_err(|(path, error)| errors::named(&error, &path))?;
        let (mut payload, mut end) = (0_u64, 0_u64);
        let place = |(path, bytes): (PathBuf, u64)| {
            let offset = end.next_multiple_of(alignment.max(1));
            end = offset + bytes;
            payload += bytes;
            Entry { path, bytes, offset }
        };
        let entries: Vec<Entry> = paths.into_iter().zip(lengths).map(place).collect();
        Ok(Self { entries, payload, nbytes: end.next_multiple_of(alignment.max(1)) })
    }

    /// Lengths of the files.
    fn sizes(&self) -> Vec<u64> {
        self.entries.iter().map(|entry| entry.bytes).collect()
    }

    /// Places of the files.
    fn offsets(&self) -> Vec<u64> {
        self.entries.iter().map(|entry| entry.offset).collect()
    }

    /// Reads all into memory of `nbytes`; a file that has become shorter is an error.
    fn read(
        &self,
        py: Python<'_>,
        engine: &Engine,
        target: Target,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<u64> {
        let (address, bytes, on_device, owner) = target;
        let place = memory::place(address, bytes, on_device).map_err(|e| errors::engine(py, &e))?;
        let full = || self.entries.iter().filter(|entry| entry.bytes > 0);
        let requests: Result<Vec<Request>, BulkError> = py.detach(|| {
            full()
                .map(|entry| {
                    let place = place.part(entry.offset, entry.bytes)?;
                    Ok(Request::read_path(&entry.path, 0, place))
                })
                .collect()
        });
        let requests = requests.map_err(|e| errors::engine(py, &e))?;
        let asked = full().map(|entry| (entry.path.clone(), 0, entry.bytes)).collect();
        engine.read_all(py, requests, asked, progress.as_ref(), vec![owner])
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
