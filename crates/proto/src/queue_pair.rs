//! One submission queue with one completion queue of its own.
//!
//! ```text
//! reserve -> Reservation(index, id) -> commit -> [in flight] -> complete -> Ended
//!               | drop = abandon                     | retire
//!               v                                    v
//!           nothing happened                     [retired] -> complete -> Drained
//! ```
//!
//! Invariants:
//! * Commands in flight and retired together never exceed `commands_max`, which is below the entries
//!   of either queue: the completion queue cannot overflow.
//! * A submission entry is reused only after the drive said, by SQHD, that it has fetched it.
//! * A command id is an index (low bits) and a generation (the bits above). The generation changes
//!   when the id is released, so a second completion of one command is seen as stale and not taken
//!   for the completion of the id's next use (until the generation has come round).
//! * 0xffff is never a command id.
//! * A retired id keeps its context, hence its buffer, until its completion has been drained or the
//!   queue is restarted.
//!
//! Doorbells are batched: commit and complete only move indices, and `take_*_doorbell` says what
//! has to be written, once for all.
//!
//! Source: NVMe Base 2.0c, 3.3.1 (queues), 3.3.3 (entries, phase tag).

use spec::{CommandId, Completion, QueueId, Status};

/// Most commands in flight on one pair: leaves four bits of every id for generations.
pub const COMMANDS_MAX: u32 = 4096;

/// Sizes of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueuePairShape {
    /// Identifier of both queues.
    pub queue: QueueId,
    /// Submission entries, 2..=65536.
    pub submission_entries: u32,
    /// Completion entries, 2..=65536.
    pub completion_entries: u32,
    /// Commands in flight, below both and at most [`COMMANDS_MAX`].
    pub commands_max: u32,
}

impl QueuePairShape {
    /// The smallest pair that holds `commands` in flight.
    pub const fn for_commands(queue: QueueId, commands: u32) -> Self {
        let entries = commands + 1;
        Self {
            queue,
            submission_entries: entries,
            completion_entries: entries,
            commands_max: commands,
        }
    }
}

/// A shape that cannot be. Cause: the caller's numbers. Remedy: stay inside the ranges named.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a queue pair cannot have {0:?}: entries 2..=65536, commands 1..entries and at most 4096")]
pub struct ShapeError(pub QueuePairShape);

/// A completion that cannot be. Cause: the drive. Remedy: recover the queue, or replace the drive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Misbehaved {
    /// The command has been completed before. Cause: a duplicate, or one from before a reset.
    #[error("{queue} completed {command} again")]
    StaleCommand {
        /// Queue of the completion.
        queue: QueueId,
        /// Identifier in it.
        command: CommandId,
    },
    /// The drive claims to have fetched entries that were never submitted.
    #[error("{queue} reported submission head {reported}, outside {head}..={tail}")]
    SubmissionHead {
        /// Queue of the completion.
        queue: QueueId,
        /// Head in it.
        reported: u16,
        /// Last head that was right.
        head: u16,
        /// Tail that the drive was told.
        tail: u16,
    },
    /// No command ever had this identifier.
    #[error("{queue} completed {command}, which never was")]
    UnknownCommand {
        /// Queue of the completion.
        queue: QueueId,
        /// Identifier in it.
        command: CommandId,
    },
    /// The completion names another submission queue.
    #[error("a completion for {reported} arrived on {queue}")]
    WrongQueue {
        /// Queue that it arrived on.
        queue: QueueId,
        /// Queue in it.
        reported: QueueId,
    },
}

/// End of the list of free slots; no slot has this index.
const NO_SLOT: u16 = u16::MAX;

#[derive(Debug)]
struct Slot<T> {
    /// Identifier of the command in it, or of the next one: index and generation joined.
    command: CommandId,
    retired: bool,
    next_free: u16,
    deadline_ns: u64,
    /// What belongs to the command; nothing in a free slot.
    context: Option<T>,
}

