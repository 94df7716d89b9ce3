//! The controller's registers and doorbells: plain memory that the host writes and `step` reads.
//!
//! Nothing traps here. The controller keeps what it believes in its own fields, writes CAP, VS and
//! CSTS for the host to read, and takes CC, AQA, ASQ, ACQ and the doorbells as they are when it looks.

use std::sync::atomic::Ordering;

use mem::{MemoryKind, Region};
use spec::registers::{
    ACQ, AQA, ASQ, AdminQueueAttributes, CAP, CC, CSTS, Capabilities, Configuration,
    ControllerStatus, DOORBELLS, VS, Version,
};

use crate::config::{ControllerError, Options, PAGE_SHIFT_MAX};

/// Bytes from one doorbell to the next (CAP.DSTRD = 0).
const DOORBELL_BYTES: usize = 4;

#[derive(Debug)]
pub(crate) struct Bar {
    memory: Region,
    doorbells: usize,
}

impl Bar {
    /// Bytes of registers and doorbells.
    pub(crate) fn bytes(options: &Options) -> usize {
        let doorbells = 2 * (usize::from(options.queue_pairs_max) + 1);
        (DOORBELLS + doorbells * DOORBELL_BYTES).next_multiple_of(4096)
    }

    pub(crate) fn new(options: &Options) -> Result<Self, ControllerError> {
        let memory = Region::map_anonymous(Self::bytes(options), MemoryKind::Host)?;
        Self::over(options, memory)
    }

    /// Registers and doorbells in memory that somebody else made.
    pub(crate) fn over(options: &Options, memory: Region) -> Result<Self, ControllerError> {
        let bytes = Self::bytes(options);
        if memory.len_bytes() < bytes || !memory.address().is_multiple_of(8) {
            let why = format!("{} bytes at {:#x}", memory.len_bytes(), memory.address());
            let why = format!("{why}: {bytes} bytes of whole words are needed");
            return Err(ControllerError::BadOption { what: "bar", why });
        }
        memory.fill(0, bytes, 0);
        let doorbells = 2 * (usize::from(options.queue_pairs_max) + 1);
        let mqes_z = u16::try_from(options.queue_entries_max - 1).expect("options are checked");
        let cap = Capabilities::new()
            .with_mqes_z(mqes_z)
            .with_cqr(true)
            .with_to(20)
            .with_css(Capabilities::CSS_NVM)
            .with_mpsmax(PAGE_SHIFT_MAX);
        memory.u64_at(CAP).store(cap.into_bits(), Ordering::Relaxed);
        let version = Version::new().with_mjr(1).with_mnr(4).into_bits();
        memory.u32_at(VS).store(version, Ordering::Release);
        Ok(Self { memory, doorbells })
    }

    pub(crate) fn memory(&self) -> &Region {
        &self.memory
    }

    /// Pairs with the host's Release store of CC, after it wrote AQA, ASQ and ACQ.
    #[inline]
    pub(crate) fn configuration(&self) -> Configuration {
        Configuration::from_bits(self.memory.u32_at(CC).load(Ordering::Acquire))
    }

    /// Resets CC, as only a controller that resets itself does.
    pub(crate) fn clear_configuration(&self) {
        self.memory.u32_at(CC).store(0, Ordering::Release);
    }

    /// Everything stored before is visible to a host that sees this (its Acquire load of CSTS).
    pub(crate) fn set_status(&self, status: ControllerStatus) {
        self.memory.u32_at(CSTS).store(status.into_bits(), Ordering::Release);
    }

    /// Makes the register read as it should, where something else was written over it.
    #[inline]
    pub(crate) fn keep_status(&self, status: ControllerStatus) {
        if self.memory.u32_at(CSTS).load(Ordering::Relaxed) != status.into_bits() {
            self.set_status(status);
        }
    }

    pub(crate) fn admin_queues(&self) -> (AdminQueueAttributes, u64, u64) {
        let sizes = self.memory.u32_at(AQA).load(Ordering::Relaxed);
        let submission = self.memory.u64_at(ASQ).load(Ordering::Relaxed);
        let completion = self.memory.u64_at(ACQ).load(Ordering::Relaxed);
        (AdminQueueAttributes::from_bits(sizes), submission, completion)
    }

    /// Doorbells there are, two a queue pair: tail of submission, head of completion.
    pub(crate) fn doorbells(&self) -> usize {
        self.doorbells
    }

    /// A doorbell by its position. Pairs with the host's Release store, after it wrote entries.
    #[inline]
    pub(crate) fn doorbell(&self, index: usize) -> u32 {
        self.memory.u32_at(DOORBELLS + index * DOORBELL_BYTES).load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn submission_tail(&self, queue: u16) -> u32 {
        self.doorbell(2 * usize::from(queue))
    }

    #[inline]
    pub(crate) fn completion_head(&self, queue: u16) -> u32 {
        self.doorbell(2 * usize::from(queue) + 1)
    }

    /// Makes a doorbell read as its queue starts: at 0. The host may not ring it yet.
    pub(crate) fn clear_doorbell(&self, index: usize) {
        self.memory.u32_at(DOORBELLS + index * DOORBELL_BYTES).store(0, Ordering::Release);
    }

    pub(crate) fn clear_doorbells(&self) {
        for index in 0..self.doorbells {
            self.clear_doorbell(index);
        }
    }
}
