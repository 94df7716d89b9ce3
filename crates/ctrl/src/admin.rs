//! Admin commands.
//!
//! All but three end within the step that fetched them: Abort waits for its target, Delete I/O
//! Submission Queue for the queue's commands, an event request for an event.
//!
//! Source: NVMe Base Specification 2.0c, 5.

use mem::Region;
use spec::admin::{
    Abort, CreateCompletionQueue, CreateSubmissionQueue, DeleteQueue, GetFeatures, Opcode,
    SetFeatures,
};
use spec::event::GetLogPage;
use spec::{Command, QueueId, Status};

use crate::controller::Controller;
use crate::dma::scatter;
use crate::flight::State;
use crate::identify::ABORTS_MAX;
use crate::queues::{Answer, COMPLETION_BYTES, CompletionQueue, SUBMISSION_BYTES, SubmissionQueue};

impl Controller {
    pub(crate) fn admin_command(&mut self, command: &Command) {
        match self.try_admin(command) {
            Ok(Some(result)) => self.answer(Answer::admin(command.cid, Ok(result))),
            Ok(None) => {}
            Err(status) => self.answer(Answer::admin(command.cid, Err(status))),
        }
    }

    /// Executes a command; `None` where its completion comes later.
    fn try_admin(&mut self, command: &Command) -> Result<Option<u32>, Status> {
        let known = [
            Opcode::DELETE_SUBMISSION_QUEUE,
            Opcode::CREATE_SUBMISSION_QUEUE,
            Opcode::LOG_PAGE,
            Opcode::DELETE_COMPLETION_QUEUE,
            Opcode::CREATE_COMPLETION_QUEUE,
            Opcode::IDENTIFY,
            Opcode::ABORT,
            Opcode::SET_FEATURES,
            Opcode::FEATURES,
            Opcode::ASYNC_EVENT_REQUEST,
        ];
        if !known.contains(&command.opcode) {
            return Err(Status::INVALID_OPCODE);
        }
        if command.flags & (Command::FLAGS_FUSE | Command::FLAGS_PSDT) != 0 {
            return Err(Status::INVALID_FIELD);
        }
        match command.opcode {
            Opcode::IDENTIFY => {
                let page = self.identify(command)?;
                self.send(command, &page)?;
            }
            Opcode::LOG_PAGE => self.send_log_page(command)?,
            Opcode::CREATE_COMPLETION_QUEUE => self.create_completion_queue(command)?,
            Opcode::CREATE_SUBMISSION_QUEUE => self.create_submission_queue(command)?,
            Opcode::DELETE_COMPLETION_QUEUE => self.delete_completion_queue(command)?,
            Opcode::DELETE_SUBMISSION_QUEUE => {
                self.delete_submission_queue(command)?;
                return Ok(None);
            }
            Opcode::ABORT => return self.abort(command),
            Opcode::SET_FEATURES => {
                let exist = self.submission.iter().skip(1).any(Option::is_some)
                    || self.completion.iter().skip(1).any(Option::is_some);
                let done = self.features.write(SetFeatures::decode(command), exist)?;
                self.watch_temperature();
                return Ok(Some(done));
            }
            Opcode::FEATURES => {
                return self.features.read(GetFeatures::decode(command)).map(Some);
            }
            _ => {
                self.request_event(command.cid)?;
                return Ok(None);
            }
        }
        Ok(Some(0))
    }

    /// Moves a structure to the memory that a command names.
    fn send(&mut self, command: &Command, bytes: &[u8]) -> Result<(), Status> {
        let mut pieces = std::mem::take(&mut self.scratch_pieces);
        pieces.clear();
        let found = self.dma.translate(command.prp1, command.prp2, bytes.len() as u64, &mut pieces);
        if found.is_ok() {
            scatter(bytes, &pieces);
        }
        pieces.clear();
        self.scratch_pieces = pieces;
        found
    }

