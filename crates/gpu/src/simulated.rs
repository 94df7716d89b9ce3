//! The simulated GPU as a [`Gpu`]: host memory stands for device memory, `simt` runs the kernels.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mem::{MemoryKind, Region, WeakRegion};

use crate::{
    Copy, CopyQueue, Description, DeviceMemory, Foreign, ForeignKind, Gpu, GpuError, Keeper,
    Kernel, Launch, LaunchShape, Span, StreamGate,
};

/// How the GPU is simulated.
#[derive(Clone, Copy, Debug)]
pub struct SimulatedOptions {
    /// OS threads a kernel runs on at most.
    pub threads: usize,
    /// Lanes that are resident at once in a launch; blocks beyond them wait for others to end.
    pub resident_lanes: usize,
    /// Longest allocation that the CPU can map, as where BAR1 is small; 0: none.
    pub window_bytes: u64,
}

impl Default for SimulatedOptions {
    fn default() -> Self {
        let simt::bench::Options { threads, resident_lanes } = simt::bench::Options::default();
        Self { threads, resident_lanes, window_bytes: u64::MAX }
    }
}

/// A GPU made of fibers. Device addresses are the process's own virtual addresses.
pub struct SimulatedGpu {
    device: simt::bench::Device,
    threads: usize,
    window_bytes: u64,
    allocations: Arc<Allocations>,
}

/// Device memory by its first address, as long as somebody keeps it.
#[derive(Default)]
struct Allocations(Mutex<BTreeMap<u64, WeakRegion>>);

impl Allocations {
    fn add(&self, region: &Region) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, weak| weak.upgrade().is_some());
        known.insert(region.address(), region.downgrade());
    }

    fn find(&self, address: u64, bytes: u64) -> Result<Region, GpuError> {
        let misuse = |why: &str| GpuError::Misuse(format!("{address:#x}..+{bytes}: {why}"));
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (start, weak) = known
            .range(..=address)
            .next_back()
            .ok_or_else(|| misuse("the simulated GPU has no memory there"))?;
        let whole = weak.upgrade().ok_or_else(|| misuse("that memory was given back"))?;
        let [offset, bytes] = [address - start, bytes].map(usize::try_from);
        let (Ok(offset), Ok(bytes)) = (offset, bytes) else { return Err(misuse("too long")) };
        whole.slice(offset, bytes).map_err(|e| misuse(&e.to_string()))
    }
}

impl SimulatedGpu {
    /// A simulated GPU; it starts no thread before the first launch.
    pub fn new(options: SimulatedOptions) -> Self {
        let SimulatedOptions { threads, resident_lanes, window_bytes } = options;
        let device = simt::bench::Device::new(simt::bench::Options { threads, resident_lanes });
        Self { device, threads, window_bytes, allocations: Arc::default() }
    }

    /// The device side of a copy.
    fn device_side(&self, copy: &Copy<'_>) -> Result<Region, GpuError> {
        let misuse = |why: String| GpuError::Misuse(format!("copy of {} bytes: {why}", copy.bytes));
        let (offset, bytes) = (copy.device_offset, copy.bytes as u64);
        let part = copy.device.slice(offset, bytes);
        let part = part.map_err(|e| misuse(format!("device side: {e}")))?;
        let host = copy.host.check(copy.host_offset, copy.bytes);
        host.map_err(|e| misuse(format!("host side: {e}")))?;
        match part.window {
            Some(window) => Ok(window),
            None => self.allocations.find(part.address, bytes),
        }
    }

    /// Device memory over a region of its own, with a window where that may be as long.
    fn memory(&self, region: Region, bytes: u64) -> DeviceMemory {
        let address = region.address();
        if bytes <= self.window_bytes {
            return DeviceMemory { address, bytes, window: Some(region), keeper: None };
        }
        DeviceMemory { address, bytes, window: None, keeper: Some(Keeper::new(region)) }
    }

    fn allocate(what: &'static str, bytes: u64, kind: MemoryKind) -> Result<Region, GpuError> {
        let exhausted = |why: String| GpuError::Exhausted { what, bytes, why };
        let len = usize::try_from(bytes).map_err(|e| exhausted(e.to_string()))?;
        Region::map_anonymous(len, kind).map_err(|e| exhausted(e.to_string()))
    }
}

impl Gpu for SimulatedGpu {
    fn describe(&self) -> Description {
        let name = format!("simulated ({} threads)", self.threads);
        let off = "the window onto device memory: switched off";
        let no_window = (self.window_bytes == 0).then(|| off.to_owned());
        Description { name, simulated: true, no_window }
    }

