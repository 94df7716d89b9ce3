//! Many requests at once.

use std::time::{Duration, Instant};

use crate::error::BulkError;
use crate::job::What;
use crate::transfer::Transfer;

/// Where the end of one request is to be found.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Spot {
    /// Among the small reads of the first transfer.
    Item(usize),
    /// A transfer of its own.
    Transfer(usize),
}

/// Where the ends of all requests are to be found.
#[derive(Debug)]
pub(crate) enum Spots {
    Each(Vec<Spot>),
    /// So many small reads, and nothing else.
    Items(usize),
}

/// Requests that were submitted together.
#[derive(Debug)]
pub struct Batch {
    /// The first one is that of all small reads.
    pub(crate) transfers: Vec<Transfer>,
    pub(crate) spots: Spots,
}

impl Batch {
    /// How many requests there are.
    pub fn len(&self) -> usize {
        match &self.spots {
            Spots::Each(spots) => spots.len(),
            Spots::Items(count) => *count,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
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
        Some(match &self.spots {
            Spots::Each(spots) => spots.iter().map(|spot| self.result(*spot)).collect(),
            Spots::Items(count) => (0..*count).map(|item| self.result(Spot::Item(item))).collect(),
        })
    }

    /// Waits as [`Batch::wait`] does, for users who want all or nothing: the bytes of all together.
    ///
    /// # Errors
    /// The first one in order.
    pub fn wait_whole(&self, limit: Duration) -> Result<Option<u64>, BulkError> {
        let begin = Instant::now();
        for transfer in &self.transfers {
            let left = limit.saturating_sub(begin.elapsed());
            if transfer.end.wait(left).is_none() {
                return Ok(None);
            }
        }
        let sum = match &self.spots {
            Spots::Each(spots) => spots.iter().map(|spot| self.result(*spot)).sum(),
            Spots::Items(count) => (0..*count).map(|item| self.result(Spot::Item(item))).sum(),
        };
        Result::map(sum, Some)
    }

    fn result(&self, spot: Spot) -> Result<u64, BulkError> {
        let whole = |transfer: &Transfer| {
            transfer.end.wait(Duration::ZERO).unwrap_or(Err(BulkError::Closed))
        };
        match spot {
            Spot::Transfer(at) => whole(&self.transfers[at]),
            Spot::Item(item) => {
                let gathered = &self.transfers[0];
                if let Some(error) = gathered.end.forked() {
                    return Err(error);
                }
                let outcome = match gathered.job.as_ref().map(|job| &job.what) {
                    Some(What::Items { outcomes, .. }) => outcomes.get(item),
                    _ => None,
                };
                outcome.unwrap_or_else(|| whole(gathered).and(Err(BulkError::Closed)))
            }
        }
    }
}