    fn send_log_page(&mut self, command: &Command) -> Result<(), Status> {
        let get = GetLogPage::decode(command);
        let page = self.log_page(get.page)?;
        let bytes = (u64::from(get.dwords_z) + 1) * 4;
        let offset = usize::try_from(get.offset).unwrap_or(usize::MAX);
        if bytes > u64::from(self.options.transfer_bytes_max) || get.offset & 3 != 0 {
            return Err(Status::INVALID_FIELD);
        }
        let mut rest = page.get(offset..).ok_or(Status::INVALID_FIELD)?.to_vec();
        rest.resize(usize::try_from(bytes).unwrap_or(0), 0);
        self.send(command, &rest)?;
        if !get.retain_event {
            self.events.unmask(get.page);
            self.deliver_events();
        }
        Ok(())
    }

    /// Whether an I/O queue identifier is one that the host may use.
    fn is_granted(queue: QueueId, granted: u16) -> bool {
        (1..=granted).contains(&queue.0)
    }

    /// Checks that both Create commands share.
    fn check_queue(
        &self,
        command: &Command,
        entries_z: u16,
        contiguous: bool,
        entry_bytes: usize,
    ) -> Result<Region, Status> {
        let entries = u32::from(entries_z) + 1;
        if entries < 2 || entries > self.options.queue_entries_max {
            return Err(Status::INVALID_QUEUE_SIZE);
        }
        // CAP.CQR: queues are contiguous here.
        if !contiguous {
            return Err(Status::INVALID_FIELD);
        }
        self.dma.queue_memory(command.prp1, entries as usize * entry_bytes)
    }

    /// Source: 5.4.
    fn create_completion_queue(&mut self, command: &Command) -> Result<(), Status> {
        let create = CreateCompletionQueue::decode(command);
        let id = usize::from(create.queue.0);
        if !Self::is_granted(create.queue, self.features.queues.1) || self.completion[id].is_some()
        {
            return Err(Status::INVALID_QUEUE_ID);
        }
        if self.bar.configuration().iocqes() != spec::Completion::BYTES_LOG2 {
            return Err(Status::INVALID_QUEUE_SIZE);
        }
        let (entries_z, contiguous) = (create.entries_z, create.contiguous);
        let memory = self.check_queue(command, entries_z, contiguous, COMPLETION_BYTES)?;
        // There are no interrupts; vector 0 is accepted and stays silent.
        if create.interrupt.is_some_and(|vector| vector != 0) {
            return Err(Status::INVALID_INTERRUPT_VECTOR);
        }
        self.bar.clear_doorbell(2 * id + 1);
        self.completion[id] = Some(CompletionQueue::new(memory, u32::from(entries_z) + 1));
        Ok(())
    }

    /// Source: 5.5.
    fn create_submission_queue(&mut self, command: &Command) -> Result<(), Status> {
        let create = CreateSubmissionQueue::decode(command);
        let id = usize::from(create.queue.0);
        let granted = self.features.queues;
        if !Self::is_granted(create.queue, granted.0) || self.submission[id].is_some() {
            return Err(Status::INVALID_QUEUE_ID);
        }
        if !Self::is_granted(create.completion_queue, granted.1) {
            return Err(Status::INVALID_QUEUE_ID);
        }
        let completion = usize::from(create.completion_queue.0);
        if self.completion[completion].is_none() {
            return Err(Status::COMPLETION_QUEUE_INVALID);
        }
        if self.bar.configuration().iosqes() != Command::BYTES_LOG2 {
            return Err(Status::INVALID_QUEUE_SIZE);
        }
        let (entries_z, contiguous) = (create.entries_z, create.contiguous);
        let memory = self.check_queue(command, entries_z, contiguous, SUBMISSION_BYTES)?;
        self.bar.clear_doorbell(2 * id);
        if let Some(completion) = &mut self.completion[completion] {
            completion.users += 1;
        }
        let depth = u32::from(entries_z) + 1;
        let queue = SubmissionQueue::new(memory, depth, create.completion_queue.0);
        self.submission[id] = Some(queue);
        let position = self.active.partition_point(|other| *other < create.queue.0);
        self.active.insert(position, create.queue.0);
        Ok(())
    }

