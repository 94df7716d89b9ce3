//! The controller as all queues share it: its life, its admin queue, its queue identifiers.
//!
//! ```text
//! BringUp -> Describe(controller, queue count, namespaces...) -> Ready -> Stopping -> Stopped
//!    ^                                                             |
//!    +------------------------ reset ------------------------------+       any -> Failed
//! ```
//!
//! Resets are counted by an epoch. When the epoch changes, every I/O queue of an earlier epoch must
//! stop; once [`Lifecycle::is_dead`] says so, the drive touches nothing of theirs any more.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mem::{MemoryKind, Region};
use proto::{Action, BringUp, BringUpError, BringUpOptions, Phase, Shutdown};
use spec::admin::{DeleteQueue, Feature, Identify, QueueCounts, SetFeatures};
use spec::identify::{
    ActiveNamespaces, Cns, IDENTIFY_BYTES, IdentifyController, IdentifyNamespace,
};
use spec::registers::{self, Capabilities, ControllerStatus, Version};
use spec::{Command, Nsid, QueueId, Status};
use zerocopy::FromBytes;

use crate::admin::{AdminQueue, Answer, Ticket};
use crate::describe::{Controller, Namespace};
use crate::device::{Device, Mapping};
use crate::driver::DriverOptions;
use crate::error::DriverError;

/// Register writes in one step, so that a step is short.
const ACTIONS_A_STEP: usize = 8;

/// How often a start that went wrong is tried again before the controller counts as failed.
const STARTS_AGAIN_MAX: u32 = 2;

