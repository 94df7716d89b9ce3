//! Memory that somebody else allocated: what it is, and which routes it can take.

use crate::DeviceMemory;

/// Kinds of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ForeignKind {
    /// Device memory of an ordinary allocation.
    Device,
    /// Host memory that the GPU reaches.
    Host,
    /// Managed memory, which moves between host and device.
    Managed,
    /// Device memory mapped into a reserved range.
    Virtual,
}

/// Memory that somebody else allocated, and keeps.
#[derive(Clone, Copy, Debug)]
pub struct Foreign {
    /// What it is.
    pub kind: ForeignKind,
    /// Where the GPU finds it.
    pub device_address: u64,
    /// Where the CPU may store to it and load from it while a kernel runs; `None` where it may not.
    pub host_address: Option<u64>,
    /// How much of it was asked about.
    pub bytes: u64,
}

impl Foreign {
    /// Which routes payload can take to and from it, for people.
    pub const fn routes(&self) -> &'static str {
        match self.kind {
            ForeignKind::Device | ForeignKind::Virtual => {
                "reads by pull or bounce, writes by push or bounce; not window and not direct, since \
                 the CPU has no mapping of it (allocate window memory for those)"
            }
            ForeignKind::Host => {
                "reads by window (plain stores of a CPU core), pull or bounce, writes by push or \
                 bounce; drives reach it"
            }
            ForeignKind::Managed => {
                "reads by pull or bounce, writes by push or bounce; not window and not direct, since \
                 the CPU must not touch it while it is on the device"
            }
        }
    }

    /// It as device memory without a window; whoever allocated it keeps it.
    pub const fn without_window(&self) -> DeviceMemory {
        DeviceMemory { address: self.device_address, bytes: self.bytes, window: None, keeper: None }
    }
}
