//! The end of a transfer, for whoever waits for it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::BulkError;
use crate::job::Job;

/// Set once; waited for by anybody in the process that made it.
pub(crate) struct End {
    state: Mutex<Option<Result<u64, BulkError>>>,
    changed: Condvar,
    process: u32,
}

impl Default for End {
    fn default() -> Self {
        let process = std::process::id();
        Self { state: Mutex::default(), changed: Condvar::new(), process }
    }
}

impl End {
    /// In a forked child nobody will set it, and the lock may have been held when the process was forked.
    pub fn forked(&self) -> Option<BulkError> {
        let parent = self.process;
        (std::process::id() != parent).then_some(BulkError::Forked { parent })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Result<u64, BulkError>>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set(&self, result: Result<u64, BulkError>) {
        self.lock().get_or_insert(result);
        self.changed.notify_all();
    }

    pub fn is_set(&self) -> bool {
        self.forked().is_some() || self.lock().is_some()
    }

    pub fn wait(&self, limit: Duration) -> Option<Result<u64, BulkError>> {
        if let Some(error) = self.forked() {
            return Some(Err(error));
        }
        let begin = Instant::now();
        let mut state = self.lock();
        loop {
            if let Some(result) = &*state {
                return Some(result.clone());
            }
            let left = limit.checked_sub(begin.elapsed())?;
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A request that was accepted, or refused. Dropping it does not end it.
#[derive(Clone)]
pub struct Transfer {
    pub(crate) end: Arc<End>,
    /// None where it was refused.
    pub(crate) job: Option<Arc<Job>>,
}

impl Transfer {
    pub(crate) fn refused(error: BulkError) -> Self {
        let end = Arc::new(End::default());
        end.set(Err(error));
        Self { end, job: None }
    }

    /// Waits for the end, at most for `limit`: the bytes moved, or `None` where it goes on. A read moves
    /// fewer bytes than asked for only where the file ended.
    ///
    /// # Errors
    /// Why it failed or was refused. Its memory is its owner's again. [`BulkError::Forked`] in a child of the
    /// process that asked for it, where it never ends.
    pub fn wait(&self, limit: Duration) -> Result<Option<u64>, BulkError> {
        self.end.wait(limit).transpose()
    }

    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        self.end.is_set()
    }

    /// Asks for its end. It has not ended before [`Transfer::wait`] says so; if bytes were still to be
    /// moved, by [`BulkError::Cancelled`].
    pub fn cancel(&self) {
        if let Some(job) = self.job.as_ref().filter(|_| self.end.forked().is_none()) {
            job.cancel();
        }
    }

    /// Bytes moved so far.
    pub fn moved(&self) -> u64 {
        self.job.as_ref().map_or(0, |job| job.moved())
    }
}

impl std::fmt::Debug for Transfer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Transfer({} bytes moved, ended: {})", self.moved(), self.is_done())
    }
}
