//! The controller: its phases, and what a step does in which order.
//!
//! ```text
//!            CC.EN 0->1, all well           CC.EN 1->0
//! Disabled ------------------------> Ready -------------> Resetting --> Disabled
//!      \                               |  fatal error         ^
//!       `--- bad AQA, ASQ, ACQ, CC --> Failed (CSTS.CFS) -----' CC.EN 1->0
//! ```
//!
//! A reset ends only when the storage has let go of everything, so that nothing is written to host
//! memory after the host sees CSTS.RDY at 0.
//!
//! Source: NVMe Base Specification 2.0c, 3.5 (initialisation), 3.6 (shutdown), 3.7 (resets).

use std::collections::VecDeque;
use std::sync::Arc;

use mem::{AddressMap, Region};
use spec::registers::{Configuration, ControllerStatus};
use storage::{Completion, QueueOptions, Request, StorageError, StorageQueue};

use crate::bar::Bar;
use crate::config::{ControllerError, NamespaceOptions, Options};
use crate::counters::{Counters, SharedCounters};
use crate::dma::{Dma, Piece};
use crate::events::Events;
use crate::features::Features;
use crate::flight::Flights;
use crate::queues::{Answer, COMPLETION_BYTES, CompletionQueue, SUBMISSION_BYTES, SubmissionQueue};
use crate::timing::Timing;

/// How long a reset waits for the storage before it takes the blocking way out.
const RESET_PATIENCE_NS: u64 = 2_000_000_000;

/// What a step found to do, and so when the next one is worth while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Nothing is in flight; only a doorbell or a register can bring work.
    Idle,
    /// Not enabled, or failed: only a register can bring work.
    Stopped,
    /// Commands are in flight: at the storage, or due at this time.
    Waiting {
        /// When the next completion is due, where that is known.
        until_ns: Option<u64>,
    },
    /// Something moved; step again.
    Worked,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    Disabled,
    Failed,
    Ready,
    Resetting { since_ns: u64 },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shutdown {
    No,
    /// Commands in flight come to their end.
    Draining,
    /// The storage makes everything durable.
    Flushing,
    Complete,
}

/// A namespace at work.
pub(crate) struct Namespace {
    pub(crate) options: NamespaceOptions,
    pub(crate) block_shift: u32,
    pub(crate) blocks: u64,
    pub(crate) storage_block_bytes: u32,
    pub(crate) request_bytes_max: u32,
    pub(crate) read_only: bool,
    pub(crate) queue: Option<Box<dyn StorageQueue>>,
    /// Requests that found the storage queue full.
    pub(crate) waiting: VecDeque<Request>,
}

impl Namespace {
    fn new(options: NamespaceOptions) -> Self {
        let geometry = options.storage.geometry();
        let block = geometry.block_bytes.max(1);
        let block_shift = options.block_bytes.trailing_zeros();
        Self {
            block_shift,
            blocks: geometry.bytes >> block_shift,
            storage_block_bytes: block,
            request_bytes_max: geometry.transfer_bytes_max / block * block,
            read_only: geometry.read_only,
            queue: None,
            waiting: VecDeque::new(),
            options,
        }
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.queue.as_ref().map_or(0, |queue| queue.in_flight())
    }
}

/// A software NVMe controller.
pub struct Controller {
    pub(crate) bar: Bar,
    pub(crate) dma: Dma,
    pub(crate) options: Options,
    pub(crate) namespaces: Vec<Namespace>,
    pub(crate) phase: Phase,
    pub(crate) shutdown: Shutdown,
    configuration: Configuration,
    status: ControllerStatus,
    failure: Option<String>,
    /// By queue identifier; 0 is the admin queue.
    pub(crate) submission: Vec<Option<SubmissionQueue>>,
    pub(crate) completion: Vec<Option<CompletionQueue>>,
    /// Identifiers of the submission queues there are, ascending.
    pub(crate) active: Vec<u16>,
    pub(crate) flights: Flights,
    /// Completions of this step, in order: posted after the payload is ordered before them.
    pub(crate) outbox: Vec<Answer>,
    pub(crate) events: Events,
    pub(crate) features: Features,
    pub(crate) aborts_outstanding: u32,
    pub(crate) timing: Timing,
    pub(crate) counters: Counters,
    shared: SharedCounters,
    pub(crate) scratch_pieces: Vec<Piece>,
    pub(crate) scratch_completions: Vec<Completion>,
    pub(crate) bounce_free: Vec<Region>,
    /// Memory for requests that move none.
    pub(crate) no_memory: Region,
    pub(crate) next_doorbell: usize,
    /// Some completion queue may have a backlog.
    pub(crate) backlogged: bool,
    /// Some storage request waits for room.
    pub(crate) requests_wait: bool,
    /// Submission queues whose Delete waits for their commands.
    pub(crate) deletes_wait: u32,
}

