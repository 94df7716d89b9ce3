//! What a lane must have fenced before what: each fence of the queue pairs as a rule about the order
//! of one lane's accesses.
//!
//! A memory model shows a missing fence only where it can reorder what the fence keeps apart. It cannot
//! let a load happen after a store that depends on it, and all its full fences are total. So here
//! every lane is watched: between an access of the first kind and one of the second there must be a
//! fence that is strong enough. A barrier passes on what is not fenced yet.

use std::collections::{HashMap, HashSet};
use std::mem::offset_of;
use std::ops::Range;

use abi::queue::{
    CID_FREE, CID_RETIRED, COMPLETION_DONE, DmaBufferView, QUEUE_OPEN, QueuePairView, QueueState,
};
use simt::seeded::{AccessKind, FenceKind, LaneAccess, LaneId, Observed};

/// What an access means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    /// The CQ is the lanes', as of an owner word.
    Adopted,
    AlarmStored,
    BytesLoaded,
    BytesStored,
    CidFreed,
    CidTaken,
    CidRetiredSeen,
    ComplaintStored,
    CqRung,
    Entered,
    EntrySeen,
    /// The same, for the first time since the lane has the head's lock.
    EntryFirstSeen,
    FenceDoneSeen,
    FenceDoneStored,
    FenceUnlocked,
    HeadAsked,
    HeadClaimed,
    HeadLocked,
    HeadMarkSeen,
    HeadRead,
    HeadStored,
    HeadUnlocked,
    Left,
    OpenSeen,
    OpenSeenLocked,
    OwnerSeen,
    SqRung,
    StateSeen,
    SubmissionStored,
    TailAsked,
    TailLocked,
    TailMarked,
    TailSeen,
    TailStored,
    TailUnlocked,
    TicketTaken,
    WordEmptied,
    WordRead,
    /// The end of a command of this lane's.
    WordSeen,
    WordTold,
}

use Event::*;

/// After one of `before` and before one of `after` a lane fences, at least so.
struct Rule {
    before: &'static [Event],
    after: &'static [Event],
    fence: FenceKind,
    system: bool,
    why: &'static str,
}

const fn rule(
    before: &'static [Event],
    (fence, system): (FenceKind, bool),
    after: &'static [Event],
    why: &'static str,
) -> Rule {
    Rule { before, after, fence, system, why }
}

const ACQUIRE: (FenceKind, bool) = (FenceKind::Acquire, true);
const FULL: (FenceKind, bool) = (FenceKind::Full, true);
const TOTAL: (FenceKind, bool) = (FenceKind::Total, true);
const DEVICE_ACQUIRE: (FenceKind, bool) = (FenceKind::Acquire, false);
const DEVICE: (FenceKind, bool) = (FenceKind::Full, false);

const RULES: &[Rule] = &[
    // Command ids and their words.
    rule(
        &[CidRetiredSeen],
        DEVICE_ACQUIRE,
        &[WordRead],
        "an end of the id's use before is taken for its last",
    ),
    rule(&[CidTaken], DEVICE, &[WordEmptied], "the last use's end comes out over the emptied word"),
    rule(&[WordEmptied], DEVICE, &[CidFreed], "the word is emptied under the next use of its id"),
    rule(
        &[WordSeen, EntrySeen],
        ACQUIRE,
        &[CidFreed, BytesLoaded],
        "bytes, or the id, are used before the end was seen",
    ),
    // Submitting.
    rule(&[Entered], TOTAL, &[StateSeen], "host and lane miss each other"),
    rule(
        &[OpenSeen],
        ACQUIRE,
        &[TicketTaken, HeadClaimed],
        "positions of the last epoch are used in this one",
    ),
    rule(
        &[SubmissionStored, WordEmptied, BytesStored],
        FULL,
        &[TailMarked],
        "the drive fetches what is not there yet",
    ),
    rule(&[TailMarked], DEVICE, &[TailAsked], "whoever rings for this warp misses its mark"),
    rule(&[TailLocked], DEVICE, &[TailSeen], "marks of those who asked are missed"),
    rule(&[TailSeen], FULL, &[SqRung], "the doorbell overtakes entries of other lanes"),
    rule(&[SqRung, TailStored], FULL, &[TailUnlocked], "doorbells of two holders change places"),
    rule(&[TailUnlocked, HeadClaimed], FULL, &[Left], "the host does not see what was done inside"),
    // Draining.
    rule(&[HeadClaimed], DEVICE, &[HeadAsked], "whoever drains for this lane misses its mark"),
    rule(&[HeadLocked], TOTAL, &[StateSeen, OwnerSeen], "host and lane drain the same entries"),
    rule(&[OpenSeenLocked], ACQUIRE, &[HeadRead], "the head of the last epoch is drained from"),
    rule(&[OwnerSeen], ACQUIRE, &[Adopted], "what the host did with the CQ is not seen"),
    rule(&[EntryFirstSeen], FULL, &[WordTold], "the word comes before the payload"),
    rule(
        &[EntrySeen, HeadMarkSeen],
        FULL,
        &[CqRung],
        "the drive overwrites an entry that is still to be read",
    ),
    rule(
        &[WordTold, HeadStored, CqRung],
        FULL,
        &[HeadUnlocked],
        "the next holder, or the host, begins at an old head",
    ),
    // Complaints and second reads.
    rule(
        &[ComplaintStored],
        FULL,
        &[AlarmStored],
        "the host hears the alarm and finds no complaint",
    ),
    rule(
        &[WordSeen, EntrySeen],
        DEVICE,
        &[FenceDoneStored],
        "a second read is told of before it has ended",
    ),
    rule(
        &[FenceDoneStored],
        DEVICE,
        &[FenceUnlocked],
        "the next holder counts on from an old number",
    ),
    rule(
        &[FenceDoneSeen],
        ACQUIRE,
        &[BytesLoaded],
        "bytes are used before the second read was seen",
    ),
];

