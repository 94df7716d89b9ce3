//! Where chunks are carried out: pinned slots, a queue of copies and a ring, used by one thread at a time.
//!
//! ```text
//! read    slot: filled by reads (cached ones now, direct ones by the ring) -> copied by the courier -> free
//! write   slot: copied from the device -> written (cached now, direct by the ring) -> free
//! host    no slot: file and memory meet without one, unless direct I/O wants better aligned memory
//! ```
//!
//! A seat goes on with the next chunk while copies and ring work for earlier ones, as long as it has a
//! free slot. Everything that it holds is made when it is first needed.

mod fill;
mod flight;
mod quick;
mod ring;

pub(crate) use self::fill::route_of;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use gpu::{CopyQueue, Gpu, GpuError, Keeper};
use mem::{MemoryKind, Region};
use storage::Residency;

use self::flight::{Flight, Phase};
use self::ring::RingOps;
use crate::courier::{Courier, Parcel};
use crate::error::BulkError;
use crate::job::{Job, Piece, Target};
use crate::route::{Cause, Op};
use crate::threads::Core;

/// Longest sleep for the ring or a copy before other things are looked at again.
const NAP: Duration = Duration::from_millis(2);

/// Source: Linux on x86-64.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Memory, queue and ring of one thread.
pub(crate) struct Seat {
    slot_bytes: usize,
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    /// Slots whose copies were started, in order.
    copying: VecDeque<usize>,
    memory: Option<Region>,
    pinned: u64,
    /// Dropped before the memory, which it pins.
    registration: Option<Keeper>,
    /// How cached pages are found out, by device number, for files that are opened in passing.
    devices: Vec<(u64, Residency)>,
    /// A folder of a file system in memory: its files are always cached.
    folder: Vec<u8>,
    /// Copies from the device.
    queue: Option<Box<dyn CopyQueue>>,
    /// Copies to the device.
    courier: Option<Arc<Courier>>,
    ring: RingOps,
    pieces: Vec<Piece>,
    /// The file of many rows, opened once more for this thread; nothing where that was refused.
    again: Option<(Weak<Job>, Option<OwnedFd>)>,
}

/// Pinned memory, in huge pages where the system has them, which the CPU fills faster than small ones.
fn pin(gpu: &dyn Gpu, bytes: usize) -> Result<(Region, Option<Keeper>), GpuError> {
    let huge = bytes.is_multiple_of(HUGE_PAGE_BYTES);
    if huge && let Ok(memory) = Region::map_private(bytes) {
        memory.keep_from_children();
        memory.fill(0, memory.len_bytes(), 0);
        if let Ok(registration) = gpu.register_host(&memory) {
            return Ok((memory, Some(registration)));
        }
    }
    Ok((gpu.allocate_host(bytes as u64)?, None))
}

impl Drop for Seat {
    fn drop(&mut self) {
        // Copies that still run use the memory; what pins it goes before it does.
        for slot in &self.copying {
            let phase = self.flights[*slot].as_ref().map(|flight| flight.phase);
            if let (Some(Phase::Copying(_, last)), Some(courier)) = (phase, &self.courier) {
                courier.wait(last);
            }
        }
        self.queue = None;
        self.registration = None;
    }
}

impl Seat {
    pub fn new(slot_bytes: usize, slots: usize) -> Self {
        Self {
            slot_bytes,
            flights: (0..slots).map(|_| None).collect(),
            free: (0..slots).rev().collect(),
            copying: VecDeque::new(),
            memory: None,
            pinned: 0,
            registration: None,
            devices: Vec::new(),
            folder: Vec::new(),
            queue: None,
            courier: None,
            ring: RingOps::default(),
            pieces: Vec::new(),
            again: None,
        }
    }

    /// Lets go of what it keeps while there is work only.
    pub fn let_go(&mut self) {
        self.again = None;
    }

    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    pub fn is_idle(&self) -> bool {
        self.free.len() == self.flights.len()
    }

    /// Gives the pinned memory back to the books; the memory itself goes with the seat.
    pub fn retire(&mut self, core: &Core) {
        core.counters.unpinned(std::mem::take(&mut self.pinned));
    }

