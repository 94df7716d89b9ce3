//! What lanes cannot do themselves: opening their queue pairs, and getting rid of commands that do
//! not end.
//!
//! ```text
//! Opening -> Serving -> Leaving -> Draining -> Deleting -> Opening (next epoch)
//!               |  Abort suffices     `---------> Deleting: a reset took the queues
//!               +--<--+
//! ```
//!
//! * A waiting lane complains of a command beyond its limit. The command is aborted; the drive's
//!   completion, with its status, then reaches the lane the usual way.
//! * Where no end follows, lanes are asked to leave the pair, which takes them a few steps. The host
//!   drains what still completes, for as long as a command may take; so whoever has no end then is
//!   overdue itself, and no lost completion vanishes because its command was sent again.
//! * The pair is deleted (a drive that refuses is reset). Overdue commands have the drive's own
//!   "aborted due to SQ deletion" where it said so, else they are answered with `TIMED_OUT`. Nothing
//!   writes their buffers any more. Then the pair is made again under the next epoch.
//! * A reset takes every pair of its controller. *Innocents* — commands that a reset took before
//!   their limit — are sent again by their lanes, once; whoever loses two epochs gets the drive's own
//!   "aborted due to SQ deletion". Those that had been complained of get `TIMED_OUT`.
//!
//! A lane so learns its command's end within: its limit, the Abort (bounded by the driver's limit of
//! an admin command), the grace, the limit again for draining, and what deleting or a reset takes.

use std::sync::Arc;

use abi::queue::{
    CID_RETIRED, CID_TAKEN, COMPLETION_DONE, CompletionWord, QUEUE_CLOSED, QUEUE_OPEN,
    QUEUE_QUIESCED, next_start,
};
use abi::status;
use driver::{AbortAnswer, AbortTicket, LentQueue, LentState};
use mem::{fence_full, fence_payload};
use spec::CommandId;

use super::copoll::Owner;
use super::memory::CidState;
use super::options::Polling;
use super::pair::{Pair, PairState};

/// How long lanes may take to leave a pair before it counts as failed.
const LEAVE_MAX_NS: u64 = 5_000_000_000;
/// Looks at the command ids while draining, within a limit.
const LOOKS_A_LIMIT: u64 = 16;

enum Effort {
    /// An Abort has to be sent.
    Wanted,
    /// It has been sent.
    Sent(AbortTicket),
    /// It has been answered; the end must come until then.
    Answered { until_ns: u64 },
}

/// A command that a lane has lost patience with.
struct Victim {
    id: u16,
    uses: u32,
    effort: Effort,
}

enum Phase {
    /// The pair is deleted; commands without an end are overdue, or went down in a reset.
    Deleting {
        overdue: bool,
    },
    /// The host drains until then; it looks again at the command ids at the other time.
    Draining {
        until_ns: u64,
        look_ns: u64,
    },
    /// Lanes are leaving, since then; whether none was inside, and none held the lock, once.
    Leaving {
        since_ns: u64,
        left: bool,
        unlocked: bool,
    },
    Opening,
    Over,
    Serving,
}

/// One pair in care.
struct Care {
    pair: Arc<Pair>,
    lent: LentQueue,
    phase: Phase,
    closing: bool,
    epoch: u32,
    start: u64,
    alarm: u64,
    victims: Vec<Victim>,
    /// Aborts under way that nobody waits for: each keeps one of the few that the drive allows at a
    /// time, until its answer is taken.
    aborts: Vec<AbortTicket>,
    limit_ns: u64,
    grace_ns: u64,
}

/// Opens, watches and takes down the queue pairs of a set. Exactly one caller steps it.
pub struct Recovery {
    cares: Vec<Care>,
}

/// How soon the next step of [`Recovery`] is worth while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecoveryProgress {
    /// Something is under way.
    Busy,
    /// All pairs have been taken down, or have failed.
    Over,
    /// All is well, as far as known.
    Quiet,
}

