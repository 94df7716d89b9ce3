//! Counters and histograms in a shared page, and their reader.
//!
//! A process that runs sidecore has one page: a small file on tmpfs, `sidecore-PID-N.stats` in
//! `$XDG_RUNTIME_DIR`, else `/dev/shm`. Any process of the same user may read it at any time.
//!
//! ```text
//! header   magic | version, bytes | pid | start time of pid
//! shard 0  sequence | counters of writer 0
//! shard 1  sequence | counters of writer 1            each shard on lines of its own
//! ...
//! ```
//!
//! A [`Writer`] owns a shard, so counting needs no locked instruction: it counts in its own memory
//! and [`Writer::publish`] copies what changed, under the shard's sequence number. A reader takes a
//! shard only where the number was even and unchanged around the copy, so that what one `publish`
//! wrote is seen whole; shards are then summed.
//!
//! What it does not do: it has no idea who shows the numbers, keeps no history, and never resets
//! (readers subtract two [`Snapshot`]s).
#![forbid(unsafe_code)]

mod histogram;
mod page;
mod snapshot;
mod writer;

pub use histogram::Histogram;
pub use page::{Page, Reader, StatsError, directory, pages, reap};
pub use snapshot::Snapshot;
pub use writer::{Writer, process_cpu_ns, thread_cpu_ns};

/// Which way payload went.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Route {
    /// Pinned host memory, then the copy engine.
    Bounce,
    /// The drive's own DMA into device memory.
    Direct,
    /// Into host memory and no further.
    Host,
    /// GPU lanes load from pinned host memory.
    Pull,
    /// GPU lanes store into pinned host memory.
    Push,
    /// A CPU core stores through its mapping of device memory.
    Window,
}

/// What was asked of storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Op {
    /// Make writes durable.
    Flush,
    /// Storage to memory.
    Read,
    /// Memory to storage.
    Write,
}

/// Single events, counted where they happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Event {
    /// Completions found by a polling CPU core in a device's or kernel's queue.
    CompletionPolledByCpu,
    /// Completions found by a polling GPU lane in a device's queue.
    CompletionPolledByGpu,
    /// Doorbells of a device rung by the CPU.
    DoorbellByCpu,
    /// Doorbells of a device rung by GPU lanes.
    DoorbellByGpu,
    /// Requests completed at the lowest layer that sidecore controls.
    IoAtDevice,
    /// Bytes that describe requests, as they crossed between GPU and CPU.
    RequestByte,
    /// Requests fetched from request rings.
    RequestFetched,
    /// Requests that failed validation.
    RequestRefused,
    /// Requests ended by the supervisor.
    SideCoreLost,
    /// System calls made on the serving path.
    Syscall,
}

/// Whose work CPU time was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Role {
    /// The emulated drive or controller.
    EmulatedDevice,
    /// The path itself: side cores, pollers, submitting threads.
    Path,
    /// Building, opening, verifying, reporting.
    Setup,
    /// The simulated GPU.
    SimulatedGpu,
}

impl Route {
    /// All routes.
    pub const ALL: [Self; 6] =
        [Self::Bounce, Self::Direct, Self::Host, Self::Pull, Self::Push, Self::Window];
    /// Its word in output.
    pub const fn name(self) -> &'static str {
        ["bounce", "direct", "host", "pull", "push", "window"][self as usize]
    }
}

impl Op {
    /// All operations.
    pub const ALL: [Self; 3] = [Self::Flush, Self::Read, Self::Write];
    /// Its word in output.
    pub const fn name(self) -> &'static str {
        ["flush", "read", "write"][self as usize]
    }
}

impl Event {
    /// All events.
    pub const ALL: [Self; 10] = [
        Self::CompletionPolledByCpu,
        Self::CompletionPolledByGpu,
        Self::DoorbellByCpu,
        Self::DoorbellByGpu,
        Self::IoAtDevice,
        Self::RequestByte,
        Self::RequestFetched,
        Self::RequestRefused,
        Self::SideCoreLost,
        Self::Syscall,
    ];
    /// Its word in output.
    pub const fn name(self) -> &'static str {
        [
            "completions_polled_cpu",
            "completions_polled_gpu",
            "doorbells_cpu",
            "doorbells_gpu",
            "ios_at_device",
            "request_bytes",
            "requests_fetched",
            "requests_refused",
            "side_core_lost",
            "syscalls",
        ][self as usize]
    }
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 4] = [Self::EmulatedDevice, Self::Path, Self::Setup, Self::SimulatedGpu];
    /// Its word in output.
    pub const fn name(self) -> &'static str {
        ["emulated_device", "path", "setup", "simulated_gpu"][self as usize]
    }
}

/// Where each counter lies among the words of a shard.
mod layout {
    use super::{Event, Op, Role, Route};
    use crate::histogram::BUCKETS;

    pub const EVENTS: usize = 0;
    pub const ROLES: usize = EVENTS + Event::ALL.len();
    pub const TRAFFIC: usize = ROLES + Role::ALL.len();
    pub const LATENCY: usize = TRAFFIC + Route::ALL.len() * Op::ALL.len() * 3;
    /// Words of a shard, without its sequence number.
    pub const WORDS: usize = LATENCY + Op::ALL.len() * BUCKETS;

    pub const fn event(event: Event) -> usize {
        EVENTS + event as usize
    }
    pub const fn role(role: Role) -> usize {
        ROLES + role as usize
    }
    /// The I/Os; bytes and errors follow.
    pub const fn traffic(route: Route, op: Op) -> usize {
        TRAFFIC + (route as usize * Op::ALL.len() + op as usize) * 3
    }
    pub const fn latency(op: Op) -> usize {
        LATENCY + op as usize * BUCKETS
    }
}
