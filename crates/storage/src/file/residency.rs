//! Where a file's pages are: in the page cache, or only on the drive.
//!
//! The way to ask is chosen once, by the file system:
//!
//! | file system | way |
//! | --- | --- |
//! | tmpfs, ramfs | none: all pages are always in memory |
//! | overlayfs | `mincore` on a mapping, since the inode above holds no pages |
//! | others, block devices | `cachestat` |
//! | where `cachestat` is missing or filtered | none: everything is read buffered |
//!
//! The last row is what a probe by a read that must not wait (`RWF_NOWAIT`) comes to: a miss has
//! started readahead, so that a direct read after it would read the drive twice.
//!
//! A queue keeps a [`Map`] of its own: one byte for each chunk of the file, filled when the chunk is
//! first touched, and asked again now and then.

use std::os::fd::BorrowedFd;

use rustix::fs::FileType;
use uring::residency::Pages;

use super::target::Target;

/// Smallest chunk that is probed at once: 512 pages, some microseconds.
const CHUNK_BYTES_MIN: u64 = 2 << 20;
/// Most chunks of a map; larger files get larger chunks.
const CHUNKS_MAX: u64 = 8192;
/// Every so many requests the chunk at hand is probed again.
const PROBE_AGAIN_AFTER: u32 = 4096;
/// Largest range given to `mincore`, which answers with a byte a page.
const MINCORE_BYTES_MAX: u64 = 16 << 30;

const PAGE_BYTES: u64 = 4096;

const OVERLAYFS_MAGIC: u64 = 0x794c_7630;

/// How it is found out which pages of a file are in the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// Not asked: they always are, as on tmpfs.
    AlwaysCached,
    /// By `cachestat`.
    Cachestat,
    /// By `mincore` on a mapping made for it, as on overlayfs.
    Mincore,
    /// Not at all.
    Unknown,
}

impl Method {
    /// Chooses by file system magic, and by trying.
    pub fn choose(magic: u64, kind: FileType, buffered: BorrowedFd<'_>) -> Self {
        // A block device node lies on a tmpfs of its own; its pages do not.
        if kind == FileType::RegularFile {
            if uring::residency::is_in_memory(buffered) {
                return Self::AlwaysCached;
            }
            if magic == OVERLAYFS_MAGIC {
                return Self::Mincore;
            }
        }
        match uring::residency::by_cachestat(buffered, 0, 4096) {
            Ok(_) => Self::Cachestat,
            Err(_) => Self::Unknown,
        }
    }

    /// Its words in a sentence about cached pages.
    pub fn name(self) -> &'static str {
        match self {
            Self::AlwaysCached => "in memory by its file system",
            Self::Cachestat => "by cachestat",
            Self::Mincore => "by mincore",
            Self::Unknown => "not to be known here",
        }
    }

    /// Pages of a range, and how many of them are cached; `None` where that is not to be known.
    pub fn pages(self, file: BorrowedFd<'_>, offset: u64, bytes: u64) -> Option<Pages> {
        match self {
            Self::AlwaysCached => {
                let total = (offset + bytes).div_ceil(PAGE_BYTES) - offset / PAGE_BYTES;
                Some(Pages { total, cached: total })
            }
            Self::Cachestat => uring::residency::by_cachestat(file, offset, bytes).ok(),
            Self::Mincore => {
                let bytes = bytes.min(MINCORE_BYTES_MAX);
                uring::residency::by_mincore(file, offset, bytes).ok()
            }
            Self::Unknown => None,
        }
    }

    /// Share of a range that is cached, 0 to 1.
    fn share(self, target: &Target, offset: u64, bytes: u64) -> Option<f64> {
        if self == Self::AlwaysCached {
            return Some(1.0);
        }
        let pages = self.pages(target.buffered(), offset, bytes)?;
        (pages.total > 0).then(|| pages.cached as f64 / pages.total as f64)
    }

    /// Share of the whole file that is cached now.
    pub(super) fn cached_share(self, target: &Target) -> Option<f64> {
        self.share(target, 0, target.bytes())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Chunk {
    Unknown,
    Cached,
    Cold,
}

/// What one queue knows about the chunks of its file.
pub(super) struct Map {
    chunk_shift: u32,
    chunks: Vec<Chunk>,
    until_probe: u32,
}

impl Map {
    /// An empty map for a file of `bytes` bytes.
    pub(super) fn new(bytes: u64) -> Self {
        let chunk = bytes.div_ceil(CHUNKS_MAX).max(CHUNK_BYTES_MIN).next_power_of_two();
        let count = usize::try_from(bytes.div_ceil(chunk)).expect("at most CHUNKS_MAX");
        let chunks = vec![Chunk::Unknown; count];
        Self { chunk_shift: chunk.trailing_zeros(), chunks, until_probe: PROBE_AGAIN_AFTER }
    }

    /// Whether most pages around `offset` are cached. Adds to `syscalls` what it costs.
    pub(super) fn is_cached(&mut self, target: &Target, offset: u64, syscalls: &mut u64) -> bool {
        let method = target.residency;
        if matches!(method, Method::AlwaysCached | Method::Unknown) {
            return true;
        }
        let index = offset >> self.chunk_shift;
        let Some(chunk) = usize::try_from(index).ok().and_then(|i| self.chunks.get_mut(i)) else {
            // Behind the end that the file had: it has grown, so somebody has just written it.
            return true;
        };
        self.until_probe -= 1;
        if self.until_probe == 0 {
            self.until_probe = PROBE_AGAIN_AFTER;
            *chunk = Chunk::Unknown;
        }
        if *chunk == Chunk::Unknown {
            *syscalls += 1;
            let bytes = 1 << self.chunk_shift;
            let start = index << self.chunk_shift;
            let bytes = target.bytes().saturating_sub(start).min(bytes);
            let cached = method.share(target, start, bytes).is_none_or(|share| share >= 0.5);
            *chunk = if cached { Chunk::Cached } else { Chunk::Cold };
        }
        *chunk == Chunk::Cached
    }
}