impl<T> Slot<T> {
    /// Changes the identifier, once the command that had it is over.
    #[inline]
    fn start_generation(&mut self, index_mask: u16) {
        // Index bits stay; the carry out of the top is lost, as it should be.
        let next = self.command.0.wrapping_add(index_mask).wrapping_add(1);
        self.command = CommandId(if next == u16::MAX { index_mask } else { next });
    }

    fn is_waited_for(&self) -> bool {
        self.context.is_some() && !self.retired
    }
}

/// The end of one command.
#[derive(Debug, PartialEq, Eq)]
pub enum Completed<T> {
    /// A command that had been given up; its buffer is free now.
    Drained {
        /// Its identifier, which may be used again.
        command: CommandId,
        /// What was given at commit.
        context: T,
    },
    /// A command that was waited for.
    Ended {
        /// Its identifier, which may be used again.
        command: CommandId,
        /// What was given at commit.
        context: T,
        /// The drive's status.
        status: Status,
        /// Command specific dword 0.
        result: u32,
    },
}

/// A command whose queue was restarted under it.
#[derive(Debug, PartialEq, Eq)]
pub struct Lost<T> {
    /// The identifier that it had.
    pub command: CommandId,
    /// Whether it had been given up before.
    pub retired: bool,
    /// What was given at commit.
    pub context: T,
}

/// State of a queue pair; `T` is whatever belongs to a command in flight.
#[derive(Debug)]
pub struct QueuePair<T> {
    shape: QueuePairShape,
    /// Bits of an identifier that are the index.
    index_mask: u16,
    slots: Vec<Slot<T>>,
    /// Top of the stack of free slots, linked by `next_free`; [`NO_SLOT`] where there is none.
    free: u16,
    in_flight: usize,
    tail: u16,
    tail_rung: u16,
    /// First submission entry that the drive may not have fetched yet.
    submission_head: u16,
    /// Entries from there to the tail, and to the tail that the drive was told.
    unfetched: u32,
    unfetched_told: u32,
    head: u16,
    head_rung: u16,
    phase: bool,
    /// No deadline is before this. May be too early, never too late.
    deadline_bound_ns: u64,
}

/// A place for one command. Dropping it abandons it: nothing has happened.
#[must_use = "a reservation that is dropped sends nothing"]
#[derive(Debug)]
pub struct Reservation<'a, T> {
    pair: &'a mut QueuePair<T>,
    slot: u16,
}

impl<T> Reservation<'_, T> {
    /// The submission entry to write before `commit`.
    #[inline]
    pub fn index(&self) -> u16 {
        self.pair.tail
    }

    /// Number of the command's slot, below `commands_max`: for tables beside the queue.
    #[inline]
    pub fn slot(&self) -> usize {
        usize::from(self.slot)
    }

    /// The identifier to write into the entry.
    #[inline]
    pub fn command_id(&self) -> CommandId {
        self.pair.slots[usize::from(self.slot)].command
    }

    /// Makes the command part of the queue: the drive may see it from the next doorbell on.
    ///
    /// `deadline_ns` is when the caller loses patience; `u64::MAX` is never.
    #[inline]
    pub fn commit(self, context: T, deadline_ns: u64) -> CommandId {
        let pair = self.pair;
        let slot = &mut pair.slots[usize::from(self.slot)];
        let command = slot.command;
        pair.free = slot.next_free;
        pair.in_flight += 1;
        slot.retired = false;
        slot.deadline_ns = deadline_ns;
        slot.context = Some(context);
        pair.unfetched += 1;
        pair.deadline_bound_ns = pair.deadline_bound_ns.min(deadline_ns);
        pair.tail = advance(pair.tail, pair.shape.submission_entries);
        command
    }
}

/// The index after `index` in a ring of `entries`.
#[inline]
fn advance(index: u16, entries: u32) -> u16 {
    if u32::from(index) + 1 == entries { 0 } else { index + 1 }
}

/// How far `to` lies after `from` in a ring of `entries`.
#[inline]
fn distance(from: u16, to: u16, entries: u32) -> u32 {
    let (from, to) = (u32::from(from), u32::from(to));
    if to >= from { to - from } else { to.wrapping_sub(from).wrapping_add(entries) }
}

