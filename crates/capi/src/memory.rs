//! Memory: allocated for the caller, or the caller's own.
// UNSAFETY: exported C functions; memory of the caller becomes regions.
#![expect(unsafe_code, reason = "functions that C calls, and memory that C brings")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use gpu::{Copy, DeviceMemory, Foreign, ForeignKind, Gpu};
use mem::{MemoryKind, Region, fence_payload};

use crate::failure::{Failure, c_text, guard, swallow};
use crate::gpu_edge::sidecore_gpu;
use crate::handle::{borrow, bytes, bytes_mut, destroy, place};

/// Device memory that the CPU stores to through a window: write only for the CPU, write combining.
pub const SIDECORE_MEMORY_WINDOW: u32 = 1;
/// Device memory; the CPU may have no mapping of it.
pub const SIDECORE_MEMORY_DEVICE: u32 = 2;
/// Pinned host memory that the GPU reaches under the same address.
pub const SIDECORE_MEMORY_HOST: u32 = 3;
/// Managed memory of the caller's.
pub const SIDECORE_MEMORY_MANAGED: u32 = 4;
/// Virtual memory of the caller's (cuMemMap).
pub const SIDECORE_MEMORY_VIRTUAL: u32 = 5;

/// Memory that GPU, CPU or drive use, kept as long as any of them may.
pub struct sidecore_memory {
    gpu: Arc<dyn Gpu>,
    kind: u32,
    pub(crate) device: DeviceMemory,
    routes: CString,
}

/// Where memory is.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct sidecore_memory_view {
    /// Length in bytes.
    pub bytes: u64,
    /// Address of the first byte for kernels.
    pub device_address: u64,
    /// Address of the first byte for the CPU; null where it has no mapping. Do not load through a
    /// window: it is slow, and what the CPU stored may not be back yet.
    pub host: *mut c_void,
    /// One of SIDECORE_MEMORY_*.
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
}

impl sidecore_memory {
    /// The CPU's mapping of it.
    pub(crate) fn region(&self, what: &str) -> Result<&Region, Failure> {
        self.device.window.as_ref().ok_or_else(|| {
            let about = self.routes.to_string_lossy();
            Failure::unsupported(format!("{what}: a drive cannot reach this memory ({about})"))
        })
    }

    fn check(&self, offset: u64, bytes: usize) -> Result<(), Failure> {
        let end = offset.checked_add(bytes as u64);
        if end.is_some_and(|end| end <= self.device.bytes) {
            return Ok(());
        }
        let len = self.device.bytes;
        Err(Failure::misuse(format!("bytes {offset}+{bytes} do not lie inside {len} bytes")))
    }

    /// Copies to or from it by the copy engine, through pinned memory.
    fn by_copy_engine(&self, offset: u64, bytes: usize, to_host: bool) -> Result<Region, Failure> {
        let host = self.gpu.allocate_host(bytes as u64)?;
        if to_host {
            self.gpu.copy_to_host(self.copy(&host, offset, bytes))?;
        }
        Ok(host)
    }

    fn copy<'a>(&'a self, host: &'a Region, offset: u64, bytes: usize) -> Copy<'a> {
        Copy { host, host_offset: 0, device: &self.device, device_offset: offset, bytes }
    }

    fn store(&self, offset: u64, from: &[u8]) -> Result<(), Failure> {
        self.check(offset, from.len())?;
        if let (Some(window), Ok(at)) = (&self.device.window, usize::try_from(offset)) {
            window.write_bytes(at, from);
            fence_payload();
            return Ok(());
        }
        let host = self.by_copy_engine(offset, from.len(), false)?;
        host.write_bytes(0, from);
        Ok(self.gpu.copy_to_device(self.copy(&host, offset, from.len()))?)
    }

    fn load(&self, offset: u64, to: &mut [u8]) -> Result<(), Failure> {
        self.check(offset, to.len())?;
        if self.kind == SIDECORE_MEMORY_HOST
            && let (Some(host), Ok(at)) = (&self.device.window, usize::try_from(offset))
        {
            host.read_bytes(at, to);
            return Ok(());
        }
        self.by_copy_engine(offset, to.len(), true)?.read_bytes(0, to);
        Ok(())
    }
}

