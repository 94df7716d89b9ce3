//! Store buffers: what an agent has stored and others may not see yet.
//!
//! A buffer empties into its parent, or into memory. Entries to one address keep their order; all
//! else depends on the kind: a CPU's stores to ordinary memory leave in order, all others in any.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use super::copies::Copy;
use super::space::Word;

/// Names an agent or an inner buffer of the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AgentId(pub(super) usize);

/// One store: one word, or two that stay together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub word: Word,
    pub values: [u64; 2],
    /// Bits stored; the second is 0 for a single word.
    pub masks: [u64; 2],
    /// Who stored it.
    pub origin: AgentId,
    /// Whether a fence has made it visible to the whole device.
    pub device_wide: bool,
    /// How many store fences its CPU had executed before it.
    pub epoch: u64,
}

impl Entry {
    pub(super) fn single(word: Word, value: u64, mask: u64, origin: AgentId) -> Self {
        let (values, masks) = ([value, 0], [mask, 0]);
        Self { word, values, masks, origin, device_wide: false, epoch: 0 }
    }

    /// The value and mask that it stores to a word, where it does.
    #[inline]
    pub(super) fn part(&self, word: Word) -> Option<(u64, u64)> {
        if self.word == word {
            return Some((self.values[0], self.masks[0]));
        }
        let second = self.masks[1] != 0 && self.word.next() == word;
        second.then_some((self.values[1], self.masks[1]))
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.part(other.word).is_some()
            || other.part(self.word).is_some()
            || (other.masks[1] != 0 && self.part(other.word.next()).is_some())
    }
}

/// Hashes the few bytes of a [`Word`].
#[derive(Default)]
pub(super) struct WordHasher(u64);

impl Hasher for WordHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }
    fn write_u32(&mut self, value: u32) {
        self.0 = (self.0.rotate_left(23) ^ u64::from(value)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

pub(super) type Seen = HashMap<Word, u64, BuildHasherDefault<WordHasher>>;

/// In a [`Seen`] map: the value seen or stored lies in a buffer; whoever finds it gone from there
/// reads the newest.
pub(super) const BUFFERED: u64 = u64::MAX;

/// What a node of the model is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NodeKind {
    /// A CPU thread.
    Cpu,
    /// What the lanes of one block share.
    Block,
    /// What the blocks of one GPU share.
    Device,
    /// One lane.
    Lane,
}

/// An agent or a shared level above agents.
pub(super) struct Node {
    pub kind: NodeKind,
    pub parent: Option<AgentId>,
    pub entries: VecDeque<Entry>,
    /// A lane's copies that are late.
    pub copies: Vec<Copy>,
    /// A CPU's stores to write-combining memory.
    pub combining: VecDeque<Entry>,
    /// How many store fences a CPU has executed.
    pub epoch: u64,
    /// Everything stored to memory up to here is seen.
    pub horizon: u64,
    /// The newest store that was read, acquired or not.
    pub read_newest: u64,
    /// Words that were seen newer than the horizon.
    pub seen: Seen,
    /// Words in `seen` before it is pruned.
    pub seen_limit: usize,
    pub dirty: bool,
}

impl Node {
    pub(super) fn new(kind: NodeKind, parent: Option<AgentId>, now: u64) -> Self {
        Self {
            kind,
            parent,
            entries: VecDeque::new(),
            copies: Vec::new(),
            combining: VecDeque::new(),
            epoch: 0,
            horizon: now,
            read_newest: now,
            seen: Seen::default(),
            seen_limit: super::loads::SEEN_MAX,
            dirty: false,
        }
    }
}

/// The entry that must leave before (or is) the one at `index`.
pub(super) fn first_to_leave(entries: &VecDeque<Entry>, mut index: usize) -> usize {
    let mut before = 0;
    while before < index {
        if entries[before].overlaps(&entries[index]) {
            index = before;
            before = 0;
        } else {
            before += 1;
        }
    }
    index
}
