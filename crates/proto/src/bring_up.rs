//! Starting and stopping a controller.
//!
//! ```text
//! Disable -> WaitDisabled -> admin queue attributes and addresses -> Enable -> WaitReady -> Ready
//! ```
//!
//! Every wait is bounded by CAP.TO, but by at least half a second; a controller that reports a fatal
//! error, or that has left the bus, ends it at once. The driver of the machine reads CSTS, calls
//! `step`, does what comes back, and calls again.
//!
//! Source: NVMe Base 2.0c, 3.5.1 (initialization), 3.6.1 (shutdown), 3.1.3.5 (CC), 3.1.3.6 (CSTS).

use std::time::Duration;

use spec::registers::{self, AdminQueueAttributes, Capabilities, Configuration, ControllerStatus};
use spec::{Command, Completion};

/// Waits shorter than this would fail controllers that report no timeout.
const READY_LIMIT_MIN: Duration = Duration::from_millis(500);
/// Bound of a shutdown, where the controller names none.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);
/// Memory pages that this project uses: 4096 bytes.
const PAGE_SHIFT_ZERO: u8 = 0;

/// What the driver of a machine has to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Nothing is left to do.
    Done,
    /// Call again with a new CSTS.
    Wait,
    /// Write a 32-bit register, then call again.
    Write32 {
        /// Its offset.
        offset: usize,
        /// Its value.
        value: u32,
    },
    /// Write a 64-bit register, then call again.
    Write64 {
        /// Its offset.
        offset: usize,
        /// Its value.
        value: u64,
    },
}

/// Where a machine stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// CC.EN has to become 0.
    Disable,
    /// Waiting for CSTS.RDY to become 0.
    WaitDisabled,
    /// AQA has to be written.
    Attributes,
    /// ASQ has to be written.
    SubmissionAddress,
    /// ACQ has to be written.
    CompletionAddress,
    /// CC.EN has to become 1.
    Enable,
    /// Waiting for CSTS.RDY to become 1.
    WaitReady,
    /// The admin queue works.
    Ready,
}

/// Why a controller does not start or stop. Cause: the controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BringUpError {
    /// CSTS.CFS is set although the controller was reset. Remedy: power cycle it.
    #[error("the controller reports a fatal error in phase {phase:?}")]
    Fatal {
        /// Where it stood.
        phase: Phase,
    },
    /// All registers read as ones. Remedy: plug it back in.
    #[error("the controller has left the bus")]
    Gone,
    /// A state was not reached in time. Remedy: power cycle it.
    #[error("the controller did not get past phase {phase:?} within {limit:?}")]
    Timeout {
        /// Where it stood.
        phase: Phase,
        /// How long it was waited for.
        limit: Duration,
    },
    /// It cannot do what this project needs.
    #[error("the controller lacks {what}")]
    Unsupported {
        /// What is missing.
        what: &'static str,
    },
}

/// Where the admin queues lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BringUpOptions {
    /// Entries of both admin queues, 2..=4096.
    pub admin_entries: u16,
    /// Address of the submission queue, page aligned.
    pub submission_address: u64,
    /// Address of the completion queue, page aligned.
    pub completion_address: u64,
    /// Upper bound of each wait, whatever CAP.TO says.
    pub limit_max: Duration,
}

/// Starts a controller, whatever state it was in.
#[derive(Debug)]
pub struct BringUp {
    options: BringUpOptions,
    limit: Duration,
    phase: Phase,
    wait_until_ns: Option<u64>,
}

impl BringUp {
    /// Checks what CAP promises and begins with a reset.
    ///
    /// # Errors
    /// [`BringUpError::Unsupported`].
    ///
    /// # Panics
    /// Where `admin_entries` is out of range.
    pub fn new(cap: Capabilities, options: BringUpOptions) -> Result<Self, BringUpError> {
        let entries = u32::from(options.admin_entries);
        let range = 2..=AdminQueueAttributes::ENTRIES_MAX;
        assert!(range.contains(&entries), "{entries} admin queue entries");
        if cap.into_bits() == u64::MAX {
            return Err(BringUpError::Gone);
        }
        if cap.css() & Capabilities::CSS_NVM == 0 {
            return Err(BringUpError::Unsupported { what: "the NVM command set" });
        }
        if cap.mpsmin() > PAGE_SHIFT_ZERO {
            return Err(BringUpError::Unsupported { what: "memory pages of 4096 bytes" });
        }
        if cap.mqes_z() == 0 {
            return Err(BringUpError::Unsupported { what: "I/O queues of two entries" });
        }
        let limit = cap.ready_timeout().max(READY_LIMIT_MIN).min(options.limit_max);
        Ok(Self { options, limit, phase: Phase::Disable, wait_until_ns: None })
    }

