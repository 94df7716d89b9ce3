//! Files of self-describing bytes, memory with sentinels around it, and engines to move between them.
#![allow(dead_code)]

pub mod odd;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bulk::{Bulk, Log, Options, Place};
use gpu::{Copy, DeviceMemory, Gpu, SimulatedGpu, SimulatedOptions};
use mem::{MemoryKind, Region};
use storage::pattern;

/// Bytes on both sides of a destination that must not change.
pub const SENTINEL_BYTES: usize = 4096;
const SENTINEL: u8 = 0xa5;

/// A simulated GPU.
pub fn gpu() -> Arc<dyn Gpu> {
    Arc::new(SimulatedGpu::new(SimulatedOptions::default()))
}

/// Lines that an engine has logged.
#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    pub fn log(&self) -> Log {
        let lines = Arc::clone(&self.0);
        Log::To(Arc::new(move |line: &str| lines.lock().unwrap().push(line.to_owned())))
    }

    /// Lines that begin with a word.
    pub fn of(&self, word: &str) -> usize {
        let start = format!("{word}:");
        self.0.lock().unwrap().iter().filter(|line| line.starts_with(&start)).count()
    }

    pub fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// Options that log nothing.
pub fn quiet() -> Options {
    Options { log: Log::Quiet, ..Options::default() }
}

/// An engine with a simulated GPU.
pub fn engine(options: Options) -> (Bulk, Arc<dyn Gpu>) {
    let gpu = gpu();
    let bulk = Bulk::open(Options { gpu: Some(Arc::clone(&gpu)), ..options }).unwrap();
    (bulk, gpu)
}

/// Writes `bytes` self-describing bytes of a generation into a file.
pub fn make(path: &Path, bytes: u64, generation: u64) {
    let file = std::fs::File::create(path).unwrap();
    let mut piece = vec![0; 1 << 20];
    let mut at = 0;
    while at < bytes {
        let len = usize::try_from((bytes - at).min(1 << 20)).unwrap();
        pattern::fill(&mut piece[..len], at, generation);
        file.write_all_at(&piece[..len], at).unwrap();
        at += len as u64;
    }
    file.sync_all().unwrap();
}

/// Checks a file's bytes from an offset on.
pub fn check_file(path: &Path, offset: u64, bytes: usize, generation: u64) {
    let file = std::fs::File::open(path).unwrap();
    let mut data = vec![0; bytes];
    file.read_exact_at(&mut data, offset).unwrap();
    pattern::check(&data, offset, generation).unwrap();
}

/// Memory with sentinels on both sides, of the host or of a device.
pub enum Guarded {
    Device { gpu: Arc<dyn Gpu>, memory: DeviceMemory, first: usize, bytes: usize },
    Host { memory: Region, first: usize, bytes: usize },
}

impl Guarded {
    /// `bytes` bytes whose first lies `shift` bytes behind a page's.
    pub fn new(gpu: Option<&Arc<dyn Gpu>>, shift: usize, bytes: usize) -> Self {
        let (first, whole) = (SENTINEL_BYTES + shift, 2 * SENTINEL_BYTES + shift + bytes);
        let this = match gpu {
            Some(gpu) => {
                let memory = gpu.allocate_device(whole as u64).unwrap();
                Self::Device { gpu: Arc::clone(gpu), memory, first, bytes }
            }
            None => {
                let memory = Region::map_anonymous(whole, MemoryKind::Host).unwrap();
                Self::Host { memory, first, bytes }
            }
        };
        this.put(0, &vec![SENTINEL; whole]);
        this
    }

    fn whole(&self) -> usize {
        match self {
            Self::Device { memory, .. } => usize::try_from(memory.bytes).unwrap(),
            Self::Host { memory, .. } => memory.len_bytes(),
        }
    }

    pub fn range(&self) -> (usize, usize) {
        match self {
            Self::Device { first, bytes, .. } | Self::Host { first, bytes, .. } => (*first, *bytes),
        }
    }

    /// Stores bytes anywhere in it, the sentinels included.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        match self {
            Self::Host { memory, .. } => memory.write_bytes(at, bytes),
            Self::Device { gpu, memory, .. } => {
                let host = gpu.allocate_host(bytes.len() as u64).unwrap();
                host.write_bytes(0, bytes);
                let (host, device) = (&host, memory);
                let (host_offset, device_offset) = (0, at as u64);
                let bytes = bytes.len();
                let copy = Copy { host, host_offset, device, device_offset, bytes };
                gpu.copy_to_device(copy).unwrap();
            }
        }
    }

    /// All of it, the sentinels included.
    pub fn get(&self) -> Vec<u8> {
        let mut data = vec![0; self.whole()];
        match self {
            Self::Host { memory, .. } => memory.read_bytes(0, &mut data),
            Self::Device { gpu, memory, .. } => {
                let host = gpu.allocate_host(data.len() as u64).unwrap();
                let (device, bytes) = (memory, data.len());
                let copy = Copy { host: &host, host_offset: 0, device, device_offset: 0, bytes };
                gpu.copy_to_host(copy).unwrap();
                host.read_bytes(0, &mut data);
            }
        }
        data
    }

    /// The destination without its sentinels.
    pub fn place(&self) -> Place {
        let (first, bytes) = self.range();
        let whole = match self {
            Self::Device { memory, .. } => Place::memory(memory),
            Self::Host { memory, .. } => Place::host(memory.clone()),
        };
        whole.part(first as u64, bytes as u64).unwrap()
    }

    /// The same by its address alone.
    pub fn address(&self) -> Place {
        let Self::Device { memory, first, bytes, .. } = self else { panic!("host memory") };
        Place::device(memory.address + *first as u64, *bytes as u64)
    }

    /// Fills the destination with the pattern of a file's bytes.
    pub fn fill(&self, offset: u64, generation: u64) {
        let (first, bytes) = self.range();
        let mut data = vec![0; bytes];
        pattern::fill(&mut data, offset, generation);
        self.put(first, &data);
    }

    /// Checks the first `moved` bytes against the pattern, and that nothing else has changed.
    pub fn check(&self, offset: u64, moved: usize, generation: u64) {
        let (first, _) = self.range();
        let data = self.get();
        pattern::check(&data[first..first + moved], offset, generation).unwrap();
        let around = data[..first].iter().chain(&data[first + moved..]);
        assert!(around.copied().all(|byte| byte == SENTINEL), "bytes around the destination");
    }
}

/// Takes a file's pages out of the page cache, from an offset on.
pub fn drop_pages(path: &Path, offset: u64, bytes: u64) {
    let file = std::fs::File::open(path).unwrap();
    file.sync_all().unwrap();
    let len = std::num::NonZeroU64::new(bytes);
    rustix::fs::fadvise(&file, offset, len, rustix::fs::Advice::DontNeed).unwrap();
}
