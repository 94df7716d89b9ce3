//! A queue over several storages: what [`Striped`](crate::Striped) and
//! [`Replicated`](crate::Replicated) share.
//!
//! A request becomes parts, each on one member; it ends when all of its parts have. What a
//! [`Layout`] decides is which parts there are, and whether a part that failed is tried elsewhere.
//!
//! ```text
//! token --> slot --> parts --> waiting (member full) --> member queue --> all ended --> completion
//! ```
//!
//! A member's token is the slot, the part's number, and a serial number of the submission, so that a
//! completion that comes twice ends nothing the second time. The first error of a request is its
//! status, and then it moved no bytes. Nothing here orders one request against another, as no drive
//! does.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use spec::Status;

use crate::admit::{admit, status};
use crate::queue::{
    Completion, Counters, Geometry, Lent, Op, QueueOptions, Rejected, Request, Storage,
    StorageError, StorageQueue,
};

/// How long one member is waited for before the others are looked at.
const TURN: Duration = Duration::from_micros(500);

/// One part of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    pub(crate) member: usize,
    /// First byte in the member.
    pub(crate) offset: u64,
    /// First byte within the request.
    pub(crate) start: u32,
    pub(crate) bytes: u32,
    /// Which submission of a part is in flight.
    serial: Option<u16>,
}

impl Part {
    pub(crate) fn new(member: usize, offset: u64, start: u32, bytes: u32) -> Self {
        Self { member, offset, start, bytes, serial: None }
    }
}

/// How requests lie on members.
pub(crate) trait Layout: Send {
    /// Appends the parts of a request that moves `bytes` bytes, at least one unless it moves none.
    fn split(&mut self, request: &Lent<'_>, bytes: u32, parts: &mut Vec<Part>);
    /// The member on which a part is tried again after `tries` members failed it, `last` lastly.
    fn retry(&self, op: Op, last: usize, tries: usize) -> Option<usize>;
}

/// A request in flight.
struct Slot {
    request: Request,
    /// Bytes from its start that were moved without a gap.
    moved: u32,
    parts: Vec<Part>,
    tries: usize,
    left: usize,
    status: Status,
    errno: i32,
    cancelled: bool,
    free: bool,
}

/// The queue.
pub(crate) struct SeveralQueue<L> {
    layout: L,
    geometry: Geometry,
    members: Vec<Box<dyn StorageQueue>>,
    /// Parts that found their member full.
    waiting: Vec<VecDeque<Request>>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    ready: Vec<Completion>,
    scratch: Vec<Completion>,
    in_flight: u32,
    depth: u32,
    quiescing: bool,
    serial: u16,
    /// Member to wait for first.
    turn: usize,
    bytes_read: u64,
    bytes_written: u64,
}

/// Bits of a token for the slot and for the part's number; a request has 2^23 parts at most.
const INDEX_BITS: u32 = 24;
/// Most requests in flight.
const DEPTH_MAX: u32 = 1 << INDEX_BITS;

fn member_token(slot: usize, number: usize, serial: u16) -> u64 {
    u64::from(serial) << (2 * INDEX_BITS) | (number as u64) << INDEX_BITS | slot as u64
}

/// Slot, number of the part, serial number.
fn place(token: u64) -> (usize, usize, u16) {
    let index = |word: u64| usize::try_from(word % (1 << INDEX_BITS)).expect("24 bits");
    let serial = u16::try_from(token >> (2 * INDEX_BITS)).expect("16 bits");
    (index(token), index(token >> INDEX_BITS), serial)
}

impl<L: Layout> SeveralQueue<L> {
    /// Opens a queue on each member.
    pub(crate) fn open(
        layout: L,
        geometry: Geometry,
        members: &[std::sync::Arc<dyn Storage>],
        options: &QueueOptions,
    ) -> Result<Self, StorageError> {
        if options.depth == 0 {
            return Err(StorageError::Misuse("a queue of depth 0 can take no request".into()));
        }
        if options.depth > DEPTH_MAX {
            return Err(StorageError::Misuse(format!("a queue deeper than {DEPTH_MAX}")));
        }
        let queues = members.iter().map(|member| member.open_queue(options));
        Ok(Self {
            layout,
            geometry,
            members: queues.collect::<Result<_, _>>()?,
            waiting: members.iter().map(|_| VecDeque::new()).collect(),
            slots: Vec::new(),
            free: Vec::new(),
            ready: Vec::new(),
            scratch: Vec::new(),
            in_flight: 0,
            depth: options.depth,
            quiescing: false,
            serial: 0,
            turn: 0,
            bytes_read: 0,
            bytes_written: 0,
        })
    }

