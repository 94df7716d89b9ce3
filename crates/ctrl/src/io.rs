//! I/O commands from check to completion: Read, Write, Flush, Write Zeroes; what Compare and
//! Dataset Management have of their own is in `rare`.
//!
//! ```text
//! check --> fault? --> requests to storage --> all ended --> effects --> due? --> completion
//!   | bad status         one a contiguous        (bounce copy, flip)
//!   `--> completion      run of memory
//! ```
//!
//! The host's memory is used as it is, one storage request per contiguous run. Only where a run
//! ends in the middle of a storage block, or where a fault must change data on its way to storage,
//! does the payload pass through a bounce buffer (`detour`).
//!
//! Source: NVM Command Set 1.0c, 3.2; NVMe Base 2.0c, 7.1 (Flush).

use spec::admin::Abort;
use spec::io::{BlockRange, Opcode};
use spec::{Command, Nsid, Status};
use storage::faults::Action;
use storage::{Completion, Lent, Op, Rejected, Request};

use crate::admin::refusal;
use crate::controller::{Controller, Namespace};
use crate::dma::Piece;
use crate::flight::{Flight, State};
use crate::queues::Answer;

/// Token of requests that belong to no command.
const NO_COMMAND: u64 = u64::MAX;
/// The namespace of a Flush of all.
const ALL: usize = usize::MAX;

/// A command that may be carried out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub(crate) op: Op,
    pub(crate) namespace: usize,
    /// First byte in the storage.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) flush_after: bool,
    /// What is read is compared with the host's memory.
    pub(crate) compares: bool,
}

#[inline]
fn token(index: u32, request: u32) -> u64 {
    u64::from(request) << 32 | u64::from(index)
}

#[inline]
fn index_of(token: u64) -> u32 {
    u32::try_from(token & 0xffff_ffff).expect("masked to 32 bits")
}

/// Hands a command's request to the storage, or lets it wait for room there: then true.
#[inline(always)]
fn submit(namespace: &mut Namespace, flight: &mut Flight, index: u32, request: Lent<'_>) -> bool {
    let request = Lent { token: token(index, flight.requests), ..request };
    flight.requests += 1;
    flight.requests_left += 1;
    if !namespace.waiting.is_empty() {
        namespace.waiting.push_back(request.keep());
        return true;
    }
    let queue = namespace.queue.as_mut().expect("opened when enabled");
    match queue.try_submit(request) {
        Ok(()) => {}
        Err(Rejected::QueueFull) => {
            namespace.waiting.push_back(request.keep());
            return true;
        }
        Err(Rejected::Invalid(status)) => {
            flight.requests_left -= 1;
            flight.fail(status);
        }
    }
    false
}

impl Controller {
    /// Takes a fetched I/O command.
    #[inline]
    pub(crate) fn begin_io(&mut self, queue: u16, command: &Command, now_ns: u64) {
        let Some(submission) = &mut self.submission[usize::from(queue)] else { return };
        if !submission.claim_id(command.cid) {
            return self.refuse(queue, command.cid, Status::COMMAND_ID_CONFLICT);
        }
        let transfer = match self.check_io(command) {
            Ok(transfer) => transfer,
            Err(status) => return self.begin_rare(queue, command, status, now_ns),
        };
        let moves = matches!(transfer.op, Op::Read | Op::Write);
        if moves && self.begin_common(queue, command, &transfer, now_ns) {
            return;
        }
        self.begin_uncommon(queue, command, transfer, now_ns);
    }

    /// Takes the common command: one run of memory, one request, nothing to go wrong. False where
    /// it is none, and then nothing has happened.
    #[inline]
    fn begin_common(
        &mut self,
        queue: u16,
        command: &Command,
        transfer: &Transfer,
        now_ns: u64,
    ) -> bool {
        let namespace = &self.namespaces[transfer.namespace];
        let limit = u64::from(namespace.request_bytes_max);
        if namespace.options.faults.is_some() || transfer.bytes > limit {
            return false;
        }
        let Some(memory_offset) = self.dma.single_run(command.prp1, transfer.bytes) else {
            return false;
        };
        let bytes = u32::try_from(transfer.bytes).expect("at most the storage's largest request");
        let index = self.claim(queue, command.cid, transfer, now_ns);
        let (op, offset) = (transfer.op, transfer.offset);
        let Self { dma, namespaces, flights, counters, requests_wait, .. } = self;
        let memory = dma.recent().expect("the single run lies there");
        let request = Lent { token: 0, op, offset, bytes, memory, memory_offset };
        let namespace = &mut namespaces[transfer.namespace];
        counters.storage_requests += 1;
        *requests_wait |= submit(namespace, flights.get_mut(index), index, request);
        self.settle_if_ended(index, now_ns);
        true
    }

