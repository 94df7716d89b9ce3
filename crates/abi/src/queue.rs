//! NVMe queue pairs that GPU lanes drive themselves (`bam`), or together with a CPU agent
//! (`copilot`).
//!
//! ```text
//! what            memory          who stores                              order
//! SQ entries      host's choice   lane that holds the ticket              before its tail mark
//! CQ entries      host's choice   the drive; the host zeroes them first   payload first
//! doorbells       BAR             SQ: holder of `tail_lock`; CQ: owner    after entries; after loads
//! QueueState      device memory   see its fields
//! tail_marks      device memory   lane that wrote the SQ entry            after the entry
//! head_marks      device memory   lane that took the CQ entry (`bam`)     CAS
//! cids            device memory   lanes                                   CAS to take
//! completions     device memory   lane: 0 before it submits; then whoever drains the CQ
//! owner           device memory   host                                    after all of its turn
//! report          host memory     holder of `head_lock`                   after all of its turn
//! complaints      host memory     waiting lane, when late                 before `alarm`
//! alarm           host memory     waiting lane, when late                 -
//! ```
//!
//! *Positions* are 64-bit counts: entry `p` of a queue lies in slot `p & (depth - 1)` and, in the
//! CQ, has phase tag [`phase_of`]. The host starts all positions of a pair at one `start`, a
//! multiple of `2 * depth` ([`QueueState::at`], [`marks_at`]), as near below a wrap as it likes. A
//! submission queue holds at most `depth - 1` entries: a ticket `t` may be used while
//! `t - sq_head < depth - 1`. Nobody keeps a ticket without publishing it.
//!
//! *Completion words* ([`CompletionWord`]) are what lanes wait for. A lane stores 0 in its command
//! id's word before the command; who drains the CQ stores the word once, as one aligned 8-byte
//! store, after it has seen the entry. A CPU agent: words, `sq_head`, `mem::fence_payload`, and then
//! the CQ doorbell. The word's epoch is the queue's, so that an agent that was late by an epoch is not
//! believed.
//!
//! *Locks* combine: who adds 1 to `tail_lock` or `head_lock` and finds 0 holds it; others leave at
//! once, and the holder, which gives it back by a swap of what it saw for 0, goes once more where the
//! swap fails. So nothing that was marked before is left behind, and nobody waits for a lock. Who asks
//! for everything in the CQ adds 1 to the upper half of `head_lock` as well: the holder's next pass is
//! over everything then, whatever its own was, since lanes may wait for it to go before they take theirs.
//!
//! *A new epoch.* The host stores `state` = [`QUEUE_QUIESCED`] with the old epoch, fences fully, and
//! waits until it reads `inside` = 0 and `head_lock` = 0 (through the window or by a copy: this is
//! not the serving path): from then on no lane touches SQ, CQ, doorbells or positions. It deletes and
//! makes the queues again, zeroes the CQ, stores positions and marks anew with a `start` above all
//! tickets of before, stores `owner`, fences, and stores `state` = [`QUEUE_OPEN`] with the next epoch.
//! It leaves everything else alone: `inside` and `head_lock` above all, which lanes still touch to see
//! whether they may enter; a 0 stored over such a touch would let two lanes hold the lock later.
//!
//! A lane whose command was of the old epoch
//! and has no word takes `TIMED_OUT` where it had complained, else sends the command once more, and
//! if that is lost too, ends with the drive's own status "aborted due to SQ deletion". The host may
//! only open the next epoch once the drive has forgotten the old queues.
//!
//! *Complaints.* A lane whose command has not ended within `limit_ms` stores [`complaint`] in the
//! command id's word of `complaints`, fences, and stores something new in `alarm`; again each
//! `limit_ms`. The host looks at `alarm` and, where it changed, at the table: it aborts the command
//! (whose completion then comes the usual way) or makes a new epoch. A submitter that gets neither
//! slot nor command id for that long complains with entry `1 << cid_log2` of the table.
//!
//! *Co-polling.* `owner` says who may drain ([`OwnerWord`]). The host gives the CQ away by storing
//! GPU with its head, after its pass and the doorbell. To have it back it stores the same word with
//! RECALL for GPU; the next lane that holds `head_lock` stores CPU with its head in `report`. Where
//! no lane is there to do so, the host may take it once it reads `head_lock` = 0 after a full fence
//! behind RECALL: a lane drains only
//! after it has taken the lock and then read GPU. Then `cq_head` and `sq_head` are the last word, or,
//! where `adopted` is not the word that was stored, the host's own positions.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First word of a [`QueuePairView`]: "SCQP" in little-endian ASCII.
pub const QUEUE_MAGIC: u32 = 0x5051_4353;
/// Version of everything in this module.
pub const QUEUE_VERSION: u32 = 1;