    fn claim(&mut self, request: Lent<'_>, bytes: u32) -> usize {
        let index = self.free.pop().unwrap_or(self.slots.len());
        let mut parts = self.slots.get_mut(index).map(|s| std::mem::take(&mut s.parts));
        let mut parts = parts.take().unwrap_or_default();
        parts.clear();
        self.layout.split(&request, bytes, &mut parts);
        let slot = Slot {
            request: request.keep(),
            moved: bytes,
            left: parts.len(),
            parts,
            tries: 0,
            status: Status::SUCCESS,
            errno: 0,
            cancelled: false,
            free: false,
        };
        match self.slots.get_mut(index) {
            Some(old) => *old = slot,
            None => self.slots.push(slot),
        }
        index
    }

    /// Hands a part to its member, or lets it wait for room there.
    fn submit(&mut self, slot: usize, number: usize) {
        self.serial = self.serial.wrapping_add(1);
        self.slots[slot].parts[number].serial = Some(self.serial);
        let (part, request) = (self.slots[slot].parts[number], &self.slots[slot].request);
        let request = Lent {
            token: member_token(slot, number, self.serial),
            offset: part.offset,
            bytes: part.bytes,
            // A request without memory has an offset that means nothing.
            memory_offset: request.memory_offset.wrapping_add(part.start as usize),
            ..request.lend()
        };
        if !self.waiting[part.member].is_empty() {
            return self.waiting[part.member].push_back(request.keep());
        }
        match self.members[part.member].try_submit(request) {
            Ok(()) => {}
            Err(Rejected::QueueFull) => self.waiting[part.member].push_back(request.keep()),
            Err(Rejected::Invalid(status)) => self.part_ended(&ended(request.token, status)),
        }
    }

    fn submit_waiting(&mut self) {
        for member in 0..self.members.len() {
            while let Some(request) = self.waiting[member].pop_front() {
                match self.members[member].try_submit(request.lend()) {
                    Ok(()) => {}
                    Err(Rejected::QueueFull) => {
                        self.waiting[member].push_front(request);
                        break;
                    }
                    Err(Rejected::Invalid(status)) => {
                        self.part_ended(&ended(request.token, status));
                    }
                }
            }
        }
    }

    fn part_ended(&mut self, completion: &Completion) {
        let (index, number, serial) = place(completion.token);
        let Some(slot) = self.slots.get_mut(index) else { return };
        let Some(part) = slot.parts.get(number).copied() else { return };
        if part.serial != Some(serial) {
            return;
        }
        slot.parts[number].serial = None;
        if !completion.status.is_success() {
            slot.tries += 1;
            let again = self.layout.retry(slot.request.op, part.member, slot.tries);
            let given_up = slot.cancelled || self.quiescing;
            if let Some(member) = again.filter(|_| !given_up) {
                slot.parts[number].member = member;
                return self.submit(index, number);
            }
            if slot.status.is_success() {
                (slot.status, slot.errno) = (completion.status, completion.errno);
            }
        } else if completion.bytes < part.bytes {
            slot.moved = slot.moved.min(part.start + completion.bytes);
        }
        slot.left -= 1;
        if slot.left == 0 {
            self.end(index);
        }
    }

    /// All parts have ended.
    fn end(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        let bytes = if slot.status.is_success() { slot.moved } else { 0 };
        match slot.request.op {
            Op::Read => self.bytes_read += u64::from(bytes),
            Op::Write => self.bytes_written += u64::from(bytes),
            Op::Flush | Op::WriteZeroes => {}
        }
        let (token, status, errno) = (slot.request.token, slot.status, slot.errno);
        slot.free = true;
        self.ready.push(Completion { token, status, bytes, errno });
        self.free.push(index);
    }

    fn advance(&mut self) {
        self.submit_waiting();
        let mut found = std::mem::take(&mut self.scratch);
        for member in &mut self.members {
            member.poll(&mut found);
        }
        for completion in found.drain(..) {
            self.part_ended(&completion);
        }
        self.scratch = found;
    }

