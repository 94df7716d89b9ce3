//! Admin commands: opcodes, and what their dwords mean.
//!
//! Each structure is one command's own dwords; `encode` makes a [`Command`] without identifier and
//! data pointer, `decode` reads one. Decoding never fails: whoever decodes checks the values.
//!
//! Source: NVMe Base 2.0c, 5.

use crate::command::{Command, byte, half};
use crate::number::{CommandId, Nsid, QueueId};

/// Admin opcodes. Source: NVMe Base 2.0c, 5 (opcodes for admin commands).
pub struct Opcode;

impl Opcode {
    /// Delete I/O Submission Queue. Source: 5.7.
    pub const DELETE_SUBMISSION_QUEUE: u8 = 0x00;
    /// Create I/O Submission Queue. Source: 5.5.
    pub const CREATE_SUBMISSION_QUEUE: u8 = 0x01;
    /// Get Log Page. Source: 5.16.
    pub const LOG_PAGE: u8 = 0x02;
    /// Delete I/O Completion Queue. Source: 5.6.
    pub const DELETE_COMPLETION_QUEUE: u8 = 0x04;
    /// Create I/O Completion Queue. Source: 5.4.
    pub const CREATE_COMPLETION_QUEUE: u8 = 0x05;
    /// Identify. Source: 5.17.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort. Source: 5.1.
    pub const ABORT: u8 = 0x08;
    /// Set Features. Source: 5.27.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features. Source: 5.15.
    pub const FEATURES: u8 = 0x0a;
    /// Asynchronous Event Request. Source: 5.2.
    pub const ASYNC_EVENT_REQUEST: u8 = 0x0c;
}

/// Create I/O Completion Queue: dwords 10 and 11; PRP1 is its memory.
///
/// Source: NVMe Base 2.0c, 5.4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CreateCompletionQueue {
    /// The queue to make.
    pub queue: QueueId,
    /// Its entries, counted from zero.
    pub entries_z: u16,
    /// Whether its memory is contiguous (else PRP1 is a list).
    pub contiguous: bool,
    /// Interrupt vector, where interrupts are wanted.
    pub interrupt: Option<u16>,
}

impl CreateCompletionQueue {
    /// The command.
    pub fn encode(self) -> Command {
        let mut command = Command::new(Opcode::CREATE_COMPLETION_QUEUE, Nsid::NONE);
        command.cdw10 = u32::from(self.entries_z) << 16 | u32::from(self.queue.0);
        command.cdw11 = u32::from(self.contiguous);
        if let Some(vector) = self.interrupt {
            command.cdw11 |= u32::from(vector) << 16 | 0b10;
        }
        command
    }

    /// The dwords of a command.
    pub fn decode(command: &Command) -> Self {
        let interrupt = (command.cdw11 & 0b10 != 0).then(|| half(command.cdw11, 16));
        Self {
            queue: QueueId(half(command.cdw10, 0)),
            entries_z: half(command.cdw10, 16),
            contiguous: command.cdw11 & 1 != 0,
            interrupt,
        }
    }
}

/// Create I/O Submission Queue: dwords 10 and 11; PRP1 is its memory.
///
/// Source: NVMe Base 2.0c, 5.5.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CreateSubmissionQueue {
    /// The queue to make.
    pub queue: QueueId,
    /// Its entries, counted from zero.
    pub entries_z: u16,
    /// Whether its memory is contiguous (else PRP1 is a list).
    pub contiguous: bool,
    /// Priority class, 0-3; ignored under round robin.
    pub priority: u8,
    /// Where its completions go.
    pub completion_queue: QueueId,
}

impl CreateSubmissionQueue {
    /// The command.
    pub fn encode(self) -> Command {
        let mut command = Command::new(Opcode::CREATE_SUBMISSION_QUEUE, Nsid::NONE);
        command.cdw10 = u32::from(self.entries_z) << 16 | u32::from(self.queue.0);
        command.cdw11 = u32::from(self.completion_queue.0) << 16
            | u32::from(self.priority & 3) << 1
            | u32::from(self.contiguous);
        command
    }

    /// The dwords of a command.
    pub fn decode(command: &Command) -> Self {
        Self {
            queue: QueueId(half(command.cdw10, 0)),
            entries_z: half(command.cdw10, 16),
            contiguous: command.cdw11 & 1 != 0,
            priority: byte(command.cdw11 >> 1) & 3,
            completion_queue: QueueId(half(command.cdw11, 16)),
        }
    }
}

/// Delete I/O Submission Queue and Delete I/O Completion Queue: dword 10.
///
/// Source: NVMe Base 2.0c, 5.6 and 5.7.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeleteQueue {
    /// The queue to delete.
    pub queue: QueueId,
}

