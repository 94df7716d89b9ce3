//! What a device's DMA engine sees: registered regions by address.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::region::{MemError, Region};

/// Names a registration, for `deregister`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct RegionId(u64);

#[derive(Clone, Debug)]
struct Entry {
    id: RegionId,
    address: u64,
    region: Region,
}

/// Registered regions, sorted by address, none overlapping. Immutable.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    entries: Vec<Entry>,
}

impl Snapshot {
    /// Finds the region that holds `bytes` bytes at `address`, and the offset in it.
    #[inline]
    pub fn resolve(&self, address: u64, bytes: usize) -> Option<(&Region, usize)> {
        let after = self.entries.partition_point(|e| e.address <= address);
        let entry = self.entries.get(after.checked_sub(1)?)?;
        let offset = usize::try_from(address - entry.address).ok()?;
        entry.region.check(offset, bytes).ok()?;
        Some((&entry.region, offset))
    }
}

/// Registered regions, shared: registering is rare, resolving is not.
///
/// A user keeps a [`Snapshot`] and asks [`AddressMap::version`] whether it is still the newest.
#[derive(Debug, Default)]
pub struct AddressMap {
    version: AtomicU64,
    current: RwLock<Arc<Snapshot>>,
}

impl AddressMap {
    /// An empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// Changes with every registration and deregistration.
    #[inline]
    pub fn version(&self) -> u64 {
        // Pairs with the Release in `replace`.
        self.version.load(Ordering::Acquire)
    }

    /// The registrations as they are now.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Registers a region under its own address.
    ///
    /// # Errors
    /// [`MemError::Overlap`].
    pub fn register(&self, region: Region) -> Result<RegionId, MemError> {
        let address = region.address();
        self.register_at(address, region)
    }

    /// Registers a region under an address of the caller's choice (an I/O virtual address).
    ///
    /// # Errors
    /// [`MemError::Overlap`].
    pub fn register_at(&self, address: u64, region: Region) -> Result<RegionId, MemError> {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let bytes = region.len_bytes();
        let end = address.checked_add(bytes as u64).ok_or(MemError::Overlap { address, bytes })?;
        let at = current.entries.partition_point(|e| e.address < address);
        let before = at.checked_sub(1).map(|i| &current.entries[i]);
        let overlaps = before.is_some_and(|e| e.address + e.region.len_bytes() as u64 > address)
            || current.entries.get(at).is_some_and(|e| e.address < end);
        if overlaps {
            return Err(MemError::Overlap { address, bytes });
        }
        let id = RegionId(self.version() + 1);
        let mut next = Snapshot::clone(&current);
        next.entries.insert(at, Entry { id, address, region });
        *current = Arc::new(next);
        self.version.store(id.0, Ordering::Release);
        Ok(id)
    }

    /// Removes a registration; snapshots taken before still hold it.
    pub fn deregister(&self, id: RegionId) -> bool {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let mut next = Snapshot::clone(&current);
        next.entries.retain(|e| e.id != id);
        let found = next.entries.len() != current.entries.len();
        *current = Arc::new(next);
        self.version.fetch_add(1, Ordering::Release);
        found
    }
}
