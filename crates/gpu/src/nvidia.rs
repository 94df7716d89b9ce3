//! An NVIDIA GPU as a [`Gpu`]: the driver's memory, a window by Vulkan where there is one, kernels compiled
//! from the text that the program carries.
//!
//! Everything that serving needs is made in [`CudaGpu::open`], in an allocation, or in
//! [`Gpu::prepare`]: copying uses streams that are there, and nothing is loaded later.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use cuda::{
    Cache, CudaError, Device, DeviceBlock, Driver, Function, Gate, Gates, HostBlock, HostRange,
    PointerKind, Registration, Running, Shape, Streams, Window,
};
use mem::Region;

use crate::{
    Copy, CopyQueue, Description, DeviceMemory, Foreign, ForeignKind, Gpu, GpuError, Keeper,
    Kernel, KernelFacts, Launch, LaunchShape, Span, StreamGate,
};

/// Streams that copies go through: about as many side cores can copy at once.
const STREAMS: usize = 16;

/// How an NVIDIA GPU is opened.
#[derive(Clone, Copy, Debug)]
pub struct CudaOptions {
    /// Which, by the driver's count.
    pub index: u32,
    /// Whether the window is used where there is one.
    pub window: bool,
}

/// An NVIDIA GPU.
pub struct CudaGpu {
    device: Device,
    /// Whether its context is somebody else's, who may destroy it while side cores look at rings.
    lasting: bool,
    driver_version: i32,
    streams: Streams,
    window: Result<Window, String>,
    /// Why the last memory that was to have a window got none.
    refused: Mutex<Option<String>>,
    cache: Cache,
    functions: Mutex<HashMap<&'static str, Arc<Function>>>,
    /// Made when the first gate is.
    gates: OnceLock<Gates>,
}

fn unavailable(error: CudaError) -> GpuError {
    match error {
        CudaError::Misuse(why) => GpuError::Misuse(why),
        error => GpuError::Unavailable(error.to_string()),
    }
}

impl CudaGpu {
    /// Loads the driver and opens a GPU.
    ///
    /// # Errors
    /// [`GpuError::Unavailable`] with the remedy.
    pub fn open(options: CudaOptions) -> Result<Self, GpuError> {
        let driver = Driver::load().map_err(unavailable)?;
        let device = Device::open(&driver, options.index).map_err(unavailable)?;
        Self::over(&driver, device, options.window)
    }

    /// Loads the driver and opens the GPU that an address belongs to, in the context that it was
    /// allocated in. That context must outlive this.
    ///
    /// # Errors
    /// [`GpuError::Misuse`] where CUDA does not know the address, [`GpuError::Unavailable`].
    pub fn open_of(address: u64, window: bool) -> Result<Self, GpuError> {
        let driver = Driver::load().map_err(unavailable)?;
        let device = Device::open_of(&driver, address).map_err(unavailable)?;
        Ok(Self { lasting: true, ..Self::over(&driver, device, window)? })
    }

    fn over(driver: &Driver, device: Device, window: bool) -> Result<Self, GpuError> {
        let streams = Streams::new(&device, STREAMS).map_err(unavailable)?;
        let window = match window {
            true => Window::open(&device).map_err(|e| e.to_string()),
            false => Err("the window onto device memory: switched off".to_owned()),
        };
        let functions = Mutex::new(HashMap::new());
        let (driver_version, cache) = (driver.version(), Cache::of_user());
        let gates = OnceLock::new();
        Ok(Self {
            device,
            lasting: false,
            driver_version,
            streams,
            window,
            refused: Mutex::new(None),
            cache,
            functions,
            gates,
        })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// A kernel that is loaded, or is now.
    ///
    /// # Errors
    /// As [`Gpu::prepare`].
    pub fn function(&self, kernel: &Kernel) -> Result<Arc<Function>, GpuError> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = functions.get(kernel.name) {
            return Ok(Arc::clone(function));
        }
        let failed = |error: CudaError| match error {
            CudaError::Unavailable { .. } => unavailable(error),
            error => GpuError::Kernel { kernel: kernel.name.to_owned(), why: error.to_string() },
        };
        let Some(program) = kernel.source else {
            return Err(GpuError::Misuse(format!("kernel {} runs only simulated", kernel.name)));
        };
        let architecture = self.device.facts().architecture();
        let code = cuda::compile(program, &architecture, self.driver_version, &self.cache);
        let code = code.map_err(failed)?;
        let function = Arc::new(Function::load(&self.device, &code, kernel.name).map_err(failed)?);
        functions.insert(kernel.name, Arc::clone(&function));
        Ok(function)
    }

    /// Device memory with a window, or the reason why there is none.
    fn with_window(&self, bytes: u64) -> Result<DeviceMemory, String> {
        let window = self.window.as_ref().map_err(Clone::clone)?;
        let memory = window.allocate(bytes).map_err(|e| e.to_string())?;
        let (address, region) = (memory.address, memory.region);
        Ok(DeviceMemory { address, bytes, window: Some(region), keeper: None })
    }

