//! Decides, I/O by I/O, which fault falls, and counts what fell.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use spec::Status;

use super::script::{Fault, FaultKind, FaultScript, Often, Place};
use crate::admit::status;
use crate::queue::Op;

/// What an injector needs to know of an I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoShape {
    /// What it does.
    pub op: Op,
    /// First byte in the storage.
    pub offset: u64,
    /// Payload bytes; 0 for a flush.
    pub bytes: u32,
}

/// What shall happen to one I/O, with all random choices made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Answer twice.
    Duplicate,
    /// Move nothing; answer with this status.
    Error(Status),
    /// Flip the bits of `mask` (one bit) in the payload byte `byte`, then go on as usual.
    Flip {
        /// Which byte of the payload, less than its length.
        byte: u32,
        /// Bits to flip, never 0.
        mask: u8,
    },
    /// Answer this much later.
    Late {
        /// Nanoseconds.
        delay_ns: u64,
    },
    /// Carry out; never answer.
    Lost,
    /// Abort everything in flight, this I/O too, as a controller reset does.
    Reset,
    /// Answer nothing of this queue from this I/O on.
    Stuck,
    /// Write only the first `bytes`, fewer than asked for, then answer with `status`.
    Torn {
        /// How many bytes land; whole blocks, perhaps none.
        bytes: u32,
        /// The answer.
        status: Status,
    },
}

impl Action {
    /// The kind of fault that this is.
    pub const fn kind(self) -> FaultKind {
        match self {
            Self::Duplicate => FaultKind::Duplicate,
            Self::Error(_) => FaultKind::Error,
            Self::Flip { .. } => FaultKind::Flip,
            Self::Late { .. } => FaultKind::Late,
            Self::Lost => FaultKind::Lost,
            Self::Reset => FaultKind::Reset,
            Self::Stuck => FaultKind::Stuck,
            Self::Torn { .. } => FaultKind::Torn,
        }
    }
}

/// A fault with what it has done so far.
#[derive(Debug)]
struct Armed {
    fault: Fault,
    /// I/Os of any shape seen, for `after`.
    seen: u64,
    /// Eligible I/Os seen, for `every`.
    eligible: u64,
    /// The eligible I/O (counted from 1) on which it falls next.
    next: u64,
    injected: u64,
    random: u64,
}

/// Most I/Os whose faults are remembered one by one.
const STRUCK_MAX: usize = 4096;

/// Decides for each I/O which fault of a script falls on it. Shared by all queues of a storage.
#[derive(Debug)]
pub struct Injector {
    block_bytes: u32,
    armed: Mutex<Vec<Armed>>,
    injected: [AtomicU64; FaultKind::ALL.len()],
    ended_by_resets: AtomicU64,
    struck: Mutex<Vec<(FaultKind, IoShape)>>,
}

impl Injector {
    /// Arms a script for storage with the given block size (1 where bytes can be addressed).
    ///
    /// # Panics
    /// Where `block_bytes` is 0.
    pub fn new(script: &FaultScript, block_bytes: u32) -> Self {
        assert!(block_bytes > 0, "a block has at least one byte");
        let armed = script.faults.iter().map(Armed::new).collect();
        let armed = Mutex::new(armed);
        Self {
            block_bytes,
            armed,
            injected: Default::default(),
            ended_by_resets: AtomicU64::new(0),
            struck: Mutex::default(),
        }
    }

    /// Decides for the next I/O, and counts what it decides.
    ///
    /// Call it once for each I/O that was accepted and is about to be carried out.
    pub fn decide(&self, io: &IoShape) -> Option<Action> {
        let mut armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut chosen = None;
        for fault in armed.iter_mut() {
            let due = fault.due(io, self.block_bytes);
            if due && chosen.is_none() {
                chosen = Some(fault.inject(io, self.block_bytes));
            }
        }
        drop(armed);
        let action = chosen?;
        let mut struck = self.struck.lock().unwrap_or_else(PoisonError::into_inner);
        if struck.len() < STRUCK_MAX {
            struck.push((action.kind(), *io));
        }
        drop(struck);
        // Relaxed: a counter that orders nothing.
        self.injected[action.kind().index()].fetch_add(1, Ordering::Relaxed);
        Some(action)
    }

    /// How many faults of a kind have been injected.
    pub fn injected(&self, kind: FaultKind) -> u64 {
        self.injected[kind.index()].load(Ordering::Relaxed)
    }

