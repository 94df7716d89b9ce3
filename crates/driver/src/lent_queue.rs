//! A queue pair whose entries somebody else writes and reads: GPU lanes, or threads beside them.
//!
//! ```text
//!           create                      delete
//! Absent ----------> Creating -> Open ----------> Deleting -> Absent
//!    ^                                               | refused, or not in time
//!    +------- the controller is disabled ----- AwaitingReset <--- any reset
//! ```
//!
//! The driver only makes and deletes the pair, aborts commands on request and follows the
//! controller's resets. It never looks at an entry and rings none of the pair's doorbells. While
//! a pair is [`LentState::Absent`] the drive touches neither its memory nor any buffer of its
//! commands; its owner then prepares the memory and asks for it again.

use std::sync::Arc;

use spec::admin::{Abort, CreateCompletionQueue, CreateSubmissionQueue, DeleteQueue};
use spec::{Command, CommandId, QueueId, registers};

use crate::admin::{Answer, Ticket};
use crate::device::Mapping;
use crate::error::DriverError;
use crate::lifecycle::{Lifecycle, Orphan, Shared};
use crate::recovery::{Stage, was_aborted};

/// Memory of a lent pair; both queues have the same number of entries.
#[derive(Debug)]
pub struct LentMemory {
    /// Keeps the memory reachable by the device: all of what the addresses below lie in.
    pub mappings: Vec<Arc<Mapping>>,
    /// Bus address of the submission entries, page aligned.
    pub submission: u64,
    /// Bus address of the completion entries, page aligned.
    pub completion: u64,
    /// Entries of either queue.
    pub entries: u32,
}

/// Where a lent pair stands.
#[derive(Clone, Debug)]
pub enum LentState {
    /// The drive does not know it, and touches nothing of it.
    Absent,
    /// It is being made, being deleted, or a reset has to end first.
    Changing,
    /// No further I/O will be possible.
    Failed(Arc<DriverError>),
    /// The drive serves it.
    Open,
}

/// How an Abort was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AbortAnswer {
    /// The command completes with the status for that.
    Aborted,
    /// The drive did not abort it: it has completed, or the drive has lost it.
    NotAborted,
}

/// An Abort that was sent.
#[derive(Debug)]
pub struct AbortTicket {
    ticket: Ticket,
    epoch: u64,
}

#[derive(Debug)]
enum Step {
    Absent,
    AwaitingReset,
    Creating { stage: Stage, ticket: Option<Ticket> },
    Deleting { stage: Stage, ticket: Option<Ticket> },
    Failed(Arc<DriverError>),
    Open,
}

/// A queue pair that others use. Dropping it has it deleted; its memory is kept until then.
pub struct LentQueue {
    shared: Arc<Shared>,
    id: QueueId,
    memory: Option<LentMemory>,
    step: Step,
    epoch: u64,
}

impl std::fmt::Debug for LentQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LentQueue({}, {:?})", self.id, self.step)
    }
}

impl LentQueue {
    pub(crate) fn new(shared: Arc<Shared>, memory: LentMemory) -> Result<Self, DriverError> {
        let mut lifecycle = shared.lock();
        if let Some(error) = lifecycle.failure() {
            return Err(DriverError::Misuse(format!("no queue can be lent: {error}")));
        }
        let Some(depth_max) = lifecycle.controller().map(|controller| controller.entries_max)
        else {
            let text = "no queue can be lent before the controller is ready";
            return Err(DriverError::Misuse(text.to_owned()));
        };
        if !(2..=depth_max).contains(&memory.entries) {
            let what = "the queue's entries";
            let why = format!("{} is not in 2..={depth_max}", memory.entries);
            return Err(DriverError::Unsupported { what, why });
        }
        let id = lifecycle.acquire_queue()?;
        let epoch = lifecycle.epoch();
        drop(lifecycle);
        Ok(Self { shared, id, memory: Some(memory), step: Step::Absent, epoch })
    }

    /// Identifier of both queues.
    pub fn id(&self) -> QueueId {
        self.id
    }

    /// Register offset of the submission queue's doorbell.
    pub fn submission_doorbell(&self) -> usize {
        registers::submission_doorbell(self.id, self.shared.stride)
    }

    /// Register offset of the completion queue's doorbell.
    pub fn completion_doorbell(&self) -> usize {
        registers::completion_doorbell(self.id, self.shared.stride)
    }

    /// Where it stands.
    pub fn state(&self) -> LentState {
        match &self.step {
            Step::Absent => LentState::Absent,
            Step::Failed(error) => LentState::Failed(Arc::clone(error)),
            Step::Open => LentState::Open,
            _ => LentState::Changing,
        }
    }

    /// Has an absent pair made. The memory is as the first use of a queue needs it: all completion
    /// entries zero, positions at 0.
    pub fn create(&mut self) {
        if matches!(self.step, Step::Absent) {
            self.step = Step::Creating { stage: Stage::Completion, ticket: None };
        }
    }

    /// Has an open pair deleted. Its commands end, or never will.
    pub fn delete(&mut self) {
        if matches!(self.step, Step::Open) {
            self.step = Step::Deleting { stage: Stage::Submission, ticket: None };
        }
    }

    /// Moves it on. Short, never blocks; also notices resets, and a controller that needs one.
    pub fn poll(&mut self, now_ns: u64) -> LentState {
        let shared = Arc::clone(&self.shared);
        let mut lifecycle = shared.step(now_ns);
        if let Some(error) = lifecycle.failure() {
            self.step = Step::Failed(error);
        } else if lifecycle.epoch() != self.epoch {
            self.follow_reset(&lifecycle);
        } else if lifecycle.is_ready() && self.exchange(&mut lifecycle, now_ns).is_err() {
            lifecycle.request_reset();
            self.step = Step::AwaitingReset;
        }
        self.state()
    }

