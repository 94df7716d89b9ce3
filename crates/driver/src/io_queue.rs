//! One queue pair for I/O, owned by the thread that uses it.

use std::collections::VecDeque;
use std::sync::Arc;

use mem::Region;
use proto::prp::{self, ListRoom};
use proto::{Completed, Misbehaved, QueuePair, QueuePairShape};
use spec::io::{BlockRange, Opcode};
use spec::{BlockCount, Command, CommandId, Lba, Nsid, QueueId, Status, registers};

use crate::describe::Namespace;
use crate::device::{Device, Mapping};
use crate::error::DriverError;
use crate::lifecycle::{Orphan, Shared};
use crate::memory::{LIST_ENTRIES, PAGE_BYTES, QueueMemory};
use crate::recovery::{GivingUp, State, take_lost};

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Make completed writes durable. Range and buffer are ignored.
    Flush,
    /// Namespace to memory.
    Read,
    /// Memory to namespace.
    Write,
    /// Make blocks read as zeros. The buffer is ignored.
    WriteZeroes,
}

/// Memory of a request that the device can reach, held until the request has ended.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// Keeps the memory alive.
    region: Region,
    /// As the device sees it: a multiple of 4.
    address: u64,
    bytes: usize,
}

impl Buffer {
    /// Part of a region that was mapped (`Device::map`), where the device can reach it and its
    /// address is a multiple of 4. The mapping must outlive the request.
    pub fn reach(
        device: &dyn Device,
        region: &Region,
        offset: usize,
        bytes: usize,
    ) -> Option<Self> {
        let address = device.bus_address(region, offset, bytes)?;
        let region = address.is_multiple_of(4).then(|| region.clone())?;
        Some(Self { region, address, bytes })
    }

    /// Part of a region that lies within a mapped one, as [`Buffer::reach`] finds it, without asking the
    /// device.
    pub fn within(mapping: &Mapping, region: &Region, offset: usize, bytes: usize) -> Option<Self> {
        let mapped = mapping.region();
        let at = (region.address() + offset as u64).checked_sub(mapped.address())?;
        mapped.check(usize::try_from(at).ok()?, bytes).ok()?;
        let address = mapping.address() + at;
        let region = address.is_multiple_of(4).then(|| region.clone())?;
        Some(Self { region, address, bytes })
    }

    /// Part of this buffer; `None` where it is outside or begins at no multiple of 4.
    pub fn slice(&self, offset: usize, bytes: usize) -> Option<Self> {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        let address = self.address.wrapping_add(offset as u64);
        let good = inside && address.is_multiple_of(4);
        good.then(|| Self { region: self.region.clone(), address, bytes })
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// One request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Returned unchanged in [`Ended`].
    pub token: u64,
    /// What to do.
    pub op: Op,
    /// First block.
    pub lba: Lba,
    /// Blocks, 1 to what one command can move.
    pub blocks: BlockCount,
    /// Memory, for reads and writes.
    pub buffer: Option<Buffer>,
    /// When to give it up, on the clock that `poll` is told; `u64::MAX` is never.
    pub deadline_ns: u64,
}

/// The end of one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Token of the request.
    pub token: u64,
    /// The drive's status; or, where the drive gave none, `ABORTED_BY_HOST` for a request that was
    /// given up, `ABORTED_QUEUE_DELETION` for one whose queue was lost twice and
    /// `HOST_PATHING_ERROR` for one whose controller is gone.
    pub status: Status,
}

/// A request that was not taken, handed back.
#[derive(Debug)]
pub enum Rejected {
    /// It can never succeed.
    Invalid(Request, Box<DriverError>),
    /// No room now: poll, then try again.
    QueueFull(Request),
}

/// What a queue has done and seen since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueCounters {
    /// Commands that the drive completed.
    pub commands: u64,
    /// Completion entries found, good and bad.
    pub completions_polled: u64,
    /// Doorbells rung.
    pub doorbells: u64,
    /// Entries that could not be.
    pub misbehaved: u64,
    /// Times that the queue was deleted and made again, alone or by a reset.
    pub recoveries: u64,
    /// Requests sent a second time after losing their queue.
    pub resubmitted: u64,
}