impl Recovery {
    pub(super) fn new(pairs: Vec<(Arc<Pair>, LentQueue)>) -> Self {
        Self { cares: pairs.into_iter().map(|(pair, lent)| Care::new(pair, lent)).collect() }
    }

    /// Does what there is to do for each pair. Short, never blocks.
    pub fn step(&mut self, now_ns: u64) -> RecoveryProgress {
        let (mut busy, mut over) = (false, true);
        for care in &mut self.cares {
            care.step(now_ns);
            over &= matches!(care.phase, Phase::Over);
            busy |= !matches!(care.phase, Phase::Serving | Phase::Over) || !care.victims.is_empty();
        }
        match (over, busy) {
            (true, _) => RecoveryProgress::Over,
            (false, true) => RecoveryProgress::Busy,
            (false, false) => RecoveryProgress::Quiet,
        }
    }

    /// Begins to take all pairs down: lanes leave, commands end as when they are overdue, and the
    /// drive forgets the queues.
    pub fn close(&mut self) {
        self.cares.iter_mut().for_each(|care| care.closing = true);
    }
}

impl Care {
    fn new(pair: Arc<Pair>, lent: LentQueue) -> Self {
        let options = &pair.memory.options;
        let turn = u64::from(options.depth) * 2;
        let nanoseconds = |d: std::time::Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let mut care = Self {
            start: options.start & !(turn - 1),
            limit_ns: nanoseconds(options.limit),
            grace_ns: nanoseconds(options.grace),
            phase: Phase::Opening,
            closing: false,
            epoch: 1,
            alarm: 0,
            victims: Vec::new(),
            aborts: Vec::new(),
            lent,
            pair,
        };
        care.prepare();
        care
    }

    /// The memory as the coming epoch needs it. The drive does not know the pair, and lanes stay away until
    /// `open`, which fences.
    fn prepare(&mut self) {
        self.pair.memory.store_state(QUEUE_QUIESCED, self.epoch.wrapping_sub(1));
        self.pair.memory.renew(self.start);
        self.pair.set_state(PairState::Opening);
        self.phase = Phase::Opening;
    }

    fn step(&mut self, now_ns: u64) {
        if matches!(self.phase, Phase::Over) {
            return;
        }
        let lent = self.lent.poll(now_ns);
        if let LentState::Failed(_) = lent {
            return self.fail();
        }
        let open = matches!(lent, LentState::Open);
        let lent_queue = &mut self.lent;
        self.aborts.retain(|ticket| lent_queue.take_abort(now_ns, ticket).is_none());
        match self.phase {
            Phase::Serving => self.serve(now_ns, open),
            Phase::Leaving { since_ns, left, unlocked } => {
                self.step_leaving(now_ns, open, since_ns, (left, unlocked));
            }
            Phase::Draining { until_ns, look_ns } => {
                self.step_draining(now_ns, open, until_ns, look_ns);
            }
            Phase::Deleting { overdue } => match lent {
                LentState::Absent => self.step_absent(overdue),
                LentState::Open => self.lent.delete(),
                _ => {}
            },
            Phase::Opening => match lent {
                LentState::Absent if self.closing => self.end(PairState::Closed),
                LentState::Absent => self.lent.create(),
                LentState::Open => self.open(now_ns),
                _ => {}
            },
            Phase::Over => {}
        }
    }

    fn end(&mut self, state: PairState) {
        self.pair.memory.store_state(QUEUE_CLOSED, self.epoch);
        fence_payload();
        let mut drain = self.pair.drain();
        drain.close();
        self.pair.publish(&drain.counts);
        drop(drain);
        self.pair.set_state(state);
        self.victims.clear();
        self.phase = Phase::Over;
    }

    /// The controller will not work again, or lanes do not leave.
    fn fail(&mut self) {
        self.end(PairState::Failed);
    }

