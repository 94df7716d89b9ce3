//! What a controller is made of, and what can be wrong with that.

use std::sync::Arc;

use storage::Storage;
use storage::faults::Injector;

use crate::timing::{Pacer, TimingModel};

/// Smallest memory page of the controller, in bytes (CAP.MPSMIN = 0).
pub(crate) const PAGE_BYTES_MIN: u32 = 4096;
/// CAP.MPSMAX: hosts may choose pages of up to 64 KiB.
pub(crate) const PAGE_SHIFT_MAX: u8 = 4;

/// One namespace.
#[derive(Clone)]
pub struct NamespaceOptions {
    /// Where its blocks lie.
    pub storage: Arc<dyn Storage>,
    /// Bytes of a logical block: 512 or 4096.
    pub block_bytes: u32,
    /// What shall go wrong with its commands. Whoever keeps the other handle reads the counts.
    pub faults: Option<Arc<Injector>>,
}

impl NamespaceOptions {
    /// A namespace of 512-byte blocks without faults.
    pub fn new(storage: Arc<dyn Storage>) -> Self {
        Self { storage, block_bytes: 512, faults: None }
    }
}

/// What an injected `reset` looks like to the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ResetFault {
    /// CSTS.CFS is set, and nothing is answered until the host resets the controller.
    #[default]
    Fatal,
    /// The controller resets itself: CC and CSTS read as after power-on, all queues are gone.
    SelfReset,
}

/// How a controller is made.
#[derive(Clone)]
pub struct Options {
    /// The namespaces, numbered from 1.
    pub namespaces: Vec<NamespaceOptions>,
    /// Most I/O submission queues, and most I/O completion queues.
    pub queue_pairs_max: u16,
    /// Most entries of an I/O queue, 2..=65536.
    pub queue_entries_max: u32,
    /// Largest Read or Write: 4096 times a power of two.
    pub transfer_bytes_max: u32,
    /// Most I/O commands at work; further ones stay in their queues.
    pub commands_max: u32,
    /// Depth of the storage queue of each namespace.
    pub storage_depth: u32,
    /// Memory that will often hold payload: registered with the storage where that helps.
    pub registered: Vec<mem::Region>,
    /// The drive that is stood for.
    pub timing: TimingModel,
    /// Rate and bandwidth, where this controller is one of several that stand for one drive and are
    /// stepped by one clock.
    pub pacer: Option<Pacer>,
    /// Tells the time in nanoseconds, where it shall be counted how long fetching commands takes.
    pub fetch_clock: Option<fn() -> u64>,
    /// What an injected reset looks like.
    pub reset_fault: ResetFault,
    /// Serial number, at most 20 ASCII characters.
    pub serial: String,
}

impl Options {
    /// Ordinary options over these namespaces.
    pub fn new(namespaces: Vec<NamespaceOptions>) -> Self {
        Self {
            namespaces,
            queue_pairs_max: 64,
            queue_entries_max: 1 << 16,
            transfer_bytes_max: 1 << 20,
            commands_max: 1024,
            storage_depth: 256,
            registered: Vec::new(),
            timing: TimingModel::default(),
            pacer: None,
            fetch_clock: None,
            reset_fault: ResetFault::default(),
            serial: "SIDECORE0001".to_owned(),
        }
    }

    /// Ordinary options over one namespace of 512-byte blocks.
    pub fn over(storage: Arc<dyn Storage>) -> Self {
        Self::new(vec![NamespaceOptions::new(storage)])
    }

    pub(crate) fn check(&self) -> Result<(), ControllerError> {
        let bad = |what: &'static str, why: String| Err(ControllerError::BadOption { what, why });
        if self.namespaces.is_empty() || self.namespaces.len() > 1024 {
            return bad("namespaces", format!("{} of 1..=1024", self.namespaces.len()));
        }
        if !(1..=4096).contains(&self.queue_pairs_max) {
            return bad("queue_pairs_max", format!("{} of 1..=4096", self.queue_pairs_max));
        }
        if !(2..=1 << 16).contains(&self.queue_entries_max) {
            return bad("queue_entries_max", format!("{} of 2..=65536", self.queue_entries_max));
        }
        let transfer = self.transfer_bytes_max;
        if !transfer.is_power_of_two() || !(2 * PAGE_BYTES_MIN..=1 << 28).contains(&transfer) {
            return bad("transfer_bytes_max", format!("{transfer}: a power of two from 8 KiB"));
        }
        if !(1..=1 << 20).contains(&self.commands_max) || self.storage_depth == 0 {
            return bad("commands_max, storage_depth", "at least 1, at most 2^20".to_owned());
        }
        self.namespaces.iter().try_for_each(NamespaceOptions::check)
    }
}

impl NamespaceOptions {
    fn check(&self) -> Result<(), ControllerError> {
        let geometry = self.storage.geometry();
        let bad = |what: &'static str, why: String| Err(ControllerError::BadOption { what, why });
        if self.block_bytes != 512 && self.block_bytes != 4096 {
            return bad("block_bytes", format!("{} is neither 512 nor 4096", self.block_bytes));
        }
        if !self.block_bytes.is_multiple_of(geometry.block_bytes.max(1)) {
            let why = format!("{} on storage of {}", self.block_bytes, geometry.block_bytes);
            return bad("block_bytes", why);
        }
        if geometry.transfer_bytes_max < self.block_bytes {
            return bad("storage", "its largest request is less than a block".to_owned());
        }
        if geometry.bytes < u64::from(self.block_bytes) {
            return bad("storage", format!("{} bytes hold no block", geometry.bytes));
        }
        Ok(())
    }
}

/// What can go wrong in making a controller.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControllerError {
    /// An option is out of its range. Remedy: the text gives the range.
    #[error("option {what}: {why}")]
    BadOption {
        /// Which option.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// No memory for registers. Remedy: see the source error.
    #[error(transparent)]
    Memory(#[from] mem::MemError),
}