    /// Makes memory, queue and ring now.
    pub fn prepare(&mut self, core: &Core) -> Result<(), BulkError> {
        self.memory(core)?;
        self.courier(core)?;
        let queue = self.queue(core)?;
        // The first mark settles how marks are made.
        let mark = queue.mark().map_err(|e| BulkError::gpu("making a queue of copies", &e))?;
        queue.wait(mark).map_err(|e| BulkError::gpu("making a queue of copies", &e))
    }

    /// Ends everything after a panic: a broken invariant of ours must not leave anybody waiting.
    pub fn abandon(&mut self, core: &Core) {
        for flight in self.flights.iter_mut().filter_map(Option::take) {
            let why = "a worker of the bulk engine panicked; please report it".to_owned();
            flight.job.fail(BulkError::Misuse(why));
            flight.job.chunks_ended(1, &core.counters);
        }
    }

    /// The memory of all slots, pinned where there is a GPU.
    fn memory(&mut self, core: &Core) -> Result<Region, BulkError> {
        if let Some(memory) = &self.memory {
            return Ok(memory.clone());
        }
        let bytes = self.slot_bytes * self.flights.len();
        let memory = match core.gpu.as_ref().map(|gpu| pin(gpu.as_ref(), bytes)) {
            Some(Ok((memory, registration))) => {
                self.registration = registration;
                self.pinned = bytes as u64;
                core.counters.pinned(self.pinned);
                memory
            }
            other => {
                if let Some(Err(error)) = other {
                    core.counters.fell_back(Cause::PinnedRefused, || error.to_string());
                }
                Region::map_anonymous(bytes, MemoryKind::Host)
                    .map_err(|e| BulkError::Misuse(format!("memory of the engine: {e}")))?
            }
        };
        self.memory = Some(memory.clone());
        Ok(memory)
    }

    fn queue(&mut self, core: &Core) -> Result<&mut dyn CopyQueue, BulkError> {
        if self.queue.is_none() {
            let gpu = core.gpu.as_ref().expect("device memory was resolved by a GPU");
            let made = gpu.copy_queue().map_err(|e| BulkError::gpu("making a queue of copies", &e));
            self.queue = Some(made?);
        }
        Ok(self.queue.as_deref_mut().expect("made above"))
    }

    fn courier(&mut self, core: &Core) -> Result<&Arc<Courier>, BulkError> {
        if self.courier.is_none() {
            self.courier = Some(core.courier()?);
        }
        Ok(self.courier.as_ref().expect("made above"))
    }

    /// Starts a chunk. There is room.
    pub fn begin(&mut self, core: &Core, job: &Arc<Job>, chunk: u64) {
        if job.is_stopped() {
            return job.chunks_ended(1, &core.counters);
        }
        let mut pieces = std::mem::take(&mut self.pieces);
        job.pieces(chunk, &mut pieces);
        let slot = self.free.pop().expect("the caller looked for room");
        let flight = Flight::new(Arc::clone(job), &pieces, slot * self.slot_bytes);
        self.pieces = pieces;
        self.flights[slot] = Some(flight);
        let started = match job.op {
            Op::Read => self.fill(core, slot),
            Op::Write => self.fetch(core, slot),
        };
        if let Err(error) = started {
            self.fail(core, slot, error);
        }
    }

    fn flight(&mut self, slot: usize) -> &mut Flight {
        self.flights[slot].as_mut().expect("a flight in this slot")
    }

    /// Moves on whatever can be moved on without waiting.
    pub fn advance(&mut self, core: &Core) {
        self.reap(core);
        while let Some(slot) = self.copying.front().copied() {
            let done = match self.flight(slot).phase {
                Phase::Arriving(mark) | Phase::Sent(mark) => {
                    let queue = self.queue.as_mut().expect("copies were started");
                    queue.is_done(mark).map_err(|e| BulkError::gpu("copying", &e))
                }
                Phase::Copying(first, last) => {
                    let courier = self.courier.as_ref().expect("copies were posted");
                    courier.is_done((first, last))
                }
                Phase::Filling | Phase::Writing => unreachable!("it is in the queue of copies"),
            };
            match done {
                Ok(false) => return,
                Ok(true) => self.copied(core, slot),
                Err(error) => {
                    self.copying.pop_front();
                    self.fail(core, slot, error);
                }
            }
        }
    }