    fn without_window(&self, bytes: u64) -> Result<DeviceMemory, GpuError> {
        let exhausted = |why: String| GpuError::Exhausted { what: "device memory", bytes, why };
        let len = usize::try_from(bytes).map_err(|e| exhausted(e.to_string()))?;
        let block =
            DeviceBlock::allocate(&self.device, len).map_err(|e| exhausted(e.to_string()))?;
        let address = block.address();
        Ok(DeviceMemory { address, bytes, window: None, keeper: Some(Keeper::new(block)) })
    }
}

/// Checks the device's range of a copy; the host's range, and the device address.
fn ends<'a>(copy: &Copy<'a>) -> Result<(HostRange<'a>, u64), GpuError> {
    let misuse = |why: String| GpuError::Misuse(format!("copy of {} bytes: {why}", copy.bytes));
    let inside = copy
        .device_offset
        .checked_add(copy.bytes as u64)
        .is_some_and(|end| end <= copy.device.bytes);
    if !inside {
        let (at, len) = (copy.device_offset, copy.device.bytes);
        return Err(misuse(format!("device side: {at}.. does not lie inside {len} bytes")));
    }
    let host = HostRange { region: copy.host, offset: copy.host_offset, bytes: copy.bytes };
    Ok((host, copy.device.address + copy.device_offset))
}

impl Gpu for CudaGpu {
    fn describe(&self) -> Description {
        let facts = self.device.facts();
        let no_window = self.window.as_ref().err().cloned();
        Description { name: facts.name.clone(), simulated: false, no_window }
    }

    fn allocate_device(&self, bytes: u64) -> Result<DeviceMemory, GpuError> {
        let memory = match self.with_window(bytes) {
            Ok(memory) => memory,
            Err(why) => {
                *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
                self.without_window(bytes)?
            }
        };
        let len = usize::try_from(bytes).map_err(|e| GpuError::Misuse(e.to_string()))?;
        self.streams.fill(memory.address, len, 0).map_err(unavailable)?;
        Ok(memory)
    }

    fn no_window_for(&self, bytes: u64) -> Option<String> {
        let window = match &self.window {
            Ok(window) => window,
            Err(why) => return Some(why.clone()),
        };
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone();
        window.too_long(bytes).or(refused)
    }

    fn allocate_host(&self, bytes: u64) -> Result<Region, GpuError> {
        let exhausted =
            |why: String| GpuError::Exhausted { what: "pinned host memory", bytes, why };
        let len = usize::try_from(bytes).map_err(|e| exhausted(e.to_string()))?;
        let memory = match self.lasting {
            true => cuda::allocate_lasting(&self.device, len),
            false => HostBlock::allocate(&self.device, len),
        };
        memory.map_err(|e| exhausted(e.to_string()))
    }

    fn host_address(&self, memory: &Region) -> Option<u64> {
        // Its ends; what lies between belongs to the same registration or allocation.
        let first = self.device.host_address(memory.address())?;
        let span = (memory.len_bytes() as u64).checked_sub(1)?;
        let last = self.device.host_address(memory.address() + span)?;
        (last.checked_sub(first) == Some(span)).then_some(first)
    }

    fn register_host(&self, memory: &Region) -> Result<Keeper, GpuError> {
        let registration = Registration::new(&self.device, memory).map_err(unavailable)?;
        Ok(Keeper::new(registration))
    }

    fn foreign(&self, address: u64, bytes: u64) -> Result<Foreign, GpuError> {
        let pointer = self.device.pointer(address, bytes).map_err(unavailable)?;
        let kind = match pointer.kind {
            PointerKind::Device => ForeignKind::Device,
            PointerKind::Managed => ForeignKind::Managed,
            PointerKind::PinnedHost => ForeignKind::Host,
            PointerKind::Virtual => ForeignKind::Virtual,
        };
        let host = pointer.host_address.filter(|_| kind == ForeignKind::Host);
        Ok(Foreign { kind, device_address: pointer.device_address, host_address: host, bytes })
    }

    fn copy_to_device(&self, copy: Copy<'_>) -> Result<(), GpuError> {
        let (host, device) = ends(&copy)?;
        self.streams.copy_to_device(device, host).map_err(unavailable)
    }

    fn copy_to_host(&self, copy: Copy<'_>) -> Result<(), GpuError> {
        let (host, device) = ends(&copy)?;
        self.streams.copy_to_host(host, device).map_err(unavailable)
    }

    fn copy_queue(&self) -> Result<Box<dyn CopyQueue>, GpuError> {
        let queue = cuda::CopyQueue::new(&self.device).map_err(unavailable)?;
        Ok(Box::new(CudaCopies(queue)))
    }