    fn open(&mut self, now_ns: u64) {
        let lanes = self.pair.memory.options.polling == Polling::Gpu;
        let owner = if lanes { Owner::Gpu } else { Owner::Cpu };
        self.alarm = self.pair.memory.alarm();
        self.pair.drain().open(now_ns, self.start, self.epoch, owner);
        // Everything of the new epoch is there before its state word.
        fence_payload();
        self.pair.memory.store_state(QUEUE_OPEN, self.epoch);
        fence_payload();
        self.pair.set_state(PairState::Serving);
        self.phase = Phase::Serving;
    }

    fn serve(&mut self, now_ns: u64, open: bool) {
        let alarm = self.pair.memory.alarm();
        let mut hopeless = false;
        if open && alarm != self.alarm {
            self.alarm = alarm;
            hopeless |= self.hear_complaints();
        }
        if open && !self.victims.is_empty() {
            hopeless |= self.step_victims(now_ns);
        }
        if !open || hopeless || self.closing {
            let sent = self.victims.drain(..).filter_map(|victim| match victim.effort {
                Effort::Sent(ticket) => Some(ticket),
                Effort::Answered { .. } | Effort::Wanted => None,
            });
            self.aborts.extend(sent);
            // Not closed yet, where that is wanted: the drive may still write what lanes wait for.
            self.pair.memory.store_state(QUEUE_QUIESCED, self.epoch);
            // Lanes that enter from here on see this word; those that are in are seen to be.
            fence_full();
            self.pair.set_state(PairState::Opening);
            self.phase = Phase::Leaving { since_ns: now_ns, left: false, unlocked: false };
        }
    }

    /// Takes in who complains of what; true where somebody complains of finding no room.
    fn hear_complaints(&mut self) -> bool {
        let memory = &self.pair.memory;
        let ids = usize::try_from(memory.options.command_ids).expect("at most 65536");
        let current = |word: u64| word & 0xffff_ffff == u64::from(self.epoch & 0xffff) | 1 << 16;
        let complaints: Vec<_> = (0..=ids)
            .map(|id| (id, memory.complaint(id)))
            .filter(|(_, word)| current(*word))
            .collect();
        let Ok(states) = memory.cids() else { return false };
        for (id, word) in &complaints {
            let uses = u32::try_from(word >> 32).expect("half a word");
            let Some(state) = states.get(*id) else { continue };
            let known = |victim: &Victim| usize::from(victim.id) == *id && victim.uses == uses;
            if is_pending(state, self.epoch, Some(uses)) && !self.victims.iter().any(known) {
                let id = u16::try_from(*id).expect("below 65536");
                self.victims.push(Victim { id, uses, effort: Effort::Wanted });
            }
        }
        complaints.iter().any(|(id, _)| *id == ids)
    }

    /// Moves Aborts on; true where one was of no use.
    fn step_victims(&mut self, now_ns: u64) -> bool {
        let mut hopeless = false;
        let (lent, pair) = (&mut self.lent, &self.pair);
        let (grace_ns, epoch) = (self.grace_ns, self.epoch);
        self.victims.retain_mut(|victim| match &victim.effort {
            Effort::Wanted => {
                if let Some(ticket) = lent.try_abort(now_ns, CommandId(victim.id)) {
                    pair.drain().counts.aborts += 1;
                    victim.effort = Effort::Sent(ticket);
                }
                true
            }
            Effort::Sent(ticket) => {
                if let Some(answer) = lent.take_abort(now_ns, ticket) {
                    let aborted = answer == AbortAnswer::Aborted;
                    pair.drain().counts.aborted += u64::from(aborted);
                    let until_ns = now_ns.saturating_add(grace_ns);
                    victim.effort = Effort::Answered { until_ns };
                }
                true
            }
            Effort::Answered { until_ns } => {
                let state = pair.memory.cid(usize::from(victim.id));
                let pending = state.is_ok_and(|s| is_pending(&s, epoch, Some(victim.uses)));
                hopeless |= pending && now_ns >= *until_ns;
                pending
            }
        });
        hopeless
    }