impl DeleteQueue {
    /// The command that deletes a submission queue.
    pub fn encode_submission(self) -> Command {
        let mut command = Command::new(Opcode::DELETE_SUBMISSION_QUEUE, Nsid::NONE);
        command.cdw10 = u32::from(self.queue.0);
        command
    }

    /// The command that deletes a completion queue.
    pub fn encode_completion(self) -> Command {
        let mut command = Command::new(Opcode::DELETE_COMPLETION_QUEUE, Nsid::NONE);
        command.cdw10 = u32::from(self.queue.0);
        command
    }

    /// The dwords of a command.
    pub fn decode(command: &Command) -> Self {
        Self { queue: QueueId(half(command.cdw10, 0)) }
    }
}

/// Abort: dword 10.
///
/// Source: NVMe Base 2.0c, 5.1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Abort {
    /// Submission queue of the command to abort.
    pub queue: QueueId,
    /// The command to abort.
    pub command: CommandId,
}

impl Abort {
    /// Bit of completion dword 0 that says the command was *not* aborted.
    pub const NOT_ABORTED: u32 = 1;

    /// The command.
    pub fn encode(self) -> Command {
        let mut command = Command::new(Opcode::ABORT, Nsid::NONE);
        command.cdw10 = u32::from(self.command.0) << 16 | u32::from(self.queue.0);
        command
    }

    /// The dwords of a command.
    pub fn decode(command: &Command) -> Self {
        Self { queue: QueueId(half(command.cdw10, 0)), command: CommandId(half(command.cdw10, 16)) }
    }
}

/// Identify: dword 10; PRP1 (and PRP2) name 4096 bytes to fill.
///
/// Source: NVMe Base 2.0c, 5.17.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identify {
    /// What to describe; see [`crate::identify::Cns`].
    pub cns: u8,
    /// Controller identifier, where `cns` needs one.
    pub controller: u16,
    /// Namespace, where `cns` needs one.
    pub nsid: Nsid,
}

impl Identify {
    /// The command.
    pub fn encode(self) -> Command {
        let mut command = Command::new(Opcode::IDENTIFY, self.nsid);
        command.cdw10 = u32::from(self.controller) << 16 | u32::from(self.cns);
        command
    }

    /// The dwords of a command.
    pub fn decode(command: &Command) -> Self {
        Self {
            cns: byte(command.cdw10),
            controller: half(command.cdw10, 16),
            nsid: command.namespace(),
        }
    }
}

/// Feature identifiers. Source: NVMe Base 2.0c, 5.27.1.
pub struct Feature;

impl Feature {
    /// Arbitration. Source: 5.27.1.1.
    pub const ARBITRATION: u8 = 0x01;
    /// Power Management. Source: 5.27.1.2.
    pub const POWER_MANAGEMENT: u8 = 0x02;
    /// Temperature Threshold. Source: 5.27.1.3.
    pub const TEMPERATURE_THRESHOLD: u8 = 0x04;
    /// Error Recovery. Source: NVM Command Set 1.0c, 4.1.3.1.
    pub const ERROR_RECOVERY: u8 = 0x05;
    /// Volatile Write Cache. Source: 5.27.1.4.
    pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
    /// Number of Queues. Source: 5.27.1.5.
    pub const QUEUE_COUNT: u8 = 0x07;
    /// Interrupt Coalescing.
    pub const INTERRUPT_COALESCING: u8 = 0x08;
    /// Interrupt Vector Configuration.
    pub const INTERRUPT_VECTOR: u8 = 0x09;
    /// Write Atomicity Normal. Source: NVM Command Set 1.0c, 4.1.3.2.
    pub const WRITE_ATOMICITY: u8 = 0x0a;
    /// Asynchronous Event Configuration.
    pub const ASYNC_EVENT_CONFIGURATION: u8 = 0x0b;
}

/// Set Features: dwords 10 and 11.
///
/// Source: NVMe Base 2.0c, 5.27.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetFeatures {
    /// Feature; see [`Feature`].
    pub feature: u8,
    /// Whether the value shall outlive power cycles.
    pub save: bool,
    /// Dword 11.
    pub value: u32,
}

impl SetFeatures {
    /// The command.
    pub fn encode(self) -> Command {
        let mut command = Command::new(Opcode::SET_FEATURES, Nsid::NONE);
        command.cdw10 = u32::from(self.save) << 31 | u32::from(self.feature);
        command.cdw11 = self.value;
        command
    }

    /// The dwords of a command.
    pub fn decode(command: &Command) -> Self {
        Self { feature: byte(command.cdw10), save: command.cdw10 >> 31 != 0, value: command.cdw11 }
    }
}

