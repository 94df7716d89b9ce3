//! Cutting a range of a file into runs: those whose pages are cached, and those to be read directly.

use storage::Alignment;

use crate::file::{CachePolicy, Inner};
use crate::knees::PAGE_BYTES;

/// Ranges that are partly cached are cut down to this length; then the majority of pages decides.
const GRAIN_BYTES: u64 = 64 << 10;

/// How bytes of a file are reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    Cached,
    Direct,
}

/// A part of a range that is reached one way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub offset: u64,
    pub bytes: u64,
    pub way: Way,
}

/// What was found out about a range.
#[derive(Default, Debug)]
pub(crate) struct Runs {
    pub runs: Vec<Run>,
    /// Bytes whose pages are cached, and bytes whose pages are not.
    pub hot_bytes: u64,
    pub cold_bytes: u64,
    /// Something was cold and went through the cache, since the file has no direct twin.
    pub no_direct: bool,
    /// Whether pages are cached was not to be known.
    pub unknown: bool,
}

impl Runs {
    fn add(&mut self, offset: u64, bytes: u64, way: Way) {
        match self.runs.last_mut() {
            Some(last) if last.way == way && last.offset + last.bytes == offset => {
                last.bytes += bytes;
            }
            _ => self.runs.push(Run { offset, bytes, way }),
        }
    }
}

/// What decides besides the pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub policy: CachePolicy,
    pub direct_bytes_min: u64,
    /// Length of the file when the request came: what is behind it was just written, if it is there.
    pub file_bytes: u64,
}

/// Cuts a range that is to be read. It is one chunk of a request, the same in a plan and in deed.
pub(crate) fn to_read(file: &Inner, rules: Rules, offset: u64, bytes: u64) -> Runs {
    let mut found = Runs::default();
    if rules.policy == CachePolicy::Direct {
        let way = if file.direct().is_some() { Way::Direct } else { Way::Cached };
        found.no_direct = way == Way::Cached;
        // Around the cache whole blocks arrive, also behind the file's end.
        let known = rules.file_bytes.saturating_sub(offset).min(bytes);
        for (at, bytes, way) in [(offset, known, way), (offset + known, bytes - known, Way::Cached)]
        {
            if bytes > 0 {
                found.add(at, bytes, way);
            }
        }
        return found;
    }
    if file.residency == storage::Residency::AlwaysCached {
        found.hot_bytes = bytes;
        found.add(offset, bytes, Way::Cached);
        return found;
    }
    let known = rules.file_bytes.saturating_sub(offset).min(bytes);
    if known > 0 {
        split(file, rules, offset, known, known, &mut found);
    }
    if known < bytes {
        found.add(offset + known, bytes - known, Way::Cached);
    }
    found
}

fn split(file: &Inner, rules: Rules, offset: u64, bytes: u64, whole: u64, found: &mut Runs) {
    use std::os::fd::AsFd;
    let Some(pages) = file.residency.pages(file.buffered.as_fd(), offset, bytes) else {
        found.unknown = true;
        found.add(offset, bytes, Way::Cached);
        return;
    };
    let mixed = pages.cached > 0 && pages.cached < pages.total;
    if mixed && bytes > GRAIN_BYTES {
        let middle = offset + bytes / 2;
        let middle = (middle - middle % GRAIN_BYTES).max(offset - offset % PAGE_BYTES + PAGE_BYTES);
        split(file, rules, offset, middle - offset, whole, found);
        split(file, rules, middle, offset + bytes - middle, whole, found);
        return;
    }
    let hot = (pages.cached * PAGE_BYTES).min(bytes);
    found.hot_bytes += hot;
    found.cold_bytes += bytes - hot;
    let cold = pages.cached * 2 < pages.total;
    let wanted = cold && rules.policy == CachePolicy::Auto && whole >= rules.direct_bytes_min;
    let direct = wanted && file.direct().is_some();
    found.no_direct |= wanted && !direct;
    found.add(offset, bytes, if direct { Way::Direct } else { Way::Cached });
}

/// Cuts a range that is to be written.
pub(crate) fn to_write(file: &Inner, policy: CachePolicy, offset: u64, bytes: u64) -> Runs {
    let mut found = Runs::default();
    let end = offset + bytes;
    let twin = (policy == CachePolicy::Direct).then(|| file.direct()).flatten();
    let Some((_, alignment)) = twin else {
        found.no_direct = policy == CachePolicy::Direct;
        found.add(offset, bytes, Way::Cached);
        return found;
    };
    let first = offset.next_multiple_of(alignment.offset_bytes).min(end);
    let last = (end - end % alignment.offset_bytes).max(first);
    for (from, to, way) in
        [(offset, first, Way::Cached), (first, last, Way::Direct), (last, end, Way::Cached)]
    {
        if from < to {
            found.add(from, to - from, way);
        }
    }
    found
}

/// The runs by which a range is read straight into host memory, whose byte for `offset` is at `address`;
/// `None` where direct I/O does not take that memory.
pub(crate) fn straight(
    found: &Runs,
    alignment: Option<Alignment>,
    offset: u64,
    address: u64,
) -> Option<Vec<Run>> {
    let runs = edges_apart(found, alignment);
    let fits = |run: &Run| {
        run.way == Way::Cached
            || alignment.is_some_and(|a| fits(a, run, address + (run.offset - offset)))
    };
    runs.iter().all(fits).then_some(runs)
}

/// Whether direct I/O takes a run into memory at an address.
pub(crate) fn fits(alignment: Alignment, run: &Run, address: u64) -> bool {
    run.offset.is_multiple_of(alignment.offset_bytes)
        && run.bytes.is_multiple_of(alignment.offset_bytes)
        && address.is_multiple_of(alignment.memory_bytes)
}

/// Cuts unaligned edges off direct runs: host memory must not be written beyond what was asked for.
fn edges_apart(found: &Runs, alignment: Option<Alignment>) -> Vec<Run> {
    let Some(alignment) = alignment else { return found.runs.clone() };
    let mut apart = Vec::new();
    for run in &found.runs {
        let end = run.offset + run.bytes;
        let first = run.offset.next_multiple_of(alignment.offset_bytes).min(end);
        let last = (end - end % alignment.offset_bytes).max(first);
        let cut = match run.way {
            Way::Cached => {
                [(run.offset, end, Way::Cached), (end, end, run.way), (end, end, run.way)]
            }
            Way::Direct => [
                (run.offset, first, Way::Cached),
                (first, last, Way::Direct),
                (last, end, Way::Cached),
            ],
        };
        let some = cut.into_iter().filter(|(from, to, _)| from < to);
        apart.extend(some.map(|(from, to, way)| Run { offset: from, bytes: to - from, way }));
    }
    apart
}
