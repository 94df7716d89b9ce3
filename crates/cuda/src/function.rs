//! Loaded kernels and their launches.
// UNSAFETY: calls the driver.
#![expect(unsafe_code, reason = "calls the driver and keeps its handles")]

use std::ffi::{CString, c_int, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::api::{NOT_READY, Opaque, call};
use crate::device::{Context, Device};
use crate::error::CudaError;
use crate::event::Event;
use crate::nvrtc::Code;
use crate::streams::Stream;

/// Attributes of a function. Source: `CUfunction_attribute` in cuda.h.
mod attribute {
    pub const MAX_THREADS: i32 = 0;
    pub const LOCAL_BYTES: i32 = 3;
    pub const REGISTERS: i32 = 4;
}

/// How long a waiting thread looks again and again before it begins to sleep.
const SPIN: Duration = Duration::from_millis(2);
/// How long it sleeps between two looks then.
const NAP: Duration = Duration::from_micros(50);

/// Most bytes of a kernel's parameters. Source: CUDA C++ Programming Guide 13.0, `__global__`
/// function parameters: 32,764 bytes.
const ARGUMENT_BYTES_MAX: usize = 32 << 10;

/// Grid and block of a launch, one-dimensional.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Blocks.
    pub blocks: u32,
    /// Threads a block.
    pub threads_per_block: u32,
    /// Dynamic shared memory a block, in bytes.
    pub shared_bytes: u32,
}

#[derive(Debug)]
struct Module {
    context: Arc<Context>,
    handle: Opaque,
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            let _lost = call!(self.context.api, module_unload(self.handle));
        }
    }
}

/// A kernel on the device, ready to be launched.
#[derive(Debug)]
pub struct Function {
    module: Module,
    handle: Opaque,
    /// Registers a thread, as the compiler chose.
    pub registers: u32,
    /// Bytes of local memory a thread.
    pub local_bytes: u32,
    /// Threads that a block can have.
    pub threads_max: u32,
}

// SAFETY: modules and functions may be used from any thread; the driver locks.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// Loads machine code and finds a kernel in it.
    ///
    /// Asking for the kernel's attributes makes the driver load it now, also where modules are
    /// loaded lazily: nothing is left to load at the first launch.
    ///
    /// # Errors
    /// `Call` for code of another device, or without that kernel.
    pub fn load(device: &Device, code: &Code, entry: &str) -> Result<Self, CudaError> {
        let context = Arc::clone(&device.context);
        context.enter()?;
        let name = CString::new(entry)
            .map_err(|_| CudaError::Misuse(format!("kernel name {entry:?} has a zero byte")))?;
        let mut module = std::ptr::null_mut();
        call!(context.api, module_load(&raw mut module, code.bytes().as_ptr().cast()))?;
        let module = Module { context, handle: module };
        let api = &module.context.api;
        let mut handle = std::ptr::null_mut();
        call!(api, module_function(&raw mut handle, module.handle, name.as_ptr()))?;
        let get = |which: c_int| {
            let mut value = 0;
            call!(api, function_attribute(&raw mut value, which, handle))
                .map(|()| u32::try_from(value).unwrap_or(0))
        };
        let registers = get(attribute::REGISTERS)?;
        let local_bytes = get(attribute::LOCAL_BYTES)?;
        let threads_max = get(attribute::MAX_THREADS)?;
        Ok(Self { module, handle, registers, local_bytes, threads_max })
    }

    /// Blocks of so many threads, and so much dynamic shared memory, that a multiprocessor holds at once.
    ///
    /// # Errors
    /// `Call`.
    pub fn blocks_per_multiprocessor(&self, threads: u32, shared: u32) -> Result<u32, CudaError> {
        let context = &self.module.context;
        context.enter()?;
        let mut blocks = 0;
        let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
        let place = &raw mut blocks;
        call!(context.api, occupancy(place, self.handle, threads, shared as usize))?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    /// Starts the kernel on a stream of its own, with `arguments` as its one parameter by value.
    ///
    /// What the kernel does with the addresses in `arguments` is taken on trust: that is what a
    /// kernel is.
    ///
    /// # Errors
    /// `Misuse` for an impossible shape, or for too many arguments, `Call`.
    pub fn launch(self: &Arc<Self>, shape: Shape, arguments: &[u8]) -> Result<Running, CudaError> {
        if shape.threads_per_block > self.threads_max {
            return Err(CudaError::Misuse(format!(
                "{} threads a block: this kernel, of {} registers, can have {}",
                shape.threads_per_block, self.registers, self.threads_max
            )));
        }
        if arguments.len() > ARGUMENT_BYTES_MAX {
            return Err(CudaError::Misuse(format!("{} bytes of arguments", arguments.len())));
        }
        let context = &self.module.context;
        let stream = Stream::new(context)?;
        let [begin, end] = [Event::new(context, 0)?, Event::new(context, 0)?];
        // The driver reads as many bytes as the kernel takes, and never more than it can take.
        let mut words = [0_u128; ARGUMENT_BYTES_MAX / 16];
        // SAFETY: `words` has at least as many bytes, and is exclusive.
        unsafe {
            std::ptr::copy_nonoverlapping(
                arguments.as_ptr(),
                words.as_mut_ptr().cast::<u8>(),
                arguments.len(),
            );
        }
        let mut parameters: [*mut c_void; 1] = [words.as_mut_ptr().cast()];
        let api = &context.api;
        call!(api, event_record(begin.handle, stream.handle))?;
        call!(
            api,
            launch(
                self.handle,
                shape.blocks,
                1,
                1,
                shape.threads_per_block,
                1,
                1,
                shape.shared_bytes,
                stream.handle,
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        )?;
        call!(api, event_record(end.handle, stream.handle))?;
        Ok(Running { function: Arc::clone(self), begin, end, _stream: stream })
    }
}

/// A kernel that was started.
#[derive(Debug)]
pub struct Running {
    function: Arc<Function>,
    begin: Event,
    end: Event,
    _stream: Stream,
}

// SAFETY: events and streams may be used from any thread; the driver locks.
unsafe impl Send for Running {}

impl Running {
    /// Waits until it has ended, at most for `limit`; `None` when it still runs.
    ///
    /// An error is the kernel's own: after it the device's context is of no more use.
    pub fn wait(&self, limit: Duration) -> Option<Result<(), CudaError>> {
        let context = &self.function.module.context;
        if let Err(error) = context.enter() {
            return Some(Err(error));
        }
        let start = Instant::now();
        loop {
            // SAFETY: the event lives as long as `self`, whose context was entered above.
            let status = unsafe { (context.api.event_query)(self.end.handle) };
            if status != NOT_READY {
                return Some(context.api.check("kernel", status));
            }
            let waited = start.elapsed();
            if waited >= limit {
                return None;
            }
            if waited < SPIN {
                std::hint::spin_loop();
            } else {
                std::thread::sleep(NAP);
            }
        }
    }

    /// Seconds that it ran by the device's clock, once it has ended.
    ///
    /// # Errors
    /// `Call` where it has not.
    pub fn seconds(&self) -> Result<f64, CudaError> {
        let context = &self.function.module.context;
        context.enter()?;
        let mut milliseconds = 0.0;
        let (begin, end) = (self.begin.handle, self.end.handle);
        call!(context.api, event_elapsed(&raw mut milliseconds, begin, end))?;
        Ok(f64::from(milliseconds) * 1e-3)
    }
}
