//! Between slots and files: reads that fill, writes that empty.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mem::Region;
use rustix::io::Errno;
use storage::Alignment;

use super::Seat;
use super::flight::Phase;
use super::ring::RingOp;
use crate::error::BulkError;
use crate::file::Inner;
use crate::interference::{Call, Need, Strike};
use crate::job::{Piece, Source, Target, What};
use crate::route::{Cause, Op, Route};
use crate::runs::{self, Run, Runs, Way};
use crate::threads::Core;

/// Source: Linux; for errors that have no number.
const EIO: i32 = 5;

/// Memory that a part is read into or written from: the region, and where its first byte lies.
type Spot = (Region, usize);

/// Makes one call, after what tests may put before it.
fn call(
    core: &Core,
    op: Op,
    file: BorrowedFd<'_>,
    offset: u64,
    (memory, at): (&Region, usize),
    bytes: usize,
) -> io::Result<usize> {
    let bytes = core.strike(Call { op, offset, bytes, direct: false })?;
    match op {
        Op::Read => uring::read_at(file, offset, memory, at, bytes),
        Op::Write => uring::write_at(file, offset, memory, at, bytes),
    }
}

/// Moves a whole range, call after call; fewer bytes only where the file ended.
pub(super) fn move_all(
    core: &Core,
    op: Op,
    file: BorrowedFd<'_>,
    offset: u64,
    (memory, at): (&Region, usize),
    bytes: usize,
) -> io::Result<usize> {
    let mut done = 0;
    while done < bytes {
        match call(core, op, file, offset + done as u64, (memory, at + done), bytes - done) {
            Ok(0) if op == Op::Read => break,
            Ok(0) => return Err(Errno::IO.into()),
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

pub(super) fn failed(op: Op, file: &Inner, offset: u64, error: &io::Error) -> BulkError {
    let operation = match op {
        Op::Read => "reading",
        Op::Write => "writing",
    };
    BulkError::os(operation, file.at(offset), error)
}

/// Whether a direct call was refused for what it is, so that a cached one can do it.
fn refuses_direct(errno: i32) -> bool {
    matches!(Errno::from_raw_os_error(errno), Errno::INVAL | Errno::FAULT | Errno::OPNOTSUPP)
}

fn is_transient(errno: i32) -> bool {
    matches!(Errno::from_raw_os_error(errno), Errno::INTR | Errno::AGAIN)
}

fn fits(alignment: Alignment, run: &Run, memory: &Region, at: usize) -> bool {
    runs::fits(alignment, run, memory.address() + at as u64)
}

impl Seat {
    /// Reads all parts of a flight, or starts to.
    pub(super) fn fill(&mut self, core: &Core, slot: usize) -> Result<(), BulkError> {
        let parts = self.flight(slot).parts.len();
        let quick = if parts > 1 { self.fill_quickly(core, slot)? } else { 0 };
        for part in quick..parts {
            if let Err(error) = self.fill_part(core, slot, part, parts == 1) {
                let part = &mut self.flight(slot).parts[part];
                (part.error, part.got) = (Some(Box::new(error)), 0);
            }
        }
        if self.flight(slot).waiting > 0 {
            self.ring.submit();
            return Ok(());
        }
        self.deliver(core, slot)
    }

    fn fill_part(
        &mut self,
        core: &Core,
        slot: usize,
        index: usize,
        alone: bool,
    ) -> Result<(), BulkError> {
        let job = Arc::clone(&self.flight(slot).job);
        let piece = self.flight(slot).parts[index].piece;
        job.check(&piece, core.gpu.as_deref())?;
        let file = match job.source(&piece) {
            Source::Open(file) => file,
            Source::Path(path) => Arc::new(core.open(&path, crate::file::Access::Read)?),
        };
        self.flight(slot).parts[index].file = Some(Arc::clone(&file));
        let bytes = piece.bytes as u64;
        let found = match job.row_way(&piece) {
            Some(way) => row(&file, &piece, way),
            None => {
                let mut rules = job.rules;
                if matches!(job.what, What::Items { .. }) {
                    rules.file_bytes = file.bytes().map_err(|e| failed(Op::Read, &file, 0, &e))?;
                }
                runs::to_read(&file, rules, piece.offset, bytes)
            }
        };
        note(core, &file, &found);
        let (spot, found) = self.spot_to_read(core, slot, index, &file, found, alone)?;
        let through_window = job.window.is_some() && !self.flight(slot).parts[index].staged;
        let host = matches!(job.target(&piece), Target::Host(..));
        for run in found.runs {
            let at = spot.1 + offset_in(&piece, &run);
            if run.way == Way::Direct {
                self.read_direct(core, (slot, index), &file, run, (&spot.0, at), host)?;
                continue;
            }
            let want = usize::try_from(run.bytes).expect("inside a piece");
            let fd = file.buffered.as_fd();
            let got = move_all(core, Op::Read, fd, run.offset, (&spot.0, at), want)
                .map_err(|e| failed(Op::Read, &file, run.offset, &e))?;
            let route = route_of(host, run.way, through_window);
            core.counters.moved(route, Op::Read, got as u64);
            if got < want {
                let part = &mut self.flight(slot).parts[index];
                // A direct run before this one may have ended earlier still.
                part.got = part.got.min(offset_in(&piece, &run) + got);
                break;
            }
        }
        if through_window {
            mem::fence_payload();
        }
        Ok(())
    }

    /// Chooses the memory that a part is read into, and the ways that are possible with it.
    fn spot_to_read(
        &mut self,
        core: &Core,
        slot: usize,
        index: usize,
        file: &Inner,
        mut found: Runs,
        alone: bool,
    ) -> Result<(Spot, Runs), BulkError> {
        let job = Arc::clone(&self.flight(slot).job);
        let part = &self.flight(slot).parts[index];
        let (piece, at) = (part.piece, part.at);
        let direct = found.runs.iter().any(|run| run.way == Way::Direct);
        let cached = |found: &mut Runs| found.runs.iter_mut().for_each(|r| r.way = Way::Cached);
        let straight = match (job.target(&piece), &job.window) {
            (Target::Host(region, at), _) => Some((region.clone(), at)),
            (Target::Device(_), Some(window)) if !direct => Some((window.clone(), 0)),
            (Target::Device(_), _) => None,
        };
        let alignment = direct.then(|| file.direct().map(|(_, alignment)| *alignment)).flatten();
        if let Some((memory, at)) = straight {
            let address = memory.address() + at as u64;
            if let Some(runs) = runs::straight(&found, alignment, piece.offset, address) {
                found.runs = runs;
                return Ok(((memory, at), found));
            }
            core.counters.fell_back(Cause::HostUnaligned, || {
                format!(
                    "memory at {:#x}, bytes of {}",
                    memory.address() + at as u64,
                    file.at(piece.offset)
                )
            });
            if !alone {
                cached(&mut found);
                return Ok(((memory, at), found));
            }
        }
        let memory = self.memory(core)?;
        if !alone {
            let ok = |run: &Run| {
                let at = at + offset_in(&piece, run);
                run.way == Way::Cached || alignment.is_some_and(|a| fits(a, run, &memory, at))
            };
            if !found.runs.iter().all(ok) {
                cached(&mut found);
            }
        }
        self.flight(slot).parts[index].staged = true;
        Ok(((memory, at), found))
    }

    /// Starts a direct read of the whole blocks around a run.
    fn read_direct(
        &mut self,
        core: &Core,
        (slot, part): (usize, usize),
        file: &Arc<Inner>,
        run: Run,
        (memory, at): (&Region, usize),
        host: bool,
    ) -> Result<(), BulkError> {
        let (fd, alignment) = file.direct().expect("a run is direct only where there is a twin");
        let from = run.offset - run.offset % alignment.offset_bytes;
        let to = (run.offset + run.bytes).next_multiple_of(alignment.offset_bytes);
        let head = usize::try_from(run.offset - from).expect("below a block");
        let op = RingOp {
            op: Op::Read,
            slot,
            part,
            run,
            from,
            to,
            memory: memory.clone(),
            at: at - head,
            file: Arc::clone(fd),
        };
        self.start(core, file, op, host)
    }

    /// Gives an operation to the ring, or carries it out where there is none.
    fn start(
        &mut self,
        core: &Core,
        file: &Arc<Inner>,
        op: RingOp,
        host: bool,
    ) -> Result<(), BulkError> {
        let bytes = usize::try_from(op.to - op.from).expect("at most a slot");
        let call = Call { op: op.op, offset: op.from, bytes, direct: true };
        let bytes = match core.strike(call).map_err(|e| e.raw_os_error().unwrap_or(EIO)) {
            Err(errno) if is_transient(errno) => bytes,
            Err(errno) => return self.answered(core, file, op, -errno, host),
            Ok(bytes) => bytes,
        };
        // Whole blocks only.
        let bytes = (bytes as u64 / 4096).max(1) * 4096;
        let (slot, fd) = (op.slot, Arc::clone(&op.file));
        let refused = core.refuses(Need::Ring);
        let ready = self.ring.ready(refused, |why| {
            core.counters.fell_back(Cause::RingRefused, || why);
        });
        if ready && self.ring.push(op.clone(), bytes) {
            self.flight(slot).waiting += 1;
            return Ok(());
        }
        let bytes = usize::try_from(bytes.min(op.to - op.from)).expect("at most a slot");
        let answer = match op.op {
            Op::Read => uring::read_at(fd.as_fd(), op.from, &op.memory, op.at, bytes),
            Op::Write => uring::write_at(fd.as_fd(), op.from, &op.memory, op.at, bytes),
        };
        let answer = answer.map_or_else(
            |error| -error.raw_os_error().unwrap_or(EIO),
            |count| i32::try_from(count).expect("at most a slot"),
        );
        self.answered(core, file, op, answer, host)
    }

    /// Takes what the ring has ended.
    pub(super) fn reap(&mut self, core: &Core) {
        for (op, answer) in self.ring.reap() {
            let (slot, index, kind) = (op.slot, op.part, op.op);
            let flight = self.flight(slot);
            flight.waiting -= 1;
            let job = Arc::clone(&flight.job);
            let file = Arc::clone(flight.file(&flight.parts[index]));
            let host = matches!(job.target(&flight.parts[index].piece), Target::Host(..));
            if let Err(error) = self.answered(core, &file, op, answer, host) {
                let part = &mut self.flight(slot).parts[index];
                (part.error, part.got) = (Some(Box::new(error)), 0);
            }
            if self.flight(slot).waiting > 0 {
                continue;
            }
            let ended = match kind {
                Op::Read => self.deliver(core, slot),
                Op::Write => {
                    self.finish(core, slot);
                    Ok(())
                }
            };
            if let Err(error) = ended {
                self.fail(core, slot, error);
            }
        }
        self.ring.submit();
    }

    /// Goes on after an answer to a direct operation: more of it, the rest through the cache, or its end.
    fn answered(
        &mut self,
        core: &Core,
        file: &Arc<Inner>,
        op: RingOp,
        answer: i32,
        host: bool,
    ) -> Result<(), BulkError> {
        let run = op.run;
        let end = run.offset + run.bytes;
        let moved = match u64::try_from(answer) {
            Ok(moved) => moved,
            Err(_) if is_transient(-answer) => return self.start(core, file, op, host),
            Err(_) if refuses_direct(-answer) => {
                core.counters.fell_back(Cause::DirectRefused, || {
                    format!("{}: {}", file.at(op.from), io::Error::from_raw_os_error(-answer))
                });
                return self.rest(core, file, &op, host);
            }
            Err(_) => {
                let error = io::Error::from_raw_os_error(-answer);
                return Err(failed(op.op, file, op.from, &error));
            }
        };
        let mut next = op;
        next.from += moved;
        next.at += usize::try_from(moved).expect("at most a slot");
        if next.from >= end {
            core.counters.moved(route_of(host, Way::Direct, false), next.op, run.bytes);
            return Ok(());
        }
        if moved > 0 && moved.is_multiple_of(4096) {
            return self.start(core, file, next, host);
        }
        self.rest(core, file, &next, host)
    }

    /// Moves what is left of a direct run through the cache: behind a short answer, where the file ends or
    /// odd things happen.
    fn rest(
        &mut self,
        core: &Core,
        file: &Inner,
        op: &RingOp,
        host: bool,
    ) -> Result<(), BulkError> {
        let run = op.run;
        let from = op.from.max(run.offset);
        let skipped = usize::try_from(from - op.from).expect("below a block");
        let left = usize::try_from(run.offset + run.bytes - from).expect("inside a piece");
        let (fd, spot) = (file.buffered.as_fd(), (&op.memory, op.at + skipped));
        let got = move_all(core, op.op, fd, from, spot, left)
            .map_err(|e| failed(op.op, file, from, &e))?;
        core.counters.moved(route_of(host, Way::Direct, false), op.op, from - run.offset);
        core.counters.moved(route_of(host, Way::Cached, false), op.op, got as u64);
        if got < left {
            let part = &mut self.flight(op.slot).parts[op.part];
            let end = from + got as u64 - part.piece.offset;
            part.got = part.got.min(usize::try_from(end).expect("inside a piece"));
        }
        Ok(())
    }

    /// Starts to bring what is to be written.
    pub(super) fn fetch(&mut self, core: &Core, slot: usize) -> Result<(), BulkError> {
        let job = Arc::clone(&self.flight(slot).job);
        let part = &self.flight(slot).parts[0];
        let (piece, at) = (part.piece, part.at);
        let Target::Device(from) = job.target(&piece) else { return self.write_out(core, slot) };
        let memory = self.memory(core)?;
        let queue = self.queue(core)?;
        let refused = |e| BulkError::gpu("copying from the device", &e);
        let span = gpu::Span { host: &memory, host_offset: at, device: from, bytes: piece.bytes };
        queue.start_to_host(span).map_err(refused)?;
        let mark = queue.mark().map_err(refused)?;
        core.counters.copies.fetch_add(1, Ordering::Relaxed);
        let flight = self.flight(slot);
        flight.parts[0].staged = true;
        flight.phase = Phase::Arriving(mark);
        self.copying.push_back(slot);
        Ok(())
    }

    /// Writes what is in the slot, or in host memory. What fails while the ring still writes another part
    /// ends when that has ended: until then the memory is in use.
    pub(super) fn write_out(&mut self, core: &Core, slot: usize) -> Result<(), BulkError> {
        self.flight(slot).phase = Phase::Writing;
        let started = self.start_writes(core, slot);
        let flight = self.flight(slot);
        if flight.waiting == 0 {
            started?;
            self.finish(core, slot);
            return Ok(());
        }
        if let Err(error) = started {
            flight.parts[0].error = Some(Box::new(error));
        }
        self.ring.submit();
        Ok(())
    }

    fn start_writes(&mut self, core: &Core, slot: usize) -> Result<(), BulkError> {
        let job = Arc::clone(&self.flight(slot).job);
        let piece = self.flight(slot).parts[0].piece;
        let file = Arc::clone(job.file().expect("writes are ranges"));
        let bytes = piece.bytes as u64;
        let found = runs::to_write(&file, job.rules.policy, piece.offset, bytes);
        note(core, &file, &found);
        if found.runs.len() > 1 {
            core.counters.fell_back(Cause::Edges, || file.at(piece.offset));
        }
        let (memory, first) = self.spot_to_write(core, slot, &file, &found)?;
        let host = matches!(job.target(&piece), Target::Host(..));
        for run in found.runs {
            let at = first + offset_in(&piece, &run);
            if run.way == Way::Direct {
                let (fd, _) = file.direct().expect("a run is direct only where there is a twin");
                let (from, to) = (run.offset, run.offset + run.bytes);
                let (memory, fd) = (memory.clone(), Arc::clone(fd));
                let op = Op::Write;
                let op = RingOp { op, slot, part: 0, run, from, to, memory, at, file: fd };
                self.start(core, &file, op, host)?;
                continue;
            }
            let want = usize::try_from(run.bytes).expect("inside a piece");
            let fd = file.buffered.as_fd();
            move_all(core, Op::Write, fd, run.offset, (&memory, at), want)
                .map_err(|e| failed(Op::Write, &file, run.offset, &e))?;
            core.counters.moved(route_of(host, Way::Cached, false), Op::Write, run.bytes);
        }
        Ok(())
    }

    fn spot_to_write(
        &mut self,
        core: &Core,
        slot: usize,
        file: &Inner,
        found: &Runs,
    ) -> Result<Spot, BulkError> {
        let job = Arc::clone(&self.flight(slot).job);
        let (piece, staged_at) = (self.flight(slot).parts[0].piece, self.flight(slot).parts[0].at);
        let Target::Host(region, at) = job.target(&piece) else {
            return Ok((self.memory(core)?, staged_at));
        };
        let fits = |run: &Run| {
            let twin = file.direct();
            let at = at + offset_in(&piece, run);
            run.way == Way::Cached || twin.is_some_and(|(_, a)| fits(*a, run, region, at))
        };
        if found.runs.iter().all(fits) {
            return Ok((region.clone(), at));
        }
        core.counters.fell_back(Cause::HostUnaligned, || {
            format!(
                "memory at {:#x}, bytes of {}",
                region.address() + at as u64,
                file.at(piece.offset)
            )
        });
        let memory = self.memory(core)?;
        memory.copy_from(staged_at, region, at, piece.bytes);
        Ok((memory, staged_at))
    }
}

fn offset_in(piece: &Piece, run: &Run) -> usize {
    usize::try_from(run.offset - piece.offset).expect("a run of this piece")
}

/// The one run of a row, or of several that follow each other.
fn row(file: &Inner, piece: &Piece, way: Way) -> Runs {
    let way = if way == Way::Direct && file.direct().is_none() { Way::Cached } else { way };
    let bytes = piece.bytes as u64;
    let (hot_bytes, cold_bytes) = if way == Way::Cached { (bytes, 0) } else { (0, bytes) };
    let runs = vec![Run { offset: piece.offset, bytes, way }];
    Runs { runs, hot_bytes, cold_bytes, ..Runs::default() }
}

/// Counts what was found out.
fn note(core: &Core, file: &Inner, found: &Runs) {
    let counters = &core.counters;
    counters.hot_bytes.fetch_add(found.hot_bytes, Ordering::Relaxed);
    counters.cold_bytes.fetch_add(found.cold_bytes, Ordering::Relaxed);
    if found.no_direct {
        counters.fell_back(Cause::NoDirect, || {
            format!("{}: the file system has no direct I/O; through the page cache", file.name())
        });
    }
    if found.unknown {
        counters.fell_back(Cause::ResidencyUnknown, || {
            format!("{}: neither cachestat nor mincore; through the page cache", file.name())
        });
    }
}

pub(crate) fn route_of(host: bool, way: Way, window: bool) -> Route {
    match (host, way) {
        (true, Way::Cached) => Route::HostCached,
        (true, Way::Direct) => Route::HostDirect,
        (false, Way::Cached) if window => Route::Window,
        (false, Way::Cached) => Route::Staged,
        (false, Way::Direct) => Route::StagedDirect,
    }
}

impl Core {
    /// Bytes of a call that tests let pass; an error where they do not.
    pub(super) fn strike(&self, call: Call) -> io::Result<usize> {
        let bytes = call.bytes;
        let Some(interference) = &self.interference else { return Ok(bytes) };
        match interference.strike(call) {
            Strike::Pass => Ok(bytes),
            Strike::Short(most) => Ok(bytes.min(most.max(1))),
            Strike::Errno(errno) => Err(io::Error::from_raw_os_error(errno)),
            Strike::Delay(time) => {
                std::thread::sleep(time);
                Ok(bytes)
            }
        }
    }
}
