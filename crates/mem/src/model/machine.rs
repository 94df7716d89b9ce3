//! The model: agents that load, store and fence, and memory that catches up in seeded order.

use super::buffers::{AgentId, Node, NodeKind};
use super::rng::Rng;
use super::space::{Space, Word};
use crate::region::Region;

/// How an access is ordered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Not at all.
    Relaxed,
    /// Later accesses come after it.
    Acquire,
    /// Earlier accesses come before it.
    Release,
    /// Both, and it takes part in the one order of all such accesses.
    Full,
}

impl Order {
    pub(super) fn acquires(self) -> bool {
        matches!(self, Self::Acquire | Self::Full)
    }
    pub(super) fn releases(self) -> bool {
        matches!(self, Self::Release | Self::Full)
    }
}

/// For whom an access or a fence is ordered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// The lanes of one block.
    Block,
    /// All lanes of the device.
    Device,
    /// The CPUs too.
    System,
}

/// How adverse memory is; chances are of 256.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Chance that one buffered store leaves its buffer at an access.
    pub drain: u32,
    /// Chance that a load may see an old value.
    pub stale: u32,
    /// Whether write-combining stores stay until their agent's own fence.
    pub lazy_window: bool,
    /// Chance that a lane's copy is late.
    pub late_copies: u32,
}

impl Policy {
    /// Draws one.
    pub fn from_seed(rng: &mut Rng) -> Self {
        let drain = [160, 64, 16][rng.below(3)];
        let stale = [0, 32, 128][rng.below(3)];
        let lazy_window = rng.chance(128);
        // A look ahead, so that what is drawn after this does not depend on it.
        let late_copies = [0, 128][rng.clone().below(2)];
        Self { drain, stale, lazy_window, late_copies }
    }
}

/// Memory, and everybody who accesses it.
pub struct Model {
    pub(super) space: Space,
    pub(super) nodes: Vec<Node>,
    /// Nodes that hold stores.
    pub(super) dirty: Vec<usize>,
    /// The CPU thread that ran last.
    pub(super) last_cpu: Option<AgentId>,
    pub(super) rng: Rng,
    pub(super) policy: Policy,
    hash: u64,
    pub(super) accesses: u64,
}

impl Model {
    /// Memory without regions or agents.
    pub fn new(seed: u64, policy: Policy) -> Self {
        Self {
            space: Space::new(),
            nodes: Vec::new(),
            dirty: Vec::new(),
            last_cpu: None,
            rng: Rng::new(seed),
            policy,
            hash: seed,
            accesses: 0,
        }
    }

    /// Makes a region part of the model; accesses elsewhere go straight to memory.
    ///
    /// # Panics
    /// Where it overlaps a registered region or is not 16-byte aligned.
    pub fn register(&mut self, name: &str, region: &Region) {
        self.space.register(name, region);
    }

    fn add(&mut self, kind: NodeKind, parent: Option<AgentId>) -> AgentId {
        self.nodes.push(Node::new(kind, parent, self.space.now));
        AgentId(self.nodes.len() - 1)
    }

    /// Adds a CPU thread.
    pub fn add_cpu(&mut self) -> AgentId {
        self.add(NodeKind::Cpu, None)
    }
    /// Adds what the blocks of one GPU share.
    pub fn add_device(&mut self) -> AgentId {
        self.add(NodeKind::Device, None)
    }
    /// Adds what the lanes of one block share.
    pub fn add_block(&mut self, device: AgentId) -> AgentId {
        self.add(NodeKind::Block, Some(device))
    }
    /// Adds a lane.
    pub fn add_lane(&mut self, block: AgentId) -> AgentId {
        self.add(NodeKind::Lane, Some(block))
    }

    /// A hash of all accesses so far, by region names and offsets.
    pub fn hash(&self) -> u64 {
        self.hash
    }
    /// How many accesses there were.
    pub fn accesses(&self) -> u64 {
        self.accesses
    }
    /// How many stores have changed a value in memory.
    pub fn changes(&self) -> u64 {
        self.space.changes
    }
    /// Folds an event into the hash.
    #[inline]
    pub fn note(&mut self, event: u64) {
        self.hash = (self.hash.rotate_left(7) ^ event).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    pub(super) fn note_access(
        &mut self,
        agent: AgentId,
        operation: u64,
        word: Word,
        values: [u64; 2],
    ) {
        self.accesses += 1;
        let identity = self.space.identity(word);
        let [first, second] = values.map(|value| self.space.value_identity(value));
        self.note(identity ^ (agent.0 as u64) << 40 ^ operation << 60);
        self.note(first ^ second.rotate_left(32));
    }
}

pub(super) fn word_of(region: u32, offset: usize) -> Word {
    Word { region, index: u32::try_from(offset / 8).expect("a region of at most 32 GiB") }
}

/// Ones for so many bytes; 8 and more fill the word.
pub(super) fn mask_of(bytes: usize) -> u64 {
    if bytes >= 8 { u64::MAX } else { (1 << (bytes * 8)) - 1 }
}