impl Controller {
    /// Makes a controller, disabled, whose DMA reaches what is registered in `map`.
    ///
    /// # Errors
    /// [`ControllerError::BadOption`] where options or storage cannot be served.
    pub fn new(options: Options, map: Arc<AddressMap>) -> Result<Self, ControllerError> {
        options.check()?;
        let bar = Bar::new(&options)?;
        Ok(Self::assemble(options, map, bar))
    }

    /// Bytes of registers and doorbells, for [`Controller::with_bar`].
    pub fn bar_bytes(options: &Options) -> usize {
        Bar::bytes(options)
    }

    /// The same with registers and doorbells in memory of the caller's choice, zeroed here: where a
    /// host in another process has mapped it too.
    ///
    /// # Errors
    /// As [`Controller::new`], and where `bar` is too small or not aligned for words.
    pub fn with_bar(
        options: Options,
        map: Arc<AddressMap>,
        bar: Region,
    ) -> Result<Self, ControllerError> {
        options.check()?;
        let bar = Bar::over(&options, bar)?;
        Ok(Self::assemble(options, map, bar))
    }

    fn assemble(options: Options, map: Arc<AddressMap>, bar: Bar) -> Self {
        let queues = usize::from(options.queue_pairs_max) + 1;
        Self {
            // Any region does: nothing is read or written there.
            no_memory: bar.memory().clone(),
            bar,
            dma: Dma::new(map),
            namespaces: options.namespaces.iter().cloned().map(Namespace::new).collect(),
            phase: Phase::Disabled,
            shutdown: Shutdown::No,
            configuration: Configuration::new(),
            status: ControllerStatus::new(),
            failure: None,
            submission: (0..queues).map(|_| None).collect(),
            completion: (0..queues).map(|_| None).collect(),
            active: Vec::with_capacity(queues),
            flights: Flights::new(options.commands_max),
            outbox: Vec::with_capacity(options.commands_max as usize + 1),
            events: Events::default(),
            features: Features::new(options.queue_pairs_max),
            aborts_outstanding: 0,
            timing: Timing::new(&options.timing, options.pacer.as_ref()),
            counters: Counters::default(),
            shared: SharedCounters::default(),
            scratch_pieces: Vec::new(),
            scratch_completions: Vec::new(),
            bounce_free: Vec::new(),
            next_doorbell: 0,
            backlogged: false,
            requests_wait: false,
            deletes_wait: 0,
            options,
        }
    }

    /// Registers and doorbells, for the host to write and read.
    pub fn bar(&self) -> Region {
        self.bar.memory().clone()
    }

    /// What it did, readable from anywhere.
    pub fn counters(&self) -> SharedCounters {
        self.shared.clone()
    }

    /// Why CSTS.CFS is set, where it is.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// One line for people: what is stood for, over what.
    pub fn explain(&self) -> String {
        let storage: Vec<String> =
            self.namespaces.iter().map(|n| n.options.storage.explain()).collect();
        format!("software NVMe controller ({}) over {}", self.options.timing, storage.join("; "))
    }

    /// Does what there is to do at this time. Never blocks, except that a reset which the storage
    /// keeps waiting for seconds ends by `StorageQueue::quiesce`.
    ///
    /// # Cost
    /// Without work: one load a queue and a few more. No allocation once warm.
    pub fn step(&mut self, now_ns: u64) -> Progress {
        let wanted = self.bar.configuration();
        let mut progress = Progress::Stopped;
        if wanted != self.configuration {
            self.configure(wanted, now_ns);
            progress = Progress::Worked;
        }
        match self.phase {
            Phase::Disabled => {}
            Phase::Failed => self.drain_storage(),
            Phase::Resetting { since_ns } => {
                self.continue_reset(since_ns, now_ns);
                progress = Progress::Worked;
            }
            Phase::Ready => {
                let served = self.serve(now_ns);
                if progress == Progress::Stopped {
                    progress = served;
                }
            }
        }
        if progress == Progress::Worked {
            self.shared.publish(&self.counters);
        } else {
            // CSTS is read only: what a host wrote there does not stay.
            self.bar.keep_status(self.status);
        }
        progress
    }

