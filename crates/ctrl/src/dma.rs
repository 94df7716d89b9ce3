//! What the controller's DMA engine can reach: PRP entries to pieces of registered memory.
//!
//! A transfer of `bytes` is described by PRP1 (any dword offset in a page) and PRP2, which is unused
//! (all fits in the first page), the second page, or the address of a list of pages. The last
//! entry of a full list page is the address of the next one where more than one page is left.
//!
//! ```text
//! PRP1 -> [ .... ####]   PRP2 -> [ page | page | ... | next ] -> [ page | page ]
//! ```
//!
//! Neighbouring pages become one piece, so that a physically contiguous buffer is one storage
//! request. Nothing outside a registered region is ever read or written.
//!
//! Source: NVMe Base Specification 2.0c, 4.1.1 (physical region page entry and list).

use std::sync::Arc;

use mem::{AddressMap, Region, Snapshot};
use spec::Status;

const ENTRY_BYTES: u64 = 8;

/// A run of registered memory.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) region: Region,
    pub(crate) offset: usize,
    pub(crate) bytes: u32,
}

/// The memory map as it was at the last refresh, and the host's page size.
#[derive(Debug)]
pub(crate) struct Dma {
    map: Arc<AddressMap>,
    snapshot: Arc<Snapshot>,
    version: u64,
    page_bytes: u64,
    /// The region found last, with its first address and its end: the next one is often the same.
    recent: Option<(u64, u64, Region)>,
}

/// Neighbouring pages that were not looked up yet.
#[derive(Clone, Copy)]
struct Run {
    address: u64,
    bytes: u64,
}

impl Dma {
    pub(crate) fn new(map: Arc<AddressMap>) -> Self {
        let version = map.version();
        Self { snapshot: map.snapshot(), map, version, page_bytes: 4096, recent: None }
    }

    pub(crate) fn set_page_bytes(&mut self, page_bytes: u64) {
        debug_assert!(page_bytes.is_power_of_two());
        self.page_bytes = page_bytes;
    }

    /// Takes a new snapshot where regions came or went. One load otherwise.
    #[inline]
    pub(crate) fn refresh(&mut self) {
        let version = self.map.version();
        if version != self.version {
            self.version = version;
            self.recent = None;
            self.snapshot = self.map.snapshot();
        }
    }

    /// The memory of a queue: page aligned, contiguous, all in one region, usable as words.
    ///
    /// # Errors
    /// The status of a Create command with such an address.
    pub(crate) fn queue_memory(&self, address: u64, bytes: usize) -> Result<Region, Status> {
        if address & (self.page_bytes - 1) != 0 {
            return Err(Status::PRP_OFFSET_INVALID);
        }
        let (region, offset) =
            self.snapshot.resolve(address, bytes).ok_or(Status::INVALID_FIELD)?;
        let memory = region.slice(offset, bytes).map_err(|_| Status::INVALID_FIELD)?;
        // An I/O virtual address may be aligned where the memory behind it is not.
        if memory.address().is_multiple_of(ENTRY_BYTES) {
            Ok(memory)
        } else {
            Err(Status::INVALID_FIELD)
        }
    }

    /// Where in [`Dma::recent`] a transfer lies that is in one page and one region; `None` for all
    /// others, also for those that are wrong.
    #[inline]
    pub(crate) fn single_run(&mut self, prp1: u64, bytes: u64) -> Option<usize> {
        let in_first = self.page_bytes - (prp1 & (self.page_bytes - 1));
        if prp1 & 3 != 0 || bytes > in_first {
            return None;
        }
        let last = prp1.checked_add(bytes)?;
        if !self.recent.as_ref().is_some_and(|recent| recent.0 <= prp1 && last <= recent.1) {
            self.look_up_recent(prp1, bytes)?;
        }
        let (start, ..) = self.recent.as_ref()?;
        usize::try_from(prp1 - start).ok()
    }

    /// The region in which the last single run lies.
    #[inline]
    pub(crate) fn recent(&self) -> Option<&Region> {
        self.recent.as_ref().map(|(_, _, region)| region)
    }

    fn look_up_recent(&mut self, address: u64, bytes: u64) -> Option<()> {
        let (region, offset) = self.snapshot.resolve(address, usize::try_from(bytes).ok()?)?;
        let start = address - offset as u64;
        // A region that ends the address space is never remembered as ending before it.
        let end = start.checked_add(region.len_bytes() as u64)?;
        self.recent = Some((start, end, region.clone()));
        Some(())
    }

