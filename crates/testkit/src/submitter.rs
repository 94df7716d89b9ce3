//! A host thread that plays the lanes of a GPU against a ring: it alone submits.
//!
//! It keeps the protocol: reserves against `fetched`, publishes two tagged halves, advances a
//! record's turn at each use and looks at the record for the end. What a broken kernel would write
//! goes in by [`Submitter::publish`].

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use abi::ring::{CompletionRecord, Request, RequestEntry, RingControl, RingView};
use sidecore::{Ring, RingMemory};

/// The one submitter of a ring.
pub struct Submitter {
    view: RingView,
    memory: RingMemory,
    tail: u64,
}

impl Submitter {
    /// Takes a ring that no kernel uses.
    pub fn new(ring: &Ring) -> Self {
        let memory = ring.memory();
        let tail = memory.device.u64_at(offset_of!(RingControl, tail)).load(Ordering::Relaxed);
        Self { view: ring.view(), memory, tail }
    }

    /// The ring's memory.
    pub fn memory(&self) -> &RingMemory {
        &self.memory
    }

    /// Next ticket.
    pub fn tail(&self) -> u64 {
        self.tail
    }

    fn device_at(&self, address: u64) -> usize {
        usize::try_from(address - self.view.control).expect("inside the ring's device memory")
    }

    /// Tickets that can be reserved now.
    pub fn free(&self) -> u64 {
        let control = &self.memory.device;
        let fetched = control.u64_at(offset_of!(RingControl, fetched)).load(Ordering::Acquire);
        (1 << self.view.depth_log2) - self.tail.wrapping_sub(fetched)
    }

    /// State and epoch of the ring.
    pub fn state(&self) -> (u32, u32) {
        let at = offset_of!(RingControl, state);
        let word = self.memory.device.u64_at(at).load(Ordering::Acquire);
        ((word & 0xffff_ffff) as u32, (word >> 32) as u32)
    }

    /// Publishes any four words with the tags of the next ticket; `false` where the ring is full.
    pub fn publish(&mut self, mut w: [u64; 4]) -> bool {
        if self.free() == 0 {
            return false;
        }
        let ticket = self.tail;
        self.tail = ticket.wrapping_add(1);
        self.memory.device.u64_at(0).store(self.tail, Ordering::Relaxed);
        let tag = ((ticket >> self.view.depth_log2) + 1) & 0xffff;
        let low = u64::MAX >> 16;
        w[1] = (w[1] & low) | tag << 48;
        w[3] = (w[3] & low) | tag << 48;
        let slot = ticket & ((1 << self.view.depth_log2) - 1);
        let at = usize::try_from(slot * 32).expect("a ring fits in memory");
        let entries = &self.memory.entries;
        entries.u64_at(at).store(w[0], Ordering::Relaxed);
        entries.u64_at(at + 8).store(w[1], Ordering::Release);
        entries.u64_at(at + 16).store(w[2], Ordering::Relaxed);
        entries.u64_at(at + 24).store(w[3], Ordering::Release);
        true
    }

    /// Turns that a record's owner has issued.
    pub fn turn(&self, record: u32) -> u16 {
        let at = self.device_at(self.view.turns) + record as usize * 4;
        (self.memory.device.u32_at(at).load(Ordering::Relaxed) & 0xffff) as u16
    }

    /// Submits in the record's next turn, which is returned; `None` where the ring is full.
    ///
    /// # Panics
    /// Where the record is in flight.
    pub fn submit(&mut self, request: Request) -> Option<u16> {
        let record = request.record;
        assert!(self.completion(record).is_some(), "record {record} is in flight");
        let at = self.device_at(self.view.turns) + record as usize * 4;
        let turn = self.memory.device.u32_at(at).load(Ordering::Relaxed).wrapping_add(1);
        let record_turn = (turn & 0xffff) as u16;
        let entry = RequestEntry::pack(&Request { record_turn, ..request }, 0);
        if !self.publish(entry.w) {
            return None;
        }
        self.memory.device.u32_at(at).store(turn, Ordering::Relaxed);
        Some(record_turn)
    }

    /// The word in a completion record, whatever its turn.
    pub fn record(&self, record: u32) -> CompletionRecord {
        let at = self.device_at(self.view.records) + record as usize * 8;
        CompletionRecord { word: self.memory.device.u64_at(at).load(Ordering::Acquire) }
    }

    /// The end of the record's last request, once it has ended.
    pub fn completion(&self, record: u32) -> Option<CompletionRecord> {
        let found = self.record(record);
        (found.turn() == self.turn(record)).then_some(found)
    }

    /// First byte of a record's staging area.
    pub fn staging_at(&self, record: u32) -> usize {
        record as usize * self.view.staging_stride as usize
    }
}