    /// After a reset nothing is reached any more once the controller was disabled.
    fn follow_reset(&mut self, lifecycle: &Lifecycle) {
        if !lifecycle.is_dead(self.epoch) {
            if !matches!(self.step, Step::Absent) {
                self.step = Step::AwaitingReset;
            }
            return;
        }
        self.epoch = lifecycle.epoch();
        self.step = Step::Absent;
    }

    fn command(&self, stage: Stage, creates: bool) -> (&'static str, Command) {
        let memory = self.memory.as_ref().expect("there until it is dropped");
        let queue = self.id;
        let delete = DeleteQueue { queue };
        let entries_z = u16::try_from(memory.entries - 1).expect("at most 65536 entries");
        let contiguous = true;
        match (creates, stage) {
            (true, Stage::Completion) => {
                let interrupt = None;
                let create = CreateCompletionQueue { queue, entries_z, contiguous, interrupt };
                let command = create.encode().with_prps(memory.completion, 0);
                ("Create I/O Completion Queue", command)
            }
            (true, Stage::Submission) => {
                let (priority, completion_queue) = (0, queue);
                let create = CreateSubmissionQueue {
                    queue,
                    entries_z,
                    contiguous,
                    priority,
                    completion_queue,
                };
                let command = create.encode().with_prps(memory.submission, 0);
                ("Create I/O Submission Queue", command)
            }
            (false, Stage::Submission) => {
                ("Delete I/O Submission Queue", delete.encode_submission())
            }
            (false, Stage::Completion) => {
                ("Delete I/O Completion Queue", delete.encode_completion())
            }
        }
    }

    /// One admin command after the other.
    fn exchange(&mut self, lifecycle: &mut Lifecycle, now_ns: u64) -> Result<(), ()> {
        let (creates, stage, ticket) = match self.step {
            Step::Creating { stage, ticket } => (true, stage, ticket),
            Step::Deleting { stage, ticket } => (false, stage, ticket),
            // A reset was asked for in this epoch but the lifecycle had one under way.
            Step::AwaitingReset => return Err(()),
            _ => return Ok(()),
        };
        let (operation, command) = self.command(stage, creates);
        let Some(sent) = ticket else {
            let ticket = lifecycle.admin.submit(now_ns, operation, command);
            self.step = if creates {
                Step::Creating { stage, ticket }
            } else {
                Step::Deleting { stage, ticket }
            };
            return Ok(());
        };
        let Some(answer) = lifecycle.admin.take(sent) else { return Ok(()) };
        let status = match answer {
            Answer::Completed { status, .. } => status,
            Answer::Lost => return Err(()),
        };
        if !status.is_success() {
            if creates {
                let error = DriverError::Status { operation, status };
                self.step = Step::Failed(Arc::new(error));
                return Ok(());
            }
            return Err(());
        }
        self.step = match (creates, stage) {
            (true, Stage::Completion) => Step::Creating { stage: Stage::Submission, ticket: None },
            (true, Stage::Submission) => Step::Open,
            (false, Stage::Submission) => Step::Deleting { stage: Stage::Completion, ticket: None },
            (false, Stage::Completion) => Step::Absent,
        };
        Ok(())
    }

    /// Sends an Abort; `None` while the drive takes no more of them, or the pair is not open.
    pub fn try_abort(&mut self, now_ns: u64, command: CommandId) -> Option<AbortTicket> {
        if !matches!(self.step, Step::Open) {
            return None;
        }
        let mut lifecycle = self.shared.step(now_ns);
        if !lifecycle.is_ready() || lifecycle.epoch() != self.epoch {
            return None;
        }
        let aborts_max = lifecycle.controller().map_or(1, |controller| controller.aborts_max);
        if lifecycle.aborts_in_flight >= aborts_max {
            return None;
        }
        let abort = Abort { queue: self.id, command }.encode();
        let ticket = lifecycle.admin.submit(now_ns, "Abort", abort)?;
        lifecycle.aborts_in_flight += 1;
        Some(AbortTicket { ticket, epoch: self.epoch })
    }

    /// The answer to an Abort, once. `NotAborted` where a reset ended it.
    pub fn take_abort(&mut self, now_ns: u64, abort: &AbortTicket) -> Option<AbortAnswer> {
        let mut lifecycle = self.shared.step(now_ns);
        if lifecycle.epoch() != abort.epoch {
            return Some(AbortAnswer::NotAborted);
        }
        let answer = lifecycle.admin.take(abort.ticket)?;
        lifecycle.aborts_in_flight = lifecycle.aborts_in_flight.saturating_sub(1);
        Some(if was_aborted(answer) { AbortAnswer::Aborted } else { AbortAnswer::NotAborted })
    }

    /// Resets the controller, unless that is under way: the last way to be rid of a command.
    pub fn reset(&mut self, now_ns: u64) {
        self.shared.reset(now_ns);
        if !matches!(self.step, Step::Absent | Step::Failed(_)) {
            self.step = Step::AwaitingReset;
        }
    }
}

impl Drop for LentQueue {
    fn drop(&mut self) {
        let mut lifecycle = self.shared.lock();
        if matches!(self.step, Step::Absent) {
            lifecycle.release_queue(self.id);
            return;
        }
        let kept = Box::new(self.memory.take());
        lifecycle.adopt(Orphan { queue: self.id, epoch: self.epoch, kept });
    }
}
