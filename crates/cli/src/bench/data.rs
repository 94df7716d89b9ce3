//! The data that is read and written: made for the run, or given; and what each byte must be.

use std::fs::{File, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use abi::bench::BenchEdges;
use anyhow::{Context, Result, bail, ensure};
use mem::Region;
use storage::pattern;
use tempfile::NamedTempFile;

use crate::bench::machine;
use crate::{interrupt, units};

/// Each stretch of this many bytes has a generation of its own.
pub const GRANULE_BYTES: u64 = 512;
/// Generation of data when made.
const FIRST_GENERATION: u32 = 1;
/// Bytes written or compared at once.
const PIECE_BYTES: usize = 1 << 20;

/// A file of known content.
#[derive(Debug)]
pub struct Data {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// Removes the file at the end, if it was made for the run.
    made: Option<NamedTempFile>,
    content: Content,
    /// A copy of it, as long as nothing was written.
    copy: Mutex<Option<Region>>,
    /// Identity, length and time of change when opened; only of a file that was given.
    seen: Option<(u64, u64, i64, i64)>,
}

#[derive(Debug)]
enum Content {
    /// Self-describing, with a generation a granule.
    Pattern(Vec<u32>),
    /// Whatever the file holds, read a second time to compare.
    Own,
}

/// Bytes of the data file when nobody says: a quarter more than four times the last-level cache.
pub fn default_bytes() -> u64 {
    let cache = machine::last_level_cache_bytes().unwrap_or(32 << 20);
    (cache * 5).next_multiple_of(1 << 20).clamp(64 << 20, 4 << 30)
}

impl Data {
    /// Makes a file of `bytes` self-describing bytes in `directory`; it goes with this value.
    ///
    /// # Errors
    /// The system's own, with the file's name: no such directory, no room, no permission.
    pub fn make(directory: &Path, bytes: u64) -> Result<Self> {
        let named =
            || format!("making a data file of {} in {}", units::bytes(bytes), directory.display());
        let made = tempfile::Builder::new()
            .prefix("sidecore-bench-")
            .suffix(".data")
            .tempfile_in(directory)
            .with_context(named)?;
        interrupt::note_made(made.path());
        let file = made.reopen().with_context(named)?;
        write_pattern(&file, bytes).with_context(named)?;
        let granules = usize::try_from(bytes / GRANULE_BYTES).context("data larger than memory")?;
        let content = Content::Pattern(vec![FIRST_GENERATION; granules]);
        Ok(Self {
            path: made.path().to_owned(),
            file,
            bytes,
            made: Some(made),
            content,
            copy: Mutex::default(),
            seen: None,
        })
    }

    /// Opens a file that was given, to be read only.
    ///
    /// # Errors
    /// Missing, unreadable, empty, or neither a file nor a block device.
    pub fn open(path: &Path) -> Result<Self> {
        let named = || format!("reading {}", path.display());
        let file = File::open(path).with_context(named)?;
        let meta = file.metadata().with_context(named)?;
        let bytes = length(path, &file, &meta)?;
        let seen = Some(identity(&meta));
        Ok(Self {
            path: path.to_owned(),
            file,
            bytes,
            made: None,
            content: Content::Own,
            copy: Mutex::default(),
            seen,
        })
    }

    /// Opens a file that was given, to be overwritten with self-describing data of its length.
    ///
    /// # Errors
    /// As [`Data::open`], and what writing may meet.
    pub fn open_to_overwrite(path: &Path) -> Result<Self> {
        let named = || format!("overwriting {}", path.display());
        let file = OpenOptions::new().read(true).write(true).open(path).with_context(named)?;
        let meta = file.metadata().with_context(named)?;
        let bytes = length(path, &file, &meta)?;
        write_pattern(&file, bytes).with_context(named)?;
        let granules = usize::try_from(bytes.div_ceil(GRANULE_BYTES)).context("a huge file")?;
        let content = Content::Pattern(vec![FIRST_GENERATION; granules]);
        Ok(Self {
            path: path.to_owned(),
            file,
            bytes,
            made: None,
            content,
            copy: Mutex::default(),
            seen: None,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its length.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it was made for the run.
    pub fn is_made(&self) -> bool {
        self.made.is_some()
    }

    /// What the bytes at `offset` must be.
    ///
    /// # Errors
    /// A given file that cannot be read a second time.
    pub fn expected(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        match &self.content {
            Content::Pattern(generations) => {
                fill_by_generation(generations, offset, target);
                Ok(())
            }
            Content::Own => self
                .file
                .read_exact_at(target, offset)
                .with_context(|| format!("reading {} at {offset} to compare", self.path.display())),
        }
    }

    /// What the first and last 16 bytes of a read must be.
    ///
    /// # Errors
    /// As [`Data::expected`].
    pub fn expected_edges(&self, offset: u64, bytes: u32) -> Result<BenchEdges> {
        let mut words = [[0u8; 16]; 2];
        self.expected(offset, &mut words[0])?;
        self.expected(offset + u64::from(bytes) - 16, &mut words[1])?;
        let split = |bytes: [u8; 16]| {
            let (low, high) = bytes.split_at(8);
            [word(low), word(high)]
        };
        Ok(BenchEdges { first: split(words[0]), last: split(words[1]) })
    }

    /// Fills `target` with the next generation of the bytes at `offset`, to be written.
    pub fn next_generation(&self, offset: u64, target: &mut [u8]) {
        let generation = self.generation(offset) + 1;
        pattern::fill(target, offset, u64::from(generation));
    }

    /// A copy of the file in memory of this process, the same one until the file is written.
    ///
    /// # Errors
    /// No memory, and the system's own.
    pub fn in_memory(&self) -> Result<Region> {
        let mut copy = self.copy.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(region) = &*copy {
            return Ok(region.clone());
        }
        let bytes = usize::try_from(self.bytes)?;
        let region = Region::map_private(bytes)?;
        in_parts(bytes, PIECE_BYTES, |at, len| {
            let mut piece = vec![0; len];
            self.file.read_exact_at(&mut piece, at as u64)?;
            region.write_bytes(at, &piece);
            Ok(())
        })
        .with_context(|| format!("copying {} into memory", self.path.display()))?;
        *copy = Some(region.clone());
        Ok(region)
    }

    fn forget_copy(&mut self) {
        *self.copy.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// How many of the I/Os at these offsets are in the file as they were noted to be written; all
    /// CPUs read.
    ///
    /// # Errors
    /// The system's own.
    pub fn count_right(&self, offsets: &[u64], bytes: u32) -> Result<u64> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let part = offsets.len().div_ceil(threads).max(1);
        let one = |offsets: &[u64]| -> Result<u64> {
            let (mut found, mut expected) = (vec![0; bytes as usize], vec![0; bytes as usize]);
            let mut right = 0;
            for &offset in offsets {
                self.file
                    .read_exact_at(&mut found, offset)
                    .with_context(|| format!("reading {} back", self.path.display()))?;
                self.expected(offset, &mut expected)?;
                right += u64::from(found == expected);
            }
            Ok(right)
        };
        std::thread::scope(|scope| {
            let parts: Vec<_> =
                offsets.chunks(part).map(|part| scope.spawn(move || one(part))).collect();
            parts.into_iter().map(|part| part.join().expect("no panic in there")).sum()
        })
    }

    /// Generation of the first bytes at an offset, as noted.
    pub fn generation(&self, offset: u64) -> u32 {
        match &self.content {
            Content::Pattern(generations) => generations
                .get(granule(offset))
                .copied()
                .expect("offsets of a round lie inside the data"),
            Content::Own => unreachable!("a file that is only read has no generations"),
        }
    }

    /// Notes that the next generation was written there.
    pub fn note_written(&mut self, offset: u64, bytes: u64) {
        self.forget_copy();
        let next = self.generation(offset) + 1;
        if let Content::Pattern(generations) = &mut self.content {
            generations[granule(offset)..granule(offset + bytes)].fill(next);
        }
    }

    /// Fails where a given file is no longer what it was when it was opened.
    ///
    /// # Errors
    /// It changed, or cannot be looked at.
    pub fn check_unchanged(&self) -> Result<()> {
        let Some(seen) = self.seen else { return Ok(()) };
        let meta =
            self.file.metadata().with_context(|| format!("reading {}", self.path.display()))?;
        ensure!(
            identity(&meta) == seen,
            "reading {}: the file changed while it was being read (now {} bytes, was {})",
            self.path.display(),
            meta.len(),
            self.bytes
        );
        Ok(())
    }

    /// Reads what was written, a second time and by another way.
    ///
    /// # Errors
    /// The system's own.
    pub fn read_back(&self, offset: u64, bytes: u32) -> Result<Vec<u8>> {
        let mut found = vec![0; bytes as usize];
        self.file
            .read_exact_at(&mut found, offset)
            .with_context(|| format!("reading {} at {offset} back", self.path.display()))?;
        Ok(found)
    }

    /// Whether its file system keeps files in memory.
    pub fn is_in_memory(&self) -> bool {
        uring::residency::is_in_memory(self.file.as_fd())
    }

    /// Share of the data in the page cache; -1 where the system does not tell.
    pub fn cached_share(&self) -> f64 {
        uring::residency::by_mincore(self.file.as_fd(), 0, self.bytes)
            .map_or(-1.0, |pages| pages.cached as f64 / pages.total.max(1) as f64)
    }

    /// Enters a mapping's pages into this process's tables, where all of the file is in the page
    /// cache: what is measured over it is then no page fault.
    pub fn enter(&self, mapping: &Region) {
        if self.cached_share() >= 1.0 {
            mapping.populate();
        }
    }

    /// Puts data of a known generation where a failed write left something unknown.
    ///
    /// # Errors
    /// The system's own.
    pub fn repair(&mut self, offset: u64, bytes: u32) -> Result<()> {
        let mut whole = vec![0; bytes as usize];
        self.next_generation(offset, &mut whole);
        self.file
            .write_all_at(&whole, offset)
            .with_context(|| format!("writing {} at {offset}", self.path.display()))?;
        self.note_written(offset, u64::from(bytes));
        Ok(())
    }
}

fn granule(offset: u64) -> usize {
    usize::try_from(offset / GRANULE_BYTES).expect("the data was counted in granules when opened")
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes make a word"))
}

fn fill_by_generation(generations: &[u32], offset: u64, target: &mut [u8]) {
    let mut at = offset;
    let mut rest = target;
    while !rest.is_empty() {
        let first = granule(at);
        let generation = generations[first];
        let same = generations[first..].iter().take_while(|g| **g == generation);
        // Granules beyond this piece do not matter; `take` keeps a long run from being counted whole.
        let granules = same.take(rest.len() / 512 + 2).count() as u64;
        let end = (at / GRANULE_BYTES + granules) * GRANULE_BYTES;
        let len = usize::try_from(end - at).map_or(rest.len(), |len| len.min(rest.len()));
        let (piece, after) = rest.split_at_mut(len);
        pattern::fill(piece, at, u64::from(generation));
        at += len as u64;
        rest = after;
    }
}

/// Does `bytes` bytes in parts of at most `part`, on all CPUs: `act(first byte, bytes)`.
fn in_parts(
    bytes: usize,
    part: usize,
    act: impl Fn(usize, usize) -> std::io::Result<()> + Sync,
) -> std::io::Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let work = || -> std::io::Result<()> {
        loop {
            let at = next.fetch_add(part, Ordering::Relaxed);
            if at >= bytes {
                return Ok(());
            }
            if interrupt::asked() {
                return Err(ErrorKind::Interrupted.into());
            }
            act(at, part.min(bytes - at))?;
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no panic in there"))
    })
}

/// Writes `bytes` self-describing bytes of the first generation, and waits until they are clean.
///
/// # Errors
/// The system's own; `Interrupted` after Ctrl-C.
pub fn write_pattern(file: &File, bytes: u64) -> std::io::Result<()> {
    let length = usize::try_from(bytes).map_err(std::io::Error::other)?;
    in_parts(length, PIECE_BYTES, |at, len| {
        let mut piece = vec![0; len];
        pattern::fill(&mut piece, at as u64, u64::from(FIRST_GENERATION));
        file.write_all_at(&piece, at as u64)
    })?;
    // Clean pages: so that what is measured is reading, not the write-back of what was just made.
    file.sync_data()
}

fn length(path: &Path, file: &File, meta: &Metadata) -> Result<u64> {
    let kind = meta.file_type();
    if meta.is_dir() {
        bail!("reading {}: it is a directory; name a file or a block device", path.display());
    }
    let bytes = if kind.is_block_device() {
        rustix::fs::ioctl_blksszget(file.as_fd())
            .and_then(|_| rustix::fs::seek(file.as_fd(), rustix::fs::SeekFrom::End(0)))
            .with_context(|| format!("reading the size of {}", path.display()))?
    } else if meta.is_file() {
        meta.len()
    } else {
        bail!("reading {}: it is neither a file nor a block device", path.display());
    };
    ensure!(bytes > 0, "reading {}: it is empty", path.display());
    Ok(bytes)
}

fn identity(meta: &Metadata) -> (u64, u64, i64, i64) {
    (meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_data_is_what_it_says_and_goes() {
        let directory = tempfile::tempdir().unwrap();
        let mut data = Data::make(directory.path(), 64 << 10).unwrap();
        let path = data.path().to_owned();
        let on_disk = std::fs::read(&path).unwrap();
        let mut expected = vec![0; 64 << 10];
        data.expected(0, &mut expected).unwrap();
        assert_eq!(on_disk, expected);
        data.note_written(4096, 4096);
        data.note_written(4096, 512);
        data.expected(0, &mut expected).unwrap();
        assert!(pattern::check(&expected[..4096], 0, 1).is_ok());
        assert!(pattern::check(&expected[4096..4608], 4096, 3).is_ok());
        assert!(pattern::check(&expected[4608..8192], 4608, 2).is_ok());
        assert!(pattern::check(&expected[8192..], 8192, 1).is_ok());
        drop(data);
        assert!(!path.exists());
    }

    #[test]
    fn a_given_file_that_changes_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("given");
        std::fs::write(&path, vec![7; 8192]).unwrap();
        let data = Data::open(&path).unwrap();
        data.check_unchanged().unwrap();
        std::fs::write(&path, vec![8; 4096]).unwrap();
        let error = data.check_unchanged().unwrap_err().to_string();
        assert!(error.contains("given") && error.contains("changed"), "{error}");
    }
}