    /// Ends everything in flight and lets go of the storage. May block for a bounded time. The
    /// host sees a controller that is disabled.
    pub fn halt(&mut self) {
        self.let_go();
        self.drop_queues();
        self.phase = Phase::Disabled;
        self.configuration = Configuration::new();
        self.bar.clear_configuration();
        self.set_status(ControllerStatus::new());
    }

    /// Ends all storage I/O, and closes the storage's queues.
    pub(crate) fn let_go(&mut self) {
        for namespace in &mut self.namespaces {
            namespace.waiting.clear();
            if let Some(mut queue) = namespace.queue.take() {
                queue.quiesce(&mut self.scratch_completions);
            }
        }
        self.scratch_completions.clear();
    }

    /// Shows the host a controller that will never answer again.
    pub(crate) fn show_broken(&mut self) {
        let status = self.status.with_cfs(true);
        self.set_status(status);
    }

    fn set_status(&mut self, status: ControllerStatus) {
        self.status = status;
        self.bar.set_status(status);
    }

    fn configure(&mut self, wanted: Configuration, now_ns: u64) {
        let before = std::mem::replace(&mut self.configuration, wanted);
        if before.en() && !wanted.en() {
            self.begin_reset(now_ns);
        } else if !before.en() && wanted.en() && self.phase == Phase::Disabled {
            self.enable();
        }
        if wanted.shn() != before.shn() && wanted.shn() != Configuration::SHN_NONE {
            self.begin_shutdown(wanted.shn());
        }
    }

    /// Source: 3.5.1; the fatal cases are those in which no queue exists to report an error in.
    fn enable(&mut self) {
        self.dma.refresh();
        match self.try_enable() {
            Ok(()) => {
                self.phase = Phase::Ready;
                self.set_status(ControllerStatus::new().with_rdy(true));
            }
            Err(why) => self.fail_fatally(&why),
        }
    }

    fn try_enable(&mut self) -> Result<(), String> {
        let wanted = self.configuration;
        if wanted.css() != 0 || wanted.ams() != 0 {
            return Err(format!(
                "CC asks for command set {}, arbitration {}",
                wanted.css(),
                wanted.ams()
            ));
        }
        if wanted.mps() > crate::config::PAGE_SHIFT_MAX {
            return Err(format!("CC.MPS {} is above CAP.MPSMAX", wanted.mps()));
        }
        self.dma.set_page_bytes(4096 << wanted.mps());
        let (sizes, submission_at, completion_at) = self.bar.admin_queues();
        let depths = (u32::from(sizes.asqs_z()) + 1, u32::from(sizes.acqs_z()) + 1);
        if depths.0 < 2 || depths.1 < 2 {
            return Err(format!(
                "AQA asks for admin queues of {} and {} entries",
                depths.0, depths.1
            ));
        }
        let memory = |name: &str, at: u64, bytes: usize| {
            self.dma.queue_memory(at, bytes).map_err(|status| format!("{name} {at:#x}: {status}"))
        };
        let submission = memory("ASQ", submission_at, depths.0 as usize * SUBMISSION_BYTES)?;
        let completion = memory("ACQ", completion_at, depths.1 as usize * COMPLETION_BYTES)?;
        self.open_storage().map_err(|error| error.to_string())?;
        self.drop_queues();
        self.bar.clear_doorbells();
        self.submission[0] = Some(SubmissionQueue::new(submission, depths.0, 0));
        let mut completion = CompletionQueue::new(completion, depths.1);
        completion.users = 1;
        self.completion[0] = Some(completion);
        self.active.push(0);
        Ok(())
    }

