//! A simulated GPU that lacks something, and a system that refuses something.

use std::time::{Duration, Instant};

use bulk::{Call, Interference, Need, Op, Strike};
use gpu::{
    Copy, CopyQueue, Description, DeviceMemory, Foreign, Gpu, GpuError, Keeper, Kernel, Launch,
    LaunchShape, SimulatedGpu, SimulatedOptions, Span, StreamGate,
};
use mem::Region;

/// What it lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lacks {
    /// A fast link: copies take 10 ns a byte, one after the other.
    Speed,
    /// Queues of copies.
    Copies,
    /// Pinned memory.
    Pinned,
    /// The CPU's mapping of device memory.
    Window,
    /// Streams that wait for words.
    Words,
}

/// A GPU that lacks something.
pub struct Odd {
    gpu: SimulatedGpu,
    lacks: Lacks,
}

impl Odd {
    pub fn new(lacks: Lacks) -> Self {
        Self { gpu: SimulatedGpu::new(SimulatedOptions::default()), lacks }
    }

    fn refuse(&self, what: Lacks) -> Result<(), GpuError> {
        let why = || GpuError::Unavailable(format!("{what:?}: refused on purpose"));
        if self.lacks == what { Err(why()) } else { Ok(()) }
    }
}

/// Copies that take their time, as those of a link do.
struct Slow {
    queue: Box<dyn CopyQueue>,
    until: Instant,
    marks: Vec<Instant>,
}

impl Slow {
    fn take(&mut self, bytes: usize) {
        self.until = self.until.max(Instant::now()) + Duration::from_nanos(bytes as u64 * 10);
    }

    fn end(&self, mark: u64) -> Instant {
        self.marks[usize::try_from(mark).unwrap() - 1]
    }
}

impl CopyQueue for Slow {
    fn start_to_device(&mut self, span: Span<'_>) -> Result<(), GpuError> {
        self.take(span.bytes);
        self.queue.start_to_device(span)
    }

    fn start_to_host(&mut self, span: Span<'_>) -> Result<(), GpuError> {
        self.take(span.bytes);
        self.queue.start_to_host(span)
    }

    fn mark(&mut self) -> Result<u64, GpuError> {
        self.marks.push(self.until);
        self.queue.mark()
    }

    fn is_done(&mut self, mark: u64) -> Result<bool, GpuError> {
        Ok(Instant::now() >= self.end(mark))
    }

    fn stream(&self) -> u64 {
        0
    }

    fn wait(&mut self, mark: u64) -> Result<(), GpuError> {
        std::thread::sleep(self.end(mark).saturating_duration_since(Instant::now()));
        Ok(())
    }
}

struct NoWord(Box<dyn StreamGate>);

impl StreamGate for NoWord {
    fn is_reached(&self) -> Result<bool, GpuError> {
        self.0.is_reached()
    }

    fn is_word(&self) -> bool {
        false
    }
}

impl Gpu for Odd {
    fn describe(&self) -> Description {
        self.gpu.describe()
    }

    fn allocate_device(&self, bytes: u64) -> Result<DeviceMemory, GpuError> {
        let mut memory = self.gpu.allocate_device(bytes)?;
        if self.lacks == Lacks::Window {
            memory.keeper = memory.window.take().map(Keeper::new);
        }
        Ok(memory)
    }

    fn foreign(&self, address: u64, bytes: u64) -> Result<Foreign, GpuError> {
        self.gpu.foreign(address, bytes)
    }

    fn allocate_host(&self, bytes: u64) -> Result<Region, GpuError> {
        self.refuse(Lacks::Pinned)?;
        self.gpu.allocate_host(bytes)
    }

    fn register_host(&self, memory: &Region) -> Result<Keeper, GpuError> {
        self.refuse(Lacks::Pinned)?;
        self.gpu.register_host(memory)
    }

    fn copy_to_device(&self, copy: Copy<'_>) -> Result<(), GpuError> {
        self.gpu.copy_to_device(copy)
    }

    fn copy_to_host(&self, copy: Copy<'_>) -> Result<(), GpuError> {
        self.gpu.copy_to_host(copy)
    }

    fn copy_queue(&self) -> Result<Box<dyn CopyQueue>, GpuError> {
        self.refuse(Lacks::Copies)?;
        let queue = self.gpu.copy_queue()?;
        if self.lacks == Lacks::Speed {
            return Ok(Box::new(Slow { queue, until: Instant::now(), marks: Vec::new() }));
        }
        Ok(queue)
    }

    fn memory_at(&self, address: u64, bytes: u64) -> Result<DeviceMemory, GpuError> {
        self.gpu.memory_at(address, bytes)
    }

    fn stream_gate(&self, stream: u64) -> Result<Box<dyn StreamGate>, GpuError> {
        let gate = self.gpu.stream_gate(stream)?;
        Ok(if self.lacks == Lacks::Words { Box::new(NoWord(gate)) } else { gate })
    }

    fn launch(
        &self,
        kernel: &Kernel,
        shape: LaunchShape,
        arguments: &[u8],
    ) -> Result<Box<dyn Launch>, GpuError> {
        self.gpu.launch(kernel, shape, arguments)
    }
}

/// A system that refuses one thing.
pub struct Refuses(pub Need);

impl Interference for Refuses {
    fn strike(&self, _: Call) -> Strike {
        Strike::Pass
    }

    fn refuses(&self, need: Need) -> bool {
        need == self.0
    }
}

/// A file system that takes direct I/O when a file is opened, and not when it is done.
pub struct RefusesDirect;

impl Interference for RefusesDirect {
    fn strike(&self, call: Call) -> Strike {
        /// Source: `EINVAL` of Linux.
        const EINVAL: i32 = 22;
        if call.direct { Strike::Errno(EINVAL) } else { Strike::Pass }
    }
}

/// A source that gives each reader 100 MB/s.
pub struct Throttled;

impl Interference for Throttled {
    fn strike(&self, call: Call) -> Strike {
        match call.op {
            Op::Read => Strike::Delay(Duration::from_nanos(call.bytes as u64 * 10)),
            Op::Write => Strike::Pass,
        }
    }
}
