//! Many requests at once.

use std::time::{Duration, Instant};

use crate::error::BulkError;
use crate::job::What;
use crate::transfer::Transfer;

/// Where the end of one request is to be found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    pub transfer: usize,
    /// The item, where the transfer is of several.
    pub item: Option<usize>,
}

/// Requests that were submitted together.
#[derive(Debug)]
pub struct Batch {
    pub(crate) transfers: Vec<Transfer>,
    pub(crate) spots: Vec<Spot>,
}

impl Batch {
    /// How many requests there are.
    pub fn len(&self) -> usize {
        self.spots.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.spots.is_empty()
    }

    /// Whether all have ended.
    pub fn is_done(&self) -> bool {
        self.transfers.iter().all(Transfer::is_done)
    }

    /// Asks for the end of all.
    pub fn cancel(&self) {
        self.transfers.iter().for_each(Transfer::cancel);
    }

    /// Bytes moved so far, of all together.
    pub fn moved(&self) -> u64 {
        self.transfers.iter().map(Transfer::moved).sum()
    }

    /// Waits until all have ended, at most for `limit`: for each request, in order, what
    /// [`Transfer::wait`] would say; `None` where some go on.
    pub fn wait(&self, limit: Duration) -> Option<Vec<Result<u64, BulkError>>> {
        let begin = Instant::now();
        for transfer in &self.transfers {
            let left = limit.saturating_sub(begin.elapsed());
            let _told_below = transfer.end.wait(left)?;
        }
        Some(self.spots.iter().map(|spot| self.result(*spot)).collect())
    }

    fn result(&self, spot: Spot) -> Result<u64, BulkError> {
        let transfer = &self.transfers[spot.transfer];
        let whole = transfer.end.wait(Duration::ZERO).unwrap_or(Err(BulkError::Closed));
        let items = transfer.job.as_ref().map(|job| &job.what);
        match (spot.item, items) {
            (Some(item), Some(What::Items { items, .. })) => {
                let outcome = items[item].outcome.get().cloned();
                outcome.unwrap_or_else(|| whole.and(Err(BulkError::Closed)))
            }
            _ => whole,
        }
    }
}