/// State: commands are served.
pub const QUEUE_OPEN: u32 = 1;
/// State: nothing may be touched; the next epoch comes soon.
pub const QUEUE_QUIESCED: u32 = 2;
/// State: nothing is served any more.
pub const QUEUE_CLOSED: u32 = 3;

/// Owner: the CPU agent drains the CQ.
pub const OWNER_CPU: u8 = 1;
/// Owner: lanes drain the CQ.
pub const OWNER_GPU: u8 = 2;
/// Owner: lanes must hand the CQ back, and drain nothing.
pub const OWNER_RECALL: u8 = 3;

/// Flag of a completion word: the command has ended.
pub const COMPLETION_DONE: u16 = 1;
/// Flag of a completion word: a lane drained it.
pub const COMPLETION_BY_GPU: u16 = 2;

/// Flag of a view: lanes look for their own command in the CQ (`bam`).
pub const QUEUE_SCAN: u32 = 1;
/// Flag of a view: each read is followed by one of a block, as a fence (shared where possible).
pub const QUEUE_SECOND_READ: u32 = 2;

/// State of a command id, low 8 bits of its word: nobody has it.
pub const CID_FREE: u32 = 0;
/// A lane has it.
pub const CID_TAKEN: u32 = 1;
/// Its lane left before the command ended; free once its completion word is there, or in a new
/// epoch.
pub const CID_RETIRED: u32 = 2;

/// What of a queue pair changes all the time: in device memory, each hot word on its own line.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(128))]
pub struct QueueState {
    /// Next ticket (SQ position) to reserve. Lanes, by CAS.
    pub in_ticket: u64,
    /// Keeps the next word on its own line.
    pub pad0: [u64; 15],
    /// SQ position up to which the doorbell was rung. Holder of `tail_lock`.
    pub tail: u64,
    /// SQ doorbells rung since the host started the pair. Holder of `tail_lock`.
    pub sq_doorbells: u64,
    /// Keeps the next word on its own line.
    pub pad1: [u64; 14],
    /// 0, or how many have asked since it was taken. Lanes.
    pub tail_lock: u64,
    /// Keeps the next word on its own line.
    pub pad2: [u64; 15],
    /// SQ position that the drive has fetched up to, as far as known. Who drains the CQ (a CPU agent
    /// once a batch, from its own 64-bit mirror; read back when it takes the CQ over from lanes).
    pub sq_head: u64,
    /// Keeps the next word on its own line.
    pub pad3: [u64; 15],
    /// CQ position that lanes have drained up to, as of the last time they owned it. Holder of
    /// `head_lock`.
    pub cq_head: u64,
    /// CQ doorbells rung by lanes. Holder of `head_lock`.
    pub cq_doorbells: u64,
    /// Owner word by which lanes have taken the CQ last, or 0. Holder of `head_lock`.
    pub adopted: u64,
    /// Owner word by which lanes have handed the CQ back last, or 0. Holder of `head_lock`.
    pub returned: u64,
    /// CQ position that was reported last. Holder of `head_lock`.
    pub reported: u64,
    /// Keeps the next word on its own line.
    pub pad4: [u64; 11],
    /// 0, or how many have asked since it was taken. Lanes.
    pub head_lock: u64,
    /// Keeps the next word on its own line.
    pub pad5: [u64; 15],
    /// State (low 32 bits: [`QUEUE_OPEN`] or one of its kind) and epoch (high 32 bits). Only the
    /// host stores it.
    pub state: u64,
    /// Keeps the next word on its own line.
    pub pad6: [u64; 15],
    /// Groups of lanes that may be touching SQ, CQ, doorbells or positions. Lanes, by addition.
    pub inside: u64,
    /// Keeps the next word on its own line.
    pub pad7: [u64; 15],
    /// Command ids are tried from here on. Lanes, by addition.
    pub cid_next: u64,
    /// Keeps the next word on its own line.
    pub pad8: [u64; 15],
    /// Reads that want a fence behind them. Lanes, by addition.
    pub fence_wanted: u64,
    /// Wishes that are fulfilled. Holder of `fence_lock`.
    pub fence_done: u64,
    /// 1 while a lane reads for the others. Lanes, by CAS.
    pub fence_lock: u64,
    /// Second reads done. Holder of `fence_lock`.
    pub fence_ios: u64,
    /// Completions that lanes drained. Lanes, by addition.
    pub drained: u64,
    /// Completions drained that named no command in flight. Lanes, by addition.
    pub strays: u64,
    /// Fills the line.
    pub pad9: [u64; 10],
}
const _: () = assert!(size_of::<QueueState>() == 1280);

