//! The admin queue: commands by ticket, each bounded in time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use proto::{Completed, Misbehaved, QueuePair, QueuePairShape};
use spec::{Command, QueueId, Status, registers};

use crate::device::Device;
use crate::error::DriverError;
use crate::memory::QueueMemory;

/// Commands at once on the admin queue.
const COMMANDS: u32 = 31;

/// Names an admin command that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Ticket(u64);

/// How an admin command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// The drive completed it.
    Completed { status: Status, result: u32 },
    /// A reset ended it.
    Lost,
}

#[derive(Debug)]
struct Sent {
    ticket: Ticket,
    operation: &'static str,
}

pub(crate) struct AdminQueue {
    device: Arc<dyn Device>,
    memory: QueueMemory,
    pair: QueuePair<Sent>,
    stride: usize,
    limit: Duration,
    next_ticket: u64,
    answers: HashMap<Ticket, Option<Answer>>,
}

impl AdminQueue {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        stride: usize,
        limit: Duration,
    ) -> Result<Self, DriverError> {
        let shape = QueuePairShape::for_commands(QueueId::ADMIN, COMMANDS);
        let memory = QueueMemory::new(device.as_ref(), shape, 0)?;
        let pair = QueuePair::new(shape).expect("31 commands are a legal shape");
        let (next_ticket, answers) = (0, HashMap::new());
        Ok(Self { device, memory, pair, stride, limit, next_ticket, answers })
    }

    pub(crate) fn entries(&self) -> u16 {
        u16::try_from(COMMANDS + 1).expect("a small constant")
    }

    pub(crate) fn memory(&self) -> &QueueMemory {
        &self.memory
    }

    /// Sends a command; `None` while the queue is full.
    pub(crate) fn submit(
        &mut self,
        now_ns: u64,
        operation: &'static str,
        command: Command,
    ) -> Option<Ticket> {
        let reservation = self.pair.reserve()?;
        let command = command.with_command_id(reservation.command_id());
        self.memory.store_command(reservation.index(), &command);
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let limit_ns = u64::try_from(self.limit.as_nanos()).unwrap_or(u64::MAX);
        reservation.commit(Sent { ticket, operation }, now_ns.saturating_add(limit_ns));
        self.answers.insert(ticket, None);
        if let Some(tail) = self.pair.take_submission_doorbell() {
            let offset = registers::submission_doorbell(QueueId::ADMIN, self.stride);
            self.device.ring(offset, u32::from(tail));
        }
        Some(ticket)
    }

    /// Takes what has been completed.
    ///
    /// # Errors
    /// `AdminTimeout` and `Misbehaved`: the controller must be reset.
    pub(crate) fn poll(&mut self, now_ns: u64) -> Result<(), DriverError> {
        let mut fault: Option<Misbehaved> = None;
        for _ in 0..=COMMANDS {
            let (index, phase) = (self.pair.completion_index(), self.pair.completion_phase());
            let Some(entry) = self.memory.load_completion(index, phase) else { break };
            match self.pair.complete(&entry) {
                Some(Ok(Completed::Ended { context, status, result, .. })) => {
                    self.answer(context.ticket, Answer::Completed { status, result });
                }
                Some(Ok(Completed::Drained { .. })) | None => {}
                // A second completion of one command harms nobody.
                Some(Err(Misbehaved::StaleCommand { .. })) => {}
                Some(Err(misbehaved)) => fault = fault.or(Some(misbehaved)),
            }
        }
        if let Some(head) = self.pair.take_completion_doorbell() {
            let offset = registers::completion_doorbell(QueueId::ADMIN, self.stride);
            self.device.ring(offset, u32::from(head));
        }
        if let Some(misbehaved) = fault {
            return Err(misbehaved.into());
        }
        let mut overdue = Vec::new();
        self.pair.take_overdue(now_ns, &mut overdue);
        let late = |(id, _): &(_, &Sent)| overdue.contains(id);
        match self.pair.commands().find(late) {
            Some((_, sent)) => {
                let (operation, limit) = (sent.operation, self.limit);
                Err(DriverError::AdminTimeout { operation, limit })
            }
            None => Ok(()),
        }
    }

    fn answer(&mut self, ticket: Ticket, answer: Answer) {
        if let Some(place) = self.answers.get_mut(&ticket) {
            *place = Some(answer);
        }
    }

    /// The answer to a command, once; later, and after a reset, `Lost`.
    pub(crate) fn take(&mut self, ticket: Ticket) -> Option<Answer> {
        let Some(answer) = self.answers.get(&ticket).copied() else { return Some(Answer::Lost) };
        if answer.is_some() {
            self.answers.remove(&ticket);
        }
        answer
    }

    /// Nobody will ask for this answer any more.
    pub(crate) fn forget(&mut self, ticket: Ticket) {
        self.answers.remove(&ticket);
    }

    /// Begins anew after a reset; what was in flight is lost.
    pub(crate) fn restart(&mut self) {
        drop(self.pair.restart());
        self.answers.clear();
        self.memory.clear_completions();
    }
}