impl<T> QueuePair<T> {
    /// An empty pair, as both sides see it after creation.
    ///
    /// # Errors
    /// [`ShapeError`] where the numbers do not fit together.
    pub fn new(shape: QueuePairShape) -> Result<Self, ShapeError> {
        let entries = 2..=65536;
        let entries_min = shape.submission_entries.min(shape.completion_entries);
        let good = entries.contains(&shape.submission_entries)
            && entries.contains(&shape.completion_entries)
            && (1..entries_min.min(COMMANDS_MAX + 1)).contains(&shape.commands_max);
        let Some(commands) = u16::try_from(shape.commands_max).ok().filter(|_| good) else {
            return Err(ShapeError(shape));
        };
        let slot = |index| Slot {
            command: CommandId(index),
            retired: false,
            next_free: if index + 1 == commands { NO_SLOT } else { index + 1 },
            deadline_ns: u64::MAX,
            context: None,
        };
        Ok(Self {
            shape,
            index_mask: commands.next_power_of_two() - 1,
            slots: (0..commands).map(slot).collect(),
            free: 0,
            in_flight: 0,
            tail: 0,
            tail_rung: 0,
            submission_head: 0,
            unfetched: 0,
            unfetched_told: 0,
            head: 0,
            head_rung: 0,
            phase: true,
            deadline_bound_ns: u64::MAX,
        })
    }

    /// The sizes that it was made with.
    pub fn shape(&self) -> QueuePairShape {
        self.shape
    }