#[derive(Clone, Default)]
struct Lane {
    /// By rule: whether something of `before` is not fenced.
    armed: Vec<bool>,
    /// By rule: whether something of `before` was ever done.
    ever: Vec<bool>,
    drains: bool,
    entries: HashSet<u64>,
    ids: HashSet<u64>,
}

/// Watches the lanes of one queue pair.
pub struct Order {
    view: QueuePairView,
    buffer: Range<u64>,
    lanes: HashMap<LaneId, Lane>,
    /// By rule: how often its second kind of access came, fenced from the first.
    pub held: Vec<u64>,
}

impl Order {
    pub fn new(view: QueuePairView, buffer: DmaBufferView) -> Self {
        let buffer = buffer.address..buffer.address + buffer.bytes;
        Self { view, buffer, lanes: HashMap::new(), held: vec![0; RULES.len()] }
    }

    /// What the rules forbid, of those that were never put to the test.
    pub fn idle(held: &[u64]) -> Vec<&'static str> {
        let idle = RULES.iter().zip(held).filter(|(_, held)| **held == 0);
        idle.map(|(rule, _)| rule.why).collect()
    }

    /// Takes in what lanes did.
    ///
    /// # Panics
    /// Where an access breaks a rule.
    pub fn tell(&mut self, observed: Observed<'_>) {
        match observed {
            Observed::Access { lane, access } => {
                let mut state = self.lanes.remove(&lane).unwrap_or_default();
                state.armed.resize(RULES.len(), false);
                state.ever.resize(RULES.len(), false);
                self.access(lane, &mut state, access);
                self.lanes.insert(lane, state);
            }
            Observed::Barrier { lanes } => self.meet(lanes),
        }
    }

    fn meet(&mut self, lanes: &[LaneId]) {
        for rule in 0..RULES.len() {
            let states = lanes.iter().filter_map(|lane| self.lanes.get(lane));
            let (armed, ever) = states.fold((false, false), |(armed, ever), state| {
                (armed || state.armed[rule], ever || state.ever[rule])
            });
            for lane in lanes {
                if let Some(state) = self.lanes.get_mut(lane) {
                    (state.armed[rule], state.ever[rule]) = (armed, ever);
                }
            }
        }
    }

    fn access(&mut self, lane: LaneId, state: &mut Lane, access: LaneAccess) {
        if let AccessKind::Fence { kind, system } = access.kind {
            for (armed, rule) in state.armed.iter_mut().zip(RULES) {
                *armed &= kind < rule.fence || (rule.system && !system);
            }
            return;
        }
        let events = self.events(state, &access);
        for (index, rule) in RULES.iter().enumerate() {
            let of = |kinds: &[Event]| events.iter().any(|event| kinds.contains(event));
            if of(rule.after) {
                let (before, after) = (rule.before, rule.after);
                let at = format!("lane {lane:?}: {before:?}, no fence, {after:?}");
                assert!(!state.armed[index], "{at}: {}", rule.why);
                self.held[index] += u64::from(state.ever[index]);
            }
            if of(rule.before) {
                (state.armed[index], state.ever[index]) = (true, true);
            }
        }
    }

    /// What an access means; follows which locks and ids the lane has.
    fn events(&self, lane: &mut Lane, access: &LaneAccess) -> Vec<Event> {
        let view = &self.view;
        let LaneAccess { kind, address, given: [given, _], found } = *access;
        let depth = 1 << view.depth_log2;
        let within = |start: u64, bytes: u64| (start..start + bytes).contains(&address);
        let (load, store) = (kind == AccessKind::Load, kind == AccessKind::Store);
        let swapped = kind == AccessKind::CompareSwap && found == given;
        let ids = 8 << view.cid_log2;
        let mut events = Vec::new();
        let mut say = |condition: bool, event: Event| {
            if condition {
                events.push(event);
            }
        };
        if within(view.state, size_of::<QueueState>() as u64) {
            return of_state(lane, access, address - view.state);
        } else if within(view.sq, depth * 64) || within(view.prp_lists, 4096 << view.cid_log2) {
            say(store, SubmissionStored);
        } else if within(view.cq, depth * 16) {
            say(load, EntrySeen);
            say(load && lane.drains && lane.entries.insert(address), EntryFirstSeen);
        } else if within(view.tail_marks, depth * 8) {
            say(store, TailMarked);
            say(load, TailSeen);
        } else if within(view.head_marks, depth * 8) {
            say(swapped, HeadClaimed);
            say(load, HeadMarkSeen);
        } else if within(view.cids, ids) {
            let id = (address - view.cids) / 8;
            let freed = store && given & 0xff == u64::from(CID_FREE);
            let retired = found & 0xff == u64::from(CID_RETIRED);
            say(load && !lane.drains && retired, CidRetiredSeen);
            say(swapped, CidTaken);
            say(freed, CidFreed);
            if swapped {
                lane.ids.insert(id);
            } else if store {
                lane.ids.remove(&id);
            }
        } else if within(view.completions, ids) {
            let done = |word: u64| word >> 48 & u64::from(COMPLETION_DONE) != 0;
            let mine = lane.ids.contains(&((address - view.completions) / 8));
            say(load && !lane.drains, WordRead);
            say(load && mine && done(found), WordSeen);
            say(store && given == 0, WordEmptied);
            say(store && done(given), WordTold);
        } else if within(view.complaints, ids + 8) {
            say(store, ComplaintStored);
        } else if self.buffer.contains(&address) {
            say(load, BytesLoaded);
            say(store, BytesStored);
        } else {
            say(load && lane.drains && address == view.owner, OwnerSeen);
            say(store && address == view.alarm, AlarmStored);
            say(store && address == view.sq_doorbell, SqRung);
            say(store && address == view.cq_doorbell, CqRung);
        }
        events
    }
}