impl QueueState {
    /// A state whose positions all start at `start` (a multiple of twice the depth), whose command
    /// ids are tried from `cid_next` on, and which is open in `epoch`.
    pub const fn at(start: u64, cid_next: u64, epoch: u32) -> Self {
        Self {
            in_ticket: start,
            pad0: [0; 15],
            tail: start,
            sq_doorbells: 0,
            pad1: [0; 14],
            tail_lock: 0,
            pad2: [0; 15],
            sq_head: start,
            pad3: [0; 15],
            cq_head: start,
            cq_doorbells: 0,
            adopted: 0,
            returned: 0,
            reported: start,
            pad4: [0; 11],
            head_lock: 0,
            pad5: [0; 15],
            state: QUEUE_OPEN as u64 | (epoch as u64) << 32,
            pad6: [0; 15],
            inside: 0,
            pad7: [0; 15],
            cid_next,
            pad8: [0; 15],
            fence_wanted: 0,
            fence_done: 0,
            fence_lock: 0,
            fence_ios: 0,
            drained: 0,
            strays: 0,
            pad9: [0; 10],
        }
    }
}

/// First value of `tail_marks[slot]` and `head_marks[slot]`: the position a turn before the first.
pub const fn marks_at(start: u64, depth_log2: u32, slot: u64) -> u64 {
    start.wrapping_sub(1 << depth_log2).wrapping_add(slot)
}

/// Phase tag of a CQ entry at this position: 1 in the first turn after any start.
pub const fn phase_of(position: u64, depth_log2: u32) -> bool {
    position >> depth_log2 & 1 == 0
}

/// The first allowed start above a position: for the next epoch.
pub const fn next_start(position: u64, depth_log2: u32) -> u64 {
    (position >> (depth_log2 + 1)).wrapping_add(1) << (depth_log2 + 1)
}

/// How a command ended: epoch (16, lowest) | status (16) | SQ head (16) | flags (16).
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CompletionWord {
    /// The packed word; 0 while the command is in flight.
    pub word: u64,
}
const _: () = assert!(size_of::<CompletionWord>() == 8);

impl CompletionWord {
    /// The word of a command that ended: low 16 bits of the queue's epoch, the drive's status
    /// without its phase tag, SQ head as the entry has it, and flags besides [`COMPLETION_DONE`].
    pub const fn done(epoch: u32, status: u16, sq_head: u16, flags: u16) -> Self {
        let (low, high) = (epoch as u64 & 0xffff | (status as u64) << 16, sq_head as u64);
        Self { word: low | high << 32 | ((flags | COMPLETION_DONE) as u64) << 48 }
    }
}

/// Who drains a CQ: owner (8, lowest) | phase (8) | flip (16) | low half of the CQ head (32).
///
/// `flip` counts hand-overs, so that two words of different turns differ. The phase tag is that of
/// the head, for whoever reads the word without the position.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OwnerWord {
    /// The packed word.
    pub word: u64,
}
const _: () = assert!(size_of::<OwnerWord>() == 8);

impl OwnerWord {
    /// Packs.
    pub const fn pack(owner: u8, phase: bool, flip: u16, head: u32) -> Self {
        let low = owner as u64 | (phase as u64) << 8 | (flip as u64) << 16;
        Self { word: low | (head as u64) << 32 }
    }
    /// One of the `OWNER_` constants.
    pub const fn owner(self) -> u8 {
        (self.word & 0xff) as u8
    }
    /// Phase tag at the head.
    pub const fn phase(self) -> bool {
        self.word >> 8 & 1 != 0
    }
    /// Number of the hand-over.
    pub const fn flip(self) -> u16 {
        (self.word >> 16 & 0xffff) as u16
    }
    /// Low half of the head's position.
    pub const fn head(self) -> u32 {
        (self.word >> 32) as u32
    }
}