    fn memory_at(&self, address: u64, bytes: u64) -> Result<DeviceMemory, GpuError> {
        let misuse = |why: String| GpuError::Misuse(format!("{address:#x}..+{bytes}: {why}"));
        let found = self.device.allocation_of(address).ok_or_else(|| {
            misuse("CUDA knows no memory there; plain host memory is to be named as such".into())
        })?;
        let (start, len) = found;
        if address.checked_add(bytes).is_none_or(|end| end > start.saturating_add(len)) {
            return Err(misuse(format!("the allocation there is {start:#x}..+{len}")));
        }
        Ok(DeviceMemory { address, bytes, window: None, keeper: None })
    }

    fn stream_gate(&self, stream: u64) -> Result<Box<dyn StreamGate>, GpuError> {
        let gates = match self.gates.get() {
            Some(gates) => gates,
            None => {
                let made = Gates::new(&self.device, true).map_err(unavailable)?;
                self.gates.get_or_init(|| made)
            }
        };
        Ok(Box::new(CudaGate(gates.close(stream).map_err(unavailable)?)))
    }

    fn kernel_facts(
        &self,
        kernel: &Kernel,
        threads_per_block: u32,
    ) -> Result<Option<KernelFacts>, GpuError> {
        let function = self.function(kernel)?;
        let blocks = function.blocks_per_multiprocessor(threads_per_block, 0);
        Ok(Some(KernelFacts {
            registers: function.registers,
            local_bytes: function.local_bytes,
            blocks_per_multiprocessor: blocks.map_err(unavailable)?,
            multiprocessors: self.device.facts().multiprocessors,
        }))
    }

    fn free_bytes(&self) -> Option<u64> {
        self.device.free_bytes().ok()
    }

    fn pci(&self) -> Option<String> {
        Some(format!("{}.0", self.device.facts().pci))
    }

    fn prepare(&self, kernel: &Kernel) -> Result<(), GpuError> {
        self.function(kernel).map(|_| ())
    }

    fn launch(
        &self,
        kernel: &Kernel,
        shape: LaunchShape,
        arguments: &[u8],
    ) -> Result<Box<dyn Launch>, GpuError> {
        let function = self.function(kernel)?;
        let LaunchShape { blocks, threads_per_block, shared_bytes } = shape;
        let shape = Shape { blocks, threads_per_block, shared_bytes };
        let running = function.launch(shape, arguments).map_err(|e| match e {
            CudaError::Misuse(why) => GpuError::Misuse(format!("kernel {}: {why}", kernel.name)),
            e => GpuError::Kernel { kernel: kernel.name.to_owned(), why: e.to_string() },
        })?;
        Ok(Box::new(CudaLaunch { kernel: kernel.name, running }))
    }
}

struct CudaLaunch {
    kernel: &'static str,
    running: Running,
}

impl Launch for CudaLaunch {
    fn wait(&mut self, limit: Duration) -> Option<Result<(), GpuError>> {
        let result = self.running.wait(limit)?;
        let kernel = self.kernel;
        Some(result.map_err(|e| GpuError::Kernel { kernel: kernel.into(), why: e.to_string() }))
    }

    fn abort(&mut self) {}

    fn simulation_cpu_seconds(&self) -> f64 {
        0.0
    }

    fn device_seconds(&self) -> Option<f64> {
        self.running.seconds().ok()
    }
}

struct CudaCopies(cuda::CopyQueue);

fn host_range<'a>(span: &Span<'a>) -> HostRange<'a> {
    HostRange { region: span.host, offset: span.host_offset, bytes: span.bytes }
}

impl CopyQueue for CudaCopies {
    fn start_to_device(&mut self, span: Span<'_>) -> Result<(), GpuError> {
        self.0.start_to_device(span.device, host_range(&span)).map_err(unavailable)
    }

    fn start_all_to_device(&mut self, spans: &[Span<'_>]) -> Result<(), GpuError> {
        let copies: Vec<_> = spans.iter().map(|span| (span.device, host_range(span))).collect();
        if copies.len() > 1 && self.0.start_batch(&copies).is_ok() {
            return Ok(());
        }
        spans.iter().try_for_each(|span| self.start_to_device(*span))
    }

    fn start_to_host(&mut self, span: Span<'_>) -> Result<(), GpuError> {
        self.0.start_to_host(host_range(&span), span.device).map_err(unavailable)
    }

    fn mark(&mut self) -> Result<u64, GpuError> {
        self.0.mark().map_err(unavailable)
    }

    fn is_done(&mut self, mark: u64) -> Result<bool, GpuError> {
        self.0.is_done(mark).map_err(unavailable)
    }

    fn stream(&self) -> u64 {
        self.0.stream()
    }

    fn wait(&mut self, mark: u64) -> Result<(), GpuError> {
        self.0.wait(mark).map_err(unavailable)
    }
}

struct CudaGate(Gate);

impl StreamGate for CudaGate {
    fn is_reached(&self) -> Result<bool, GpuError> {
        self.0.is_reached().map_err(unavailable)
    }

    fn is_word(&self) -> bool {
        self.0.is_word()
    }
}