    /// Where it stands.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether the controller has been disabled since: nothing from before touches memory any more.
    pub fn is_past_disable(&self) -> bool {
        !matches!(self.phase, Phase::Disable | Phase::WaitDisabled)
    }

    fn configuration() -> Configuration {
        Configuration::new()
            .with_mps(PAGE_SHIFT_ZERO)
            .with_iosqes(Command::BYTES_LOG2)
            .with_iocqes(Completion::BYTES_LOG2)
    }

    /// Says what to do next, given CSTS as it reads now.
    ///
    /// # Errors
    /// [`BringUpError`]; the machine stays where it is.
    pub fn step(&mut self, now_ns: u64, csts: ControllerStatus) -> Result<Action, BringUpError> {
        if csts == ControllerStatus::GONE {
            return Err(BringUpError::Gone);
        }
        let entries_z = self.options.admin_entries - 1;
        let aqa = AdminQueueAttributes::new().with_asqs_z(entries_z).with_acqs_z(entries_z);
        let cc = Self::configuration();
        let write32 = |offset, value| Action::Write32 { offset, value };
        let (action, next) = match self.phase {
            Phase::Disable => (write32(registers::CC, cc.into_bits()), Phase::WaitDisabled),
            Phase::WaitDisabled if csts.rdy() => return self.wait(now_ns),
            Phase::WaitDisabled | Phase::Attributes => {
                self.wait_until_ns = None;
                (write32(registers::AQA, aqa.into_bits()), Phase::SubmissionAddress)
            }
            Phase::SubmissionAddress => {
                let value = self.options.submission_address;
                (Action::Write64 { offset: registers::ASQ, value }, Phase::CompletionAddress)
            }
            Phase::CompletionAddress => {
                let value = self.options.completion_address;
                (Action::Write64 { offset: registers::ACQ, value }, Phase::Enable)
            }
            Phase::Enable => {
                (write32(registers::CC, cc.with_en(true).into_bits()), Phase::WaitReady)
            }
            Phase::WaitReady if csts.cfs() => {
                return Err(BringUpError::Fatal { phase: self.phase });
            }
            Phase::WaitReady if !csts.rdy() => return self.wait(now_ns),
            Phase::WaitReady | Phase::Ready => (Action::Done, Phase::Ready),
        };
        self.phase = next;
        Ok(action)
    }

    fn wait(&mut self, now_ns: u64) -> Result<Action, BringUpError> {
        wait(&mut self.wait_until_ns, self.phase, self.limit, now_ns)
    }
}

fn wait(
    until_ns: &mut Option<u64>,
    phase: Phase,
    limit: Duration,
    now_ns: u64,
) -> Result<Action, BringUpError> {
    let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
    let until_ns = *until_ns.get_or_insert(now_ns.saturating_add(limit_ns));
    if now_ns >= until_ns { Err(BringUpError::Timeout { phase, limit }) } else { Ok(Action::Wait) }
}

/// Asks a running controller to write back what it holds, then disables it.
#[derive(Debug)]
pub struct Shutdown {
    notified: bool,
    disabled: bool,
    wait_until_ns: Option<u64>,
}

impl Shutdown {
    /// Begins.
    #[expect(clippy::new_without_default, reason = "beginning is an act, not a default value")]
    pub fn new() -> Self {
        Self { notified: false, disabled: false, wait_until_ns: None }
    }

