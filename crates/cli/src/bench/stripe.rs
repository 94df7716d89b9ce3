//! One drive's share of striped data: every so-many-th stripe of a storage, as a storage of its own.
//!
//! It makes several drives out of one data file, so that what is striped over them is that file, byte
//! for byte. A request lies within one stripe, as those of [`storage::Striped`] do.

use std::sync::Arc;
use std::time::Duration;

use storage::{
    Completion, Counters, Geometry, Lent, Op, QueueOptions, Rejected, Storage, StorageError,
    StorageQueue, status,
};

/// Bytes of a stripe.
pub const STRIPE_BYTES: u32 = 64 << 10;

/// Where the stripes of one drive lie.
#[derive(Clone, Copy)]
struct Share {
    drive: u64,
    drives: u64,
}

impl Share {
    /// Where a byte of the drive is in the whole.
    fn place(self, offset: u64) -> u64 {
        let stripe = u64::from(STRIPE_BYTES);
        (offset / stripe * self.drives + self.drive) * stripe + offset % stripe
    }
}

/// The stripes `drive`, `drive + drives`, ... of a storage that has as many for each drive.
pub struct StripeShare {
    whole: Arc<dyn Storage>,
    share: Share,
}

impl StripeShare {
    /// Takes a share of `whole`.
    pub fn new(whole: Arc<dyn Storage>, drive: u32, drives: u32) -> Self {
        let share = Share { drive: u64::from(drive), drives: u64::from(drives) };
        Self { whole, share }
    }
}

impl Storage for StripeShare {
    fn geometry(&self) -> Geometry {
        let whole = self.whole.geometry();
        let transfer_bytes_max = whole.transfer_bytes_max.min(STRIPE_BYTES);
        Geometry { bytes: whole.bytes / self.share.drives, transfer_bytes_max, ..whole }
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn StorageQueue>, StorageError> {
        let whole = self.whole.open_queue(options)?;
        Ok(Box::new(ShareQueue { whole, share: self.share, bytes: self.geometry().bytes }))
    }

    fn explain(&self) -> String {
        let Share { drive, drives } = self.share;
        format!("share {drive} of {drives} of {}", self.whole.explain())
    }
}

struct ShareQueue {
    whole: Box<dyn StorageQueue>,
    share: Share,
    bytes: u64,
}

impl StorageQueue for ShareQueue {
    fn try_submit(&mut self, request: Lent<'_>) -> Result<(), Rejected> {
        if request.op == Op::Flush {
            return self.whole.try_submit(request);
        }
        let end = request.offset.saturating_add(u64::from(request.bytes));
        if end > self.bytes {
            return Err(Rejected::Invalid(status::LBA_OUT_OF_RANGE));
        }
        let stripe = u64::from(STRIPE_BYTES);
        if request.bytes > 0 && request.offset / stripe != (end - 1) / stripe {
            return Err(Rejected::Invalid(status::INVALID_FIELD));
        }
        self.whole.try_submit(Lent { offset: self.share.place(request.offset), ..request })
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.whole.poll(completions);
    }

    fn wait_for_completion(&mut self, limit: Duration) {
        self.whole.wait_for_completion(limit);
    }

    fn cancel(&mut self, token: u64) {
        self.whole.cancel(token);
    }

    fn quiesce(&mut self, completions: &mut Vec<Completion>) {
        self.whole.quiesce(completions);
    }

    fn in_flight(&self) -> u32 {
        self.whole.in_flight()
    }

    fn counters(&self) -> Counters {
        self.whole.counters()
    }
}
