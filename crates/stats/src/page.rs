//! The page: where it lies, who may have a shard, and how it is read.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use mem::{MemoryKind, Region};
use rustix::fs::OFlags;
use rustix::process::{Pid, geteuid, test_kill_process};

use crate::layout::WORDS;
use crate::snapshot::Snapshot;
use crate::writer::Writer;

/// "SCSTATS1" in little-endian ASCII.
const MAGIC: u64 = 0x3153_5441_5453_4353;
/// Changes with the meaning or place of any word.
const VERSION: u64 = 1;
/// Writers that a page has room for at a time.
const SHARDS: usize = 64;
const HEADER_BYTES: usize = 4096;
const SHARD_BYTES: usize = (8 + WORDS * 8).next_multiple_of(128);
const PAGE_BYTES: usize = HEADER_BYTES + SHARDS * SHARD_BYTES;
/// How often a reader tries a shard that is being written before it gives up.
const READ_ATTEMPTS: u32 = 10_000;

const AT_MAGIC: usize = 0;
const AT_VERSION: usize = 8;
const AT_BYTES: usize = 16;
const AT_PID: usize = 24;
const AT_START: usize = 32;

/// What can go wrong with a page.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StatsError {
    /// All shards are in use. Remedy: drop a writer first.
    #[error("the statistics page has room for {SHARDS} writers at a time")]
    Exhausted,
    /// The page could not be mapped. Remedy: as the source says.
    #[error(transparent)]
    Map(#[from] mem::MemError),
    /// The file is no page of this version. Remedy: use the reader that belongs to its writer.
    #[error("{0}: not a statistics page of this version")]
    NotAPage(PathBuf),
    /// The operating system refused. Remedy: as the source says.
    #[error("{operation} {path}: {source}")]
    Os {
        /// What was tried, as a verb.
        operation: &'static str,
        /// On which file.
        path: PathBuf,
        /// The system's own error.
        source: io::Error,
    },
    /// A writer died in the middle of publishing. Remedy: none; its process is gone or broken.
    #[error("a writer of the statistics page stopped half way")]
    Torn,
}

/// The page of this process. Dropping it removes the file.
#[derive(Debug)]
pub struct Page {
    region: Region,
    path: Option<PathBuf>,
    /// Shards that no writer owns.
    free: Arc<Mutex<Vec<usize>>>,
}

/// Where pages lie: `$XDG_RUNTIME_DIR`, else `/dev/shm`.
pub fn directory() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    runtime.filter(|p| p.is_dir()).unwrap_or_else(|| PathBuf::from("/dev/shm"))
}

impl Page {
    /// Removes the pages of dead processes and makes this process's page, in [`directory`].
    ///
    /// # Errors
    /// [`StatsError::Os`], [`StatsError::Map`].
    pub fn create() -> Result<Self, StatsError> {
        Self::create_in(&directory())
    }

    /// As [`Page::create`], in a directory of the caller's choice.
    ///
    /// # Errors
    /// [`StatsError::Os`], [`StatsError::Map`].
    pub fn create_in(directory: &Path) -> Result<Self, StatsError> {
        reap(directory);
        let (file, path) = make_file(directory)?;
        let os = |operation| {
            let path = path.clone();
            move |source| StatsError::Os { operation, path, source }
        };
        file.set_len(PAGE_BYTES as u64).map_err(os("sizing"))?;
        let page = Self::over(Region::map_file(&file, PAGE_BYTES)?, Some(path));
        Ok(page)
    }

    /// A page that no other process can see; counts all the same.
    ///
    /// # Errors
    /// [`StatsError::Map`].
    pub fn private() -> Result<Self, StatsError> {
        Ok(Self::over(Region::map_anonymous(PAGE_BYTES, MemoryKind::Host)?, None))
    }

    fn over(region: Region, path: Option<PathBuf>) -> Self {
        let pid = std::process::id();
        for (at, value) in [
            (AT_VERSION, VERSION),
            (AT_BYTES, PAGE_BYTES as u64),
            (AT_PID, u64::from(pid)),
            (AT_START, start_time(pid).unwrap_or(0)),
        ] {
            region.u64_at(at).store(value, Ordering::Relaxed);
        }
        // Last: a reader that sees the magic sees the rest. Pairs with `Reader::over`.
        region.u64_at(AT_MAGIC).store(MAGIC, Ordering::Release);
        let free = (0..SHARDS).rev().collect();
        Self { region, path, free: Arc::new(Mutex::new(free)) }
    }

    /// Its file, unless it is private.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Gives the caller a shard; the counts stay when the writer is dropped, the place is reused.
    ///
    /// # Errors
    /// [`StatsError::Exhausted`].
    pub fn writer(&self) -> Result<Writer, StatsError> {
        let taken = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let index = taken.ok_or(StatsError::Exhausted)?;
        let shard = self.region.slice(HEADER_BYTES + index * SHARD_BYTES, SHARD_BYTES)?;
        Ok(Writer::new(shard, index, Arc::clone(&self.free)))
    }

    /// The counts as they are now.
    ///
    /// # Errors
    /// [`StatsError::Torn`].
    pub fn snapshot(&self) -> Result<Snapshot, StatsError> {
        snapshot(&self.region)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // It may be gone already, with its directory.
            drop(fs::remove_file(path));
        }
    }
}

