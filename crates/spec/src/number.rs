//! Numbers that could be taken for one another, each with a type of its own.

use core::fmt;

/// A submission or completion queue identifier; 0 is the admin queue.
///
/// Source: NVMe Base 2.0c, 3.3.1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct QueueId(pub u16);

impl QueueId {
    /// The admin queue pair.
    pub const ADMIN: Self = Self(0);

    /// Whether this names the admin queue pair.
    pub const fn is_admin(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue {}", self.0)
    }
}

/// Names a command among those outstanding on one submission queue.
///
/// 0xffff is never used: the error log reserves it for errors of no particular command.
/// Source: NVMe Base 2.0c, 3.3.3.1 (command dword 0).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct CommandId(pub u16);

impl fmt::Display for CommandId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "command {:#06x}", self.0)
    }
}

/// A logical block address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Lba(pub u64);

impl fmt::Display for Lba {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LBA {:#x}", self.0)
    }
}

/// A number of logical blocks. One command moves 1..=65536 of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct BlockCount(pub u32);

impl BlockCount {
    /// The most that a command can name: sixteen bits, counted from zero.
    pub const COMMAND_MAX: Self = Self(1 << 16);
}

/// A namespace identifier; 0 is none, 0xffff_ffff is all.
///
/// Source: NVMe Base 2.0c, 3.2.1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Nsid(pub u32);

impl Nsid {
    /// No namespace.
    pub const NONE: Self = Self(0);
    /// Every active namespace.
    pub const BROADCAST: Self = Self(u32::MAX);
    /// Largest identifier that may name a namespace.
    pub const MAX: Self = Self(0xffff_fffe);
}

impl fmt::Display for Nsid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "namespace {}", self.0)
    }
}
