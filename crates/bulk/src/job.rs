//! A request in work: its chunks, who has taken how many of them, and its end.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use gpu::{Gpu, StreamGate};
use mem::Region;

use crate::counters;
use crate::error::BulkError;
use crate::file::{CachePolicy, Inner};
use crate::place::{Kind, Place};
use crate::request::{From, Request};
use crate::route::Op;
use crate::runs::{Rules, Way};
use crate::transfer::End;

/// Bytes of which rows are taken to be cached or not together.
const MAP_BYTES: u64 = 2 << 20;

/// A file that is open, or is opened when its turn comes.
#[derive(Clone)]
pub(crate) enum Source {
    Open(Arc<Inner>),
    Path(PathBuf),
}

/// What has become of small reads, by their position.
pub(crate) struct Outcomes {
    /// Bytes that arrived and one more, or one of the two words below.
    got: Vec<AtomicU64>,
    failed: Mutex<HashMap<usize, BulkError>>,
}

const PENDING: u64 = 0;
const FAILED: u64 = u64::MAX;

impl Outcomes {
    pub fn new(count: usize) -> Self {
        let got = (0..count).map(|_| AtomicU64::new(PENDING)).collect();
        Self { got, failed: Mutex::default() }
    }

    pub fn set(&self, item: usize, result: Result<u64, BulkError>) {
        let word = match result {
            Ok(bytes) => bytes + 1,
            Err(error) => {
                let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                failed.entry(item).or_insert(error);
                FAILED
            }
        };
        self.got[item].store(word, Ordering::Release);
    }

    pub fn get(&self, item: usize) -> Option<Result<u64, BulkError>> {
        match self.got[item].load(Ordering::Acquire) {
            PENDING => None,
            FAILED => {
                let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                failed.get(&item).cloned().map(Err)
            }
            more => Some(Ok(more - 1)),
        }
    }
}

/// What is to be done.
pub(crate) enum What {
    /// Small reads; each chunk is those from one cut to the next.
    Items { requests: Vec<Request>, cuts: Vec<usize>, outcomes: Outcomes },
    /// One range.
    Range { file: Arc<Inner>, offset: u64, place: Place },
    /// Rows of equal length, into a dense place.
    Rows { file: Arc<Inner>, indices: Vec<u64>, row_bytes: u64, place: Place, map: RowMap },
}

/// Which stretches of a file are cached, asked once for each.
pub(crate) struct RowMap(Vec<AtomicU8>);

impl RowMap {
    pub fn new(file_bytes: u64) -> Self {
        let count = usize::try_from(file_bytes.div_ceil(MAP_BYTES)).unwrap_or(0);
        Self((0..count).map(|_| AtomicU8::new(0)).collect())
    }

    /// Whether most pages around `offset` are cached.
    pub fn is_cached(&self, file: &Inner, offset: u64) -> bool {
        let index = usize::try_from(offset / MAP_BYTES).ok();
        let Some(cell) = index.and_then(|index| self.0.get(index)) else { return true };
        if cell.load(Ordering::Relaxed) == 0 {
            let start = offset - offset % MAP_BYTES;
            let pages = file.residency.pages(file.buffered.as_fd(), start, MAP_BYTES);
            let cached = pages.is_none_or(|pages| pages.cached * 2 >= pages.total);
            cell.store(1 + u8::from(cached), Ordering::Relaxed);
        }
        cell.load(Ordering::Relaxed) == 2
    }
}

/// A range of one file with its target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub item: usize,
    pub offset: u64,
    pub bytes: usize,
    /// First byte in the place.
    pub target: u64,
}

/// Where a piece goes.
pub(crate) enum Target<'a> {
    Device(u64),
    Host(&'a Region, usize),
}

/// A request in work.
pub(crate) struct Job {
    pub op: Op,
    pub what: What,
    pub bytes: u64,
    pub rules: Rules,
    /// Bytes that a chunk covers at most.
    pub chunk_bytes: u64,
    pub chunks: u64,
    /// Workers with a lower index may take part.
    pub threads: usize,
    /// The place's window, where the request goes through it.
    pub window: Option<Region>,
    pub end: Arc<End>,
    pub gate: Mutex<Option<Box<dyn StreamGate>>>,
    /// A stream waits for it: its copies wait for nobody else's.
    pub gated: bool,
    next: AtomicU64,
    left: AtomicU64,
    moved: AtomicU64,
    short_at: AtomicU64,
    stop: AtomicBool,
    error: Mutex<Option<BulkError>>,
}