    /// Takes a command that has passed its checks, whatever it may be.
    pub(crate) fn begin_uncommon(
        &mut self,
        queue: u16,
        command: &Command,
        transfer: Transfer,
        now_ns: u64,
    ) {
        let mut pieces = std::mem::take(&mut self.scratch_pieces);
        pieces.clear();
        let moves = matches!(transfer.op, Op::Read | Op::Write);
        let (prp1, prp2, bytes) = (command.prp1, command.prp2, transfer.bytes);
        let found = if moves { self.dma.translate(prp1, prp2, bytes, &mut pieces) } else { Ok(()) };
        match found {
            Ok(()) => self.start(queue, command.cid, transfer, &mut pieces, now_ns),
            Err(status) => self.refuse_claimed(queue, command.cid, status),
        }
        pieces.clear();
        self.scratch_pieces = pieces;
    }

    #[cold]
    pub(crate) fn refuse_claimed(&mut self, queue: u16, command: u16, status: Status) {
        if let Some(submission) = &mut self.submission[usize::from(queue)] {
            submission.release_id(command);
        }
        self.refuse(queue, command, status);
    }

    #[cold]
    fn refuse(&mut self, submission_queue: u16, command: u16, status: Status) {
        self.counters.io_failed += 1;
        self.answer(Answer { submission_queue, command, result: 0, status: refusal(status) });
    }

    /// Finds what is wrong with a command's fields, or what they mean.
    #[inline]
    fn check_io(&self, command: &Command) -> Result<Transfer, Status> {
        let op = match command.opcode {
            Opcode::READ => Op::Read,
            Opcode::WRITE => Op::Write,
            Opcode::FLUSH => Op::Flush,
            Opcode::WRITE_ZEROES => Op::WriteZeroes,
            _ => return Err(Status::INVALID_OPCODE),
        };
        if command.flags & (Command::FLAGS_FUSE | Command::FLAGS_PSDT) != 0 {
            return Err(Status::INVALID_FIELD);
        }
        if op == Op::Flush {
            return self.check_flush(command.namespace());
        }
        self.check_range(op, command)
    }

    /// Finds what is wrong with the range of a command.
    #[inline(always)]
    pub(crate) fn check_range(&self, op: Op, command: &Command) -> Result<Transfer, Status> {
        let namespace = self.namespace(command.namespace())?;
        let range = BlockRange::decode(command);
        let blocks = u64::from(range.blocks.0);
        let bytes = blocks << namespace.block_shift;
        let moves = matches!(op, Op::Read | Op::Write);
        if moves && bytes > u64::from(self.options.transfer_bytes_max) {
            return Err(Status::INVALID_FIELD);
        }
        if range.lba.0.checked_add(blocks).is_none_or(|end| end > namespace.blocks) {
            return Err(Status::LBA_OUT_OF_RANGE);
        }
        if op != Op::Read && namespace.read_only {
            return Err(Status::NAMESPACE_WRITE_PROTECTED);
        }
        let index = command.nsid as usize - 1;
        let offset = range.lba.0 << namespace.block_shift;
        let flush_after = range.force_unit_access && op != Op::Read;
        Ok(Transfer { op, namespace: index, offset, bytes, flush_after, compares: false })
    }

    fn check_flush(&self, nsid: Nsid) -> Result<Transfer, Status> {
        let namespace = if nsid == Nsid::BROADCAST {
            ALL
        } else {
            self.namespace(nsid)?;
            nsid.0 as usize - 1
        };
        Ok(Transfer {
            op: Op::Flush,
            namespace,
            offset: 0,
            bytes: 0,
            flush_after: false,
            compares: false,
        })
    }

