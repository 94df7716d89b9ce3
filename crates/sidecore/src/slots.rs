//! The in-flight table: one atomic word a record, which says who may end the request that uses it.
//!
//! ```text
//! turn (16, lowest) | state (8) | zero (8) | epoch (32)
//!
//! Free -> InFlight     the side core that fetched the request, in its epoch
//! InFlight -> Claimed  whoever ends the request: the side core, or the supervisor. One wins.
//! Free -> Claimed      the side core, for a request that it ends as it fetches it
//! Claimed -> Free      the winner, after the completion word is out
//! InFlight -> Poisoned the supervisor, where storage may still write the record's staging area
//! ```
//!
//! A side core that was given up keeps its old epoch, so that nothing it tries here succeeds.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a record is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotState {
    Claimed,
    Free,
    InFlight,
    Poisoned,
}

/// One word of the table, unpacked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot {
    pub turn: u16,
    pub state: SlotState,
    pub epoch: u32,
}

impl Slot {
    const fn pack(self) -> u64 {
        let state = match self.state {
            SlotState::Free => 0u64,
            SlotState::InFlight => 1,
            SlotState::Claimed => 2,
            SlotState::Poisoned => 3,
        };
        self.turn as u64 | state << 16 | (self.epoch as u64) << 32
    }

    const fn unpack(word: u64) -> Self {
        let state = match word >> 16 & 0xff {
            0 => SlotState::Free,
            1 => SlotState::InFlight,
            2 => SlotState::Claimed,
            _ => SlotState::Poisoned,
        };
        Self { turn: (word & 0xffff) as u16, state, epoch: (word >> 32) as u32 }
    }
}

/// The epoch in which a side core serves, as the words of the table carry it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tenure(u64);

impl Tenure {
    pub const fn of(epoch: u32) -> Self {
        Self((epoch as u64) << 32)
    }

    /// The word of a record in flight.
    #[inline]
    const fn in_flight(self, turn: u16) -> u64 {
        self.0 | IN_FLIGHT | turn as u64
    }
}

const IN_FLIGHT: u64 = 1 << 16;
/// The bits in which a claimed record differs from one in flight.
const IN_FLIGHT_TO_CLAIMED: u64 = (1 ^ 2) << 16;

/// What came of beginning a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Begun {
    /// The record is in flight with another request, or the epoch is over.
    Busy,
    /// Storage may still write the record's staging area.
    Poisoned,
    /// The record has had this turn already.
    Replayed,
    Started,
}

/// The table of one ring.
pub(crate) struct Slots {
    words: Box<[AtomicU64]>,
}

impl Slots {
    pub fn new(records: u32, start_turn: u16, epoch: u32) -> Self {
        let free = Slot { turn: start_turn, state: SlotState::Free, epoch }.pack();
        Self { words: (0..records).map(|_| AtomicU64::new(free)).collect() }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.words.len()
    }

    #[inline]
    pub fn load(&self, record: u32) -> Slot {
        Slot::unpack(self.words[record as usize].load(Ordering::Acquire))
    }

    /// Moves a record from exactly `from` to `to`; whether this caller did.
    #[inline]
    pub fn change(&self, record: u32, from: Slot, to: Slot) -> bool {
        self.words[record as usize]
            .compare_exchange(from.pack(), to.pack(), Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Takes a record into flight for a request that was fetched in `tenure`; claimed at the same time where
    /// it is answered at once.
    #[inline]
    pub fn begin(&self, record: u32, turn: u16, tenure: Tenure, claim: bool) -> Begun {
        let slot = &self.words[record as usize];
        let word = slot.load(Ordering::Acquire);
        // All above the turn in one comparison, since `Free` is zero: what is left is the turn.
        let Ok(found) = u16::try_from(word ^ tenure.0) else { return begun_by_others(word) };
        if !is_later(turn, found) {
            return Begun::Replayed;
        }
        let in_flight = tenure.in_flight(turn);
        let to = if claim { in_flight ^ IN_FLIGHT_TO_CLAIMED } else { in_flight };
        match slot.compare_exchange(word, to, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Begun::Started,
            Err(_) => Begun::Busy,
        }
    }

    /// Wins or loses the right to end the request in `turn`.
    #[inline]
    pub fn claim(&self, record: u32, turn: u16, tenure: Tenure) -> bool {
        let from = tenure.in_flight(turn);
        let to = from ^ IN_FLIGHT_TO_CLAIMED;
        self.words[record as usize]
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Moves what `old` left poisoned or free to the present epoch, once nothing of it runs.
    pub fn absolve(&self, old: u32, present: impl Fn() -> u32) {
        for record in 0..u32::try_from(self.words.len()).expect("24 bits of records") {
            let found = self.load(record);
            if found.epoch == old && matches!(found.state, SlotState::Free | SlotState::Poisoned) {
                let free = Slot { state: SlotState::Free, epoch: present(), ..found };
                self.change(record, found, free);
            }
        }
    }

    /// Gives claimed records back: each of these, in its turn.
    #[inline]
    pub fn release(&self, claimed: impl Iterator<Item = (u32, u16)>, epoch: u32) {
        let words = &*self.words;
        let Tenure(free) = Tenure::of(epoch);
        for (record, turn) in claimed {
            words[record as usize].store(free | u64::from(turn), Ordering::Release);
        }
    }
}

/// What keeps a record from being begun that is not free in the present epoch.
#[cold]
#[inline(never)]
fn begun_by_others(word: u64) -> Begun {
    let poisoned = Slot::unpack(word).state == SlotState::Poisoned;
    if poisoned { Begun::Poisoned } else { Begun::Busy }
}

/// Whether turn `a` comes after turn `b`: by signed difference, so that it holds across the wrap.
#[inline]
pub(crate) const fn is_later(a: u16, b: u16) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_claim_wins_and_an_old_epoch_never_does() {
        let slots = Slots::new(2, 0xffff, 7);
        let (now, old) = (Tenure::of(7), Tenure::of(6));
        assert_eq!(slots.begin(0, 0, now, false), Begun::Started, "turn 0 follows turn 0xffff");
        assert_eq!(slots.begin(0, 1, now, false), Begun::Busy);
        assert!(!slots.claim(0, 0, old), "an old epoch");
        assert!(!slots.claim(0, 1, now), "another turn");
        assert!(slots.claim(0, 0, now));
        assert!(!slots.claim(0, 0, now), "a second claim");
        slots.release([(0, 0)].into_iter(), 7);
        assert_eq!(slots.begin(0, 0, now, false), Begun::Replayed);
        assert_eq!(slots.begin(0, 1, old, false), Begun::Busy, "an old epoch");
        assert_eq!(slots.begin(0, 1, now, false), Begun::Started);
        assert_eq!(slots.begin(1, 0, now, true), Begun::Started);
        assert!(!slots.claim(1, 0, now), "claimed as it began");
    }

    #[test]
    fn later_holds_across_the_wrap() {
        assert!(is_later(1, 0) && is_later(0, 0xffff) && is_later(5, 0xfff0));
        assert!(!is_later(0, 0) && !is_later(0xffff, 0) && !is_later(0x8000, 0));
    }
}