    fn allocate_device(&self, bytes: u64) -> Result<DeviceMemory, GpuError> {
        let window = Self::allocate("simulated device memory", bytes, MemoryKind::Window)?;
        self.allocations.add(&window);
        Ok(self.memory(window, bytes))
    }

    fn no_window_for(&self, bytes: u64) -> Option<String> {
        let small = || format!("{bytes} bytes are more than the {} of BAR1", self.window_bytes);
        self.describe().no_window.or_else(|| (bytes > self.window_bytes).then(small))
    }

    fn allocate_host(&self, bytes: u64) -> Result<Region, GpuError> {
        Self::allocate("pinned host memory", bytes, MemoryKind::Host)
    }

    fn host_address(&self, memory: &Region) -> Option<u64> {
        Some(memory.address())
    }

    fn register_host(&self, _memory: &Region) -> Result<Keeper, GpuError> {
        Ok(Keeper::new(()))
    }

    fn foreign(&self, address: u64, bytes: u64) -> Result<Foreign, GpuError> {
        // Lanes are threads of this process: they reach what the process reaches.
        let kind = ForeignKind::Host;
        Ok(Foreign { kind, device_address: address, host_address: Some(address), bytes })
    }

    fn copy_to_device(&self, copy: Copy<'_>) -> Result<(), GpuError> {
        let device = self.device_side(&copy)?;
        device.copy_from(0, copy.host, copy.host_offset, copy.bytes);
        // What a finished copy has written is visible to everything that starts after it.
        mem::fence_payload();
        Ok(())
    }

    fn copy_to_host(&self, copy: Copy<'_>) -> Result<(), GpuError> {
        let device = self.device_side(&copy)?;
        // The copy engine sees all that was written before it was started.
        mem::fence_full();
        copy.host.copy_from(copy.host_offset, &device, 0, copy.bytes);
        mem::fence_full();
        Ok(())
    }

    fn copy_queue(&self) -> Result<Box<dyn CopyQueue>, GpuError> {
        Ok(Box::new(SimulatedCopies { allocations: Arc::clone(&self.allocations), marks: 0 }))
    }

    fn memory_at(&self, address: u64, bytes: u64) -> Result<DeviceMemory, GpuError> {
        let region = self.allocations.find(address, bytes)?;
        Ok(self.memory(region, bytes))
    }

    fn stream_gate(&self, stream: u64) -> Result<Box<dyn StreamGate>, GpuError> {
        match stream {
            0 => Ok(Box::new(OpenGate)),
            _ => Err(GpuError::Misuse(format!(
                "stream {stream:#x}: the simulated GPU has only the stream 0, which is always idle"
            ))),
        }
    }

    fn launch(
        &self,
        kernel: &Kernel,
        shape: LaunchShape,
        arguments: &[u8],
    ) -> Result<Box<dyn Launch>, GpuError> {
        if shape.shared_bytes != 0 {
            let why = "the simulated GPU has no dynamic shared memory; use SC_SHARED";
            return Err(GpuError::Misuse(format!("kernel {}: {why}", kernel.name)));
        }
        let LaunchShape { blocks, threads_per_block, .. } = shape;
        let shape = simt::Shape { blocks, threads_per_block };
        let launch = self.device.launch(kernel.simulated, shape, arguments);
        let launch = launch.map_err(|e| kernel_error(kernel.name, &e))?;
        Ok(Box::new(SimulatedLaunch { kernel: kernel.name, launch }))
    }
}

/// Copies that are done when they were started.
struct SimulatedCopies {
    allocations: Arc<Allocations>,
    marks: u64,
}

impl SimulatedCopies {
    fn device_side(&self, span: &Span<'_>) -> Result<Region, GpuError> {
        let checked = span.host.check(span.host_offset, span.bytes);
        checked.map_err(|e| GpuError::Misuse(format!("host side of a copy: {e}")))?;
        self.allocations.find(span.device, span.bytes as u64)
    }
}

impl CopyQueue for SimulatedCopies {
    fn start_to_device(&mut self, span: Span<'_>) -> Result<(), GpuError> {
        let device = self.device_side(&span)?;
        device.copy_from(0, span.host, span.host_offset, span.bytes);
        mem::fence_payload();
        Ok(())
    }