/// A request with its history.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) request: Request,
    pub(crate) resubmitted: bool,
}

/// A queue pair on one namespace or several.
///
/// Dropping it leaves its deletion to the controller's next steps; its memory, and the buffers of
/// what is in flight, are kept until the drive has forgotten them.
pub struct IoQueue {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: QueueId,
    pub(crate) depth: u32,
    pub(crate) namespace: Namespace,
    pub(crate) transfer_blocks_max: BlockCount,
    /// Taken when the queue is dropped.
    pub(crate) memory: Option<QueueMemory>,
    pub(crate) pair: QueuePair<InFlight>,
    pub(crate) state: State,
    pub(crate) epoch: u64,
    /// Requests that lost their queue and wait to be sent again.
    pub(crate) backlog: VecDeque<InFlight>,
    pub(crate) giving_up: Vec<GivingUp>,
    pub(crate) counters: QueueCounters,
    pub(crate) health_due_ns: u64,
    /// Bound of draining the queue before it is deleted, while that is under way.
    pub(crate) drain_until_ns: Option<u64>,
    list: Box<[u64; LIST_ENTRIES]>,
    submission_doorbell: usize,
    completion_doorbell: usize,
}

impl std::fmt::Debug for IoQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "IoQueue({}, {:?}, {} in flight)", self.id, self.state, self.in_flight())
    }
}

impl IoQueue {
    pub(crate) fn open(shared: Arc<Shared>, depth: u32) -> Result<Self, DriverError> {
        let mut lifecycle = shared.lock();
        if let Some(error) = lifecycle.failure() {
            return Err(DriverError::Misuse(format!("no queue can be opened: {error}")));
        }
        let (Some(controller), Some(namespace)) =
            (lifecycle.controller().cloned(), lifecycle.namespaces().first().copied())
        else {
            let text = "no queue can be opened before the controller is ready and has a namespace";
            return Err(DriverError::Misuse(text.to_owned()));
        };
        if !(1..=controller.depth_max).contains(&depth) {
            let what = "the queue depth";
            let why = format!("{depth} is not in 1..={}", controller.depth_max);
            return Err(DriverError::Unsupported { what, why });
        }
        let id = lifecycle.acquire_queue()?;
        let shape = QueuePairShape::for_commands(id, depth);
        let memory = QueueMemory::new(shared.device.as_ref(), shape, depth);
        let memory = memory.inspect_err(|_| lifecycle.release_queue(id))?;
        let epoch = lifecycle.epoch();
        drop(lifecycle);
        let (stride, transfer) = (shared.stride, controller.transfer_bytes_max);
        Ok(Self {
            id,
            depth,
            namespace,
            transfer_blocks_max: namespace.transfer_blocks_max(transfer),
            memory: Some(memory),
            pair: QueuePair::new(shape).expect("the depth was checked above"),
            state: State::new(),
            epoch,
            backlog: VecDeque::new(),
            giving_up: Vec::new(),
            counters: QueueCounters::default(),
            health_due_ns: 0,
            drain_until_ns: None,
            list: Box::new([0; LIST_ENTRIES]),
            submission_doorbell: registers::submission_doorbell(id, stride),
            completion_doorbell: registers::completion_doorbell(id, stride),
            shared,
        })
    }

    /// Its identifier.
    pub fn id(&self) -> QueueId {
        self.id
    }

    /// The namespace that its requests go to.
    pub fn namespace(&self) -> Namespace {
        self.namespace
    }

    /// The same queue for another namespace; only while nothing is in flight.
    ///
    /// # Errors
    /// `Misuse` where there is no such namespace, or something is in flight.
    pub fn set_namespace(&mut self, nsid: Nsid) -> Result<(), DriverError> {
        let lifecycle = self.shared.lock();
        let found = lifecycle.namespaces().iter().find(|namespace| namespace.nsid == nsid).copied();
        let transfer = lifecycle.controller().map_or(0, |c| c.transfer_bytes_max);
        drop(lifecycle);
        let Some(namespace) = found.filter(|_| self.in_flight() == 0) else {
            return Err(DriverError::Misuse(format!("{self:?} cannot move to {nsid}")));
        };
        self.transfer_blocks_max = namespace.transfer_blocks_max(transfer);
        self.namespace = namespace;
        Ok(())
    }