    /// Source: 5.6.
    fn delete_completion_queue(&mut self, command: &Command) -> Result<(), Status> {
        let id = usize::from(DeleteQueue::decode(command).queue.0);
        let queue = self.completion.get(id).filter(|_| id != 0).and_then(Option::as_ref);
        let queue = queue.ok_or(Status::INVALID_QUEUE_ID)?;
        if queue.users > 0 {
            return Err(Status::INVALID_QUEUE_DELETION);
        }
        self.completion[id] = None;
        self.bar.clear_doorbell(2 * id + 1);
        Ok(())
    }

    /// Ends the queue's commands; its own completion follows when all have ended. Source: 5.7.
    fn delete_submission_queue(&mut self, command: &Command) -> Result<(), Status> {
        let id = DeleteQueue::decode(command).queue.0;
        let queue = self.submission.get_mut(usize::from(id)).filter(|_| id != 0);
        let queue = queue.and_then(Option::as_mut).filter(|q| q.deleting.is_none());
        let queue = queue.ok_or(Status::INVALID_QUEUE_ID)?;
        queue.deleting = Some(command.cid);
        self.deletes_wait += 1;
        for index in self.flights.indices() {
            let flight = self.flights.get(index);
            if flight.state != State::Free && flight.queue == id {
                self.end_early(index, Status::ABORTED_QUEUE_DELETION);
            }
        }
        Ok(())
    }

    /// Source: 5.1: the target's completion comes first, then this command's.
    fn abort(&mut self, command: &Command) -> Result<Option<u32>, Status> {
        let abort = Abort::decode(command);
        let queue = self.submission.get(usize::from(abort.queue.0)).and_then(Option::as_ref);
        if queue.is_none() {
            return Err(Status::INVALID_FIELD);
        }
        if abort.queue.is_admin() {
            let found = self.events.withdraw(abort.command.0);
            if found {
                let status = Status::ABORT_REQUESTED;
                self.answer(Answer { status, ..Answer::admin(abort.command.0, Ok(0)) });
            }
            return Ok(Some(if found { 0 } else { Abort::NOT_ABORTED }));
        }
        let Some(index) = self.flights.find(abort.queue.0, abort.command.0) else {
            return Ok(Some(Abort::NOT_ABORTED));
        };
        let flight = self.flights.get(index);
        if flight.state == State::Held || flight.abort.is_some() {
            return Ok(Some(Abort::NOT_ABORTED));
        }
        if self.aborts_outstanding >= u32::from(ABORTS_MAX) {
            return Err(Status::ABORT_LIMIT_EXCEEDED);
        }
        self.aborts_outstanding += 1;
        self.flights.get_mut(index).abort = Some(command.cid);
        self.end_early(index, Status::ABORT_REQUESTED);
        Ok(None)
    }
}

impl Answer {
    /// The end of an admin command.
    pub(crate) fn admin(command: u16, outcome: Result<u32, Status>) -> Self {
        let (result, status) = match outcome {
            Ok(result) => (result, Status::SUCCESS),
            Err(status) => (0, refusal(status)),
        };
        Self { submission_queue: 0, command, result, status }
    }
}

/// The status of a refused command: it says whether the same command could succeed later.
pub(crate) fn refusal(status: Status) -> Status {
    let passing = [
        Status::ABORT_LIMIT_EXCEEDED,
        Status::COMMAND_ID_CONFLICT,
        Status::DATA_TRANSFER_ERROR,
        Status::EVENT_REQUEST_LIMIT_EXCEEDED,
        Status::INTERNAL_ERROR,
        Status::INVALID_QUEUE_DELETION,
    ];
    if passing.contains(&status) { status } else { status.with_do_not_retry() }
}
