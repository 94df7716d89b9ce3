//! Where the data is read from and written to: the file, or a software drive over it; and what may
//! go wrong there on request.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ctrl::{Controller, NamespaceOptions, Options, Server, ServerOptions, TimingModel};
use driver::RegionDevice;
use mem::AddressMap;
use storage::faults::{FaultScript, Injector};
use storage::{Direct, Faulty, FileOptions, FileStorage, NvmeOptions, NvmeStorage, Storage};

use crate::args::{Cache, FaultsAt};
use crate::bench::data::Data;
use crate::bench::padded::Padded;
use crate::bench::posix::PosixStorage;
use crate::bench::uring::UringStorage;

/// Bytes of an io_uring submission entry.
const SQE_BYTES: u64 = 64;
/// Bytes of an NVMe command. Source: NVMe Base Specification 2.0c, 3.3.3.1.
const COMMAND_BYTES: u64 = 64;
/// Bytes of a logical block of the software drive.
pub const BLOCK_BYTES: u32 = 512;

/// Which source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SourceKind {
    /// The file, by the storage layer's own choice of means.
    File,
    /// The file, by pread and pwrite.
    Posix,
    /// The software NVMe drive over the file.
    Software,
    /// The file, by the baseline's io_uring.
    Uring,
}

/// How a source is opened.
#[derive(Clone, Debug)]
pub struct SourceOptions {
    /// Whether it is written.
    pub writes: bool,
    /// Whether the page cache is used.
    pub cache: Cache,
    /// What shall go wrong.
    pub faults: Option<FaultScript>,
    /// Where it goes wrong.
    pub faults_at: FaultsAt,
    /// What the software drive stands for.
    pub timing: TimingModel,
    /// A command without an answer ends after this.
    pub limit: Duration,
}

/// A source that is open.
pub struct Source {
    /// The storage to use.
    pub storage: Arc<dyn Storage>,
    /// What holds the data, for the row.
    pub drive: String,
    /// Bytes of request that a CPU writes an I/O.
    pub request_bytes: u64,
    /// Decides what goes wrong, and counts it.
    injector: Option<Arc<Injector>>,
    /// Serves the software drive.
    server: Option<Rc<Server>>,
}

impl Source {
    /// Opens it.
    ///
    /// # Errors
    /// The system's own, with the file's name; a drive that does not start.
    pub fn open(kind: SourceKind, options: &SourceOptions, data: &Data) -> Result<Self> {
        let file = if data.is_made() { "file made for the run" } else { "file given" };
        let (path, bytes, writes) = (data.path(), data.bytes(), options.writes);
        let direct = is_direct(options.cache, data);
        let mut source = match kind {
            SourceKind::File => {
                let storage = FileStorage::open(path, &file_options(options))?;
                Self::plain(Arc::new(storage), file, 0)
            }
            SourceKind::Posix => {
                let direct = options.cache == Cache::Direct;
                let storage = PosixStorage::open(path, bytes, writes, direct)?;
                Self::plain(Arc::new(storage), file, 0)
            }
            SourceKind::Software => Self::software(options, data, file)?,
            SourceKind::Uring => {
                let storage = UringStorage::open(path, bytes, writes, direct)?;
                Self::plain(Arc::new(storage), file, SQE_BYTES)
            }
        };
        if let (Some(script), FaultsAt::Storage) = (&options.faults, options.faults_at) {
            source.misbehave(script);
        }
        Ok(source)
    }

    fn plain(storage: Arc<dyn Storage>, drive: &str, request_bytes: u64) -> Self {
        Self { storage, drive: drive.to_owned(), request_bytes, injector: None, server: None }
    }

    /// Puts a fault script in front of the storage.
    fn misbehave(&mut self, script: &FaultScript) {
        let start = Instant::now();
        let clock = move || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let faulty = Arc::new(Faulty::new(Arc::clone(&self.storage), script, Arc::new(clock)));
        self.injector = Some(Arc::clone(faulty.injector()));
        self.storage = faulty;
        self.drive.push_str(", misbehaving by script");
    }

    fn software(options: &SourceOptions, data: &Data, file: &str) -> Result<Self> {
        let below = FileStorage::open(data.path(), &file_options(options))?;
        let below: Arc<dyn Storage> = Arc::new(Padded::new(Arc::new(below), BLOCK_BYTES));
        let injector = options
            .faults
            .as_ref()
            .filter(|_| options.faults_at == FaultsAt::Drive)
            .map(|script| Arc::new(Injector::new(script, BLOCK_BYTES)));
        let namespace =
            NamespaceOptions { storage: below, block_bytes: BLOCK_BYTES, faults: injector.clone() };
        let settings = Options { timing: options.timing.clone(), ..Options::new(vec![namespace]) };
        let map = Arc::new(AddressMap::new());
        let controller = Controller::new(settings, Arc::clone(&map))?;
        let bar = controller.bar();
        let server = Rc::new(Server::start(vec![controller], ServerOptions::default())?);
        let device = Arc::new(RegionDevice::new(bar, map));
        let how = NvmeOptions { command_limit: options.limit, ..NvmeOptions::default() };
        let nvme = NvmeStorage::wait_open(device, &how).context("starting the software drive")?;
        let model = if options.timing.is_unlimited() {
            "no timing model".to_owned()
        } else {
            options.timing.to_string()
        };
        Ok(Self {
            storage: Arc::new(nvme),
            drive: format!("software NVMe controller ({model}) over {file}"),
            request_bytes: COMMAND_BYTES,
            injector,
            server: Some(server),
        })
    }

    /// Faults injected so far.
    pub fn faults_injected(&self) -> u64 {
        self.injector.as_ref().map_or(0, |injector| injector.injected_total())
    }

    /// Tells the CPU seconds of the emulated drive so far.
    pub fn device_cpu(&self) -> Box<dyn Fn() -> f64> {
        match self.server.clone() {
            Some(server) => Box::new(move || server.cpu_seconds()),
            None => Box::new(|| 0.0),
        }
    }
}

fn file_options(options: &SourceOptions) -> FileOptions {
    let direct = match options.cache {
        Cache::Auto => Direct::Auto,
        Cache::Cached => Direct::Never,
        Cache::Direct => Direct::Always,
    };
    FileOptions { writable: options.writes, direct, ..FileOptions::default() }
}

/// Whether to go past the page cache: as asked, or where less than half of the data is in it.
fn is_direct(cache: Cache, data: &Data) -> bool {
    match cache {
        Cache::Auto => (0.0..0.5).contains(&data.cached_share()),
        Cache::Cached => false,
        Cache::Direct => true,
    }
}
