//! Copies that go on by themselves, and places in the order of somebody else's stream.

use mem::Region;

use crate::GpuError;

/// A range of host memory and a device address of equal length.
///
/// The address is taken on trust, as one in a kernel's arguments is; [`crate::Gpu::memory_at`] checks one.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// The host side.
    pub host: &'a Region,
    /// First byte on the host side.
    pub host_offset: usize,
    /// Device address of the first byte.
    pub device: u64,
    /// Bytes to copy.
    pub bytes: usize,
}

/// Copies of one user, carried out in order while the user does something else.
///
/// The queue keeps the host memory of a copy alive until the copy has ended. The device memory is its
/// user's business.
pub trait CopyQueue: Send {
    /// Starts a copy from host memory to device memory.
    ///
    /// # Errors
    /// [`GpuError::Misuse`] where a range is not inside its memory, [`GpuError::Unavailable`].
    fn start_to_device(&mut self, span: Span<'_>) -> Result<(), GpuError>;
    /// Starts several copies from host memory to device memory, which may be carried out in any order
    /// among themselves. By one call where the GPU's interface has one, which takes less of both sides.
    ///
    /// # Errors
    /// As [`CopyQueue::start_to_device`]. Some may have been started.
    fn start_all_to_device(&mut self, spans: &[Span<'_>]) -> Result<(), GpuError> {
        spans.iter().try_for_each(|span| self.start_to_device(*span))
    }
    /// Starts a copy from device memory to host memory.
    ///
    /// # Errors
    /// As [`CopyQueue::start_to_device`].
    fn start_to_host(&mut self, span: Span<'_>) -> Result<(), GpuError>;
    /// Puts a mark behind all copies that were started. Marks grow.
    ///
    /// # Errors
    /// [`GpuError::Unavailable`].
    fn mark(&mut self) -> Result<u64, GpuError>;
    /// Whether all copies before a mark have ended.
    ///
    /// # Errors
    /// [`GpuError::Unavailable`]: one of them failed.
    fn is_done(&mut self, mark: u64) -> Result<bool, GpuError>;
    /// The stream that the copies are in, a handle of the GPU's interface.
    fn stream(&self) -> u64;
    /// Waits until all copies before a mark have ended.
    ///
    /// # Errors
    /// As [`CopyQueue::is_done`].
    fn wait(&mut self, mark: u64) -> Result<(), GpuError>;
}

/// A place in a stream's order: what comes after it waits until this value is dropped.
pub trait StreamGate: Send + Sync {
    /// Whether everything before it in the stream has ended.
    ///
    /// # Errors
    /// [`GpuError::Unavailable`]: something before it failed.
    fn is_reached(&self) -> Result<bool, GpuError>;
    /// Whether the stream itself waits, so that no thread of the driver has to.
    fn is_word(&self) -> bool;
}
