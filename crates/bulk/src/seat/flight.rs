//! A chunk on its way.

use std::sync::Arc;

use crate::error::BulkError;
use crate::file::Inner;
use crate::job::{Job, Piece};
use crate::threads::Core;

/// What a flight waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Copies from the device, up to a mark of the seat's queue.
    Arriving(u64),
    /// Copies to the device, from the first to the last by the courier's numbers.
    Copying(u64, u64),
    /// Reads by the ring.
    Filling,
    /// Copies to the device for which a stream waits, up to a mark of the seat's queue.
    Sent(u64),
    /// Writes by the ring.
    Writing,
}

/// A piece with what has become of it.
pub(super) struct Part {
    pub piece: Piece,
    /// Its first byte among the bytes of all slots.
    pub at: usize,
    /// Whether its bytes lie in the slot.
    pub staged: bool,
    /// How many of its bytes there are, from the first on without a gap.
    pub got: usize,
    pub error: Option<Box<BulkError>>,
    /// Its file, where it was opened for this piece.
    pub file: Option<Arc<Inner>>,
}

pub(super) struct Flight {
    pub job: Arc<Job>,
    pub parts: Vec<Part>,
    /// Operations in the ring.
    pub waiting: u32,
    pub phase: Phase,
}

impl Flight {
    /// A flight whose slot begins at `base`. One piece lies as its offset does in a page, so that direct
    /// I/O can fill the whole pages around it; several lie one behind the other.
    pub fn new(job: Arc<Job>, pieces: &[Piece], base: usize) -> Self {
        let mut at = base;
        if let [only] = pieces {
            at += usize::try_from(only.offset % crate::knees::PAGE_BYTES).expect("below a page");
        }
        let parts = pieces.iter().map(|piece| {
            let part = Part {
                piece: *piece,
                at,
                staged: false,
                got: piece.bytes,
                error: None,
                file: None,
            };
            at += piece.bytes;
            part
        });
        let parts = parts.collect();
        Self { job, parts, waiting: 0, phase: Phase::Filling }
    }

    pub fn file<'a>(&'a self, part: &'a Part) -> &'a Arc<Inner> {
        let file = part.file.as_ref().or_else(|| self.job.file());
        file.expect("a file of its own, or of the job")
    }

    /// Tells the job what has become of each piece.
    pub fn settle(self, core: &Core) {
        let mut moved = 0;
        for part in &self.parts {
            match &part.error {
                Some(error) => self.job.piece_failed(&part.piece, (**error).clone()),
                None => {
                    moved += part.got as u64;
                    self.job.piece_ended(&part.piece, part.got);
                }
            }
        }
        self.job.add_moved(moved);
        self.job.chunks_ended(1, &core.counters);
    }
}

/// Bytes in the slots that go to one range of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span {
    pub at: usize,
    pub to: u64,
    pub bytes: usize,
}

/// Adds bytes; those that continue the last span on both sides make it longer.
pub(super) fn add_span(spans: &mut Vec<Span>, at: usize, to: u64, bytes: usize) {
    match spans.last_mut() {
        Some(last) if last.at + last.bytes == at && last.to + last.bytes as u64 == to => {
            last.bytes += bytes;
        }
        _ => spans.push(Span { at, to, bytes }),
    }
}