    /// Most blocks of one request.
    pub fn transfer_blocks_max(&self) -> BlockCount {
        self.transfer_blocks_max
    }

    /// Requests taken and not yet ended.
    pub fn in_flight(&self) -> usize {
        if self.is_failed() { 0 } else { self.pair.in_flight() + self.backlog.len() }
    }

    /// What it has done.
    pub fn counters(&self) -> QueueCounters {
        self.counters
    }

    /// Whether requests are sent at once.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open) && self.drain_until_ns.is_none()
    }

    /// Takes a request, or hands it back. The drive is told at the next `poll` or `ring`.
    ///
    /// # Errors
    /// [`Rejected`]: the request itself, and why.
    pub fn try_submit(&mut self, request: Request) -> Result<(), Rejected> {
        if let Some(error) = self.failure() {
            return Err(Rejected::Invalid(request, Box::new(error)));
        }
        if !self.is_open() || !self.backlog.is_empty() {
            return Err(Rejected::QueueFull(request));
        }
        if let Err(text) = self.check(&request) {
            return Err(Rejected::Invalid(request, Box::new(DriverError::Misuse(text))));
        }
        self.send(InFlight { request, resubmitted: false })
            .map_err(|in_flight| Rejected::QueueFull(in_flight.request))
    }

    /// The range itself is the drive's to judge; what this driver needs to build is checked here.
    fn check(&self, request: &Request) -> Result<(), String> {
        let blocks = request.blocks.0;
        let most = match request.op {
            Op::Flush => return Ok(()),
            Op::WriteZeroes => BlockCount::COMMAND_MAX.0,
            Op::Read | Op::Write => self.transfer_blocks_max.0,
        };
        if !(1..=most).contains(&blocks) {
            return Err(format!("{blocks} blocks are not in 1..={most}"));
        }
        if request.op == Op::WriteZeroes {
            return Ok(());
        }
        let Some(buffer) = &request.buffer else { return Err("no memory was given".to_owned()) };
        let bytes = self.bytes(request.blocks);
        if buffer.bytes < bytes {
            return Err(format!("{bytes} bytes do not fit in {buffer:?}"));
        }
        Ok(())
    }

    fn bytes(&self, blocks: BlockCount) -> usize {
        usize::try_from(u64::from(blocks.0) * u64::from(self.namespace.block_bytes))
            .expect("a transfer fits in an address space")
    }

    /// Writes the command of a checked request; hands it back where there is no room.
    pub(crate) fn send(&mut self, in_flight: InFlight) -> Result<(), InFlight> {
        let request = &in_flight.request;
        let opcode = match request.op {
            Op::Flush => Opcode::FLUSH,
            Op::Read => Opcode::READ,
            Op::Write => Opcode::WRITE,
            Op::WriteZeroes => Opcode::WRITE_ZEROES,
        };
        let mut command = match request.op {
            Op::Flush => Command::new(opcode, self.namespace.nsid),
            _ => BlockRange::new(request.lba, request.blocks).encode(opcode, self.namespace.nsid),
        };
        let bytes = self.bytes(request.blocks);
        let memory = self.memory.as_ref().expect("a queue has memory until it is dropped");
        let Some(reservation) = self.pair.reserve() else { return Err(in_flight) };
        let slot = reservation.slot();
        if let (Op::Read | Op::Write, Some(buffer)) = (request.op, &request.buffer) {
            let room = ListRoom { address: memory.list_address(slot), entries: &mut *self.list };
            let page = PAGE_BYTES as u64;
            let pointer = prp::build_contiguous(buffer.address, bytes as u64, page, room)
                .expect("the buffer is aligned, and a list page holds the largest transfer");
            memory.store_list(slot, &self.list[..pointer.list_entries]);
            command = command.with_prps(pointer.prp1, pointer.prp2);
        }
        let command = command.with_command_id(reservation.command_id());
        memory.store_command(reservation.index(), &command);
        let deadline_ns = request.deadline_ns;
        reservation.commit(in_flight, deadline_ns);
        Ok(())
    }

    /// Tells the drive about everything submitted since the last time.
    pub fn ring(&mut self) {
        if let Some(tail) = self.pair.take_submission_doorbell() {
            self.shared.device.ring(self.submission_doorbell, u32::from(tail));
            self.counters.doorbells += 1;
        }
    }

    /// Moves the queue on and appends what has ended. Never blocks.
    ///
    /// # Errors
    /// `Misbehaved` where the drive said something impossible since the last call. It is a report,
    /// not an end: the queue recovers by itself and is polled as before.
    pub fn poll(&mut self, now_ns: u64, ended: &mut Vec<Ended>) -> Result<(), DriverError> {
        if self.shared.epoch() != self.epoch {
            self.leave_epoch();
        }
        let fault = if let State::Open = self.state {
            self.ring();
            let fault = self.drain(ended);
            self.look_for_trouble(now_ns, fault.is_some_and(needs_recovery), ended);
            fault
        } else {
            self.step_recovery(now_ns, ended)
        };
        match fault {
            Some(misbehaved) => Err(misbehaved.into()),
            None => Ok(()),
        }
    }

    /// Takes completions until there is none, at most one turn of the queue.
    pub(crate) fn drain(&mut self, ended: &mut Vec<Ended>) -> Option<Misbehaved> {
        let mut fault = None;
        let deleting = !matches!(self.state, State::Open);
        let memory = self.memory.as_ref().expect("a queue has memory until it is dropped");
        for _ in 0..=self.depth {
            let (index, phase) = (self.pair.completion_index(), self.pair.completion_phase());
            let Some(entry) = memory.load_completion(index, phase) else { break };
            self.counters.completions_polled += 1;
            match self.pair.complete(&entry) {
                Some(Ok(Completed::Ended { command, context, status, .. })) => {
                    self.counters.commands += 1;
                    if deleting && status.is(Status::ABORTED_QUEUE_DELETION) {
                        let given_up = self.giving_up.iter().any(|one| one.command == command);
                        take_lost(given_up, context, &mut self.backlog, ended);
                    } else {
                        ended.push(Ended { token: context.request.token, status });
                    }
                }
                Some(Ok(Completed::Drained { .. })) | None => {}
                Some(Err(misbehaved)) => {
                    self.counters.misbehaved += 1;
                    if !fault.is_some_and(needs_recovery) {
                        fault = Some(misbehaved);
                    }
                }
            }
        }
        if let Some(head) = self.pair.take_completion_doorbell() {
            self.shared.device.ring(self.completion_doorbell, u32::from(head));
            self.counters.doorbells += 1;
        }
        fault
    }

    /// Asks for an early end of a request; it ends by `poll`, once nothing can write its buffer.
    ///
    /// False where no such request is in flight.
    pub fn cancel(&mut self, token: u64) -> bool {
        if let Some(waiting) =
            self.backlog.iter_mut().find(|waiting| waiting.request.token == token)
        {
            // Nothing of it is at the drive: it ends at the next poll.
            waiting.request.deadline_ns = 0;
            return true;
        }
        let sent = self.pair.commands().find(|(_, sent)| sent.request.token == token);
        let Some((command, _)) = sent else { return false };
        self.give_up(command);
        true
    }

    pub(crate) fn give_up(&mut self, command: CommandId) {
        if self.giving_up.iter().all(|known| known.command != command) {
            self.giving_up.push(GivingUp::new(command));
        }
    }
}

/// Whether the queue can no longer be trusted. A second completion of one command harms nobody.
fn needs_recovery(misbehaved: Misbehaved) -> bool {
    !matches!(misbehaved, Misbehaved::StaleCommand { .. })
}

impl Drop for IoQueue {
    fn drop(&mut self) {
        let in_flight = self.pair.restart();
        let kept = Box::new((self.memory.take(), in_flight));
        let orphan = Orphan { queue: self.id, epoch: self.epoch, kept };
        self.shared.lock().adopt(orphan);
    }
}
