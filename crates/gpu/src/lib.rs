//! What sidecore needs of a GPU: memory, a window onto it, a copy engine and kernels.
//!
//! The one trait is [`Gpu`]; [`SimulatedGpu`] implements it over the `simt` crate. A GPU address is
//! a plain `u64` (on the simulated GPU: the host's own virtual address).
#![forbid(unsafe_code)]

mod simulated;

use std::time::Duration;

use mem::Region;

pub use simulated::{SimulatedGpu, SimulatedOptions};

/// What a GPU is, for reports.
#[derive(Clone, Debug)]
pub struct Description {
    /// Name for people; begins with `simulated` where the GPU is.
    pub name: String,
    /// Whether it is simulated.
    pub simulated: bool,
}

/// Device memory, freed when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct DeviceMemory {
    /// Device address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// The CPU's mapping of it, where there is one. Write only: loads through it may be very slow.
    pub window: Option<Region>,
}

/// How many lanes a kernel is launched with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks in the grid. On the simulated GPU a block stands for one SM's work.
    pub blocks: u32,
    /// Threads a block, at most 1,024.
    pub threads_per_block: u32,
    /// Dynamic shared memory a block, in bytes; 0 on the simulated GPU.
    pub shared_bytes: u32,
}

/// A kernel that can be launched, whatever the GPU.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// Its C name.
    pub name: &'static str,
    /// Its compiled form for the simulated GPU.
    pub simulated: simt::Entry,
}

/// What can go wrong with a GPU.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// Not enough memory. Remedy: smaller buffers.
    #[error("allocating {bytes} bytes of {what}: {why}")]
    Exhausted {
        /// Which memory.
        what: &'static str,
        /// How much was asked for.
        bytes: u64,
        /// The lower layer's reason.
        why: String,
    },
    /// A kernel did not end well: deadlock, livelock, abort. The text names lanes and places.
    #[error("kernel {kernel}: {why}")]
    Kernel {
        /// Its name.
        kernel: String,
        /// What happened, where.
        why: String,
    },
    /// The caller broke the contract. Remedy: fix the call.
    #[error("{0}")]
    Misuse(String),
}

/// A GPU.
pub trait Gpu: Send + Sync {
    /// What it is.
    fn describe(&self) -> Description;
    /// Allocates device memory, zeroed.
    ///
    /// # Errors
    /// [`GpuError::Exhausted`].
    fn allocate_device(&self, bytes: u64) -> Result<DeviceMemory, GpuError>;
    /// Allocates pinned host memory, zeroed, whose `address()` is also its device address.
    ///
    /// # Errors
    /// [`GpuError::Exhausted`].
    fn allocate_host(&self, bytes: u64) -> Result<Region, GpuError>;
    /// Copies host memory to device memory with the copy engine; returns when it has arrived.
    ///
    /// # Errors
    /// [`GpuError::Misuse`] where a range is not inside its memory.
    fn copy_to_device(&self, copy: Copy<'_>) -> Result<(), GpuError>;
    /// Copies device memory to host memory with the copy engine; returns when it has arrived.
    ///
    /// # Errors
    /// [`GpuError::Misuse`] where a range is not inside its memory.
    fn copy_to_host(&self, copy: Copy<'_>) -> Result<(), GpuError>;
    /// Starts a kernel; `arguments` is the bytes of its argument structure.
    ///
    /// # Errors
    /// [`GpuError::Misuse`] for an impossible shape.
    fn launch(
        &self,
        kernel: &Kernel,
        shape: LaunchShape,
        arguments: &[u8],
    ) -> Result<Box<dyn Launch>, GpuError>;
}

/// A range of host memory and a range of device memory of equal length.
#[derive(Clone, Copy, Debug)]
pub struct Copy<'a> {
    /// The host side.
    pub host: &'a Region,
    /// First byte on the host side.
    pub host_offset: usize,
    /// The device side.
    pub device: &'a DeviceMemory,
    /// First byte on the device side.
    pub device_offset: u64,
    /// Bytes to copy.
    pub bytes: usize,
}

/// A kernel that was started.
pub trait Launch: Send {
    /// Waits until it has ended, at most for `limit`; `None` when it still runs.
    fn wait(&mut self, limit: Duration) -> Option<Result<(), GpuError>>;
    /// Asks for its end without its completing; only where the GPU can (the simulated one can).
    fn abort(&mut self);
    /// CPU seconds that simulating it has cost so far; 0 on a real GPU.
    fn simulation_cpu_seconds(&self) -> f64;
}
