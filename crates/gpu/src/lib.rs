//! What sidecore needs of a GPU: memory, a window onto it, a copy engine and kernels.
//!
//! The one trait is [`Gpu`]; [`SimulatedGpu`] implements it over the `simt` crate and [`CudaGpu`] over the
//! `cuda` crate; [`open`] chooses. A GPU address is a plain `u64` (on the simulated GPU: the host's
//! own virtual address).
#![forbid(unsafe_code)]

mod copying;
mod foreign;
mod nvidia;
mod open;
mod running;
mod simulated;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use mem::Region;

pub use copying::{CopyQueue, Span, StreamGate};
pub use cuda::{Header, Program};
pub use foreign::{Foreign, ForeignKind};
pub use nvidia::{CudaGpu, CudaOptions};
pub use open::{Choice, Opened, open, open_with};
pub use running::{fetch, run};
pub use simulated::{SimulatedGpu, SimulatedOptions};

/// What a GPU is, for reports.
#[derive(Clone, Debug)]
pub struct Description {
    /// Name for people; begins with `simulated` where the GPU is.
    pub name: String,
    /// Whether it is simulated.
    pub simulated: bool,
    /// Why the CPU has no window onto its memory; `None` where it has.
    pub no_window: Option<String>,
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
    /// Keeps the memory, where `window` does not.
    pub keeper: Option<Keeper>,
}

impl DeviceMemory {
    /// A part of this memory that keeps the whole.
    ///
    /// # Errors
    /// [`GpuError::Misuse`] where the range is not inside.
    pub fn slice(&self, offset: u64, bytes: u64) -> Result<Self, GpuError> {
        let misuse = |why: String| GpuError::Misuse(format!("part of device memory: {why}"));
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return Err(misuse(format!("{offset}..+{bytes} of {}", self.bytes)));
        }
        let part = |window: &Region| {
            let offset = usize::try_from(offset).map_err(|e| misuse(e.to_string()))?;
            let bytes = usize::try_from(bytes).map_err(|e| misuse(e.to_string()))?;
            window.slice(offset, bytes).map_err(|e| misuse(e.to_string()))
        };
        let window = self.window.as_ref().map(part).transpose()?;
        Ok(Self { address: self.address + offset, bytes, window, keeper: self.keeper.clone() })
    }
}

/// Whatever must live as long as some memory.
#[derive(Clone)]
pub struct Keeper(Arc<dyn Any + Send + Sync>);

impl Keeper {
    /// Keeps `owner`.
    pub fn new(owner: impl Any + Send + Sync) -> Self {
        Self(Arc::new(owner))
    }
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keeper({} users)", Arc::strong_count(&self.0))
    }
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

impl LaunchShape {
    /// So many blocks of so many threads, without dynamic shared memory.
    pub const fn new(blocks: u32, threads_per_block: u32) -> Self {
        Self { blocks, threads_per_block, shared_bytes: 0 }
    }
}

/// A kernel that can be launched, whatever the GPU.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// Its C name.
    pub name: &'static str,
    /// Its compiled form for the simulated GPU.
    pub simulated: simt::Entry,
    /// Its source, for a real GPU; `None` where it runs only simulated.
    pub source: Option<&'static Program>,
}

impl Kernel {
    /// One that runs only on the simulated GPU.
    pub const fn simulated(name: &'static str, entry: simt::Entry) -> Self {
        Self { name, simulated: entry, source: None }
    }
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
    /// The driver, its compiler or a device is not as needed. Remedy: as the text says.
    #[error("{0}")]
    Unavailable(String),
}

/// What a kernel takes of a multiprocessor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KernelFacts {
    /// Registers a thread, as the compiler chose.
    pub registers: u32,
    /// Bytes of local memory a thread: stack and spilled registers.
    pub local_bytes: u32,
    /// Blocks that a multiprocessor holds at once.
    pub blocks_per_multiprocessor: u32,
    /// Multiprocessors of the GPU.
    pub multiprocessors: u32,
}