    /// Says what to do next, given CSTS as it reads now.
    ///
    /// # Errors
    /// [`BringUpError::Gone`], [`BringUpError::Timeout`].
    pub fn step(&mut self, now_ns: u64, csts: ControllerStatus) -> Result<Action, BringUpError> {
        if csts == ControllerStatus::GONE {
            return Err(BringUpError::Gone);
        }
        let offset = registers::CC;
        let running = BringUp::configuration().with_en(true);
        if !self.notified {
            self.notified = true;
            let value = running.with_shn(Configuration::SHN_NORMAL).into_bits();
            return Ok(Action::Write32 { offset, value });
        }
        if !self.disabled {
            if csts.shst() != ControllerStatus::SHST_COMPLETE {
                let (until_ns, phase) = (&mut self.wait_until_ns, Phase::Ready);
                return wait(until_ns, phase, SHUTDOWN_LIMIT, now_ns);
            }
            self.disabled = true;
            self.wait_until_ns = None;
            return Ok(Action::Write32 { offset, value: BringUp::configuration().into_bits() });
        }
        if csts.rdy() {
            let (until_ns, phase) = (&mut self.wait_until_ns, Phase::WaitDisabled);
            return wait(until_ns, phase, SHUTDOWN_LIMIT, now_ns);
        }
        Ok(Action::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn options() -> BringUpOptions {
        BringUpOptions {
            admin_entries: 32,
            submission_address: 0x1000,
            completion_address: 0x2000,
            limit_max: Duration::from_secs(60),
        }
    }

    fn cap() -> Capabilities {
        Capabilities::new().with_mqes_z(255).with_css(1).with_to(2)
    }

    /// A controller of four registers; `stuck` never changes RDY.
    fn run(machine: &mut BringUp, stuck: bool, csts: &mut ControllerStatus) -> Vec<Action> {
        let mut seen = Vec::new();
        for step in 0..100 {
            let action = machine.step(step * MS, *csts).unwrap();
            if let Action::Write32 { offset: registers::CC, value } = action
                && !stuck
            {
                csts.set_rdy(Configuration::from_bits(value).en());
            }
            seen.push(action);
            if action == Action::Done {
                break;
            }
        }
        seen
    }

    #[test]
    fn registers_are_written_in_order_from_any_state() {
        for rdy in [false, true] {
            let mut machine = BringUp::new(cap(), options()).unwrap();
            let mut csts = ControllerStatus::new().with_rdy(rdy);
            let seen = run(&mut machine, false, &mut csts);
            assert_eq!(
                seen,
                [
                    Action::Write32 { offset: 0x14, value: 0x0046_0000 },
                    Action::Write32 { offset: 0x24, value: 0x001f_001f },
                    Action::Write64 { offset: 0x28, value: 0x1000 },
                    Action::Write64 { offset: 0x30, value: 0x2000 },
                    Action::Write32 { offset: 0x14, value: 0x0046_0001 },
                    Action::Done,
                ]
            );
            assert_eq!(machine.phase(), Phase::Ready);
        }
    }

    #[test]
    fn every_wait_ends() {
        let mut machine = BringUp::new(cap(), options()).unwrap();
        let csts = ControllerStatus::new().with_rdy(true);
        assert!(matches!(machine.step(0, csts), Ok(Action::Write32 { .. })));
        assert_eq!(machine.step(MS, csts), Ok(Action::Wait));
        assert_eq!(machine.step(1000 * MS, csts), Ok(Action::Wait));
        let limit = Duration::from_secs(1);
        let timeout = |phase| Err(BringUpError::Timeout { phase, limit });
        assert_eq!(machine.step(1001 * MS, csts), timeout(Phase::WaitDisabled));

        let mut machine = BringUp::new(cap(), options()).unwrap();
        let csts = ControllerStatus::new();
        while machine.phase() != Phase::WaitReady {
            machine.step(0, csts).unwrap();
        }
        assert_eq!(machine.step(5 * MS, csts), Ok(Action::Wait));
        assert_eq!(machine.step(1005 * MS, csts), timeout(Phase::WaitReady));
        let fatal = machine.step(6 * MS, csts.with_cfs(true));
        assert_eq!(fatal, Err(BringUpError::Fatal { phase: Phase::WaitReady }));
        assert_eq!(machine.step(6 * MS, ControllerStatus::GONE), Err(BringUpError::Gone));
        assert_eq!(machine.step(6 * MS, csts.with_rdy(true)), Ok(Action::Done));
    }

    #[test]
    fn unusable_controllers_are_refused() {
        for bad in [cap().with_css(0), cap().with_mpsmin(1), cap().with_mqes_z(0)] {
            let refused = BringUp::new(bad, options());
            assert!(matches!(refused, Err(BringUpError::Unsupported { .. })), "{bad:?}");
        }
        let gone = Capabilities::from_bits(u64::MAX);
        assert!(matches!(BringUp::new(gone, options()), Err(BringUpError::Gone)));
    }

    #[test]
    fn shutdown_notifies_waits_and_disables() {
        let mut machine = Shutdown::new();
        let on = ControllerStatus::new().with_rdy(true);
        let notify = Action::Write32 { offset: 0x14, value: 0x0046_4001 };
        assert_eq!(machine.step(0, on), Ok(notify));
        assert_eq!(machine.step(0, on.with_shst(1)), Ok(Action::Wait));
        let done = on.with_shst(ControllerStatus::SHST_COMPLETE);
        let disable = Action::Write32 { offset: 0x14, value: 0x0046_0000 };
        assert_eq!(machine.step(MS, done), Ok(disable));
        assert_eq!(machine.step(MS, done), Ok(Action::Wait));
        assert!(matches!(machine.step(6000 * MS, done), Err(BringUpError::Timeout { .. })));
        assert_eq!(machine.step(2 * MS, done.with_rdy(false)), Ok(Action::Done));
    }
}