    /// Gives a command its entry in the table.
    #[inline(always)]
    pub(crate) fn claim(
        &mut self,
        queue: u16,
        command: u16,
        transfer: &Transfer,
        now_ns: u64,
    ) -> u32 {
        let moved = if transfer.op == Op::WriteZeroes { 0 } else { transfer.bytes };
        let due_ns = self.timing.due_ns(now_ns, moved);
        let (index, flight) = self.flights.claim();
        (flight.queue, flight.command) = (queue, command);
        (flight.op, flight.namespace) = (transfer.op, transfer.namespace);
        (flight.due_ns, flight.flush_after) = (due_ns, transfer.flush_after);
        flight.bytes_expected = transfer.bytes;
        index
    }

    fn start(
        &mut self,
        queue: u16,
        command: u16,
        transfer: Transfer,
        pieces: &mut Vec<Piece>,
        now_ns: u64,
    ) {
        let index = self.claim(queue, command, &transfer, now_ns);
        match self.draw_fault(&transfer) {
            None => self.submit_all(index, &transfer, pieces),
            Some(action) => {
                self.flights.get_mut(index).fault = Some(action);
                if !self.start_faulty(index, transfer, action, pieces, now_ns) {
                    return;
                }
            }
        }
        self.settle_if_ended(index, now_ns);
    }

    /// Goes on at once where nothing was asked of the storage, or all of it was refused.
    #[inline]
    pub(crate) fn settle_if_ended(&mut self, index: u32, now_ns: u64) {
        if self.flights.get(index).requests_left == 0 {
            self.settle(index, now_ns);
        }
    }

    /// Makes the storage requests of a command.
    pub(crate) fn submit_all(&mut self, index: u32, transfer: &Transfer, pieces: &mut Vec<Piece>) {
        match transfer.op {
            Op::Flush => self.submit_flush(index, transfer.namespace),
            Op::WriteZeroes => self.submit_zeroes(index, transfer),
            Op::Read | Op::Write => {
                if self.needs_bounce(index, transfer, pieces) {
                    return self.submit_bounced(index, transfer, pieces);
                }
                let mut offset = transfer.offset;
                for piece in pieces.drain(..) {
                    let bytes = u64::from(piece.bytes);
                    self.submit_piece(index, transfer, offset, piece);
                    offset += bytes;
                }
            }
        }
    }

    /// Makes the requests of one run: one, unless the storage takes less at once.
    pub(crate) fn submit_piece(
        &mut self,
        index: u32,
        transfer: &Transfer,
        offset: u64,
        piece: Piece,
    ) {
        let max = self.namespaces[transfer.namespace].request_bytes_max;
        let Piece { region, offset: memory_offset, bytes } = piece;
        if bytes <= max {
            let (op, memory) = (transfer.op, region);
            let request = Request { token: 0, op, offset, bytes, memory, memory_offset };
            return self.submit(index, transfer.namespace, request.lend());
        }
        let mut done = 0;
        while done < bytes {
            let now = (bytes - done).min(max);
            let request = Request {
                token: 0,
                op: transfer.op,
                offset: offset + u64::from(done),
                bytes: now,
                memory: &region,
                memory_offset: memory_offset + done as usize,
            };
            self.submit(index, transfer.namespace, request);
            done += now;
        }
    }

    pub(crate) fn submit_zeroes(&mut self, index: u32, transfer: &Transfer) {
        let max = u64::from(self.namespaces[transfer.namespace].request_bytes_max);
        let mut done = 0;
        while done < transfer.bytes {
            let now = (transfer.bytes - done).min(max);
            let bytes = u32::try_from(now).expect("at most the largest request");
            let request = self.request_without_memory(Op::WriteZeroes, transfer.offset + done);
            self.submit(index, transfer.namespace, Request { bytes, ..request }.lend());
            done += now;
        }
    }

    fn submit_flush(&mut self, index: u32, namespace: usize) {
        let all =
            if namespace == ALL { 0..self.namespaces.len() } else { namespace..namespace + 1 };
        for namespace in all {
            let request = self.request_without_memory(Op::Flush, 0);
            self.submit(index, namespace, request.lend());
        }
    }