/// Get Features: dword 10. The value comes back in completion dword 0.
///
/// Source: NVMe Base 2.0c, 5.15.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GetFeatures {
    /// Feature; see [`Feature`].
    pub feature: u8,
    /// Which value: 0 current, 1 default, 2 saved, 3 capabilities.
    pub select: u8,
    /// What some features need to know which value is asked for; dword 11.
    pub value: u32,
}

impl GetFeatures {
    /// `select`: the value in force.
    pub const SELECT_CURRENT: u8 = 0;
    /// `select`: what it is after a reset.
    pub const SELECT_DEFAULT: u8 = 1;
    /// `select`: what was saved.
    pub const SELECT_SAVED: u8 = 2;
    /// `select`: what can be done with it.
    pub const SELECT_CAPABILITIES: u8 = 3;

    /// The command.
    pub fn encode(self) -> Command {
        let mut command = Command::new(Opcode::FEATURES, Nsid::NONE);
        command.cdw10 = u32::from(self.select & 7) << 8 | u32::from(self.feature);
        command.cdw11 = self.value;
        command
    }

    /// The dwords of a command.
    pub fn decode(command: &Command) -> Self {
        let (feature, select) = (byte(command.cdw10), byte(command.cdw10 >> 8) & 7);
        Self { feature, select, value: command.cdw11 }
    }
}

/// The value of [`Feature::QUEUE_COUNT`], asked for in dword 11 and granted in completion dword 0.
///
/// Source: NVMe Base 2.0c, 5.27.1.5.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueCounts {
    /// I/O submission queues, counted from zero. 0xffff is not allowed.
    pub submission_z: u16,
    /// I/O completion queues, counted from zero. 0xffff is not allowed.
    pub completion_z: u16,
}

impl QueueCounts {
    /// The dword.
    pub const fn encode(self) -> u32 {
        (self.completion_z as u32) << 16 | self.submission_z as u32
    }

    /// From the dword.
    pub const fn decode(value: u32) -> Self {
        Self { submission_z: half(value, 0), completion_z: half(value, 16) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_commands_match_the_dwords_of_the_standard() {
        let cq = CreateCompletionQueue {
            queue: QueueId(3),
            entries_z: 0x3ff,
            contiguous: true,
            interrupt: None,
        };
        let command = cq.encode();
        assert_eq!((command.opcode, command.cdw10, command.cdw11), (5, 0x03ff_0003, 1));
        assert_eq!(CreateCompletionQueue::decode(&command), cq);
        let cq = CreateCompletionQueue { interrupt: Some(9), contiguous: false, ..cq };
        assert_eq!(cq.encode().cdw11, 0x0009_0002);
        assert_eq!(CreateCompletionQueue::decode(&cq.encode()), cq);
        let sq = CreateSubmissionQueue {
            queue: QueueId(4),
            entries_z: 7,
            contiguous: true,
            priority: 2,
            completion_queue: QueueId(3),
        };
        let command = sq.encode();
        assert_eq!((command.opcode, command.cdw10, command.cdw11), (1, 0x0007_0004, 0x0003_0005));
        assert_eq!(CreateSubmissionQueue::decode(&command), sq);
        let delete = DeleteQueue { queue: QueueId(4) };
        assert_eq!((delete.encode_submission().opcode, delete.encode_completion().opcode), (0, 4));
        assert_eq!(DeleteQueue::decode(&delete.encode_completion()), delete);
    }

    #[test]
    fn other_commands_match_the_dwords_of_the_standard() {
        let abort = Abort { queue: QueueId(2), command: CommandId(0x1234) };
        assert_eq!((abort.encode().opcode, abort.encode().cdw10), (8, 0x1234_0002));
        assert_eq!(Abort::decode(&abort.encode()), abort);
        let identify = Identify { cns: 2, controller: 1, nsid: Nsid(7) };
        let command = identify.encode();
        assert_eq!((command.opcode, command.cdw10, command.nsid), (6, 0x0001_0002, 7));
        assert_eq!(Identify::decode(&command), identify);
        let counts = QueueCounts { submission_z: 3, completion_z: 5 };
        let set = SetFeatures { feature: Feature::QUEUE_COUNT, save: true, value: counts.encode() };
        let command = set.encode();
        assert_eq!((command.cdw10, command.cdw11), (0x8000_0007, 0x0005_0003));
        assert_eq!(SetFeatures::decode(&command), set);
        assert_eq!(QueueCounts::decode(command.cdw11), counts);
        let get = GetFeatures { feature: 7, select: GetFeatures::SELECT_CAPABILITIES, value: 5 };
        assert_eq!((get.encode().cdw10, get.encode().cdw11), (0x0307, 5));
        assert_eq!(GetFeatures::decode(&get.encode()), get);
    }
}
