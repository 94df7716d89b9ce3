//! Payload that cannot go straight between storage and the host's pages: the bounce buffer.
//!
//! Three reasons: a run of host memory ends in the middle of a storage block, a fault changes data
//! on its way to storage, or the data is for comparing and not for the host.

use mem::{MemoryKind, Region};
use spec::Status;
use storage::Op;
use storage::faults::Action;

use crate::controller::Controller;
use crate::dma::{Direction, Piece, copy_pieces};
use crate::flight::Detour;
use crate::inject::{flip, flip_in_pieces};
use crate::io::Transfer;

/// Bytes compared at once.
const CHUNK_BYTES: usize = 512;

impl Controller {
    /// Whether the payload cannot go straight between storage and the host's pages.
    #[inline]
    pub(crate) fn needs_bounce(&self, index: u32, transfer: &Transfer, pieces: &[Piece]) -> bool {
        let block = self.namespaces[transfer.namespace].storage_block_bytes;
        let split = pieces.len() > 1 && pieces.iter().any(|p| !p.bytes.is_multiple_of(block));
        let flips = self.flights.get(index).detour.is_some();
        split || transfer.compares || (flips && transfer.op == Op::Write)
    }

    #[cold]
    pub(crate) fn submit_bounced(&mut self, index: u32, transfer: &Transfer, pieces: &[Piece]) {
        let Some(bounce) = self.take_bounce() else {
            return self.flights.get_mut(index).fail(Status::INTERNAL_ERROR);
        };
        self.counters.bytes_bounced += transfer.bytes;
        if transfer.op == Op::Write {
            copy_pieces(&bounce, pieces, Direction::Gather);
            if let Some(Action::Flip { byte, mask }) = self.flights.get(index).fault {
                flip(&bounce, byte as usize, mask);
            }
        }
        let bytes = u32::try_from(transfer.bytes).expect("at most the largest transfer");
        let piece = Piece { region: bounce.clone(), offset: 0, bytes };
        let (pieces, compares) = (pieces.to_vec(), transfer.compares);
        let detour = Detour { bounce: Some(bounce), pieces, compares };
        self.flights.get_mut(index).detour = Some(Box::new(detour));
        self.submit_piece(index, transfer, transfer.offset, piece);
    }

    fn take_bounce(&mut self) -> Option<Region> {
        let bytes = self.options.transfer_bytes_max as usize;
        let spare = self.bounce_free.pop();
        spare.or_else(|| Region::map_anonymous(bytes, MemoryKind::Host).ok())
    }

    /// Delivers a bounced read, flips what a fault flips, and gives the buffer back.
    #[cold]
    pub(crate) fn finish_detour(&mut self, index: u32) {
        let flight = self.flights.get_mut(index);
        let Some(mut detour) = flight.detour.take() else { return };
        let delivers = flight.op == Op::Read && flight.status.is_success();
        if delivers && detour.compares {
            let fault = flight.fault;
            if !compare(&detour, fault) {
                flight.fail(Status::COMPARE_FAILURE);
            }
        } else if delivers {
            if let Some(bounce) = &detour.bounce {
                copy_pieces(bounce, &detour.pieces, Direction::Scatter);
            }
            if let Some(Action::Flip { byte, mask }) = flight.fault {
                flip_in_pieces(&detour.pieces, byte as usize, mask);
            }
        }
        self.bounce_free.extend(detour.bounce.take());
    }

    /// Takes the bounce buffers of all commands back, when those are dropped.
    pub(crate) fn recover_bounces(&mut self) {
        for index in self.flights.indices() {
            if let Some(mut detour) = self.flights.get_mut(index).detour.take() {
                self.bounce_free.extend(detour.bounce.take());
            }
        }
    }
}

/// Whether what was read is what lies in the host's pages; a flip strikes what was read.
fn compare(detour: &Detour, fault: Option<Action>) -> bool {
    let Some(bounce) = &detour.bounce else { return true };
    if let Some(Action::Flip { byte, mask }) = fault {
        flip(bounce, byte as usize, mask);
    }
    let mut at = 0;
    detour.pieces.iter().all(|piece| {
        let begin = at;
        at += piece.bytes as usize;
        is_equal(bounce, begin, piece)
    })
}

fn is_equal(bounce: &Region, begin: usize, piece: &Piece) -> bool {
    let (mut left, mut right) = ([0; CHUNK_BYTES], [0; CHUNK_BYTES]);
    let bytes = piece.bytes as usize;
    (0..bytes).step_by(CHUNK_BYTES).all(|at| {
        let now = CHUNK_BYTES.min(bytes - at);
        bounce.read_bytes(begin + at, &mut left[..now]);
        piece.region.read_bytes(piece.offset + at, &mut right[..now]);
        left[..now] == right[..now]
    })
}