    fn start_to_host(&mut self, span: Span<'_>) -> Result<(), GpuError> {
        let device = self.device_side(&span)?;
        mem::fence_full();
        span.host.copy_from(span.host_offset, &device, 0, span.bytes);
        mem::fence_full();
        Ok(())
    }

    fn mark(&mut self) -> Result<u64, GpuError> {
        self.marks += 1;
        Ok(self.marks)
    }

    fn is_done(&mut self, mark: u64) -> Result<bool, GpuError> {
        Ok(mark <= self.marks)
    }

    fn stream(&self) -> u64 {
        0
    }

    fn wait(&mut self, mark: u64) -> Result<(), GpuError> {
        let why = || GpuError::Misuse(format!("mark {mark} of {}", self.marks));
        if mark <= self.marks { Ok(()) } else { Err(why()) }
    }
}

/// The idle stream has nothing before a gate and nothing behind it.
struct OpenGate;

impl StreamGate for OpenGate {
    fn is_reached(&self) -> Result<bool, GpuError> {
        Ok(true)
    }

    fn is_word(&self) -> bool {
        true
    }
}

fn kernel_error(kernel: &str, error: &simt::LaunchError) -> GpuError {
    match error {
        simt::LaunchError::Shape { .. } => GpuError::Misuse(format!("kernel {kernel}: {error}")),
        error => GpuError::Kernel { kernel: kernel.to_owned(), why: error.to_string() },
    }
}

struct SimulatedLaunch {
    kernel: &'static str,
    launch: simt::bench::Launch,
}

impl Launch for SimulatedLaunch {
    fn wait(&mut self, limit: Duration) -> Option<Result<(), GpuError>> {
        let result = self.launch.wait(limit)?;
        Some(result.map_err(|e| kernel_error(self.kernel, &e)))
    }

    fn abort(&mut self) {
        self.launch.abort();
    }

    fn simulation_cpu_seconds(&self) -> f64 {
        self.launch.cpu_seconds()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_reach_the_other_side_and_check_their_ranges() {
        let gpu = SimulatedGpu::new(SimulatedOptions::default());
        let host = gpu.allocate_host(4096).unwrap();
        let device = gpu.allocate_device(4096).unwrap();
        host.write_bytes(100, b"abcdefgh");
        let copy =
            Copy { host: &host, host_offset: 100, device: &device, device_offset: 5, bytes: 8 };
        gpu.copy_to_device(copy).unwrap();
        gpu.copy_to_host(Copy { host_offset: 3000, ..copy }).unwrap();
        let mut back = [0; 8];
        host.read_bytes(3000, &mut back);
        assert_eq!(&back, b"abcdefgh");
        for bad in [
            Copy { device_offset: 4090, ..copy },
            Copy { host_offset: 4090, ..copy },
            Copy { device_offset: u64::MAX, ..copy },
        ] {
            assert!(matches!(gpu.copy_to_device(bad), Err(GpuError::Misuse(_))));
        }
    }

    #[test]
    fn a_queue_of_copies_finds_memory_by_address_while_it_is_kept() {
        let gpu = SimulatedGpu::new(SimulatedOptions::default());
        let host = gpu.allocate_host(4096).unwrap();
        let device = gpu.allocate_device(8192).unwrap();
        host.write_bytes(0, b"ijklmnop");
        let mut queue = gpu.copy_queue().unwrap();
        let at = device.address + 4090;
        let span = Span { host: &host, host_offset: 0, device: at, bytes: 8 };
        queue.start_to_device(span).unwrap();
        queue.start_to_host(Span { host_offset: 2000, ..span }).unwrap();
        let mark = queue.mark().unwrap();
        queue.wait(mark).unwrap();
        assert!(queue.is_done(mark).unwrap() && queue.wait(mark + 1).is_err());
        let mut back = [0; 8];
        host.read_bytes(2000, &mut back);
        assert_eq!(&back, b"ijklmnop");
        assert_eq!(gpu.memory_at(at, 4102).unwrap().address, at);
        assert!(matches!(gpu.memory_at(at, 4103), Err(GpuError::Misuse(_))));
        let outside = Span { device: device.address + 8190, ..span };
        assert!(matches!(queue.start_to_device(outside), Err(GpuError::Misuse(_))));
        drop(device);
        assert!(matches!(queue.start_to_device(span), Err(GpuError::Misuse(_))));
        assert!(gpu.stream_gate(0).unwrap().is_reached().unwrap());
        assert!(matches!(gpu.stream_gate(1), Err(GpuError::Misuse(_))));
    }
}