    /// Takes parts of a slot (all slots where `None`) out of the lines before full members.
    fn drop_waiting(&mut self, slot: Option<usize>) {
        let mut gone = Vec::new();
        for line in &mut self.waiting {
            line.retain(|request| {
                let keep = slot.is_some_and(|slot| place(request.token).0 != slot);
                if !keep {
                    gone.push(ended(request.token, status::ABORT_REQUESTED));
                }
                keep
            });
        }
        for completion in gone {
            self.part_ended(&completion);
        }
    }
}

fn ended(token: u64, status: Status) -> Completion {
    Completion { token, status, bytes: 0, errno: 0 }
}

impl<L: Layout> StorageQueue for SeveralQueue<L> {
    fn try_submit(&mut self, request: Lent<'_>) -> Result<(), Rejected> {
        if self.in_flight >= self.depth {
            return Err(Rejected::QueueFull);
        }
        let bytes = match admit(&self.geometry, &request) {
            Ok(bytes) => bytes,
            Err(status) => return Err(Rejected::Invalid(status)),
        };
        self.in_flight += 1;
        let slot = self.claim(request, bytes);
        if self.slots[slot].parts.is_empty() {
            self.end(slot);
            return Ok(());
        }
        for number in 0..self.slots[slot].parts.len() {
            self.submit(slot, number);
        }
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.advance();
        self.in_flight -= u32::try_from(self.ready.len()).expect("at most the depth");
        completions.append(&mut self.ready);
    }

    fn wait_for_completion(&mut self, limit: Duration) {
        let begin = Instant::now();
        loop {
            self.advance();
            let left = limit.saturating_sub(begin.elapsed());
            let busy = self.members.iter().filter(|member| member.in_flight() > 0).count();
            let waiting = self.waiting.iter().any(|line| !line.is_empty());
            if !self.ready.is_empty() || left.is_zero() || (busy == 0 && !waiting) {
                return;
            }
            self.turn = (self.turn + 1) % self.members.len();
            let member = &mut self.members[self.turn];
            if member.in_flight() > 0 {
                member.wait_for_completion(if busy == 1 { left } else { left.min(TURN) });
            }
        }
    }

    fn cancel(&mut self, token: u64) {
        let found = self.slots.iter().position(|s| !s.free && s.request.token == token);
        let Some(slot) = found else { return };
        self.slots[slot].cancelled = true;
        for number in 0..self.slots[slot].parts.len() {
            let part = self.slots[slot].parts[number];
            if let Some(serial) = part.serial {
                self.members[part.member].cancel(member_token(slot, number, serial));
            }
        }
        self.drop_waiting(Some(slot));
    }

    fn quiesce(&mut self, completions: &mut Vec<Completion>) {
        self.quiescing = true;
        self.drop_waiting(None);
        let mut found = std::mem::take(&mut self.scratch);
        for member in &mut self.members {
            member.quiesce(&mut found);
        }
        for completion in found.drain(..) {
            self.part_ended(&completion);
        }
        self.scratch = found;
        self.quiescing = false;
        debug_assert_eq!(self.ready.len(), self.in_flight as usize, "every part has ended");
        self.in_flight = 0;
        completions.append(&mut self.ready);
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// I/Os, system calls, doorbells and completions are the members'; bytes are those of the
    /// requests, so that a replicated write counts once.
    fn counters(&self) -> Counters {
        let mut sum = Counters {
            bytes_read: self.bytes_read,
            bytes_written: self.bytes_written,
            ..Counters::default()
        };
        for member in &self.members {
            let counters = member.counters();
            sum.ios_at_device += counters.ios_at_device;
            sum.syscalls += counters.syscalls;
            sum.doorbells += counters.doorbells;
            sum.completions_polled += counters.completions_polled;
        }
        sum
    }
}

/// What both kinds require of their members, and the geometry that these have in common.
pub(crate) fn common_geometry(
    members: &[std::sync::Arc<dyn Storage>],
) -> Result<Geometry, StorageError> {
    let mut geometries = members.iter().map(|member| member.geometry());
    let first = geometries.next().ok_or_else(|| StorageError::Misuse("no member".into()))?;
    let common = geometries.fold(first, |all, one| Geometry {
        bytes: all.bytes.min(one.bytes),
        // Powers of two: the larger one is a multiple of the smaller.
        block_bytes: all.block_bytes.max(one.block_bytes),
        transfer_bytes_max: all.transfer_bytes_max.min(one.transfer_bytes_max),
        read_only: all.read_only || one.read_only,
    });
    let block = common.block_bytes.max(1);
    let transfer_bytes_max = common.transfer_bytes_max / block * block;
    if !block.is_power_of_two() || transfer_bytes_max == 0 {
        let why = format!("blocks of {block}, at most {transfer_bytes_max} bytes at once");
        return Err(StorageError::Unsupported { what: "several members".into(), why });
    }
    let bytes = common.bytes - common.bytes % u64::from(block);
    Ok(Geometry { bytes, block_bytes: block, transfer_bytes_max, ..common })
}