impl Job {
    pub fn new(op: Op, what: What, rules: Rules, chunk_bytes: u64) -> Self {
        let (bytes, chunks) = measure(&what, chunk_bytes);
        Self {
            op,
            what,
            bytes,
            rules,
            chunk_bytes,
            chunks,
            threads: usize::MAX,
            window: None,
            end: Arc::default(),
            gate: Mutex::default(),
            gated: false,
            next: AtomicU64::new(0),
            left: AtomicU64::new(chunks),
            moved: AtomicU64::new(0),
            short_at: AtomicU64::new(bytes),
            stop: AtomicBool::new(false),
            error: Mutex::default(),
        }
    }

    /// Takes the next chunk; `None` where all are taken.
    pub fn claim(&self) -> Option<u64> {
        let chunk = self.next.fetch_add(1, Ordering::Relaxed);
        (chunk < self.chunks).then_some(chunk)
    }

    pub fn is_claimed(&self) -> bool {
        self.next.load(Ordering::Relaxed) >= self.chunks
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub fn cancel(&self) {
        self.fail(BulkError::Cancelled);
    }

    pub fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Keeps the first error, and moves nothing more.
    pub fn fail(&self, error: BulkError) {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Ends `count` chunks; the last one ends the job.
    pub fn chunks_ended(&self, count: u64, counters: &counters::Shared) {
        if self.left.fetch_sub(count, Ordering::AcqRel) != count {
            return;
        }
        counters.ended();
        let error = self.error.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The stream goes on before anybody is told, who might drop it.
        drop(self.gate.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.end.set(match error {
            Some(error) => Err(error),
            None => Ok(self.short_at.load(Ordering::Relaxed)),
        });
    }

    /// Ends all chunks that nobody has taken: a job that never was in the queue, or left it.
    pub fn abandon(&self, error: BulkError, counters: &counters::Shared) {
        self.fail(error);
        let taken = self.next.fetch_max(self.chunks, Ordering::Relaxed).min(self.chunks);
        if taken < self.chunks {
            self.chunks_ended(self.chunks - taken, counters);
        }
    }

    pub fn add_moved(&self, bytes: u64) {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes how much of a piece has arrived.
    pub fn piece_ended(&self, piece: &Piece, got: usize) {
        match &self.what {
            What::Items { outcomes, .. } => outcomes.set(piece.item, Ok(got as u64)),
            What::Range { .. } => {
                if got < piece.bytes {
                    self.short_at.fetch_min(piece.target + got as u64, Ordering::Relaxed);
                }
            }
            What::Rows { file, .. } => {
                if got < piece.bytes {
                    let (end, wanted) =
                        (piece.offset + got as u64, piece.offset + piece.bytes as u64);
                    self.fail(BulkError::Truncated { target: file.name(), end, wanted });
                }
            }
        }
    }

    /// Notes that a piece failed: of a batch only that item, else the whole.
    pub fn piece_failed(&self, piece: &Piece, error: BulkError) {
        match &self.what {
            What::Items { outcomes, .. } => outcomes.set(piece.item, Err(error)),
            What::Range { .. } | What::Rows { .. } => self.fail(error),
        }
    }

    /// The pieces of a chunk, in the order in which they lie in a slot.
    pub fn pieces(&self, chunk: u64, pieces: &mut Vec<Piece>) {
        pieces.clear();
        let index = |at: u64| usize::try_from(at).expect("a chunk of a request in memory");
        let length = |bytes: u64| usize::try_from(bytes).expect("at most a slot");
        match &self.what {
            What::Range { offset, .. } => {
                let (from, to) = self.range_of(*offset, chunk);
                let (bytes, target) = (length(to - from), from - offset);
                pieces.push(Piece { item: 0, offset: from, bytes, target });
            }
            What::Items { requests, cuts, outcomes } => {
                let all = cuts[index(chunk)]..cuts[index(chunk) + 1];
                // Some were refused before anything was begun.
                let open = all.filter(|item| outcomes.get(*item).is_none());
                pieces.extend(open.map(|item| {
                    let Request { offset, place, .. } = &requests[item];
                    Piece { item, offset: *offset, bytes: length(place.bytes()), target: 0 }
                }));
            }
            What::Rows { indices, row_bytes, .. } if *row_bytes > self.chunk_bytes => {
                let parts = row_bytes.div_ceil(self.chunk_bytes);
                let (row, within) = (chunk / parts, chunk % parts * self.chunk_bytes);
                let bytes = (row_bytes - within).min(self.chunk_bytes);
                let offset = indices[index(row)] * row_bytes + within;
                let target = row * row_bytes + within;
                pieces.push(Piece { item: 0, offset, bytes: length(bytes), target });
            }
            What::Rows { indices, row_bytes, .. } => {
                let rows = index(self.chunk_bytes / row_bytes);
                let first = index(chunk) * rows;
                let last = (first + rows).min(indices.len());
                let mut target = first as u64 * row_bytes;
                for row in &indices[first..last] {
                    let offset = row * row_bytes;
                    match pieces.last_mut() {
                        // The row behind the last one: one read for both.
                        Some(last) if last.offset + last.bytes as u64 == offset => {
                            last.bytes += length(*row_bytes);
                        }
                        _ => pieces.push(Piece {
                            item: 0,
                            offset,
                            bytes: length(*row_bytes),
                            target,
                        }),
                    }
                    target += row_bytes;
                }
            }
        }
    }

    /// The range of a chunk of a range: cut at multiples of the chunk's length in the file, unless one
    /// chunk holds all.
    fn range_of(&self, offset: u64, chunk: u64) -> (u64, u64) {
        crate::plan::chunk_of(offset, self.bytes, self.chunks, self.chunk_bytes, chunk)
    }

    /// Looks at what is asked for where nobody has yet: at a small read.
    ///
    /// # Errors
    /// As a refusal of the request.
    pub fn check(&self, piece: &Piece, gpu: Option<&dyn Gpu>) -> Result<(), BulkError> {
        match &self.what {
            What::Items { requests, .. } => requests[piece.item].check(gpu),
            What::Range { .. } | What::Rows { .. } => Ok(()),
        }
    }

    pub fn source(&self, piece: &Piece) -> Source {
        match &self.what {
            What::Items { requests, .. } => match &requests[piece.item].from {
                From::File(file) => Source::Open(Arc::clone(&file.0)),
                From::Path(path) => Source::Path(path.clone()),
            },
            What::Range { file, .. } | What::Rows { file, .. } => Source::Open(Arc::clone(file)),
        }
    }

    /// The file that all pieces are of, where they are of one.
    pub fn file(&self) -> Option<&Arc<Inner>> {
        match &self.what {
            What::Items { .. } => None,
            What::Range { file, .. } | What::Rows { file, .. } => Some(file),
        }
    }

    /// The way of rows, which is not asked row by row.
    pub fn row_way(&self, piece: &Piece) -> Option<Way> {
        let What::Rows { file, map, .. } = &self.what else { return None };
        Some(match self.rules.policy {
            CachePolicy::Direct => Way::Direct,
            CachePolicy::Auto if !map.is_cached(file, piece.offset) => Way::Direct,
            _ => Way::Cached,
        })
    }

    pub fn target(&self, piece: &Piece) -> Target<'_> {
        let place = match &self.what {
            What::Items { requests, .. } => &requests[piece.item].place,
            What::Range { place, .. } | What::Rows { place, .. } => place,
        };
        match &place.kind {
            Kind::Address { address, .. } | Kind::Device { address, .. } => {
                Target::Device(address + piece.target)
            }
            Kind::Host(region) => {
                Target::Host(region, usize::try_from(piece.target).expect("inside a region"))
            }
        }
    }
}

/// Bytes and chunks of what is to be done.
fn measure(what: &What, chunk_bytes: u64) -> (u64, u64) {
    match what {
        What::Items { requests, cuts, .. } => {
            let bytes = requests.iter().map(|request| request.place.bytes()).sum();
            (bytes, cuts.len().saturating_sub(1) as u64)
        }
        What::Range { offset, place, .. } => {
            let bytes = place.bytes();
            (bytes, chunks_of(*offset, bytes, chunk_bytes))
        }
        What::Rows { indices, row_bytes, .. } => {
            let rows = indices.len() as u64;
            let chunks = if *row_bytes > chunk_bytes {
                rows * row_bytes.div_ceil(chunk_bytes)
            } else {
                rows.div_ceil((chunk_bytes / (*row_bytes).max(1)).max(1))
            };
            (rows * row_bytes, chunks)
        }
    }
}

/// Chunks of a range: one where its whole pages fit into one slot.
pub(crate) fn chunks_of(offset: u64, bytes: u64, chunk_bytes: u64) -> u64 {
    const PAGE_BYTES: u64 = crate::knees::PAGE_BYTES;
    let pages = (offset + bytes).next_multiple_of(PAGE_BYTES) - offset / PAGE_BYTES * PAGE_BYTES;
    if pages <= chunk_bytes {
        return 1;
    }
    (offset + bytes).div_ceil(chunk_bytes) - offset / chunk_bytes
}
