//! GPUs: opened by choice or by an address, described; kernels on the simulated one.
// UNSAFETY: exported C functions.
#![expect(unsafe_code, reason = "functions that C calls")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

use gpu::{Choice, CudaGpu, Gpu, Kernel, LaunchShape};

use crate::failure::{Failure, c_text, guard, swallow};
use crate::handle::{borrow, bytes, destroy, place, text_if_any};

/// A GPU: an NVIDIA one through its driver, or the simulated one, whose device memory is this process's
/// own.
pub struct sidecore_gpu {
    pub(crate) gpu: Arc<dyn Gpu>,
    simulated: bool,
    name: CString,
    no_window: CString,
}

/// A device function compiled for the simulated GPU.
pub type sidecore_kernel = Option<unsafe extern "C" fn(arguments: *const c_void)>;

impl sidecore_gpu {
    fn new(gpu: Arc<dyn Gpu>) -> Self {
        let about = gpu.describe();
        let no_window = c_text(about.no_window.as_deref().unwrap_or(""));
        Self { gpu, simulated: about.simulated, name: c_text(&about.name), no_window }
    }
}

/// Opens a GPU: "auto" (or null: the first NVIDIA one, else the simulated one), "simulated", or a
/// number by the driver's count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_gpu_open(
    choice: *const c_char,
    gpu: *mut *mut sidecore_gpu,
) -> c_int {
    guard(|| {
        // SAFETY: the rule for pointers, see the crate's documentation; so in all functions here.
        let place = unsafe { place(gpu, "gpu") }?;
        // SAFETY: as above.
        let choice = unsafe { text_if_any(choice, "choice") }?.unwrap_or("auto");
        let choice: Choice = choice.parse().map_err(Failure::misuse)?;
        place.give_handle(sidecore_gpu::new(gpu::open(choice, &[])?.gpu));
        Ok(())
    })
}

/// Opens the NVIDIA GPU that a pointer of CUDA's belongs to, in the context that it was allocated in.
/// That context must outlive everything that is made of the GPU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_gpu_open_of(pointer: u64, gpu: *mut *mut sidecore_gpu) -> c_int {
    guard(|| {
        // SAFETY: as in `sidecore_gpu_open`.
        let place = unsafe { place(gpu, "gpu") }?;
        place.give_handle(sidecore_gpu::new(Arc::new(CudaGpu::open_of(pointer, true)?)));
        Ok(())
    })
}

/// Its name; begins with "simulated" where it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_gpu_name(gpu: *const sidecore_gpu) -> *const c_char {
    // SAFETY: as in `sidecore_gpu_open`.
    unsafe { borrow(gpu, "gpu") }.map_or(c"".as_ptr(), |gpu| gpu.name.as_ptr())
}

/// Why the CPU has no window onto its memory; "" where it has one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_gpu_no_window(gpu: *const sidecore_gpu) -> *const c_char {
    // SAFETY: as in `sidecore_gpu_open`.
    unsafe { borrow(gpu, "gpu") }.map_or(c"".as_ptr(), |gpu| gpu.no_window.as_ptr())
}

/// 1 where it is simulated, else 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_gpu_is_simulated(gpu: *const sidecore_gpu) -> c_int {
    // SAFETY: as in `sidecore_gpu_open`.
    unsafe { borrow(gpu, "gpu") }.map_or(0, |gpu| c_int::from(gpu.simulated))
}

/// Runs a kernel on the simulated GPU and waits for it, at most `limit_ms`: `kernel` is a function that
/// SC_KERNEL of the device headers defines where they are compiled with SIDECORE_SIMT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_simulated_launch(
    gpu: *const sidecore_gpu,
    kernel: sidecore_kernel,
    blocks: u32,
    threads_per_block: u32,
    arguments: *const c_void,
    argument_bytes: usize,
    limit_ms: u32,
) -> c_int {
    guard(|| {
        // SAFETY: as in `sidecore_gpu_open`.
        let gpu = unsafe { borrow(gpu, "gpu") }?;
        // SAFETY: as in `sidecore_gpu_open`.
        let arguments = unsafe { bytes(arguments.cast(), argument_bytes, "arguments") }?;
        if !gpu.simulated {
            return Err(Failure::misuse("kernels of a real GPU are launched by CUDA itself"));
        }
        let entry = kernel.ok_or_else(|| Failure::misuse("kernel is null"))?;
        let kernel = Kernel { name: "kernel", simulated: simt::Entry(entry), source: None };
        let shape = LaunchShape { blocks, threads_per_block, shared_bytes: 0 };
        let mut launch = gpu.gpu.launch(&kernel, shape, arguments)?;
        match launch.wait(Duration::from_millis(limit_ms.into())) {
            Some(ended) => Ok(ended?),
            None => {
                launch.abort();
                Err(Failure::timed_out(format!("the kernel did not end within {limit_ms} ms")))
            }
        }
    })
}

/// Closes it. What was made of it goes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_gpu_close(gpu: *mut sidecore_gpu) {
    // SAFETY: as in `sidecore_gpu_open`.
    swallow(|| unsafe { destroy(gpu, "gpu") });
}