    fn open_storage(&mut self) -> Result<(), StorageError> {
        let (depth, registered) = (self.options.storage_depth, &self.options.registered);
        for namespace in self.namespaces.iter_mut().filter(|n| n.queue.is_none()) {
            let options = QueueOptions { depth, registered: registered.clone() };
            namespace.queue = Some(namespace.options.storage.open_queue(&options)?);
        }
        Ok(())
    }

    /// Stops answering: CSTS.CFS until the host resets. Source: 3.1.3.6, 9.5.
    pub(crate) fn fail_fatally(&mut self, why: &str) {
        self.failure = Some(why.to_owned());
        self.counters.stray_errors += 1;
        self.phase = Phase::Failed;
        self.outbox.clear();
        self.cancel_everything();
        let status = self.status.with_cfs(true);
        self.set_status(status);
    }

    /// Resets as after power-on, unasked.
    pub(crate) fn reset_itself(&mut self, now_ns: u64) {
        self.counters.stray_errors += 1;
        self.bar.clear_configuration();
        self.configuration = Configuration::new();
        self.begin_reset(now_ns);
    }

    fn begin_reset(&mut self, now_ns: u64) {
        self.outbox.clear();
        self.phase = Phase::Resetting { since_ns: now_ns };
        self.cancel_everything();
        self.continue_reset(now_ns, now_ns);
    }

    fn continue_reset(&mut self, since_ns: u64, now_ns: u64) {
        self.drain_storage();
        if self.namespaces.iter().any(|n| n.in_flight() > 0) {
            if now_ns.saturating_sub(since_ns) < RESET_PATIENCE_NS {
                return;
            }
            for queue in self.namespaces.iter_mut().filter_map(|n| n.queue.as_mut()) {
                queue.quiesce(&mut self.scratch_completions);
            }
            self.scratch_completions.clear();
        }
        self.drop_queues();
        self.failure = None;
        self.phase = Phase::Disabled;
        self.set_status(ControllerStatus::new());
        if self.configuration.en() {
            self.enable();
        }
    }

    fn cancel_everything(&mut self) {
        for index in self.flights.indices() {
            self.cancel_requests(index);
        }
        for namespace in &mut self.namespaces {
            namespace.waiting.clear();
        }
    }

    /// Takes what the storage ends, and forgets it: nobody waits for it any more.
    fn drain_storage(&mut self) {
        for namespace in self.namespaces.iter_mut().filter(|n| n.in_flight() > 0) {
            if let Some(queue) = &mut namespace.queue {
                queue.poll(&mut self.scratch_completions);
            }
        }
        self.scratch_completions.clear();
    }

    fn drop_queues(&mut self) {
        self.recover_bounces();
        self.flights.release_all();
        self.outbox.clear();
        self.submission.fill_with(|| None);
        self.completion.fill_with(|| None);
        self.active.clear();
        self.events = Events::default();
        self.features = Features::new(self.options.queue_pairs_max);
        self.aborts_outstanding = 0;
        self.backlogged = false;
        self.requests_wait = false;
        self.deletes_wait = 0;
        self.shutdown = Shutdown::No;
    }

    fn begin_shutdown(&mut self, kind: u8) {
        let status = self.status;
        if self.phase != Phase::Ready {
            // Nothing is cached here while no queue exists. Source: 3.6.1.
            return self.set_status(status.with_shst(ControllerStatus::SHST_COMPLETE));
        }
        self.set_status(status.with_shst(ControllerStatus::SHST_OCCURRING));
        self.shutdown = Shutdown::Draining;
        if kind == Configuration::SHN_ABRUPT {
            for index in self.flights.indices() {
                self.cancel_requests(index);
            }
        }
    }

    /// Brings a shutdown on: commands end, then storage is flushed, then the host is told.
    pub(crate) fn continue_shutdown(&mut self) {
        let busy = |n: &Namespace| n.in_flight() > 0 || !n.waiting.is_empty();
        if self.shutdown == Shutdown::Draining && self.flights.is_idle() {
            self.shutdown = Shutdown::Flushing;
            if self.configuration.shn() == Configuration::SHN_NORMAL {
                self.flush_for_shutdown();
            }
        }
        if self.shutdown == Shutdown::Flushing && !self.namespaces.iter().any(busy) {
            self.shutdown = Shutdown::Complete;
            let status = self.status;
            self.set_status(status.with_shst(ControllerStatus::SHST_COMPLETE));
        }
    }
}