    /// Commands that the drive may still complete, given-up ones too.
    #[inline]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Reserves an entry and an identifier; `None` while the queue is full.
    #[inline]
    pub fn reserve(&mut self) -> Option<Reservation<'_, T>> {
        let slot = self.free;
        if slot == NO_SLOT || self.unfetched + 1 == self.shape.submission_entries {
            return None;
        }
        Some(Reservation { pair: self, slot })
    }

    /// The tail to write to the doorbell, where the drive has not been told yet.
    #[inline]
    pub fn take_submission_doorbell(&mut self) -> Option<u16> {
        let changed = self.tail != self.tail_rung;
        self.tail_rung = self.tail;
        self.unfetched_told = self.unfetched;
        changed.then_some(self.tail)
    }

    /// The head to write to the doorbell, where the drive has not been told yet.
    #[inline]
    pub fn take_completion_doorbell(&mut self) -> Option<u16> {
        let changed = self.head != self.head_rung;
        self.head_rung = self.head;
        changed.then_some(self.head)
    }

    /// The completion entry to look at next.
    #[inline]
    pub fn completion_index(&self) -> u16 {
        self.head
    }

    /// The phase tag that a new entry has there.
    #[inline]
    pub fn completion_phase(&self) -> bool {
        self.phase
    }

    /// Takes the entry at [`QueuePair::completion_index`]; `None` where it is not a new one.
    ///
    /// # Errors
    /// [`Misbehaved`], with the entry consumed and every command left as it was.
    #[inline]
    pub fn complete(&mut self, entry: &Completion) -> Option<Result<Completed<T>, Misbehaved>> {
        if entry.phase() != self.phase {
            return None;
        }
        let wraps = u32::from(self.head) + 1 == self.shape.completion_entries;
        self.head = if wraps { 0 } else { self.head + 1 };
        self.phase ^= wraps;
        Some(self.accept(entry))
    }

    #[inline]
    fn accept(&mut self, entry: &Completion) -> Result<Completed<T>, Misbehaved> {
        let queue = self.shape.queue;
        if entry.submission_queue() != queue {
            return Err(Misbehaved::WrongQueue { queue, reported: entry.submission_queue() });
        }
        let command = entry.command_id();
        let index = command.0 & self.index_mask;
        let Some(slot) = self.slots.get_mut(usize::from(index)) else {
            return Err(Misbehaved::UnknownCommand { queue, command });
        };
        if slot.command != command {
            return Err(Misbehaved::StaleCommand { queue, command });
        }
        // Completions that arrive together report the same head.
        let moved = entry.sqhd != self.submission_head;
        let entries = self.shape.submission_entries;
        let fetched = if moved { distance(self.submission_head, entry.sqhd, entries) } else { 0 };
        if moved && (u32::from(entry.sqhd) >= entries || fetched > self.unfetched_told) {
            let (head, tail) = (self.submission_head, self.tail_rung);
            return Err(Misbehaved::SubmissionHead { queue, reported: entry.sqhd, head, tail });
        }
        let Some(context) = slot.context.take() else {
            return Err(Misbehaved::StaleCommand { queue, command });
        };
        self.submission_head = entry.sqhd;
        self.unfetched -= fetched;
        self.unfetched_told -= fetched;
        let retired = slot.retired;
        slot.start_generation(self.index_mask);
        slot.next_free = self.free;
        self.free = index;
        self.in_flight -= 1;
        Ok(if retired {
            Completed::Drained { command, context }
        } else {
            Completed::Ended { command, context, status: entry.status(), result: entry.dw0 }
        })
    }

    /// Gives a command up: nobody waits for it, but identifier and context stay until it is drained.
    ///
    /// False where no such command is in flight.
    pub fn retire(&mut self, command: CommandId) -> bool {
        let in_flight = self.is_in_flight(command);
        if in_flight {
            self.slots[usize::from(command.0 & self.index_mask)].retired = true;
        }
        in_flight
    }

    /// Whether this command is in flight and not given up.
    pub fn is_in_flight(&self, command: CommandId) -> bool {
        let slot = self.slots.get(usize::from(command.0 & self.index_mask));
        slot.is_some_and(|slot| slot.is_waited_for() && slot.command == command)
    }

    /// The commands in flight and not given up, with their contexts.
    pub fn commands(&self) -> impl Iterator<Item = (CommandId, &T)> {
        let waiting = self.slots.iter().filter(|slot| slot.is_waited_for());
        waiting.filter_map(|slot| Some((slot.command, slot.context.as_ref()?)))
    }

    /// Appends the commands whose deadline has passed; each is reported once.
    ///
    /// # Cost
    /// One comparison while no deadline is near, else a pass over all slots.
    #[inline]
    pub fn take_overdue(&mut self, now_ns: u64, overdue: &mut Vec<CommandId>) {
        if now_ns >= self.deadline_bound_ns {
            self.scan_overdue(now_ns, overdue);
        }
    }

    #[cold]
    fn scan_overdue(&mut self, now_ns: u64, overdue: &mut Vec<CommandId>) {
        let mut bound_ns = u64::MAX;
        for slot in &mut self.slots {
            if !slot.is_waited_for() {
                continue;
            }
            if slot.deadline_ns <= now_ns {
                slot.deadline_ns = u64::MAX;
                overdue.push(slot.command);
            }
            bound_ns = bound_ns.min(slot.deadline_ns);
        }
        self.deadline_bound_ns = bound_ns;
    }

    /// No deadline is before this time (which may be too early).
    pub fn deadline_bound_ns(&self) -> u64 {
        self.deadline_bound_ns
    }

    /// Puts the pair back to its state after creation and hands out what was in flight.
    ///
    /// Only once the drive no longer knows the queue: it has been deleted, or the controller reset.
    /// Generations go on, so that the drive's old identifiers stay stale.
    pub fn restart(&mut self) -> Vec<Lost<T>> {
        let mut lost = Vec::new();
        for (slot, index) in self.slots.iter_mut().zip(0u16..) {
            if let Some(context) = slot.context.take() {
                let (command, retired) = (slot.command, slot.retired);
                slot.start_generation(self.index_mask);
                slot.next_free = self.free;
                self.free = index;
                self.in_flight -= 1;
                lost.push(Lost { command, retired, context });
            }
        }
        (self.tail, self.tail_rung, self.submission_head) = (0, 0, 0);
        (self.unfetched, self.unfetched_told) = (0, 0);
        (self.head, self.head_rung, self.phase) = (0, 0, true);
        self.deadline_bound_ns = u64::MAX;
        lost
    }
}
