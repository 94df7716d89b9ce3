//! Which way a request will go, and why not a better one.

use std::fmt::Write;

use crate::error::BulkError;
use crate::file::{CachePolicy, Inner};
use crate::job::chunks_of;
use crate::place::{Kind, Place};
use crate::route::{Op, Route};
use crate::runs::{self, Rules, Way};
use crate::seat::route_of;
use crate::threads::Core;

/// What goes one way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// The way.
    pub route: Route,
    /// How many bytes.
    pub bytes: u64,
}

/// What the engine will do with a request, as things are now.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The way of most bytes.
    pub route: Route,
    /// All ways, by bytes.
    pub parts: Vec<Part>,
    /// Read or write.
    pub op: Op,
    /// The file.
    pub file: String,
    /// Bytes that will be moved: fewer than asked for where the file ends.
    pub bytes: u64,
    /// Chunks that it is cut into, and the length of one.
    pub chunks: u64,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Threads that may take part; 0 where the calling thread does it all.
    pub threads: usize,
    /// Why this way, and why not each better one.
    pub reasons: Vec<String>,
}

impl Plan {
    /// The plan in words: one line for what will be done, one for each reason.
    pub fn explain(&self) -> String {
        let mut text = format!("{} {} bytes of {}: ", self.op.name(), self.bytes, self.file);
        let parts: Vec<_> = self
            .parts
            .iter()
            .map(|part| format!("{} by route {}", part.bytes, part.route))
            .collect();
        text += &if parts.is_empty() { "nothing to move".to_owned() } else { parts.join(", ") };
        let who = match self.threads {
            0 => "the calling thread".to_owned(),
            threads => format!("up to {threads} threads"),
        };
        let _infallible =
            write!(text, "; {} chunks of at most {} bytes, {who}", self.chunks, self.chunk_bytes);
        for reason in &self.reasons {
            text += "\n  ";
            text += reason;
        }
        text
    }

    /// Whether every byte goes this way.
    pub fn is_all(&self, route: Route) -> bool {
        self.parts.iter().all(|part| part.route == route)
    }
}

/// How many threads may take part in a range, by what its first stretch shows; and the chunks' length.
pub(crate) fn shape(
    core: &Core,
    op: Op,
    file: &Inner,
    rules: Rules,
    offset: u64,
    bytes: u64,
) -> (usize, u64) {
    let knees = &core.knees;
    let look = bytes.min(knees.slot_bytes);
    let direct = || {
        let found = runs::to_read(file, rules, offset, look);
        found.runs.iter().any(|run| run.way == Way::Direct)
    };
    let threads = match op {
        Op::Write => knees.threads_write,
        Op::Read if direct() => knees.threads_direct,
        Op::Read => knees.threads_cached,
    };
    let threads = threads.min(core.threads_max);
    (threads, knees.chunk_bytes(bytes, threads))
}

/// Bytes of a plan by route, in the order of [`Route::ALL`].
type Sums = [u64; Route::ALL.len()];

/// Makes the plan of a request: what its chunks would find now.
pub(crate) fn make(
    core: &Core,
    policy: CachePolicy,
    op: Op,
    file: &Inner,
    offset: u64,
    place: &Place,
) -> Result<Plan, BulkError> {
    let knees = &core.knees;
    let length = file.bytes().map_err(|e| BulkError::os("measuring", file.name(), &e))?;
    let rules = Rules { policy, direct_bytes_min: knees.direct_bytes_min, file_bytes: length };
    let bytes = match op {
        Op::Read => length.saturating_sub(offset).min(place.bytes()),
        Op::Write => place.bytes(),
    };
    let (threads, chunk_bytes) = shape(core, op, file, rules, offset, place.bytes());
    let chunks = chunks_of(offset, place.bytes(), chunk_bytes);
    let mut found = Found::default();
    for chunk in 0..chunks {
        let (from, to) = chunk_of(offset, place.bytes(), chunks, chunk_bytes, chunk);
        let to = to.min(offset + bytes);
        if from < to {
            found.add((op, file, rules, place), offset, (from, to - from));
        }
    }
    let small = op == Op::Read && chunks == 1 && place.bytes() <= knees.window_bytes_max;
    let has_window = matches!(&place.kind, Kind::Device { window: Some(_), .. });
    if small && has_window && found.direct == 0 {
        found.sums[Route::Window as usize] =
            std::mem::take(&mut found.sums[Route::Staged as usize]);
    }
    let inline = chunks == 1 && place.bytes() <= knees.inline_bytes_max;
    let threads = if inline { 0 } else { threads };
    let parts = Route::ALL.map(|route| Part { route, bytes: found.sums[route as usize] });
    let parts: Vec<_> = parts.into_iter().filter(|part| part.bytes > 0).collect();
    let host = place.is_host();
    let fallback = route_of(host, Way::Cached, false);
    let best = parts.iter().max_by_key(|part| part.bytes).map_or(fallback, |part| part.route);
    Ok(Plan {
        route: best,
        parts,
        op,
        file: file.name(),
        bytes,
        chunks,
        chunk_bytes,
        threads: threads.min(core.threads_max).min(usize::try_from(chunks).unwrap_or(usize::MAX)),
        reasons: found.reasons(core, file, policy, op, place, small && has_window),
    })
}

