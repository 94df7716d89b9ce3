//! Direct reads and writes in flight, by io_uring.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use mem::Region;
use uring::{Ended, Kind, Ring, RingOptions, Transfer};

use crate::route::Op;
use crate::runs::Run;

/// Operations of a seat that can be in flight.
const DEPTH: u32 = 64;

/// One operation: a run, or what is left of it.
#[derive(Clone)]
pub(super) struct RingOp {
    pub op: Op,
    pub slot: usize,
    pub part: usize,
    /// What is wanted.
    pub run: Run,
    /// First byte in the file that is still to be moved; a multiple of what direct I/O demands.
    pub from: u64,
    /// End of the whole blocks that are moved.
    pub to: u64,
    pub memory: Region,
    /// Where in the memory the byte at `from` lies.
    pub at: usize,
    pub file: Arc<OwnedFd>,
}

fn made(options: RingOptions) -> Result<Ring, String> {
    Ring::new(options).map_err(|error| error.to_string())
}

#[derive(Default)]
pub(super) struct RingOps {
    ring: Option<Ring>,
    refused: bool,
    ops: Vec<Option<RingOp>>,
    ended: Vec<Ended>,
}

impl RingOps {
    /// Makes the ring; false where there is none. `forbidden` is a refusal on purpose.
    pub fn ready(&mut self, forbidden: bool, refused: impl FnOnce(String)) -> bool {
        if self.ring.is_none() && !self.refused {
            let options = RingOptions {
                depth: DEPTH,
                bound_to_thread: false,
                files: Vec::new(),
                buffers: Vec::new(),
            };
            match if forbidden { Err("on purpose".to_owned()) } else { made(options) } {
                Ok(ring) => self.ring = Some(ring),
                Err(why) => {
                    self.refused = true;
                    refused(why);
                }
            }
        }
        self.ring.is_some()
    }

    pub fn in_flight(&self) -> u32 {
        self.ring.as_ref().map_or(0, Ring::in_flight)
    }

    /// Pushes at most `bytes` bytes of an operation; false where the ring takes no more.
    pub fn push(&mut self, op: RingOp, bytes: u64) -> bool {
        let Some(ring) = &mut self.ring else { return false };
        let empty = self.ops.iter().position(Option::is_none);
        let index = empty.unwrap_or_else(|| {
            self.ops.push(None);
            self.ops.len() - 1
        });
        let file = ring.add_file(&op.file);
        let kind = match op.op {
            Op::Read => Kind::Read,
            Op::Write => Kind::Write,
        };
        let bytes = u32::try_from(bytes.min(op.to - op.from)).expect("at most a slot");
        let (memory, memory_offset) = (op.memory.clone(), op.at);
        let transfer = Transfer { file, kind, offset: op.from, bytes, memory, memory_offset };
        if ring.push(index as u64, transfer).is_err() {
            return false;
        }
        self.ops[index] = Some(op);
        true
    }

    /// Submits what was pushed, and waits for an end at most for `limit`.
    pub fn wait(&mut self, limit: Duration) {
        let Some(ring) = &mut self.ring else { return };
        // An error of the call shows as completions that do not come; the next call may do better.
        if ring.wait(1, Duration::ZERO, limit).is_err() {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Submits what was pushed.
    pub fn submit(&mut self) {
        if let Some(ring) = self.ring.as_mut().filter(|ring| ring.unsubmitted() > 0) {
            // Tried again by `wait`.
            let _later = ring.submit();
        }
    }

    /// Operations that ended, with the kernel's answer. No system call but for completion work.
    pub fn reap(&mut self) -> Vec<(RingOp, i32)> {
        let Some(ring) = &mut self.ring else { return Vec::new() };
        if ring.in_flight() == 0 {
            return Vec::new();
        }
        if !ring.has_completions() && ring.ready() {
            let _later = ring.submit();
        }
        ring.reap(&mut self.ended);
        let ended = self.ended.drain(..).map(|ended| {
            let index = usize::try_from(ended.tag).expect("an index of ours");
            (self.ops[index].take().expect("one end for each operation"), ended.result)
        });
        ended.collect()
    }
}
