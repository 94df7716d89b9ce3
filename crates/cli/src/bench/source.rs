//! Where the data is read from and written to: the file, or a software drive over it; and what may
//! go wrong there on request.

use std::fs::OpenOptions;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ctrl::TimingModel;
use gpu::Gpu;
use mem::Region;
use storage::faults::{FaultScript, Injector};
use storage::{Direct, Faulty, FileOptions, FileStorage, MemoryStorage, Storage};

use crate::args::{Cache, DrivesArgs, FaultsAt};
use crate::bench::data::Data;
use crate::bench::drive::{DriveOptions, SoftwareDrive};
use crate::bench::posix::PosixStorage;
use crate::bench::uring::UringStorage;

/// Bytes of an io_uring submission entry.
const SQE_BYTES: u64 = 64;
/// Bytes of an NVMe command. Source: NVMe Base Specification 2.0c, 3.3.3.1.
const COMMAND_BYTES: u64 = 64;

/// Which source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SourceKind {
    /// The file, by the storage layer's own choice of means.
    File,
    /// The file, mapped into memory.
    Mapped,
    /// A copy of the file in memory.
    Memory,
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
    /// Queue pairs that a software drive needs for it.
    pub queues: u32,
    /// Threads of a software drive; 0: as the GPU needs.
    pub device_cores: u32,
    /// How many software drives.
    pub several: DrivesArgs,
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
    /// The software drive.
    software: Option<Rc<SoftwareDrive>>,
}

impl Source {
    /// Opens it; a software drive is the given one, or one of its own.
    ///
    /// # Errors
    /// The system's own, with the file's name; a drive that does not start.
    pub fn open(
        kind: SourceKind,
        options: &SourceOptions,
        data: &Data,
        gpu: &Arc<dyn Gpu>,
        drive: Option<&Rc<SoftwareDrive>>,
    ) -> Result<Self> {
        let file = if data.is_made() { "file made for the run" } else { "file given" };
        let (path, bytes, writes) = (data.path(), data.bytes(), options.writes);
        let direct = is_direct(options.cache, data);
        check_direct(kind, options.cache, data)?;
        let mut source = match kind {
            SourceKind::File => {
                let storage = FileStorage::open(path, &file_options(options))?;
                Self::plain(Arc::new(storage), file, 0)
            }
            SourceKind::Mapped => Self::mapped(data, file)?,
            SourceKind::Memory => Self::memory(data, writes)?,
            SourceKind::Posix => {
                let direct = options.cache == Cache::Direct;
                let storage = PosixStorage::open(path, bytes, writes, direct)?;
                Self::plain(Arc::new(storage), file, 0)
            }
            SourceKind::Software => Self::over_software(options, data, gpu, drive)?,
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
        Self { storage, drive: drive.to_owned(), request_bytes, injector: None, software: None }
    }

    /// The file as memory; who made it is the only one to change its length.
    fn mapped(data: &Data, file: &str) -> Result<Self> {
        ensure!(
            data.is_made(),
            "--drive mapped: only a file made for the run is mapped, not --file"
        );
        let named = || format!("mapping {}", data.path().display());
        let opened =
            OpenOptions::new().read(true).write(true).open(data.path()).with_context(named)?;
        let bytes = usize::try_from(data.bytes())?;
        let region = Region::map_file(&opened, bytes).with_context(named)?;
        data.enter(&region);
        let storage = Arc::new(MemoryStorage::over(region).with_lending());
        Ok(Self::plain(storage, &format!("memory: {file}, mapped"), 0))
    }

    /// A copy of the file in memory.
    fn memory(data: &Data, writes: bool) -> Result<Self> {
        ensure!(!writes, "--drive memory is only read; for writes use --drive mapped");
        let region = data.in_memory()?;
        let storage = Arc::new(MemoryStorage::over(region).with_lending());
        Ok(Self::plain(storage, "memory: a copy of the file", 0))
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

    fn over_software(
        options: &SourceOptions,
        data: &Data,
        gpu: &Arc<dyn Gpu>,
        drive: Option<&Rc<SoftwareDrive>>,
    ) -> Result<Self> {
        let drive = match drive {
            Some(drive) => Rc::clone(drive),
            None => SoftwareDrive::open(&options.drive(options.queues), data, gpu)?,
        };
        Ok(Self {
            storage: drive.storage()?,
            drive: drive.name().to_owned(),
            request_bytes: COMMAND_BYTES,
            injector: drive.injector().cloned(),
            software: Some(drive),
        })
    }

    /// Faults injected so far.
    pub fn faults_injected(&self) -> u64 {
        self.injector.as_ref().map_or(0, |injector| injector.injected_total())
    }

    /// Tells the CPU seconds of the emulated drive so far.
    pub fn device_cpu(&self) -> Box<dyn Fn() -> f64> {
        match self.software.clone() {
            Some(drive) => Box::new(move || drive.cpu_seconds()),
            None => Box::new(|| 0.0),
        }
    }

    /// The software drive, where it is one.
    pub fn software(&self) -> Option<Rc<SoftwareDrive>> {
        self.software.clone()
    }

    /// Threads of the software drive; 0 where there is none.
    pub fn device_cores(&self) -> u32 {
        self.software.as_ref().map_or(0, |drive| drive.device_cores())
    }

    /// Software drives; 0 where there is none.
    pub fn drives(&self) -> u32 {
        self.software.as_ref().map_or(0, |drive| drive.drives())
    }

    /// The sum of a counter over the software drive's controllers.
    pub fn at_controllers(&self, value: fn(&ctrl::Counters) -> u64) -> u64 {
        self.software.as_ref().map_or(0, |drive| drive.counted(value))
    }

    /// I/O commands that the software drive has fetched; 0 where there is none.
    pub fn commands_at_controller(&self) -> u64 {
        self.software.as_ref().map_or(0, |drive| drive.io_commands())
    }
}

impl SourceOptions {
    /// How a software drive with so many queue pairs to lend is made for such a source.
    pub fn drive(&self, queues: u32) -> DriveOptions {
        DriveOptions {
            file: file_options(self),
            timing: self.timing.clone(),
            faults: self.faults.clone().filter(|_| self.faults_at == FaultsAt::Drive),
            limit: self.limit,
            queues,
            device_cores: self.device_cores,
            several: self.several.clone(),
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

/// Refuses to call direct what is not.
///
/// # Errors
/// Direct I/O is asked for where a file system has no other place for its files than the page cache.
fn check_direct(kind: SourceKind, cache: Cache, data: &Data) -> Result<()> {
    let of_file = matches!(
        kind,
        SourceKind::File | SourceKind::Posix | SourceKind::Software | SourceKind::Uring
    );
    ensure!(
        cache != Cache::Direct || !of_file || !data.is_in_memory(),
        "--cache direct: {} lies on a file system in memory, where everything is in the page cache; \
         name a directory or file on a disk, or ask for --cache cached",
        data.path().display()
    );
    Ok(())
}

/// Whether to go past the page cache: as asked, or where less than half of the data is in it.
fn is_direct(cache: Cache, data: &Data) -> bool {
    match cache {
        Cache::Auto => !data.is_in_memory() && (0.0..0.5).contains(&data.cached_share()),
        Cache::Cached => false,
        Cache::Direct => true,
    }
}