/// What an access to a word of the queue's state means.
fn of_state(lane: &mut Lane, access: &LaneAccess, offset: u64) -> Vec<Event> {
    let LaneAccess { kind, given: [given, _], found, .. } = *access;
    let is = |field: usize| offset == field as u64;
    let (load, store) = (kind == AccessKind::Load, kind == AccessKind::Store);
    let (add, swap) = (kind == AccessKind::Add, kind == AccessKind::CompareSwap);
    let swapped = swap && found == given;
    let mut events = Vec::new();
    let mut say = |condition: bool, event: Event| {
        if condition {
            events.push(event);
        }
    };
    let open = found & 0xffff_ffff == u64::from(QUEUE_OPEN);
    say(load && is(offset_of!(QueueState, state)), StateSeen);
    say(load && is(offset_of!(QueueState, state)) && open, OpenSeen);
    say(load && is(offset_of!(QueueState, state)) && open && lane.drains, OpenSeenLocked);
    say(add && is(offset_of!(QueueState, inside)) && given == 1, Entered);
    say(add && is(offset_of!(QueueState, inside)) && given == u64::MAX, Left);
    say(swapped && is(offset_of!(QueueState, in_ticket)), TicketTaken);
    say(add && is(offset_of!(QueueState, tail_lock)), TailAsked);
    say(add && is(offset_of!(QueueState, tail_lock)) && found == 0, TailLocked);
    say(swap && !swapped && is(offset_of!(QueueState, tail_lock)), TailLocked);
    say(swapped && is(offset_of!(QueueState, tail_lock)), TailUnlocked);
    say(load && is(offset_of!(QueueState, tail)), TailSeen);
    say(store && is(offset_of!(QueueState, tail)), TailStored);
    say(add && is(offset_of!(QueueState, head_lock)), HeadAsked);
    say(store && is(offset_of!(QueueState, adopted)), Adopted);
    say(load && lane.drains && is(offset_of!(QueueState, cq_head)), HeadRead);
    let lock = is(offset_of!(QueueState, head_lock));
    let locked = lock && (add && found == 0 || swap && !swapped);
    say(locked, HeadLocked);
    say(lock && swapped, HeadUnlocked);
    if lock && (locked || swapped) {
        lane.drains = locked;
        lane.entries.clear();
    }
    let stored = [
        offset_of!(QueueState, cq_head),
        offset_of!(QueueState, sq_head),
        offset_of!(QueueState, adopted),
        offset_of!(QueueState, returned),
        offset_of!(QueueState, reported),
    ];
    say(store && stored.into_iter().any(is), HeadStored);
    say(load && is(offset_of!(QueueState, fence_done)), FenceDoneSeen);
    say(store && is(offset_of!(QueueState, fence_done)), FenceDoneStored);
    say(store && is(offset_of!(QueueState, fence_ios)), FenceDoneStored);
    say(store && is(offset_of!(QueueState, fence_lock)), FenceUnlocked);
    events
}