    /// Appends the pieces of a transfer.
    ///
    /// # Errors
    /// `PRP_OFFSET_INVALID` for an offset where none may be; `DATA_TRANSFER_ERROR` for an address
    /// that is not registered. Pieces found before that stay appended.
    pub(crate) fn translate(
        &self,
        prp1: u64,
        prp2: u64,
        bytes: u64,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), Status> {
        if prp1 & 3 != 0 {
            return Err(Status::PRP_OFFSET_INVALID);
        }
        let in_first = self.page_bytes - (prp1 & (self.page_bytes - 1));
        let first = Run { address: prp1, bytes: in_first.min(bytes) };
        if bytes <= in_first {
            return self.append(first, pieces);
        }
        let left = bytes - in_first;
        if left > self.page_bytes {
            return self.translate_list(first, prp2, left, pieces);
        }
        if prp2 & (self.page_bytes - 1) != 0 {
            return Err(Status::PRP_OFFSET_INVALID);
        }
        let last = self.extend(first, Run { address: prp2, bytes: left }, pieces)?;
        self.append(last, pieces)
    }

    /// Follows a list, and its chain. Each list page has room for a data entry, so that `left`
    /// bounds the walk whatever the host wrote.
    fn translate_list(
        &self,
        first: Run,
        list: u64,
        mut left: u64,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), Status> {
        if list & (ENTRY_BYTES - 1) != 0 {
            return Err(Status::PRP_OFFSET_INVALID);
        }
        let mut run = first;
        let mut at = list;
        while left > 0 {
            let last_of_page = at & (self.page_bytes - 1) == self.page_bytes - ENTRY_BYTES;
            let entry = self.load_entry(at)?;
            if entry & (self.page_bytes - 1) != 0 {
                return Err(Status::PRP_OFFSET_INVALID);
            }
            if last_of_page && left > self.page_bytes {
                at = entry;
                continue;
            }
            let bytes = left.min(self.page_bytes);
            run = self.extend(run, Run { address: entry, bytes }, pieces)?;
            left -= bytes;
            at += ENTRY_BYTES;
        }
        self.append(run, pieces)
    }

    fn load_entry(&self, address: u64) -> Result<u64, Status> {
        let (region, offset) =
            self.snapshot.resolve(address, 8).ok_or(Status::DATA_TRANSFER_ERROR)?;
        let mut entry = [0; 8];
        region.read_bytes(offset, &mut entry);
        Ok(u64::from_le_bytes(entry))
    }

    /// Joins `next` to `run`, or appends `run` and goes on with `next`.
    fn extend(&self, run: Run, next: Run, pieces: &mut Vec<Piece>) -> Result<Run, Status> {
        if run.address.checked_add(run.bytes) == Some(next.address) {
            return Ok(Run { address: run.address, bytes: run.bytes + next.bytes });
        }
        self.append(run, pieces)?;
        Ok(next)
    }

    /// Looks a run up; one that crosses from one region into the next becomes several pieces.
    fn append(&self, mut run: Run, pieces: &mut Vec<Piece>) -> Result<(), Status> {
        while run.bytes > 0 {
            let (region, offset) =
                self.snapshot.resolve(run.address, 1).ok_or(Status::DATA_TRANSFER_ERROR)?;
            let room = (region.len_bytes() - offset) as u64;
            let bytes = u32::try_from(run.bytes.min(room)).unwrap_or(u32::MAX);
            pieces.push(Piece { region: region.clone(), offset, bytes });
            run.bytes -= u64::from(bytes);
            // Only the end of the address space overflows, and there no bytes are left.
            run.address = run.address.wrapping_add(u64::from(bytes));
        }
        Ok(())
    }
}

/// Copies bytes into pieces, as far as they go.
pub(crate) fn scatter(source: &[u8], pieces: &[Piece]) {
    let mut rest = source;
    for piece in pieces {
        let (now, later) = rest.split_at(rest.len().min(piece.bytes as usize));
        piece.region.write_bytes(piece.offset, now);
        rest = later;
    }
}

/// Which way [`copy_pieces`] copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// From the host's memory into the bounce buffer.
    Gather,
    /// From the bounce buffer to the host's memory.
    Scatter,
}

/// Copies between a buffer in one piece and the host's pieces.
pub(crate) fn copy_pieces(buffer: &Region, pieces: &[Piece], direction: Direction) {
    let mut at = 0;
    for piece in pieces {
        let bytes = piece.bytes as usize;
        match direction {
            Direction::Gather => buffer.copy_from(at, &piece.region, piece.offset, bytes),
            Direction::Scatter => piece.region.copy_from(piece.offset, buffer, at, bytes),
        }
        at += bytes;
    }
}
