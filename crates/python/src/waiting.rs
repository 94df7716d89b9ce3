//! Waiting: without the GIL, with an eye on signals, and for nothing that only a parent process has.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bulk::{Batch, BulkError, Transfer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors;

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
pub trait Waited: Sync {
    fn wait(&self, limit: Duration) -> Option<Result<u64, Failed>>;
    fn moved(&self) -> u64;
    fn cancel(&self);
}

/// An error, and the file that was read or written.
pub struct Failed {
    error: BulkError,
    path: PathBuf,
}

impl Failed {
    fn raised(&self, py: Python<'_>) -> PyErr {
        errors::of_file(py, &self.error, &self.path)
    }
}

/// A transfer, and its file for errors.
pub struct Named {
    pub transfer: Transfer,
    pub path: PathBuf,
}

impl Waited for Named {
    fn wait(&self, limit: Duration) -> Option<Result<u64, Failed>> {
        let ended = self.transfer.wait(limit).transpose()?;
        Some(ended.map_err(|error| Failed { error, path: self.path.clone() }))
    }
    fn moved(&self) -> u64 {
        self.transfer.moved()
    }
    fn cancel(&self) {
        self.transfer.cancel();
    }
}

/// Waits without the GIL; looks for signals and tells of progress meanwhile. After a signal, the memory
/// is its owner's again before the exception is raised.
pub fn wait(
    py: Python<'_>,
    on: impl Waited + Send + 'static,
    progress: Option<&Py<PyAny>>,
    owners: Vec<Py<PyAny>>,
) -> PyResult<u64> {
    loop {
        if let Some(ended) = py.detach(|| on.wait(SIGNALS_EVERY)) {
            let moved = ended.map_err(|e| e.raised(py))?;
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

/// Transfers that nobody waits for any more, with what keeps their memory until they end.
static ORPHANS: Mutex<Vec<Orphan>> = Mutex::new(Vec::new());

struct Orphan {
    transfer: Box<dyn Waited + Send>,
    owners: Vec<Py<PyAny>>,
    /// Whose it is: in a child of it nothing ends.
    process: u32,
}

impl Orphan {
    fn has_ended(&self) -> bool {
        self.process == std::process::id() && self.transfer.wait(Duration::ZERO).is_some()
    }
}

/// Lets go of what belonged to transfers that have ended since.
pub fn sweep(py: Python<'_>) {
    let ended = {
        let mut orphans = ORPHANS.lock().unwrap_or_else(PoisonError::into_inner);
        if orphans.is_empty() {
            return;
        }
        let (ended, going): (Vec<_>, Vec<_>) = orphans.drain(..).partition(Orphan::has_ended);
        *orphans = going;
        ended
    };
    // Outside the lock: an object that goes may run code that comes back here.
    for orphan in ended {
        orphan.owners.into_iter().for_each(|owner| owner.drop_ref(py));
    }
}

/// Keeps a transfer's memory until it ends, if it has not.
fn leave(transfer: Box<dyn Waited + Send>, owners: Vec<Py<PyAny>>) {
    if transfer.wait(Duration::ZERO).is_none() {
        let orphan = Orphan { transfer, owners, process: std::process::id() };
        ORPHANS.lock().unwrap_or_else(PoisonError::into_inner).push(orphan);
    }
}

/// A request that must move all of its bytes; its name is known for the error.
pub struct Batched {
    pub batch: Batch,
    pub asked: Arc<Vec<Expected>>,
    pub write: bool,
}

/// A file, an offset, and how many bytes must be there.
pub type Expected = (PathBuf, u64, u64);

impl Waited for Batched {
    fn wait(&self, limit: Duration) -> Option<Result<u64, Failed>> {
        let results = self.batch.wait(limit)?;
        let mut total = 0;
        for (result, (path, offset, bytes)) in results.into_iter().zip(&*self.asked) {
            let error = match result {
                Ok(moved) if moved < *bytes && !self.write => {
                    let (end, wanted) = (offset + moved, offset + bytes);
                    let target = path.display().to_string();
                    BulkError::Truncated { target, end, wanted }
                }
                Ok(moved) => {
                    total += moved;
                    continue;
                }
                Err(error) => error,
            };
            return Some(Err(Failed { error, path: path.clone() }));
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

/// Transfers that go on while Python does something else.
#[pyclass(frozen, module = "sidecore._sidecore")]
pub struct Started {
    /// None once it was waited for.
    going: Mutex<Option<(Batched, Vec<Py<PyAny>>)>>,
    process: u32,
}

impl Started {
    /// Transfers, and what keeps their memory.
    pub fn new(batched: Batched, owners: Vec<Py<PyAny>>) -> Self {
        Self { going: Mutex::new(Some((batched, owners))), process: std::process::id() }
    }

    fn take(&self) -> Option<(Batched, Vec<Py<PyAny>>)> {
        self.going.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let Some((batched, owners)) = self.take() else { return };
        if self.process == std::process::id() {
            batched.cancel();
            leave(Box::new(batched), owners);
        } else {
            std::mem::forget((batched, owners));
        }
    }
}

#[pymethods]
impl Started {
    /// Waits until every byte has been moved.
    #[pyo3(signature = (progress=None))]
    fn finish(&self, py: Python<'_>, progress: Option<Py<PyAny>>) -> PyResult<u64> {
        match self.take() {
            Some((batched, owners)) => wait(py, batched, progress.as_ref(), owners),
            None => Ok(0),
        }
    }

    /// Ends it: the memory is its owner's again.
    fn abort(&self, py: Python<'_>) {
        if let Some((batched, owners)) = self.take() {
            batched.cancel();
            py.detach(|| batched.wait(CANCEL_LIMIT));
            leave(Box::new(batched), owners);
        }
    }
}

/// A transfer that goes on by itself.
#[pyclass(frozen, module = "sidecore._sidecore")]
pub struct Pending {
    transfer: Arc<Named>,
    owner: Option<Py<PyAny>>,
    /// Whose it is: in a child of it nothing ends.
    process: u32,
}

impl Waited for Arc<Named> {
    fn wait(&self, limit: Duration) -> Option<Result<u64, Failed>> {
        (**self).wait(limit)
    }
    fn moved(&self) -> u64 {
        (**self).moved()
    }
    fn cancel(&self) {
        (**self).cancel();
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let (transfer, owner) = (Arc::clone(&self.transfer), self.owner.take());
        if self.process == std::process::id() {
            leave(Box::new(transfer), owner.into_iter().collect());
        } else {
            // Its locks may be held by threads that are not here; its memory is the parent's.
            std::mem::forget((transfer, owner));
        }
    }
}

impl Pending {
    /// A transfer of the file `path`, whose memory `owner` keeps.
    pub fn new(transfer: Transfer, path: PathBuf, owner: Py<PyAny>) -> Self {
        let transfer = Arc::new(Named { transfer, path });
        Self { transfer, owner: Some(owner), process: std::process::id() }
    }

    /// The transfer, in the process that it belongs to.
    fn ours(&self, py: Python<'_>) -> PyResult<&Named> {
        if self.process == std::process::id() {
            Ok(&self.transfer)
        } else {
            Err(errors::forked(py, self.process))
        }
    }

    /// Waits for the end. A signal ends the wait, not the transfer.
    fn wait(&self, py: Python<'_>) -> PyResult<u64> {
        let transfer = self.ours(py)?;
        loop {
            if let Some(ended) = py.detach(|| transfer.wait(SIGNALS_EVERY)) {
                return ended.map_err(|e| e.raised(py));
            }
            py.check_signals()?;
        }
    }
}

#[pymethods]
impl Pending {
    /// Waits for the end, at most for so many seconds: none where it goes on.
    #[pyo3(signature = (timeout=None))]
    fn get(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<u64>> {
        // More than this is for ever.
        const SECONDS_MAX: f64 = 1e9;
        let Some(seconds) = timeout.filter(|seconds| *seconds < SECONDS_MAX) else {
            // This object keeps the memory.
            return self.wait(py).map(Some);
        };
        let limit = Duration::try_from_secs_f64(seconds.max(0.0))
            .map_err(|e| PyValueError::new_err(e.to_string()))?;
        let begin = std::time::Instant::now();
        let transfer = self.ours(py)?;
        loop {
            let left = limit.saturating_sub(begin.elapsed());
            let slice = left.min(SIGNALS_EVERY);
            if let Some(ended) = py.detach(|| transfer.wait(slice)) {
                return ended.map(Some).map_err(|e| e.raised(py));
            }
            py.check_signals()?;
            if left.is_zero() {
                return Ok(None);
            }
        }
    }

    /// Whether it has ended.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.ours(py)?.transfer.is_done())
    }

    /// Asks for its end.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        self.ours(py)?.cancel();
        Ok(())
    }
}
