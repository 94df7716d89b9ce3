//! Pinned host memory and plain device memory, given back with the last clone.
// UNSAFETY: wraps memory that the driver allocated.
#![expect(unsafe_code, reason = "memory of the driver becomes regions")]

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use mem::{MemoryKind, Region};

use crate::api::call;
use crate::device::{Context, Device};
use crate::error::CudaError;

/// Usable by every context, and mapped for the device. Source: `CU_MEMHOSTALLOC_PORTABLE` and
/// `CU_MEMHOSTALLOC_DEVICEMAP`.
const PORTABLE_AND_MAPPED: u32 = 1 | 2;

/// Pinned host memory; its address is the same for CPU and GPU.
#[derive(Debug)]
pub struct HostBlock {
    context: Arc<Context>,
    base: NonNull<c_void>,
}

// SAFETY: the memory is the process's; freeing it from another thread is allowed.
unsafe impl Send for HostBlock {}
// SAFETY: no method takes `&self`.
unsafe impl Sync for HostBlock {}

impl HostBlock {
    /// Allocates zeroed pinned memory.
    ///
    /// # Errors
    /// `Call` where the driver has none.
    pub fn allocate(device: &Device, bytes: usize) -> Result<Region, CudaError> {
        let context = Arc::clone(&device.context);
        let visit = context.visit()?;
        let mut base = std::ptr::null_mut();
        let len = bytes.max(1);
        call!(context.api, host_allocate(&raw mut base, len, PORTABLE_AND_MAPPED))?;
        drop(visit);
        let base = NonNull::new(base).expect("the driver allocates no null");
        let owner = Arc::new(Self { context, base });
        // SAFETY: the driver gave `len` bytes that are readable and writable until `owner` frees
        // them; nobody else knows them.
        let region = unsafe { Region::from_raw(base.cast(), len, MemoryKind::Host, owner) };
        region.fill(0, len, 0);
        Ok(region)
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        if let Ok(_visit) = self.context.visit() {
            let _lost = call!(self.context.api, host_free(self.base.as_ptr()));
        }
    }
}

/// Host memory of somebody else that was pinned, for as long as this lives.
#[derive(Debug)]
pub struct Registration {
    context: Arc<Context>,
    memory: Region,
}

impl Registration {
    /// Pins host memory and maps it for the device, whole pages of it.
    ///
    /// # Errors
    /// `Call` where the driver refuses this memory (a mapped file of most file systems) or has had it.
    pub fn new(device: &Device, memory: &Region) -> Result<Self, CudaError> {
        let context = Arc::clone(&device.context);
        let visit = context.visit()?;
        let (base, len) = (memory.as_ptr().cast(), memory.len_bytes());
        call!(context.api, host_register(base, len, PORTABLE_AND_MAPPED))?;
        drop(visit);
        Ok(Self { context, memory: memory.clone() })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Ok(_visit) = self.context.visit() {
            let _lost = call!(self.context.api, host_unregister(self.memory.as_ptr().cast()));
        }
    }
}

/// Zeroed pinned memory that stays mapped for the CPU whatever becomes of the context: a page that the
/// driver itself allocated goes with it, under the hands of whoever reads it.
///
/// # Errors
/// `Call` where the driver refuses, `Unavailable` where the device has another address for it.
pub fn allocate_lasting(device: &Device, bytes: usize) -> Result<Region, CudaError> {
    let len = bytes.max(1).next_multiple_of(4096);
    let memory = Region::map_private(len).map_err(|e| CudaError::Misuse(e.to_string()))?;
    let registration = Registration::new(device, &memory)?;
    if device.host_address(memory.address()) != Some(memory.address()) {
        let why = "the device has another address for registered memory than the CPU";
        return Err(CudaError::unavailable("pinned memory", why, "use a 64-bit Linux driver"));
    }
    let base = NonNull::new(memory.as_ptr()).expect("a mapping is not at null");
    // SAFETY: the registration keeps the mapping of `len` bytes, which nobody else knows.
    Ok(unsafe { Region::from_raw(base, bytes, MemoryKind::Host, Arc::new(registration)) })
}

/// Device memory that the CPU has no mapping of.
#[derive(Debug)]
pub struct DeviceBlock {
    context: Arc<Context>,
    address: u64,
}

impl DeviceBlock {
    /// Allocates device memory; what is in it is unknown.
    ///
    /// # Errors
    /// `Call` where the driver has none.
    pub fn allocate(device: &Device, bytes: usize) -> Result<Self, CudaError> {
        let context = Arc::clone(&device.context);
        context.enter()?;
        let mut address = 0;
        call!(context.api, memory_allocate(&raw mut address, bytes.max(1)))?;
        Ok(Self { context, address })
    }

    /// Device address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for DeviceBlock {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            let _lost = call!(self.context.api, memory_free(self.address));
        }
    }
}
