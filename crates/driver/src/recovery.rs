//! How a queue gets rid of requests that do not end, and of a drive that cannot be trusted.
//!
//! ```text
//!            create CQ, create SQ
//! Creating -----------------------> Open --(a command cannot be aborted, or misbehaviour)--+
//!    ^                                                                                     |
//!    +---- delete SQ, delete CQ ---- Deleting <---------------------------------------------+
//!    |                                  | refused, or not in time
//!    +---- controller ready again -- AwaitingReset ---(controller failed)--> Failed
//! ```
//!
//! Commands that are given up pass their own small machine while the queue is open: an Abort is
//! sent; where it succeeds the command's completion follows within a grace; else the queue goes.
//! Before it goes it is drained: nothing new is sent until the other commands have completed or
//! have been given up themselves, within a bound. So a healthy drive loses no work to the deletion,
//! and a command whose completion is lost ends by its own deadline, not by being sent again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use proto::{Lost, Misbehaved};
use spec::admin::{Abort, CreateCompletionQueue, CreateSubmissionQueue, DeleteQueue};
use spec::registers::{self, ControllerStatus};
use spec::{Command, CommandId, Status};

use crate::admin::{Answer, Ticket};
use crate::error::DriverError;
use crate::io_queue::{Ended, InFlight, IoQueue};

/// Steps of making and deleting a queue pair, each one admin command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    Completion,
    Submission,
}

#[derive(Debug)]
pub(crate) enum State {
    AwaitingReset { collected: bool },
    Creating { stage: Stage, ticket: Option<Ticket> },
    Deleting { stage: Stage, ticket: Option<Ticket> },
    Failed(Arc<DriverError>),
    Open,
}