    /// Each count was 0 once since the state word went out: who comes later sees that word, and
    /// touches nothing, so the two need not be 0 at the same time.
    fn step_leaving(&mut self, now_ns: u64, open: bool, since_ns: u64, so_far: (bool, bool)) {
        let Ok(positions) = self.pair.memory.positions() else { return };
        let left = so_far.0 || positions.inside == 0;
        let unlocked = so_far.1 || positions.head_lock == 0;
        if !left || !unlocked {
            self.phase = Phase::Leaving { since_ns, left, unlocked };
            if now_ns.saturating_sub(since_ns) > LEAVE_MAX_NS {
                self.fail();
            }
            return;
        }
        // No lane touches the queues from here on.
        let Ok(taken) = self.pair.memory.head_marks() else { return };
        self.pair.drain().seize(now_ns, positions.cq_head, positions.sq_head, taken);
        self.start = [positions.cq_head, positions.tail, positions.sq_head]
            .into_iter()
            .fold(positions.in_ticket, |most, one| if later(one, most) { one } else { most });
        let until_ns = now_ns.saturating_add(self.limit_ns);
        self.phase = if open {
            Phase::Draining { until_ns, look_ns: 0 }
        } else {
            Phase::Deleting { overdue: false }
        };
    }

    fn step_draining(&mut self, now_ns: u64, open: bool, until_ns: u64, look_ns: u64) {
        if !open {
            self.phase = Phase::Deleting { overdue: false };
            return;
        }
        self.pair.drain().step(now_ns);
        let over = now_ns >= until_ns;
        if !over && now_ns < look_ns {
            return;
        }
        let Ok(states) = self.pair.memory.cids() else { return };
        if over || !states.iter().any(|state| is_pending(state, self.epoch, None)) {
            self.lent.delete();
            self.phase = Phase::Deleting { overdue: true };
        } else {
            let look_ns = now_ns.saturating_add(self.limit_ns / LOOKS_A_LIMIT);
            self.phase = Phase::Draining { until_ns, look_ns };
        }
    }

    /// The drive has forgotten the pair: overdue commands are answered, the next epoch prepared.
    fn step_absent(&mut self, overdue: bool) {
        let mut drain = self.pair.drain();
        // What the drive still completed before it forgot the queue has ended.
        drain.finish();
        drain.close();
        let head = drain.head();
        if later(head, self.start) {
            self.start = head;
        }
        if overdue || self.closing {
            let Ok(states) = self.pair.memory.cids() else { return };
            let word = CompletionWord::done(self.epoch, status::TIMED_OUT, 0, 0);
            for (id, _) in
                states.iter().enumerate().filter(|(_, s)| is_pending(s, self.epoch, None))
            {
                self.pair.memory.store_completion(id, word);
                drain.counts.timed_out += 1;
            }
            fence_payload();
        }
        drain.counts.epochs += 1;
        self.pair.publish(&drain.counts);
        drop(drain);
        if self.closing {
            return self.end(PairState::Closed);
        }
        self.start = next_start(self.start, self.pair.memory.depth_log2);
        self.epoch = self.epoch.wrapping_add(1);
        self.prepare();
    }
}

/// Whether `one` is a later position than `other`, across a wrap too.
fn later(one: u64, other: u64) -> bool {
    let distance = one.wrapping_sub(other);
    distance != 0 && distance < 1 << 63
}

/// Whether a command id has a command without an end in `epoch` (of this use, where one is named).
///
/// A lane that has an id but has not sent yet looks the same; a word that it gets means nothing to it,
/// since it sends in a later epoch.
fn is_pending(state: &CidState, epoch: u32, uses: Option<u32>) -> bool {
    let epoch = u64::from(epoch & 0xffff);
    let there = match (state.cid & 0xff, state.cid >> 16 & 0xffff) {
        (kind, _) if kind == u64::from(CID_TAKEN) => true,
        (kind, of) => kind == u64::from(CID_RETIRED) && of == epoch,
    };
    let done = state.completion >> 48 & u64::from(COMPLETION_DONE) != 0;
    let ended = done && state.completion & 0xffff == epoch;
    let same = uses.is_none_or(|uses| state.cid >> 32 == u64::from(uses));
    there && !ended && same
}