    fn copied(&mut self, core: &Core, slot: usize) {
        self.copying.pop_front();
        match self.flight(slot).phase {
            Phase::Copying(..) | Phase::Sent(_) => self.finish(core, slot),
            _ => {
                if let Err(error) = self.write_out(core, slot) {
                    self.fail(core, slot, error);
                }
            }
        }
    }

    /// Waits until something has moved on, or a while.
    pub fn wait(&mut self, core: &Core) {
        if self.ring.in_flight() > 0 {
            let limit = if self.copying.is_empty() { NAP } else { Duration::from_micros(100) };
            self.ring.wait(limit);
        } else if let Some(slot) = self.copying.front().copied() {
            // An error comes again in `advance`.
            match self.flight(slot).phase {
                Phase::Arriving(mark) | Phase::Sent(mark) => {
                    let _again = self.queue.as_mut().expect("copies were started").wait(mark);
                }
                Phase::Copying(_, last) => {
                    self.courier.as_ref().expect("copies were posted").wait(last);
                }
                Phase::Filling | Phase::Writing => unreachable!("it is in the queue of copies"),
            }
        }
        self.advance(core);
    }

    /// Starts the copies of a filled slot, or ends the flight where there is nothing to copy.
    fn deliver(&mut self, core: &Core, slot: usize) -> Result<(), BulkError> {
        let memory = self.memory.clone();
        let flight = self.flights[slot].take().expect("a flight in this slot");
        let result = self.start_copies(core, &flight, memory.as_ref());
        let flight = self.flights[slot].insert(flight);
        match result? {
            Some(phase) => {
                flight.phase = phase;
                self.copying.push_back(slot);
            }
            None => self.finish(core, slot),
        }
        Ok(())
    }

    fn start_copies(
        &mut self,
        core: &Core,
        flight: &Flight,
        memory: Option<&Region>,
    ) -> Result<Option<Phase>, BulkError> {
        let mut spans: Vec<flight::Span> = Vec::new();
        for part in flight.parts.iter().filter(|part| part.staged && part.got > 0) {
            match flight.job.target(&part.piece) {
                Target::Device(to) => flight::add_span(&mut spans, part.at, to, part.got),
                Target::Host(region, at) => {
                    let memory = memory.expect("staged parts have memory");
                    region.copy_from(at, memory, part.at, part.got);
                }
            }
        }
        if spans.is_empty() {
            return Ok(None);
        }
        let host = memory.expect("staged parts have memory");
        core.counters.copies.fetch_add(spans.len() as u64, std::sync::atomic::Ordering::Relaxed);
        if flight.job.gated {
            // Behind others' copies it might wait for a stream that waits for it.
            let refused = |e| BulkError::gpu("copying to the device", &e);
            let queue = self.queue(core)?;
            for span in &spans {
                let flight::Span { at, to, bytes } = *span;
                let span = gpu::Span { host, host_offset: at, device: to, bytes };
                queue.start_to_device(span).map_err(refused)?;
            }
            return queue.mark().map(|mark| Some(Phase::Sent(mark))).map_err(refused);
        }
        let parcels = spans.iter().map(|span| {
            let flight::Span { at, to, bytes } = *span;
            Parcel { host: host.clone(), at, device: to, bytes }
        });
        let (first, last) = self.courier(core)?.post(parcels);
        Ok(Some(Phase::Copying(first, last)))
    }

    /// Ends a flight well: all that its parts got is at its target.
    fn finish(&mut self, core: &Core, slot: usize) {
        let flight = self.flights[slot].take().expect("a flight in this slot");
        self.free.push(slot);
        flight.settle(core);
    }

    /// Ends a flight badly. Copies of it that were started are waited for first, within reason.
    fn fail(&mut self, core: &Core, slot: usize, error: BulkError) {
        if let Some(queue) = &mut self.queue
            && let Ok(mark) = queue.mark()
        {
            let _broken = queue.wait(mark);
        }
        let flight = self.flights[slot].take().expect("a flight in this slot");
        self.free.push(slot);
        for part in &flight.parts {
            flight.job.piece_failed(&part.piece, error.clone());
        }
        flight.job.chunks_ended(1, &core.counters);
    }
}