    fn request_without_memory(&self, op: Op, offset: u64) -> Request {
        let memory = self.no_memory.clone();
        Request { token: 0, op, offset, bytes: 0, memory, memory_offset: 0 }
    }

    /// Hands one request to the storage, or lets it wait for room there.
    fn submit(&mut self, index: u32, namespace: usize, request: Lent<'_>) {
        self.counters.storage_requests += 1;
        let flight = self.flights.get_mut(index);
        self.requests_wait |= submit(&mut self.namespaces[namespace], flight, index, request);
    }

    /// Hands over what waited for room.
    #[cold]
    pub(crate) fn resubmit_waiting(&mut self) -> bool {
        let mut any = false;
        self.requests_wait = false;
        for position in 0..self.namespaces.len() {
            while let Some(request) = self.namespaces[position].waiting.pop_front() {
                let queue = self.namespaces[position].queue.as_mut().expect("opened when enabled");
                match queue.try_submit(request.lend()) {
                    Ok(()) => any = true,
                    Err(Rejected::QueueFull) => {
                        self.namespaces[position].waiting.push_front(request);
                        self.requests_wait = true;
                        break;
                    }
                    Err(Rejected::Invalid(status)) => {
                        let token = request.token;
                        let ended = Completion { token, status, bytes: 0, errno: 0 };
                        self.scratch_completions.push(ended);
                        any = true;
                    }
                }
            }
        }
        any
    }

    /// Takes what the storage has ended.
    #[inline]
    pub(crate) fn poll_storage(&mut self, now_ns: u64) -> bool {
        let mut ended = std::mem::take(&mut self.scratch_completions);
        for namespace in &mut self.namespaces {
            if let Some(queue) = namespace.queue.as_mut().filter(|q| q.in_flight() > 0) {
                queue.poll(&mut ended);
            }
        }
        let any = !ended.is_empty();
        for completion in &ended {
            self.request_ended(completion, now_ns);
        }
        ended.clear();
        self.scratch_completions = ended;
        any
    }

    #[inline]
    fn request_ended(&mut self, completion: &Completion, now_ns: u64) {
        if completion.token == NO_COMMAND {
            return;
        }
        let index = index_of(completion.token);
        let flight = self.flights.get_mut(index);
        flight.requests_left -= 1;
        flight.bytes_moved += u64::from(completion.bytes);
        if !completion.status.is_success() {
            flight.fail(completion.status);
        }
        if flight.requests_left == 0 {
            if flight.is_plain() && flight.due_ns <= now_ns {
                return self.finish_plain(index);
            }
            self.settle(index, now_ns);
        }
    }

    /// Ends a command of which nothing but success is to be told.
    #[inline]
    fn finish_plain(&mut self, index: u32) {
        let flight = self.flights.get(index);
        let (submission_queue, command) = (flight.queue, flight.command);
        match flight.op {
            Op::Read => self.counters.bytes_read += flight.bytes_moved,
            Op::Write => self.counters.bytes_written += flight.bytes_moved,
            Op::Flush | Op::WriteZeroes => {}
        }
        self.flights.release(index);
        if let Some(submission) = &mut self.submission[usize::from(submission_queue)] {
            submission.release_id(command);
        }
        self.counters.io_succeeded += 1;
        let status = Status::SUCCESS;
        self.answer(Answer { submission_queue, command, result: 0, status });
    }

    /// All requests of a command have ended: its effects, then its completion or its wait.
    fn settle(&mut self, index: u32, now_ns: u64) {
        let flight = self.flights.get_mut(index);
        let reads = flight.op == Op::Read;
        if matches!(flight.op, Op::Read | Op::Write) && flight.bytes_moved < flight.bytes_expected {
            // The storage ended early, although the blocks should be there.
            flight.fail(if reads { Status::UNRECOVERED_READ_ERROR } else { Status::WRITE_FAULT });
        }
        if flight.flush_after && flight.status.is_success() {
            flight.flush_after = false;
            let namespace = flight.namespace;
            self.submit_flush(index, namespace);
            if self.flights.get(index).requests_left > 0 {
                return;
            }
        }
        let flight = self.flights.get_mut(index);
        match flight.op {
            Op::Read => self.counters.bytes_read += flight.bytes_moved,
            Op::Write => self.counters.bytes_written += flight.bytes_moved,
            Op::Flush | Op::WriteZeroes => {}
        }
        if let Some(Action::Torn { status, .. }) = flight.fault {
            flight.fail(status);
        }
        if flight.detour.is_some() {
            self.finish_detour(index);
        }
        let flight = self.flights.get(index);
        if flight.due_ns > now_ns && !self.is_unwanted(index) {
            self.flights.set_alarm(index);
        } else {
            self.finish(index);
        }
    }

