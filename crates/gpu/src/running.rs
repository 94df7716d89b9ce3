//! Kernels and copies in one call, for programs that wait for them anyway.

use std::time::Duration;

use zerocopy::{FromBytes, IntoBytes};

use crate::{Copy, DeviceMemory, Gpu, GpuError, Kernel, LaunchShape};

/// Starts a kernel and waits for its end; `arguments` is the bytes of its argument structure.
///
/// # Errors
/// [`GpuError::Kernel`] where it fails, or does not end within `limit`: it is asked to abort then. Those
/// of [`Gpu::launch`].
pub fn run(
    gpu: &dyn Gpu,
    kernel: &Kernel,
    shape: LaunchShape,
    arguments: &[u8],
    limit: Duration,
) -> Result<(), GpuError> {
    let mut launch = gpu.launch(kernel, shape, arguments)?;
    launch.wait(limit).unwrap_or_else(|| {
        launch.abort();
        let why = format!("has not ended within {limit:?}");
        Err(GpuError::Kernel { kernel: kernel.name.to_owned(), why })
    })
}

/// The value at the beginning of device memory, by the copy engine.
///
/// # Errors
/// [`GpuError::Misuse`] where the memory is shorter; [`GpuError::Exhausted`] without pinned memory
/// to copy through.
pub fn fetch<T: FromBytes + IntoBytes>(
    gpu: &dyn Gpu,
    memory: &DeviceMemory,
) -> Result<T, GpuError> {
    let (mut value, bytes) = (T::new_zeroed(), size_of::<T>());
    let host = gpu.allocate_host(bytes as u64)?;
    let copy = Copy { host: &host, host_offset: 0, device: memory, device_offset: 0, bytes };
    gpu.copy_to_host(copy)?;
    host.read_bytes(0, value.as_mut_bytes());
    Ok(value)
}