impl State {
    /// A queue that the drive does not know yet.
    pub(crate) fn new() -> Self {
        Self::Creating { stage: Stage::Completion, ticket: None }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Effort {
    /// An Abort has to be sent.
    Wanted,
    /// It has been sent.
    Sent(Ticket),
    /// It has been answered; the command's completion must come until then.
    Answered { until_ns: u64 },
}

/// A command that somebody lost patience with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GivingUp {
    pub(crate) command: CommandId,
    effort: Effort,
}

impl GivingUp {
    pub(crate) fn new(command: CommandId) -> Self {
        Self { command, effort: Effort::Wanted }
    }
}

/// A request has lost its queue: it ends if it was given up, or lost one before; else it goes again.
pub(crate) fn take_lost(
    given_up: bool,
    lost: InFlight,
    backlog: &mut VecDeque<InFlight>,
    ended: &mut Vec<Ended>,
) {
    let token = lost.request.token;
    if given_up {
        ended.push(Ended { token, status: Status::ABORTED_BY_HOST });
    } else if lost.resubmitted {
        ended.push(Ended { token, status: Status::ABORTED_QUEUE_DELETION });
    } else {
        backlog.push_back(InFlight { resubmitted: true, ..lost });
    }
}

/// Whether the answer to an Abort says that the command will complete as aborted.
pub(crate) fn was_aborted(answer: Answer) -> bool {
    match answer {
        Answer::Completed { status, result } => {
            status.is_success() && result & Abort::NOT_ABORTED == 0
        }
        Answer::Lost => false,
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl IoQueue {
    pub(crate) fn is_failed(&self) -> bool {
        matches!(self.state, State::Failed(_))
    }

    /// The error for a request to a queue that has failed.
    pub(crate) fn failure(&self) -> Option<DriverError> {
        match &self.state {
            State::Failed(error) if matches!(**error, DriverError::Stopped) => {
                Some(DriverError::Stopped)
            }
            State::Failed(error) => {
                let (what, why) = ("a request on a failed controller", error.to_string());
                Some(DriverError::Unsupported { what, why })
            }
            _ => None,
        }
    }

    /// The controller has been reset, or is about to be: nothing more is sent in this epoch.
    pub(crate) fn leave_epoch(&mut self) {
        if !matches!(self.state, State::AwaitingReset { .. } | State::Failed(_)) {
            self.drain_until_ns = None;
            self.state = State::AwaitingReset { collected: false };
        }
    }

    /// While the queue is open: deadlines, given-up commands, the controller's health.
    pub(crate) fn look_for_trouble(
        &mut self,
        now_ns: u64,
        untrusted: bool,
        ended: &mut Vec<Ended>,
    ) {
        if untrusted {
            self.start_deleting();
            return;
        }
        if now_ns >= self.pair.deadline_bound_ns() {
            let mut overdue = Vec::new();
            self.pair.take_overdue(now_ns, &mut overdue);
            overdue.into_iter().for_each(|command| self.give_up(command));
        }
        if !self.giving_up.is_empty() {
            self.step_giving_up(now_ns);
        }
        if !self.backlog.is_empty() && self.is_open() {
            self.send_backlog(now_ns, ended);
        }
        if now_ns >= self.health_due_ns && self.pair.in_flight() > 0 {
            self.health_due_ns =
                now_ns.saturating_add(nanoseconds(self.shared.options.health_interval));
            let csts = ControllerStatus::from_bits(self.shared.device.load32(registers::CSTS));
            if csts == ControllerStatus::GONE || csts.cfs() || !csts.rdy() {
                self.shared.reset(now_ns);
            }
        }
    }

    fn send_backlog(&mut self, now_ns: u64, ended: &mut Vec<Ended>) {
        self.expire_backlog(now_ns, ended);
        while let Some(waiting) = self.backlog.pop_front() {
            if let Err(waiting) = self.send(waiting) {
                self.backlog.push_front(waiting);
                break;
            }
            self.counters.resubmitted += 1;
        }
        self.ring();
    }

    /// What waits to be sent again is nowhere near the drive, so it can end at once.
    fn expire_backlog(&mut self, now_ns: u64, ended: &mut Vec<Ended>) {
        self.backlog.retain(|waiting| {
            let keep = waiting.request.deadline_ns > now_ns;
            if !keep {
                let (token, status) = (waiting.request.token, Status::ABORTED_BY_HOST);
                ended.push(Ended { token, status });
            }
            keep
        });
    }

    fn step_giving_up(&mut self, now_ns: u64) {
        let shared = Arc::clone(&self.shared);
        let mut lifecycle = shared.step(now_ns);
        let aborts_max = lifecycle.controller().map_or(1, |controller| controller.aborts_max);
        let grace_ns = nanoseconds(shared.options.abort_grace);
        let mut hopeless = 0;
        self.giving_up.retain_mut(|one| {
            match one.effort {
                Effort::Wanted if lifecycle.is_ready() => {
                    if lifecycle.aborts_in_flight < aborts_max
                        && self.pair.is_in_flight(one.command)
                    {
                        let command = Abort { queue: self.id, command: one.command }.encode();
                        if let Some(ticket) = lifecycle.admin.submit(now_ns, "Abort", command) {
                            lifecycle.aborts_in_flight += 1;
                            one.effort = Effort::Sent(ticket);
                        }
                    }
                }
                Effort::Sent(ticket) => {
                    if let Some(answer) = lifecycle.admin.take(ticket) {
                        lifecycle.aborts_in_flight = lifecycle.aborts_in_flight.saturating_sub(1);
                        // Not aborted means that the completion is there already, or that the drive
                        // has lost the command: one more look at the queue tells.
                        let grace_ns = if was_aborted(answer) { grace_ns } else { 0 };
                        one.effort = Effort::Answered { until_ns: now_ns.saturating_add(grace_ns) };
                    }
                }
                Effort::Answered { until_ns } => {
                    let gone = now_ns >= until_ns && self.pair.is_in_flight(one.command);
                    hopeless += usize::from(gone);
                }
                Effort::Wanted => {}
            }
            matches!(one.effort, Effort::Sent(_)) || self.pair.is_in_flight(one.command)
        });
        drop(lifecycle);
        self.step_draining(now_ns, hopeless);
    }

    /// Deletes the queue once only hopeless commands are left, or the bound has passed.
    fn step_draining(&mut self, now_ns: u64, hopeless: usize) {
        if hopeless == 0 {
            self.drain_until_ns = None;
            return;
        }
        let limit_ns = nanoseconds(self.shared.options.drain_limit);
        let until_ns = *self.drain_until_ns.get_or_insert(now_ns.saturating_add(limit_ns));
        if hopeless == self.pair.in_flight() || now_ns >= until_ns {
            self.start_deleting();
        }
    }

    fn start_deleting(&mut self) {
        self.counters.recoveries += 1;
        self.drain_until_ns = None;
        self.state = State::Deleting { stage: Stage::Submission, ticket: None };
    }

    /// While the queue is not open: one admin command after the other.
    pub(crate) fn step_recovery(
        &mut self,
        now_ns: u64,
        ended: &mut Vec<Ended>,
    ) -> Option<Misbehaved> {
        self.expire_backlog(now_ns, ended);
        match self.state {
            State::Open | State::Failed(_) => None,
            State::AwaitingReset { collected } => self.step_reset(now_ns, collected, ended),
            State::Creating { stage, ticket } => {
                self.step_creating(now_ns, stage, ticket, ended);
                None
            }
            State::Deleting { stage, ticket } => {
                // What still completes meanwhile has completed; what the drive says besides is no
                // longer news.
                let _ = self.drain(ended);
                self.step_deleting(now_ns, stage, ticket, ended);
                None
            }
        }
    }

    /// Sends one admin command, or looks for its answer.
    fn exchange(
        &mut self,
        now_ns: u64,
        operation: &'static str,
        command: Command,
        ticket: Option<Ticket>,
    ) -> (Option<Ticket>, Option<Answer>) {
        let mut lifecycle = self.shared.step(now_ns);
        if !lifecycle.is_ready() || lifecycle.epoch() != self.epoch {
            return (ticket, None);
        }
        match ticket {
            None => (lifecycle.admin.submit(now_ns, operation, command), None),
            Some(sent) => (ticket, lifecycle.admin.take(sent)),
        }
    }

    fn creation(&self, stage: Stage) -> (&'static str, Command) {
        let memory = self.memory.as_ref().expect("a queue has memory until it is dropped");
        let entries_z = u16::try_from(self.depth).expect("depths are at most 4096");
        let (queue, contiguous) = (self.id, true);
        match stage {
            Stage::Completion => {
                let interrupt = None;
                let create = CreateCompletionQueue { queue, entries_z, contiguous, interrupt };
                let command = create.encode().with_prps(memory.completion_address(), 0);
                ("Create I/O Completion Queue", command)
            }
            Stage::Submission => {
                let (priority, completion_queue) = (0, queue);
                let create = CreateSubmissionQueue {
                    queue,
                    entries_z,
                    contiguous,
                    priority,
                    completion_queue,
                };
                let command = create.encode().with_prps(memory.submission_address(), 0);
                ("Create I/O Submission Queue", command)
            }
        }
    }

    fn step_creating(
        &mut self,
        now_ns: u64,
        stage: Stage,
        ticket: Option<Ticket>,
        ended: &mut Vec<Ended>,
    ) {
        if let (Stage::Completion, None, Some(memory)) = (stage, ticket, &self.memory) {
            memory.clear_completions();
        }
        let (operation, command) = self.creation(stage);
        let (ticket, answer) = self.exchange(now_ns, operation, command, ticket);
        self.state = match (answer, stage) {
            (None, _) => State::Creating { stage, ticket },
            (Some(Answer::Lost), _) => State::AwaitingReset { collected: false },
            (Some(Answer::Completed { status, .. }), _) if !status.is_success() => {
                self.fail(Arc::new(DriverError::Status { operation, status }), ended);
                return;
            }
            (Some(_), Stage::Completion) => {
                State::Creating { stage: Stage::Submission, ticket: None }
            }
            (Some(_), Stage::Submission) => State::Open,
        };
    }

    fn step_deleting(
        &mut self,
        now_ns: u64,
        stage: Stage,
        ticket: Option<Ticket>,
        ended: &mut Vec<Ended>,
    ) {
        let delete = DeleteQueue { queue: self.id };
        let (operation, command) = match stage {
            Stage::Submission => ("Delete I/O Submission Queue", delete.encode_submission()),
            Stage::Completion => ("Delete I/O Completion Queue", delete.encode_completion()),
        };
        let (ticket, answer) = self.exchange(now_ns, operation, command, ticket);
        let Some(answer) = answer else {
            self.state = State::Deleting { stage, ticket };
            return;
        };
        let deleted = matches!(answer, Answer::Completed { status, .. } if status.is_success());
        match stage {
            _ if !deleted => {
                self.state = State::AwaitingReset { collected: false };
                self.shared.reset(now_ns);
            }
            Stage::Submission => {
                self.state = State::Deleting { stage: Stage::Completion, ticket: None };
            }
            Stage::Completion => {
                self.collect(now_ns, ended);
                self.state = State::new();
            }
        }
    }

    fn step_reset(
        &mut self,
        now_ns: u64,
        collected: bool,
        ended: &mut Vec<Ended>,
    ) -> Option<Misbehaved> {
        let shared = Arc::clone(&self.shared);
        let lifecycle = shared.step(now_ns);
        let dead = lifecycle.is_dead(self.epoch);
        let (failure, ready, epoch) =
            (lifecycle.failure(), lifecycle.is_ready(), lifecycle.epoch());
        drop(lifecycle);
        if dead && !collected {
            let _ = self.drain(ended);
            self.counters.recoveries += 1;
            self.collect(now_ns, ended);
            self.state = State::AwaitingReset { collected: true };
        }
        if let Some(error) = failure {
            self.fail(error, ended);
        } else if dead && ready {
            self.epoch = epoch;
            self.state = State::new();
        }
        None
    }

    /// The drive has forgotten the queue: whoever was given up ends, the others go again, once.
    fn collect(&mut self, now_ns: u64, ended: &mut Vec<Ended>) {
        let giving_up = std::mem::take(&mut self.giving_up);
        self.forget_aborts(&giving_up);
        for Lost { command, context, .. } in self.pair.restart() {
            let given_up = giving_up.iter().any(|one| one.command == command)
                || context.request.deadline_ns <= now_ns;
            take_lost(given_up, context, &mut self.backlog, ended);
        }
    }

    fn forget_aborts(&self, giving_up: &[GivingUp]) {
        let mut lifecycle = self.shared.lock();
        if lifecycle.epoch() != self.epoch {
            return;
        }
        for one in giving_up {
            if let Effort::Sent(ticket) = one.effort {
                lifecycle.admin.forget(ticket);
                lifecycle.aborts_in_flight = lifecycle.aborts_in_flight.saturating_sub(1);
            }
        }
    }

    /// There will be no further I/O. Buffers that the drive may still write stay with the queue.
    fn fail(&mut self, error: Arc<DriverError>, ended: &mut Vec<Ended>) {
        let status = Status::HOST_PATHING_ERROR;
        let ids: Vec<CommandId> = self.pair.commands().map(|(command, _)| command).collect();
        for (_, sent) in self.pair.commands() {
            ended.push(Ended { token: sent.request.token, status });
        }
        ids.into_iter().for_each(|command| {
            self.pair.retire(command);
        });
        for waiting in self.backlog.drain(..) {
            ended.push(Ended { token: waiting.request.token, status });
        }
        self.giving_up.clear();
        self.state = State::Failed(error);
    }
}