fn allocate(gpu: &Arc<dyn Gpu>, kind: u32, bytes: u64) -> Result<sidecore_memory, Failure> {
    if bytes == 0 {
        return Err(Failure::misuse("memory of 0 bytes"));
    }
    let (device, routes) = match kind {
        SIDECORE_MEMORY_WINDOW => {
            let memory = gpu.allocate_device(bytes)?;
            if memory.window.is_none() {
                let why = gpu.describe().no_window.unwrap_or_default();
                return Err(Failure::unsupported(format!("window memory: {why}")));
            }
            (memory, "all routes")
        }
        SIDECORE_MEMORY_DEVICE => {
            let memory = gpu.allocate_device(bytes)?;
            let by_window = "all routes: it happens to have a window";
            let without = "reads by pull or bounce, writes by push or bounce";
            let routes = if memory.window.is_some() { by_window } else { without };
            (memory, routes)
        }
        SIDECORE_MEMORY_HOST => {
            let host = whole_pages(gpu, bytes)?;
            let (address, window) = (host.address(), Some(host));
            let memory = DeviceMemory { address, bytes, window, keeper: None };
            (memory, "reads by window, pull or bounce, writes by push or bounce; drives reach it")
        }
        other => return Err(Failure::misuse(format!("memory kind {other}: 1 to 3 are allocated"))),
    };
    Ok(sidecore_memory { gpu: Arc::clone(gpu), kind, device, routes: c_text(routes) })
}

/// Pinned host memory that begins with a page, as queues must; the driver gives small pieces of one.
fn whole_pages(gpu: &Arc<dyn Gpu>, bytes: u64) -> Result<Region, Failure> {
    const PAGE: u64 = 4096;
    let host = gpu.allocate_host(bytes)?;
    if host.address().is_multiple_of(PAGE) {
        return Ok(host);
    }
    drop(host);
    let host = gpu.allocate_host(bytes.saturating_add(PAGE))?;
    let skip = host.address().wrapping_neg() % PAGE;
    let part = |n: u64| usize::try_from(n).map_err(|e| Failure::misuse(e.to_string()));
    Ok(host.slice(part(skip)?, part(bytes)?)?)
}

/// Allocates memory, zeroed: SIDECORE_MEMORY_WINDOW, _DEVICE or _HOST.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_memory_allocate(
    gpu: *const sidecore_gpu,
    kind: u32,
    bytes: u64,
    memory: *mut *mut sidecore_memory,
) -> c_int {
    guard(|| {
        // SAFETY: the rule for pointers, see the crate's documentation; so in all functions here.
        let place = unsafe { place(memory, "memory") }?;
        // SAFETY: as above.
        let gpu = unsafe { borrow(gpu, "gpu") }?;
        place.give_handle(allocate(&gpu.gpu, kind, bytes)?);
        Ok(())
    })
}

/// Memory of the caller's as the GPU finds it. `foreign.host_address` must stay mapped.
fn adopted(gpu: &Arc<dyn Gpu>, foreign: &Foreign) -> Result<sidecore_memory, Failure> {
    let mut device = foreign.without_window();
    if let Some(address) = foreign.host_address {
        let wrong = |what: &str| Failure::misuse(format!("memory at {address:#x}: {what}"));
        let len = usize::try_from(foreign.bytes).map_err(|e| wrong(&e.to_string()))?;
        let at = usize::try_from(address).map_err(|e| wrong(&e.to_string()))?;
        let base = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(at));
        let base = base.ok_or_else(|| wrong("a null pointer"))?;
        // SAFETY: the caller of `sidecore_memory_adopt` promises that these bytes are readable and
        // writable until the memory is gone, and used by others through raw pointers only.
        let region = unsafe { Region::from_raw(base, len, MemoryKind::Host, Arc::new(())) };
        device.window = Some(region);
    }
    let kind = match foreign.kind {
        ForeignKind::Device => SIDECORE_MEMORY_DEVICE,
        ForeignKind::Host => SIDECORE_MEMORY_HOST,
        ForeignKind::Managed => SIDECORE_MEMORY_MANAGED,
        ForeignKind::Virtual => SIDECORE_MEMORY_VIRTUAL,
    };
    Ok(sidecore_memory { gpu: Arc::clone(gpu), kind, device, routes: c_text(foreign.routes()) })
}