/// What all users of one controller share.
pub(crate) struct Shared {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) options: DriverOptions,
    /// Doorbell stride, from CAP.
    pub(crate) stride: usize,
    /// Copy of the lifecycle's epoch, for queues to look at without the lock.
    epoch: AtomicU64,
    lifecycle: Mutex<Lifecycle>,
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Lifecycle> {
        self.lifecycle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The epoch as last published.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        // Pairs with the Release in `step`.
        self.epoch.load(Ordering::Acquire)
    }

    /// Moves the controller on and publishes its epoch.
    pub(crate) fn step(&self, now_ns: u64) -> MutexGuard<'_, Lifecycle> {
        let mut lifecycle = self.lock();
        lifecycle.step(now_ns);
        // Pairs with the Acquire in `epoch`.
        self.epoch.store(lifecycle.epoch, Ordering::Release);
        lifecycle
    }

    /// Resets the controller, unless that is under way.
    pub(crate) fn reset(&self, now_ns: u64) {
        self.lock().request_reset();
        drop(self.step(now_ns));
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Question {
    Controller,
    QueueCount,
    NamespaceList,
    Namespace(Nsid),
}

enum Life {
    BringUp(BringUp),
    Describe { question: Question, ticket: Option<Ticket> },
    Ready,
    Stopping(Shutdown),
    Stopped,
    Failed(Arc<DriverError>),
}

/// A queue pair that its user dropped while the drive knew it.
pub(crate) struct Orphan {
    pub(crate) queue: QueueId,
    pub(crate) epoch: u64,
    /// Queue memory and buffers in flight, kept until the drive has forgotten them.
    pub(crate) kept: Box<dyn Send>,
}

enum Removal {
    Submission(Option<Ticket>),
    Completion(Option<Ticket>),
}

pub(crate) struct Lifecycle {
    device: Arc<dyn Device>,
    cap: Capabilities,
    ready_limit_max: Duration,
    namespaces_max: usize,
    pub(crate) admin: AdminQueue,
    page: Mapping,
    life: Life,
    epoch: u64,
    dead_before: u64,
    resets: u64,
    starts_left: u32,
    pub(crate) aborts_in_flight: u32,
    controller: Option<Controller>,
    pending: Vec<Nsid>,
    namespaces: Vec<Namespace>,
    in_use: Vec<bool>,
    orphans: Vec<(Orphan, Removal)>,
}

/// Reads the capabilities and prepares everything that the first step needs.
pub(crate) fn start(
    device: Arc<dyn Device>,
    options: DriverOptions,
) -> Result<Arc<Shared>, DriverError> {
    let cap = Capabilities::from_bits(device.load64(registers::CAP));
    let stride = registers::doorbell_stride(cap.dstrd());
    let admin = AdminQueue::new(Arc::clone(&device), stride, options.admin_limit)?;
    let page = device.map(&Region::map_anonymous(IDENTIFY_BYTES, MemoryKind::Host)?)?;
    let mut lifecycle = Lifecycle {
        device: Arc::clone(&device),
        cap,
        ready_limit_max: options.ready_limit_max,
        namespaces_max: options.namespaces_max,
        admin,
        page,
        life: Life::Stopped,
        epoch: 1,
        dead_before: 0,
        resets: 0,
        starts_left: STARTS_AGAIN_MAX,
        aborts_in_flight: 0,
        controller: None,
        pending: Vec::new(),
        namespaces: Vec::new(),
        in_use: vec![false; usize::from(options.queues_max)],
        orphans: Vec::new(),
    };
    lifecycle.life = Life::BringUp(lifecycle.bring_up()?);
    let epoch = AtomicU64::new(lifecycle.epoch);
    let lifecycle = Mutex::new(lifecycle);
    Ok(Arc::new(Shared { device, options, stride, epoch, lifecycle }))
}

impl Lifecycle {
    fn bring_up(&self) -> Result<BringUp, BringUpError> {
        BringUp::new(
            self.cap,
            BringUpOptions {
                admin_entries: self.admin.entries(),
                submission_address: self.admin.memory().submission_address(),
                completion_address: self.admin.memory().completion_address(),
                limit_max: self.ready_limit_max,
            },
        )
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether the drive touches nothing any more that belonged to a queue of this epoch.
    pub(crate) fn is_dead(&self, epoch: u64) -> bool {
        epoch < self.dead_before
    }

    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.life, Life::Ready)
    }

    /// Why there will be no further I/O, where that is so.
    pub(crate) fn failure(&self) -> Option<Arc<DriverError>> {
        match &self.life {
            Life::Failed(error) => Some(Arc::clone(error)),
            Life::Stopped => Some(Arc::new(DriverError::Stopped)),
            _ => None,
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        matches!(self.life, Life::Stopped)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        matches!(self.life, Life::Stopping(_))
    }

    pub(crate) fn resets(&self) -> u64 {
        self.resets
    }

    pub(crate) fn controller(&self) -> Option<&Controller> {
        self.controller.as_ref()
    }

    pub(crate) fn namespaces(&self) -> &[Namespace] {
        &self.namespaces
    }

    fn fail(&mut self, error: DriverError) {
        self.epoch += 1;
        self.life = Life::Failed(Arc::new(error));
    }

    /// Resets the controller where it was running; otherwise its life goes its way.
    pub(crate) fn request_reset(&mut self) {
        if !self.is_ready() {
            return;
        }
        self.epoch += 1;
        self.resets += 1;
        match self.bring_up() {
            Ok(machine) => self.life = Life::BringUp(machine),
            Err(error) => self.fail(error.into()),
        }
    }

    pub(crate) fn request_shutdown(&mut self) {
        if !matches!(self.life, Life::Failed(_) | Life::Stopped | Life::Stopping(_)) {
            self.epoch += 1;
            self.life = Life::Stopping(Shutdown::new());
        }
    }

    fn csts(&self) -> ControllerStatus {
        ControllerStatus::from_bits(self.device.load32(registers::CSTS))
    }

    pub(crate) fn step(&mut self, now_ns: u64) {
        let result = match self.life {
            Life::BringUp(_) => self.step_bring_up(now_ns),
            Life::Describe { question, ticket } => self.step_describe(now_ns, question, ticket),
            Life::Ready => {
                self.step_ready(now_ns);
                Ok(())
            }
            Life::Stopping(_) => self.step_stopping(now_ns),
            Life::Stopped | Life::Failed(_) => Ok(()),
        };
        if let Err(error) = result {
            self.start_again(error);
        }
    }

    /// A start that went wrong is tried again, where that can help.
    fn start_again(&mut self, error: DriverError) {
        let starting = matches!(self.life, Life::BringUp(_) | Life::Describe { .. });
        let passing = matches!(
            error,
            DriverError::AdminTimeout { .. }
                | DriverError::Misbehaved(_)
                | DriverError::Controller(
                    BringUpError::Fatal { .. } | BringUpError::Timeout { .. }
                )
        );
        if starting && passing && self.starts_left > 0 {
            self.starts_left -= 1;
            match self.bring_up() {
                Ok(machine) => self.life = Life::BringUp(machine),
                Err(error) => self.fail(error.into()),
            }
        } else {
            self.fail(error);
        }
    }

    fn perform(&self, action: Action) -> bool {
        match action {
            Action::Done | Action::Wait => return false,
            Action::Write32 { offset, value } => self.device.store32(offset, value),
            Action::Write64 { offset, value } => self.device.store64(offset, value),
        }
        true
    }

    fn step_bring_up(&mut self, now_ns: u64) -> Result<(), DriverError> {
        for _ in 0..ACTIONS_A_STEP {
            let csts = self.csts();
            let Life::BringUp(machine) = &mut self.life else { return Ok(()) };
            let before = machine.is_past_disable();
            let action = machine.step(now_ns, csts)?;
            let (disabled, ready) =
                (machine.is_past_disable() && !before, machine.phase() == Phase::Ready);
            if disabled {
                self.settle_dead();
            }
            if ready {
                self.namespaces.clear();
                self.life = Life::Describe { question: Question::Controller, ticket: None };
            }
            if !self.perform(action) {
                break;
            }
        }
        Ok(())
    }

    /// The controller has been disabled: nothing from before this epoch is reached any more.
    fn settle_dead(&mut self) {
        self.dead_before = self.epoch;
        self.admin.restart();
        self.aborts_in_flight = 0;
        for (orphan, _) in std::mem::take(&mut self.orphans) {
            self.release_queue(orphan.queue);
        }
    }

    fn step_stopping(&mut self, now_ns: u64) -> Result<(), DriverError> {
        for _ in 0..ACTIONS_A_STEP {
            let csts = self.csts();
            let Life::Stopping(machine) = &mut self.life else { return Ok(()) };
            let action = machine.step(now_ns, csts)?;
            if action == Action::Done {
                self.settle_dead();
                self.life = Life::Stopped;
            }
            if !self.perform(action) {
                break;
            }
        }
        Ok(())
    }

    fn command(&self, question: Question) -> (&'static str, Command) {
        let identify = |cns, nsid| {
            let command = Identify { cns, controller: 0, nsid }.encode();
            command.with_prps(self.page.address(), 0)
        };
        match question {
            Question::Controller => ("Identify Controller", identify(Cns::CONTROLLER, Nsid::NONE)),
            Question::QueueCount => {
                let count_z = u16::try_from(self.in_use.len().max(1) - 1).unwrap_or(u16::MAX - 1);
                let counts = QueueCounts { submission_z: count_z, completion_z: count_z };
                let feature = Feature::QUEUE_COUNT;
                let set = SetFeatures { feature, save: false, value: counts.encode() };
                ("Set Features (Number of Queues)", set.encode())
            }
            Question::NamespaceList => {
                ("Identify (active namespaces)", identify(Cns::ACTIVE_NAMESPACES, Nsid::NONE))
            }
            Question::Namespace(nsid) => ("Identify Namespace", identify(Cns::NAMESPACE, nsid)),
        }
    }

    fn step_describe(
        &mut self,
        now_ns: u64,
        question: Question,
        ticket: Option<Ticket>,
    ) -> Result<(), DriverError> {
        let (operation, command) = self.command(question);
        let Some(ticket) = ticket else {
            let ticket = self.admin.submit(now_ns, operation, command);
            self.life = Life::Describe { question, ticket };
            return Ok(());
        };
        self.admin.poll(now_ns)?;
        let Some(Answer::Completed { status, result }) = self.admin.take(ticket) else {
            return Ok(());
        };
        if !status.is_success() {
            return Err(DriverError::Status { operation, status });
        }
        self.life = match self.learn(question, result)? {
            Some(question) => Life::Describe { question, ticket: None },
            None => {
                self.starts_left = STARTS_AGAIN_MAX;
                Life::Ready
            }
        };
        Ok(())
    }

    fn page<T: FromBytes>(&self) -> T {
        let mut bytes = [0; IDENTIFY_BYTES];
        self.page.region().read_bytes(0, &mut bytes);
        T::read_from_bytes(&bytes).expect("every identify structure has 4096 bytes")
    }

    /// Takes in an answer and says what to ask next.
    fn learn(&mut self, question: Question, result: u32) -> Result<Option<Question>, DriverError> {
        match question {
            Question::Controller => {
                let version = Version::from_bits(self.device.load32(registers::VS));
                let page = self.page::<IdentifyController>();
                self.controller = Some(Controller::decode(self.cap, version, &page)?);
                return Ok(Some(Question::QueueCount));
            }
            Question::QueueCount => {
                let counts = QueueCounts::decode(result);
                let granted = counts.submission_z.min(counts.completion_z).saturating_add(1);
                let wanted = u16::try_from(self.in_use.len()).unwrap_or(u16::MAX);
                if let Some(controller) = &mut self.controller {
                    controller.queues_max = granted.min(wanted);
                }
                return Ok(Some(Question::NamespaceList));
            }
            Question::NamespaceList => {
                self.pending = self.page::<ActiveNamespaces>().iter().collect();
                self.pending.truncate(self.namespaces_max);
                self.pending.reverse();
            }
            Question::Namespace(nsid) => {
                let namespace = Namespace::decode(nsid, &self.page::<IdentifyNamespace>())?;
                self.namespaces.push(namespace);
            }
        }
        Ok(self.pending.pop().map(Question::Namespace))
    }

    fn step_ready(&mut self, now_ns: u64) {
        let csts = self.csts();
        let sick = csts == ControllerStatus::GONE || csts.cfs() || !csts.rdy();
        if sick || self.admin.poll(now_ns).is_err() {
            self.request_reset();
            return;
        }
        for (orphan, mut removal) in std::mem::take(&mut self.orphans) {
            match self.step_removal(now_ns, &orphan, &mut removal) {
                Ok(true) => self.release_queue(orphan.queue),
                Ok(false) => self.orphans.push((orphan, removal)),
                Err(Refused) => {
                    self.orphans.push((orphan, removal));
                    self.request_reset();
                    return;
                }
            }
        }
    }

    fn step_removal(
        &mut self,
        now_ns: u64,
        orphan: &Orphan,
        removal: &mut Removal,
    ) -> Result<bool, Refused> {
        let delete = DeleteQueue { queue: orphan.queue };
        let (ticket, operation, command) = match removal {
            Removal::Submission(ticket) => {
                (ticket, "Delete I/O Submission Queue", delete.encode_submission())
            }
            Removal::Completion(ticket) => {
                (ticket, "Delete I/O Completion Queue", delete.encode_completion())
            }
        };
        let Some(sent) = *ticket else {
            *ticket = self.admin.submit(now_ns, operation, command);
            return Ok(false);
        };
        match self.admin.take(sent) {
            None => Ok(false),
            Some(Answer::Completed { status, .. })
                if status.is_success() || status.is(Status::INVALID_QUEUE_ID) =>
            {
                let done = matches!(removal, Removal::Completion(_));
                *removal = Removal::Completion(None);
                Ok(done)
            }
            Some(_) => Err(Refused),
        }
    }

    /// Takes a free queue identifier.
    pub(crate) fn acquire_queue(&mut self) -> Result<QueueId, DriverError> {
        let granted = self.controller.as_ref().map_or(0, |controller| controller.queues_max);
        let free = (1u16..=granted).zip(&mut self.in_use).find(|(_, in_use)| !**in_use);
        let Some((id, in_use)) = free else {
            let limit = u32::from(granted);
            return Err(DriverError::Exhausted { resource: "I/O queue pairs", limit });
        };
        *in_use = true;
        Ok(QueueId(id))
    }

    pub(crate) fn release_queue(&mut self, queue: QueueId) {
        let index = usize::from(queue.0).checked_sub(1);
        if let Some(in_use) = index.and_then(|index| self.in_use.get_mut(index)) {
            *in_use = false;
        }
    }

    /// Deletes a queue that its user has left, and keeps its memory until then.
    pub(crate) fn adopt(&mut self, orphan: Orphan) {
        if self.is_dead(orphan.epoch) {
            self.release_queue(orphan.queue);
            drop(orphan.kept);
        } else {
            self.orphans.push((orphan, Removal::Submission(None)));
        }
    }
}

/// The drive did not delete a queue.
struct Refused;
