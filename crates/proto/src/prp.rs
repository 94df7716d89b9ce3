//! Building the data pointer of a command: PRP1, PRP2 and, for long transfers, a list.
//!
//! | pages touched | PRP1 | PRP2 |
//! | --- | --- | --- |
//! | 1 | first byte | 0 |
//! | 2 | first byte | second page |
//! | more | first byte | list of the second and all further pages |
//!
//! Only the first page may begin inside (its offset a multiple of 4). A list may begin inside a page
//! too, at a multiple of 8; where it reaches the end of its page and more than one entry is left,
//! the last entry there is the address of the next list page.
//!
//! Source: NVMe Base 2.0c, 4.1.1.

use std::fmt;

/// A transfer that PRPs cannot describe. Cause: the caller's memory or length. Remedy: as it says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrpError {
    /// The list needs more entries than there is room for. Remedy: split the transfer.
    #[error("a PRP list of {entries} entries is needed, and there is room for {room}")]
    ListFull {
        /// Entries needed.
        entries: usize,
        /// Entries there are.
        room: usize,
    },
    /// An address is not aligned as the standard wants it. Remedy: align the memory.
    #[error("PRP address {address:#x} is not a multiple of {alignment}")]
    Unaligned {
        /// The address.
        address: u64,
        /// What it must be a multiple of.
        alignment: u64,
    },
}

/// Room for a list: where the drive finds it and where the caller will write it.
pub struct ListRoom<'a> {
    /// Address of the first entry as the drive sees it; a multiple of 8.
    pub address: u64,
    /// Receives the entries to write there, in order; the rest is left alone.
    pub entries: &'a mut [u64],
}

impl fmt::Debug for ListRoom<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ListRoom({:#x}, {} entries)", self.address, self.entries.len())
    }
}

/// A data pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataPointer {
    /// PRP entry 1.
    pub prp1: u64,
    /// PRP entry 2.
    pub prp2: u64,
    /// Entries of the list that must be written before the doorbell is rung.
    pub list_entries: usize,
}

/// Pages touched by `bytes` bytes that begin at `address`.
#[inline]
pub const fn pages_touched(address: u64, bytes: u64, page_bytes: u64) -> u64 {
    ((address % page_bytes) + bytes).div_ceil(page_bytes)
}

/// Describes `bytes` bytes in pages that may lie anywhere.
///
/// `page(n)` is the address of the n-th page touched, for 0 with the offset in it. `page_bytes` is a
/// power of two.
///
/// # Errors
/// [`PrpError`].
#[inline]
pub fn build(
    bytes: u64,
    page_bytes: u64,
    mut page: impl FnMut(u64) -> u64,
    list: ListRoom<'_>,
) -> Result<DataPointer, PrpError> {
    debug_assert!(page_bytes.is_power_of_two(), "memory pages are powers of two");
    let prp1 = page(0);
    check(prp1, 4)?;
    match pages_touched(prp1, bytes, page_bytes) {
        0 | 1 => Ok(DataPointer { prp1, prp2: 0, list_entries: 0 }),
        2 => {
            let prp2 = page(1);
            check(prp2, page_bytes)?;
            Ok(DataPointer { prp1, prp2, list_entries: 0 })
        }
        pages => {
            let prp2 = list.address;
            let list_entries = fill(pages, page_bytes, page, list)?;
            Ok(DataPointer { prp1, prp2, list_entries })
        }
    }
}

/// Describes bytes that lie side by side as the drive sees them.
///
/// # Errors
/// [`PrpError`].
#[inline]
pub fn build_contiguous(
    address: u64,
    bytes: u64,
    page_bytes: u64,
    list: ListRoom<'_>,
) -> Result<DataPointer, PrpError> {
    let base = address & !(page_bytes - 1);
    let page = |n| if n == 0 { address } else { base.wrapping_add(n * page_bytes) };
    build(bytes, page_bytes, page, list)
}

#[inline]
fn check(address: u64, alignment: u64) -> Result<(), PrpError> {
    if address & (alignment - 1) == 0 {
        Ok(())
    } else {
        Err(PrpError::Unaligned { address, alignment })
    }
}

fn fill(
    pages: u64,
    page_bytes: u64,
    mut page: impl FnMut(u64) -> u64,
    list: ListRoom<'_>,
) -> Result<usize, PrpError> {
    check(list.address, 8)?;
    let room = list.entries.len();
    let full = |entries: usize| PrpError::ListFull { entries, room };
    let mut at = 0usize;
    let mut entry_address = list.address;
    for n in 1..pages {
        let last_in_page = (entry_address + 8) & (page_bytes - 1) == 0;
        if last_in_page && n + 1 < pages {
            *list.entries.get_mut(at).ok_or(full(at + 1))? = entry_address + 8;
            at += 1;
            entry_address += 8;
        }
        let address = page(n);
        check(address, page_bytes)?;
        *list.entries.get_mut(at).ok_or(full(at + 1))? = address;
        at += 1;
        entry_address += 8;
    }
    Ok(at)
}