/// A GPU. (Twelve methods: one for each thing that a GPU is needed for.)
pub trait Gpu: Send + Sync {
    /// What it is.
    fn describe(&self) -> Description;
    /// Allocates device memory, zeroed.
    ///
    /// # Errors
    /// [`GpuError::Exhausted`].
    fn allocate_device(&self, bytes: u64) -> Result<DeviceMemory, GpuError>;
    /// Allocates zeroed memory for words that the CPU stores and the GPU polls: device memory with a
    /// window where there is one, else pinned host memory. Its `window` is always there.
    ///
    /// # Errors
    /// [`GpuError::Exhausted`].
    fn allocate_words(&self, bytes: u64) -> Result<DeviceMemory, GpuError> {
        let memory = self.allocate_device(bytes)?;
        if memory.window.is_some() {
            return Ok(memory);
        }
        let host = self.allocate_host(bytes)?;
        Ok(DeviceMemory { address: host.address(), bytes, window: Some(host), keeper: None })
    }
    /// What `bytes` bytes are that somebody else allocated: whether they can be used, and how.
    ///
    /// # Errors
    /// [`GpuError::Misuse`] where the GPU cannot reach them, or not all of them.
    fn foreign(&self, address: u64, bytes: u64) -> Result<Foreign, GpuError>;
    /// Why device memory of so many bytes has no window, as far as is known; `None` where it has one.
    fn no_window_for(&self, bytes: u64) -> Option<String> {
        let _ = bytes;
        self.describe().no_window
    }
    /// Compiles and loads a kernel, so that its first launch loads nothing.
    ///
    /// # Errors
    /// [`GpuError::Unavailable`], [`GpuError::Kernel`].
    fn prepare(&self, kernel: &Kernel) -> Result<(), GpuError> {
        let _ = kernel;
        Ok(())
    }
    /// Allocates pinned host memory, zeroed, whose `address()` is also its device address.
    ///
    /// # Errors
    /// [`GpuError::Exhausted`].
    fn allocate_host(&self, bytes: u64) -> Result<Region, GpuError>;
    /// Device address at which lanes reach host memory, where they do.
    fn host_address(&self, memory: &Region) -> Option<u64> {
        let _ = memory;
        None
    }
    /// Lets lanes reach host memory until the keeper is dropped. Pins it, which takes its time.
    ///
    /// # Errors
    /// [`GpuError::Unavailable`] where this memory, or this GPU, cannot.
    fn register_host(&self, memory: &Region) -> Result<Keeper, GpuError> {
        let _ = memory;
        Err(GpuError::Unavailable("registering host memory: this GPU cannot".to_owned()))
    }
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
    /// A queue of copies for one user.
    ///
    /// # Errors
    /// [`GpuError::Unavailable`].
    fn copy_queue(&self) -> Result<Box<dyn CopyQueue>, GpuError>;
    /// The device memory at an address, whoever allocated it. Where this GPU itself keeps it, so does the
    /// answer; else its owner must, for as long as it is used.
    ///
    /// # Errors
    /// [`GpuError::Misuse`] where the range is not inside one allocation that the GPU can reach.
    fn memory_at(&self, address: u64, bytes: u64) -> Result<DeviceMemory, GpuError>;
    /// Puts a gate at the end of a stream, a handle of the GPU's interface; 0 is the NULL stream. Does not
    /// wait.
    ///
    /// # Errors
    /// [`GpuError::Misuse`] where there is no such stream, or too many gates are closed;
    /// [`GpuError::Unavailable`].
    fn stream_gate(&self, stream: u64) -> Result<Box<dyn StreamGate>, GpuError>;
    /// What compiler and driver say of a kernel in blocks of so many threads; `None` where nobody
    /// compiled it for a GPU.
    ///
    /// # Errors
    /// As [`Gpu::prepare`].
    fn kernel_facts(
        &self,
        kernel: &Kernel,
        threads_per_block: u32,
    ) -> Result<Option<KernelFacts>, GpuError> {
        let _ = (kernel, threads_per_block);
        Ok(None)
    }

    /// Bytes of device memory that are free now, where that can be known.
    fn free_bytes(&self) -> Option<u64> {
        None
    }
    /// Domain, bus and device on PCI, where it has any.
    fn pci(&self) -> Option<String> {
        None
    }
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
    /// Seconds that it ran by the device's own events, once it has ended; `None` where there are none.
    fn device_seconds(&self) -> Option<f64> {
        None
    }
}