    /// Whether somebody waits for a command to be gone, so that it need not wait for its time.
    fn is_unwanted(&self, index: u32) -> bool {
        let flight = self.flights.get(index);
        let queue = self.submission[usize::from(flight.queue)].as_ref();
        flight.abort.is_some() || queue.is_none_or(|queue| queue.deleting.is_some())
    }

    /// Ends a command: its completion, and that of the Abort that waited for it.
    pub(crate) fn finish(&mut self, index: u32) {
        let flight = self.flights.get(index);
        let (submission_queue, command, fault) = (flight.queue, flight.command, flight.fault);
        let (mut status, abort) = (flight.status, flight.abort);
        self.flights.release(index);
        if let Some(submission) = &mut self.submission[usize::from(submission_queue)] {
            submission.release_id(command);
            if submission.deleting.is_some() && status.is(Status::ABORT_REQUESTED) {
                status = Status::ABORTED_QUEUE_DELETION;
            }
        }
        let answer = Answer { submission_queue, command, result: 0, status };
        if status.is_success() {
            self.counters.io_succeeded += 1;
        } else {
            self.counters.io_failed += 1;
        }
        match fault {
            Some(Action::Lost) if abort.is_none() => {}
            Some(Action::Duplicate) => {
                self.answer(answer);
                self.answer(answer);
            }
            _ => self.answer(answer),
        }
        if let Some(abort) = abort {
            self.aborts_outstanding -= 1;
            let aborted = status.is(Status::ABORT_REQUESTED);
            let result = if aborted { 0 } else { Abort::NOT_ABORTED };
            self.answer(Answer::admin(abort, Ok(result)));
        }
    }

    /// Ends a command before its time, or asks the storage to.
    pub(crate) fn end_early(&mut self, index: u32, status: Status) {
        if self.flights.get(index).state == State::Storage {
            self.cancel_requests(index);
            if self.flights.get(index).requests_left > 0 {
                return;
            }
        }
        let flight = self.flights.get_mut(index);
        flight.status = status;
        if flight.detour.is_some() {
            self.finish_detour(index);
        }
        self.finish(index);
    }

    /// Asks the storage to end a command's requests; those that it has not got end at once.
    pub(crate) fn cancel_requests(&mut self, index: u32) {
        let flight = self.flights.get_mut(index);
        if flight.state != State::Storage {
            return;
        }
        for namespace in &mut self.namespaces {
            let before = namespace.waiting.len();
            namespace
                .waiting
                .retain(|request| request.token == NO_COMMAND || index_of(request.token) != index);
            let gone = before - namespace.waiting.len();
            if gone > 0 {
                flight.requests_left -= u32::try_from(gone).expect("no more than were made");
                flight.fail(Status::ABORT_REQUESTED);
            }
        }
        let (requests, of) = (flight.requests, flight.namespace);
        let one = of..of.saturating_add(1);
        let all = if of == ALL { 0..self.namespaces.len() } else { one };
        for namespace in &mut self.namespaces[all] {
            if let Some(queue) = &mut namespace.queue {
                for request in 0..requests {
                    queue.cancel(token(index, request));
                }
            }
        }
    }

    /// Makes everything durable, for no command.
    pub(crate) fn flush_for_shutdown(&mut self) {
        for position in 0..self.namespaces.len() {
            let request =
                Request { token: NO_COMMAND, ..self.request_without_memory(Op::Flush, 0) };
            let namespace = &mut self.namespaces[position];
            let Some(queue) = &mut namespace.queue else { continue };
            if queue.try_submit(request.lend()) == Err(Rejected::QueueFull) {
                namespace.waiting.push_back(request);
                self.requests_wait = true;
            }
        }
    }
}