/// The range of a chunk, as a job cuts it.
pub(crate) fn chunk_of(
    offset: u64,
    bytes: u64,
    chunks: u64,
    chunk_bytes: u64,
    chunk: u64,
) -> (u64, u64) {
    let end = offset + bytes;
    if chunks == 1 {
        return (offset, end);
    }
    let base = offset / chunk_bytes + chunk;
    ((base * chunk_bytes).max(offset), ((base + 1) * chunk_bytes).min(end))
}

#[derive(Default)]
struct Found {
    sums: Sums,
    hot: u64,
    cold: u64,
    direct: u64,
    no_direct: bool,
    unknown: bool,
    below: bool,
}

impl Found {
    /// Adds the chunk of `bytes` bytes at `from` of a request that begins at `first`.
    fn add(
        &mut self,
        (op, file, rules, place): (Op, &Inner, Rules, &Place),
        first: u64,
        (from, bytes): (u64, u64),
    ) {
        let found = match op {
            Op::Read => runs::to_read(file, rules, from, bytes),
            Op::Write => runs::to_write(file, rules.policy, from, bytes),
        };
        self.hot += found.hot_bytes;
        self.cold += found.cold_bytes;
        self.no_direct |= found.no_direct;
        self.unknown |= found.unknown;
        self.below |= found.cold_bytes > 0 && bytes < rules.direct_bytes_min;
        let runs = match (op, &place.kind) {
            (Op::Read, Kind::Host(memory)) => {
                let address = memory.address() + (from - first);
                let alignment = file.direct().map(|(_, alignment)| *alignment);
                runs::straight(&found, alignment, from, address).unwrap_or(found.runs)
            }
            _ => found.runs,
        };
        for run in runs {
            self.direct += if run.way == Way::Direct { run.bytes } else { 0 };
            self.sums[route_of(place.is_host(), run.way, false) as usize] += run.bytes;
        }
    }

    fn reasons(
        &self,
        core: &Core,
        file: &Inner,
        policy: CachePolicy,
        op: Op,
        place: &Place,
        window: bool,
    ) -> Vec<String> {
        let mut reasons = vec![match (policy, op) {
            (CachePolicy::Auto, Op::Read) if self.unknown => {
                "page cache: which pages are cached is not to be known here".to_owned()
            }
            (CachePolicy::Auto, Op::Read) => format!(
                "page cache: {} bytes are in it, {} are not ({})",
                self.hot,
                self.cold,
                file.residency.name()
            ),
            (CachePolicy::Auto, Op::Write) => "page cache: writes go through it".to_owned(),
            (CachePolicy::Cached, _) => "page cache: always, as asked for".to_owned(),
            (CachePolicy::Direct, _) => {
                "page cache: around it wherever possible, as asked for".to_owned()
            }
        }];
        if self.no_direct {
            reasons.push("not around the page cache: the file system has no direct I/O".to_owned());
        }
        if self.below {
            let knee = core.knees.direct_bytes_min;
            reasons
                .push(format!("not around the page cache: shorter than the knee of {knee} bytes"));
        }
        if place.is_host() {
            return reasons;
        }
        let knee = core.knees.window_bytes_max;
        reasons.push(match &place.kind {
            _ if op == Op::Write => "not window: the CPU cannot read device memory fast".to_owned(),
            Kind::Device { window: None, .. } => {
                "not window: the CPU has no mapping of this device memory".to_owned()
            }
            _ if window && self.direct == 0 => format!("window: up to the knee of {knee} bytes"),
            _ if window => "not window: the bytes are not in the page cache".to_owned(),
            _ => format!("not window: longer than the knee of {knee} bytes, or not in one piece"),
        });
        reasons.push(
            "not direct: no drive here can write device memory (it takes nvidia-fs or P2PDMA and an NVMe \
             drive)"
                .to_owned(),
        );
        reasons
    }
}