/// What a lane stores in `complaints`: low 16 bits of the epoch | 1 (16) | use of the command id
/// (32), so that two complaints about different commands differ.
pub const fn complaint(epoch: u32, uses: u32) -> u64 {
    epoch as u64 & 0xffff | 1 << 16 | (uses as u64) << 32
}

/// All that a kernel needs to use a queue pair; in an array in device memory, never changed while a
/// kernel may read it. All addresses are the GPU's unless called bus addresses.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueuePairView {
    /// [`QUEUE_MAGIC`].
    pub magic: u32,
    /// [`QUEUE_VERSION`].
    pub version: u32,
    /// `size_of::<QueuePairView>()`.
    pub bytes: u32,
    /// Depth of SQ and CQ as a power of two, 1..=15.
    pub depth_log2: u32,
    /// Submission queue: `depth` entries of 64 bytes.
    pub sq: u64,
    /// Completion queue: `depth` entries of 16 bytes.
    pub cq: u64,
    /// The SQ's doorbell, a `u32` of the BAR.
    pub sq_doorbell: u64,
    /// The CQ's doorbell.
    pub cq_doorbell: u64,
    /// The [`QueueState`].
    pub state: u64,
    /// A `u64` a slot of the SQ: last position whose entry is written; first [`marks_at`].
    pub tail_marks: u64,
    /// A `u64` a slot of the CQ: last position whose entry a lane has taken; first [`marks_at`].
    pub head_marks: u64,
    /// A `u64` a command id: state (8, lowest) | 0 (8) | epoch (16) | uses (32); first any uses, free.
    pub cids: u64,
    /// A [`CompletionWord`] a command id; first anything.
    pub completions: u64,
    /// The [`OwnerWord`] in device memory.
    pub owner: u64,
    /// The [`OwnerWord`] in host memory by which lanes answer; 0 where the owner never changes.
    pub report: u64,
    /// A `u64` a command id and one more, in host memory; first 0.
    pub complaints: u64,
    /// A `u64` in host memory; first 0.
    pub alarm: u64,
    /// A page a command id for PRP lists (transfers beyond two pages), or 0.
    pub prp_lists: u64,
    /// Bus address of those pages.
    pub prp_lists_bus: u64,
    /// Command ids 0 to `(1 << cid_log2) - 1` are used; at most 16.
    pub cid_log2: u32,
    /// Namespace.
    pub nsid: u32,
    /// Bytes of a logical block as a power of two.
    pub block_bytes_log2: u32,
    /// Bytes of the controller's memory page as a power of two.
    pub page_bytes_log2: u32,
    /// Largest transfer of one command.
    pub transfer_bytes_max: u32,
    /// A command that takes longer is complained of.
    pub limit_ms: u32,
    /// `QUEUE_` flags.
    pub flags: u32,
    /// Completions that lanes drain between two reports of their head while they own the CQ;
    /// 0: they report only when they hand it back.
    pub report_period: u32,
}
const _: () = assert!(size_of::<QueuePairView>() == 168);

/// Memory that both lanes and drive reach: contiguous for each, page aligned.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaBufferView {
    /// Device address of the first byte.
    pub address: u64,
    /// Bus address of the first byte.
    pub bus: u64,
    /// Length in bytes.
    pub bytes: u64,
}
const _: () = assert!(size_of::<DmaBufferView>() == 24);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_start_with_phase_one_whatever_the_turn() {
        for depth_log2 in 1..=15 {
            for near in [0, 0xffff, 0xffff_ffff, u64::MAX - (1 << 17)] {
                let start = next_start(near, depth_log2);
                assert!(start > near && start - near <= 2 << depth_log2);
                assert!(phase_of(start, depth_log2));
                assert!(!phase_of(start + (1 << depth_log2), depth_log2));
                assert_eq!(marks_at(start, depth_log2, 1) & ((1 << depth_log2) - 1), 1);
            }
        }
    }

    #[test]
    fn words_are_told_apart() {
        let word = CompletionWord::done(0x1_2345, 0x4281, 7, COMPLETION_BY_GPU).word;
        assert_eq!(word, 0x0003_0007_4281_2345);
        let owner = OwnerWord::pack(OWNER_GPU, true, 9, 0xffff_fffe);
        assert_eq!((owner.owner(), owner.phase(), owner.flip()), (OWNER_GPU, true, 9));
        assert_eq!(owner.head(), 0xffff_fffe);
    }
}
