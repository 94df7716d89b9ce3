//! How a set of queue pairs for lanes is made.

use std::time::Duration;

use super::copoll::CopollOptions;
use crate::error::EngineError;

/// Where a queue's entries lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Device memory.
    Device,
    /// Pinned host memory.
    Host,
}

impl Placement {
    /// Its name in options and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Host => "host",
        }
    }
}

/// Who drains the completion queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Polling {
    /// CPU agents (`copilot`).
    Cpu,
    /// CPU agents or lanes, by load (`copilot` with adaptive co-polling).
    Adaptive(CopollOptions),
    /// Lanes (`bam`).
    Gpu,
}

/// How a set of queue pairs is made.
#[derive(Clone, Debug)]
pub struct QueueOptions {
    /// Entries of each queue: a power of two, 2 to 32,768.
    pub depth: u32,
    /// Command ids a pair: a power of two, at most 65,536; may be more than `depth`.
    pub command_ids: u32,
    /// Where submission entries lie.
    pub sq: Placement,
    /// Where completion entries lie. Agents that poll them in device memory load through the window,
    /// which is slow.
    pub cq: Placement,
    /// Who drains the completion queues.
    pub polling: Polling,
    /// Follow each read by one of a block, as a fence (`bam`).
    pub second_read: bool,
    /// How long a command may take before it is aborted: 1 ms to 65 s.
    pub limit: Duration,
    /// How long the end of a command may follow the answer to its Abort.
    pub grace: Duration,
    /// Whether each command id gets a page for a PRP list: transfers beyond two pages need it.
    pub prp_lists: bool,
    /// Where all positions start, rounded down to a multiple of twice the depth.
    pub start: u64,
}

impl QueueOptions {
    /// `bam` as published: both queues in device memory, drained by lanes.
    pub fn bam() -> Self {
        Self {
            depth: 1024,
            command_ids: 1024,
            sq: Placement::Device,
            cq: Placement::Device,
            polling: Polling::Gpu,
            second_read: false,
            limit: Duration::from_secs(5),
            grace: Duration::from_millis(100),
            prp_lists: true,
            start: 0,
        }
    }

    /// `copilot` as its paper has it: SQ in device memory, CQ in host memory, drained by agents.
    pub fn copilot() -> Self {
        Self { cq: Placement::Host, polling: Polling::Cpu, ..Self::bam() }
    }

    pub(super) fn check(&self) -> Result<(), EngineError> {
        let misuse = |text: String| Err(EngineError::Misuse(text));
        if !self.depth.is_power_of_two() || !(2..=1 << 15).contains(&self.depth) {
            return misuse(format!("queues of {} entries: a power of two, 2 to 65536", self.depth));
        }
        if !self.command_ids.is_power_of_two() || self.command_ids > 1 << 16 {
            let text = format!("{} command ids: a power of two, at most 65536", self.command_ids);
            return misuse(text);
        }
        if !(1..=65_535).contains(&self.limit.as_millis()) {
            return misuse(format!("a limit of {:?} is not within 1 ms to 65 s", self.limit));
        }
        if let Polling::Adaptive(copoll) = &self.polling
            && (copoll.low >= copoll.high || copoll.window.is_zero())
        {
            return misuse(format!("{copoll:?}: low must be below high, and the window not zero"));
        }
        Ok(())
    }

    pub(super) fn copoll(&self) -> Option<CopollOptions> {
        match self.polling {
            Polling::Adaptive(options) => Some(options),
            Polling::Cpu | Polling::Gpu => None,
        }
    }
}