/// A new file under this process's pid. What lies there already is of an earlier process that had the pid,
/// and goes; or somebody else has put it there, into a directory that all may write, and stays as it is.
fn make_file(directory: &Path) -> Result<(File, PathBuf), StatsError> {
    const TRIES: u32 = 100;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut tries = 0;
    loop {
        tries += 1;
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = directory.join(format!("sidecore-{}-{n}.stats", std::process::id()));
        let _stays = fs::remove_file(&path);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        match options.open(&path) {
            Ok(file) => return Ok((file, path)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tries < TRIES => {}
            Err(source) => return Err(StatsError::Os { operation: "creating", path, source }),
        }
    }
}

/// Another process's page (or this one's).
#[derive(Debug)]
pub struct Reader {
    region: Region,
    pid: u32,
}

impl Reader {
    /// Opens a page.
    ///
    /// # Errors
    /// [`StatsError::Os`], [`StatsError::Map`], [`StatsError::NotAPage`] (also where the file is
    /// another user's, who could cut it short while it is mapped).
    pub fn open(path: &Path) -> Result<Self, StatsError> {
        let os = |operation| move |source| StatsError::Os { operation, path: path.into(), source };
        // A link could lead anywhere.
        let flags = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or(0);
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(flags);
        let file: File = options.open(path).map_err(os("opening"))?;
        let metadata = file.metadata().map_err(os("reading the size of"))?;
        let euid = geteuid();
        let trusted = euid.is_root() || metadata.uid() == euid.as_raw();
        if !trusted || metadata.len() != PAGE_BYTES as u64 {
            return Err(StatsError::NotAPage(path.into()));
        }
        let region = Region::map_file(&file, PAGE_BYTES)?;
        // Pairs with the Release in `Page::over`.
        let magic = region.u64_at(AT_MAGIC).load(Ordering::Acquire);
        let word = |at| region.u64_at(at).load(Ordering::Relaxed);
        let pid = u32::try_from(word(AT_PID));
        match pid {
            Ok(pid) if (magic, word(AT_VERSION)) == (MAGIC, VERSION) => Ok(Self { region, pid }),
            _ => Err(StatsError::NotAPage(path.into())),
        }
    }

    /// The process that writes it.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether that process still runs.
    pub fn is_alive(&self) -> bool {
        let start = self.region.u64_at(AT_START).load(Ordering::Relaxed);
        is_alive(self.pid, Some(start))
    }

    /// The counts as they are now.
    ///
    /// # Errors
    /// [`StatsError::Torn`].
    pub fn snapshot(&self) -> Result<Snapshot, StatsError> {
        snapshot(&self.region)
    }
}

fn snapshot(region: &Region) -> Result<Snapshot, StatsError> {
    let mut sum = Snapshot::default();
    let mut words = [0; WORDS];
    for shard in 0..SHARDS {
        if read_shard(region, HEADER_BYTES + shard * SHARD_BYTES, &mut words)? {
            sum.add_shard(&words);
        }
    }
    Ok(sum)
}

/// Copies a shard as one `publish` left it; false where it was never written.
fn read_shard(region: &Region, at: usize, words: &mut [u64; WORDS]) -> Result<bool, StatsError> {
    let sequence = region.u64_at(at);
    for attempt in 0..READ_ATTEMPTS {
        // Pairs with the Release in `Writer::publish`.
        let before = sequence.load(Ordering::Acquire);
        if before == 0 {
            return Ok(false);
        }
        if before.is_multiple_of(2) {
            for (i, word) in words.iter_mut().enumerate() {
                *word = region.u64_at(at + 8 + i * 8).load(Ordering::Relaxed);
            }
            // Keeps the loads above before the one below; pairs with the writer's fence.
            fence(Ordering::Acquire);
            if sequence.load(Ordering::Relaxed) == before {
                return Ok(true);
            }
        }
        if attempt % 16 == 15 {
            std::thread::yield_now();
        }
    }
    Err(StatsError::Torn)
}

/// Pages of this user in a directory, whether or not their processes live.
pub fn pages(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries.map(|e| e.path()).filter(|p| pid_of(p).is_some()).collect();
    found.sort();
    found
}

/// Removes pages whose processes are gone; returns how many. Others' pages stay.
pub fn reap(directory: &Path) -> usize {
    let stale = |path: &PathBuf| match (pid_of(path), Reader::open(path)) {
        (Some(_), Ok(reader)) => !reader.is_alive(),
        (Some(pid), Err(_)) => !is_alive(pid, None),
        (None, _) => false,
    };
    pages(directory).iter().filter(|p| stale(p) && fs::remove_file(p).is_ok()).count()
}

/// The pid in a page's file name.
fn pid_of(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    let (pid, n) = name.strip_prefix("sidecore-")?.strip_suffix(".stats")?.split_once('-')?;
    n.parse::<u32>().ok()?;
    pid.parse().ok()
}

/// Whether a process runs, and is the one that started then.
fn is_alive(pid: u32, start: Option<u64>) -> bool {
    let Some(id) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    let exists = test_kill_process(id) != Err(rustix::io::Errno::SRCH);
    exists && start.is_none_or(|start| start_time(pid).is_none_or(|now| now == start))
}

/// Start time of a process in clock ticks since boot. Source: proc_pid_stat(5), field 22.
fn start_time(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name may hold blanks and parentheses; fields count from behind the last one.
    text.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests;
