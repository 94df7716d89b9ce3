//! Faults at work on commands: what `storage::faults` decides, done to one command.
//!
//! | fault | here |
//! | --- | --- |
//! | error | no storage request; the status |
//! | late | the completion is due later; an Abort still finds the command |
//! | lost | carried out and forgotten; an Abort does not find it |
//! | duplicate | two completions |
//! | flip | in the host's memory after a read; in a copy before a write |
//! | stuck | the queue fetches no more; the command ends with its queue |
//! | reset | CSTS.CFS, or a reset unasked, as the options say |
//! | torn | only the first blocks are written |

use mem::Region;
use storage::faults::{Action, IoShape};

use crate::config::ResetFault;
use crate::controller::Controller;
use crate::dma::Piece;
use crate::flight::{Detour, State};
use crate::io::Transfer;

impl Controller {
    #[inline]
    pub(crate) fn draw_fault(&self, transfer: &Transfer) -> Option<Action> {
        let namespace = self.namespaces.get(transfer.namespace)?;
        let injector = namespace.options.faults.as_ref()?;
        let bytes = u32::try_from(transfer.bytes).unwrap_or(u32::MAX);
        injector.decide(&IoShape { op: transfer.op, offset: transfer.offset, bytes })
    }

    /// Starts a command that a fault falls on; false where it goes no further by itself.
    pub(crate) fn start_faulty(
        &mut self,
        index: u32,
        mut transfer: Transfer,
        action: Action,
        pieces: &mut Vec<Piece>,
        now_ns: u64,
    ) -> bool {
        match action {
            Action::Error(status) => {
                self.flights.get_mut(index).fail(status);
                return true;
            }
            Action::Stuck => {
                self.flights.get_mut(index).state = State::Held;
                let queue = usize::from(self.flights.get(index).queue);
                if let Some(submission) = &mut self.submission[queue] {
                    submission.stuck = true;
                }
                return false;
            }
            Action::Reset => {
                match self.options.reset_fault {
                    ResetFault::Fatal => self.fail_fatally("an injected reset"),
                    ResetFault::SelfReset => self.reset_itself(now_ns),
                }
                return false;
            }
            Action::Torn { bytes, .. } => {
                let block = self.namespaces[transfer.namespace].options.block_bytes;
                transfer.bytes = u64::from(bytes - bytes % block);
                transfer.flush_after = false;
                truncate(pieces, transfer.bytes);
                let flight = self.flights.get_mut(index);
                flight.flush_after = false;
                flight.bytes_expected = transfer.bytes;
            }
            Action::Late { delay_ns } => {
                let flight = self.flights.get_mut(index);
                flight.due_ns = flight.due_ns.saturating_add(delay_ns);
            }
            Action::Flip { .. } => {
                let pieces = pieces.clone();
                let detour = Detour { bounce: None, pieces, compares: false };
                self.flights.get_mut(index).detour = Some(Box::new(detour));
            }
            Action::Duplicate | Action::Lost => {}
        }
        self.submit_all(index, &transfer, pieces);
        true
    }
}

/// Cuts pieces off after `bytes` bytes.
fn truncate(pieces: &mut Vec<Piece>, bytes: u64) {
    let mut left = bytes;
    for piece in pieces.iter_mut() {
        piece.bytes = u32::try_from(left).unwrap_or(u32::MAX).min(piece.bytes);
        left -= u64::from(piece.bytes);
    }
    pieces.retain(|piece| piece.bytes > 0);
}

/// Flips bits of one byte.
pub(crate) fn flip(memory: &Region, offset: usize, mask: u8) {
    let mut byte = [0];
    memory.read_bytes(offset, &mut byte);
    memory.write_bytes(offset, &[byte[0] ^ mask]);
}

/// Flips bits of one byte of a payload.
pub(crate) fn flip_in_pieces(pieces: &[Piece], byte: usize, mask: u8) {
    // In write-combining memory the payload must have left the core before it is read again.
    mem::fence_full();
    let mut at = 0;
    for piece in pieces {
        let bytes = piece.bytes as usize;
        if byte - at < bytes {
            return flip(&piece.region, piece.offset + byte - at, mask);
        }
        at += bytes;
    }
}