/// Takes memory of the caller's as it is: any pointer of cudaMalloc, cudaMallocManaged, cudaMallocHost,
/// cudaHostRegister or cuMemMap, or, on the simulated GPU, any memory of the process.
/// sidecore_memory_routes says which routes it can take.
///
/// It must stay allocated until the handle is destroyed and everything that uses it has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_memory_adopt(
    gpu: *const sidecore_gpu,
    pointer: u64,
    bytes: u64,
    memory: *mut *mut sidecore_memory,
) -> c_int {
    guard(|| {
        // SAFETY: as in `sidecore_memory_allocate`.
        let place = unsafe { place(memory, "memory") }?;
        // SAFETY: as in `sidecore_memory_allocate`.
        let gpu = unsafe { borrow(gpu, "gpu") }?;
        if pointer == 0 || bytes == 0 {
            return Err(Failure::misuse("adopting a null pointer, or no bytes"));
        }
        if pointer.checked_add(bytes).is_none() || i64::try_from(bytes).is_err() {
            let text = format!("adopting {bytes} bytes at {pointer:#x}: addresses end before");
            return Err(Failure::misuse(text));
        }
        place.give_handle(adopted(&gpu.gpu, &gpu.gpu.foreign(pointer, bytes)?)?);
        Ok(())
    })
}

/// Where it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_memory_where(
    memory: *const sidecore_memory,
    view: *mut sidecore_memory_view,
) -> c_int {
    guard(|| {
        // SAFETY: as in `sidecore_memory_allocate`.
        let place = unsafe { place(view, "view") }?;
        // SAFETY: as in `sidecore_memory_allocate`.
        let memory = unsafe { borrow(memory, "memory") }?;
        let window = memory.device.window.as_ref();
        place.give(sidecore_memory_view {
            bytes: memory.device.bytes,
            device_address: memory.device.address,
            host: window.map_or(std::ptr::null_mut(), |window| window.as_ptr().cast()),
            kind: memory.kind,
            reserved: 0,
        });
        Ok(())
    })
}

/// Which routes payload can take to and from it, and why not others; as long as the memory lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_memory_routes(memory: *const sidecore_memory) -> *const c_char {
    // SAFETY: as in `sidecore_memory_allocate`.
    unsafe { borrow(memory, "memory") }.map_or(c"".as_ptr(), |memory| memory.routes.as_ptr())
}

/// Copies bytes into it, whatever it is; kernels that are launched afterwards see them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_memory_store(
    memory: *const sidecore_memory,
    offset: u64,
    from: *const c_void,
    count: usize,
) -> c_int {
    guard(|| {
        // SAFETY: as in `sidecore_memory_allocate`.
        let memory = unsafe { borrow(memory, "memory") }?;
        // SAFETY: as in `sidecore_memory_allocate`.
        memory.store(offset, unsafe { bytes(from.cast(), count, "from") }?)
    })
}

/// Copies bytes out of it, whatever it is; what kernels stored that have ended is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_memory_load(
    memory: *const sidecore_memory,
    offset: u64,
    to: *mut c_void,
    count: usize,
) -> c_int {
    guard(|| {
        // SAFETY: as in `sidecore_memory_allocate`.
        let memory = unsafe { borrow(memory, "memory") }?;
        // SAFETY: as in `sidecore_memory_allocate`.
        memory.load(offset, unsafe { bytes_mut(to.cast(), count, "to") }?)
    })
}

/// Gives it up; it is freed once nothing that was made with it is left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_memory_free(memory: *mut sidecore_memory) {
    // SAFETY: as in `sidecore_memory_allocate`.
    swallow(|| unsafe { destroy(memory, "memory") });
}