    /// How many I/Os resets have ended without carrying them out: their own, and what was in flight
    /// beside them.
    pub fn ended_by_resets(&self) -> u64 {
        self.ended_by_resets.load(Ordering::Relaxed)
    }

    /// Notes I/Os that a reset has ended.
    pub(crate) fn note_ended_by_reset(&self, ios: u64) {
        self.ended_by_resets.fetch_add(ios, Ordering::Relaxed);
    }

    /// On which I/Os faults of a kind fell, as far as there is room to remember them.
    pub fn struck(&self, kind: FaultKind) -> Vec<IoShape> {
        let struck = self.struck.lock().unwrap_or_else(PoisonError::into_inner);
        struck.iter().filter(|(of, _)| *of == kind).map(|(_, io)| *io).collect()
    }

    /// How many faults have been injected.
    pub fn injected_total(&self) -> u64 {
        FaultKind::ALL.iter().map(|k| self.injected(*k)).sum()
    }
}

impl Armed {
    fn new(fault: &Fault) -> Self {
        let next = match fault.often {
            Often::Count { every, .. } => every,
            Often::Always | Often::Rate(_) => 0,
        };
        let random = crate::pattern::mix(fault.seed.wrapping_add(fault.kind.index() as u64));
        Self { fault: fault.clone(), seen: 0, eligible: 0, next, injected: 0, random }
    }

    /// The next number of the fault's own sequence (SplitMix64).
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        crate::pattern::mix(self.random)
    }

    fn suits(&self, io: &IoShape, block_bytes: u32) -> bool {
        let fault = &self.fault;
        let covers = |first: u64, bytes: u64| {
            io.offset < first.saturating_add(bytes)
                && first < io.offset.saturating_add(u64::from(io.bytes))
        };
        let here = match fault.place {
            Place::Anywhere => true,
            Place::Byte(byte) => covers(byte, 1),
            Place::Block(block) => {
                let bytes = u64::from(block_bytes);
                block.checked_mul(bytes).is_some_and(|first| covers(first, bytes))
            }
        };
        let wanted = fault.op.is_none_or(|op| op == io.op);
        let payload = fault.kind != FaultKind::Flip || io.bytes > 0;
        here && wanted && payload && fault.kind.suits(io.op)
    }

    /// Counts the I/O and says whether the fault would fall on it.
    fn due(&mut self, io: &IoShape, block_bytes: u32) -> bool {
        self.seen += 1;
        if self.seen <= self.fault.after || !self.suits(io, block_bytes) {
            return false;
        }
        self.eligible += 1;
        match self.fault.often {
            Often::Always => true,
            Often::Count { n, .. } => self.injected < n && self.eligible >= self.next,
            // 53 bits: as many as an f64 holds exactly.
            Often::Rate(rate) => ((self.draw() >> 11) as f64) < rate * (1u64 << 53) as f64,
        }
    }

    fn inject(&mut self, io: &IoShape, block_bytes: u32) -> Action {
        self.injected += 1;
        if let Often::Count { every, .. } = self.fault.often {
            self.next = self.next.saturating_add(every);
        }
        match self.fault.kind {
            FaultKind::Duplicate => Action::Duplicate,
            FaultKind::Error => Action::Error(self.fault.status.unwrap_or(error_of(io.op))),
            FaultKind::Flip => {
                let byte = below(self.draw(), io.bytes);
                Action::Flip { byte, mask: 1 << below(self.draw(), 8) }
            }
            FaultKind::Late => Action::Late { delay_ns: self.fault.delay_ns },
            FaultKind::Lost => Action::Lost,
            FaultKind::Reset => Action::Reset,
            FaultKind::Stuck => Action::Stuck,
            FaultKind::Torn => {
                let status = self.fault.status.unwrap_or(status::WRITE_FAULT);
                let blocks = io.bytes / block_bytes;
                // At least one block lands where another can stay away.
                let landed = if blocks < 2 { 0 } else { 1 + below(self.draw(), blocks - 1) };
                Action::Torn { bytes: landed * block_bytes, status }
            }
        }
    }
}

fn error_of(op: Op) -> Status {
    match op {
        Op::Read => status::UNRECOVERED_READ,
        Op::Write | Op::WriteZeroes => status::WRITE_FAULT,
        Op::Flush => status::INTERNAL_ERROR,
    }
}

/// A number below `limit` from 64 random bits; the bias is below 2^-32.
fn below(random: u64, limit: u32) -> u32 {
    let scaled = (u128::from(random) * u128::from(limit)) >> 64;
    u32::try_from(scaled).expect("less than `limit`")
}
