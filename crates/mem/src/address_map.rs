//! What a device's DMA engine sees: registered regions by address.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use crate::region::{MemError, MemoryKind, Region};

/// How long a deregistration waits for who may still have the region: somewhat longer than a drive
/// sleeps.
const LETTING_GO: Duration = Duration::from_millis(10);
/// Between two looks.
const LOOK: Duration = Duration::from_micros(50);

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
///
/// Users never have the last reference to a region: giving device memory back can wait for every kernel
/// that runs, and kernels wait for drives. What is deregistered stays here until no user has it, and goes
/// in the thread of a later deregistration of device memory, or with the map.
#[derive(Debug, Default)]
pub struct AddressMap {
    version: AtomicU64,
    current: RwLock<Arc<Snapshot>>,
    retired: Mutex<Vec<Region>>,
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
        next.entries.insert(at, Entry { id, address, region: region.lent() });
        *current = Arc::new(next);
        self.version.store(id.0, Ordering::Release);
        Ok(id)
    }

    /// Removes a registration; snapshots taken before still hold it. Device memory is given back here
    /// if whoever has such a snapshot lets go of it within some milliseconds.
    pub fn deregister(&self, id: RegionId) -> bool {
        let Some(gone) = self.remove(id) else { return false };
        let retired = || self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        // Host memory costs nothing to keep for a while, and may be a drive's own.
        let window = gone.kind() == MemoryKind::Window;
        let begun = Instant::now();
        while window && gone.holders() > 1 && begun.elapsed() < LETTING_GO {
            std::thread::sleep(LOOK);
        }
        retired().push(gone);
        if window {
            let mut free = Vec::new();
            retired().retain(|region| {
                let held = region.holders() > 1;
                if !held {
                    free.push(region.clone());
                }
                held
            });
            drop(free);
        }
        true
    }

    fn remove(&self, id: RegionId) -> Option<Region> {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let mut next = Snapshot::clone(&current);
        let at = next.entries.iter().position(|e| e.id == id)?;
        let gone = next.entries.remove(at).region;
        let before = std::mem::replace(&mut *current, Arc::new(next));
        self.version.fetch_add(1, Ordering::Release);
        // Not under the lock, and it is never the last that has a region.
        drop(current);
        drop(before);
        Some(gone)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::thread::JoinHandle;

    use super::*;
    use crate::region::test_support::owned;

    /// A user of a piece of a region in a snapshot, which lets go when it is told.
    fn user(map: &AddressMap, address: u64) -> (Sender<()>, JoinHandle<()>) {
        let (tell, told) = channel();
        let snapshot = map.snapshot();
        let user = std::thread::spawn(move || {
            let piece = snapshot.resolve(address, 16).unwrap().0.slice(0, 16).unwrap();
            drop(snapshot);
            let _ends_either_way = told.recv();
            drop(piece);
        });
        (tell, user)
    }

    #[test]
    fn a_user_never_frees_what_was_registered() {
        let (map, here) = (AddressMap::new(), std::thread::current().id());
        let (region, freed) = owned(MemoryKind::Window);
        let address = region.address();
        let id = map.register(region).unwrap();
        let (tell, user) = user(&map, address);
        assert!(map.deregister(id));
        assert_eq!(freed.thread(), None, "it is in use");
        tell.send(()).unwrap();
        user.join().unwrap();
        assert_eq!(freed.thread(), None, "not in the user's thread");
        let other = map.register(owned(MemoryKind::Window).0).unwrap();
        assert!(map.deregister(other));
        assert_eq!(freed.thread(), Some(here));
        assert!(!map.deregister(id), "it is gone");
    }

    /// In time: the memory is free when the deregistration is over. A busy machine may make it late.
    #[test]
    fn a_user_that_lets_go_soon_is_waited_for() {
        let map = AddressMap::new();
        let prompt = (0..100).any(|_| {
            let (region, freed) = owned(MemoryKind::Window);
            let address = region.address();
            let id = map.register(region).unwrap();
            let (tell, user) = user(&map, address);
            let teller = std::thread::spawn(move || {
                std::thread::sleep(LETTING_GO / 5);
                tell.send(()).unwrap();
            });
            assert!(map.deregister(id));
            let prompt = freed.thread() == Some(std::thread::current().id());
            teller.join().unwrap();
            user.join().unwrap();
            prompt
        });
        assert!(prompt);
    }

    /// Host memory is not waited for, and goes with the map at the latest.
    #[test]
    fn what_nobody_has_goes_with_the_map() {
        let map = AddressMap::new();
        let (region, freed) = owned(MemoryKind::Host);
        let id = map.register(region).unwrap();
        let snapshot = map.snapshot();
        assert!(map.deregister(id));
        drop(snapshot);
        assert_eq!(freed.thread(), None);
        drop(map);
        assert_eq!(freed.thread(), Some(std::thread::current().id()));
    }

    /// Whoever registers memory may give it back before the map does, and after.
    #[test]
    fn the_callers_own_references_do_not_count() {
        let map = AddressMap::new();
        let (region, freed) = owned(MemoryKind::Window);
        let id = map.register(region.clone()).unwrap();
        assert!(map.deregister(id));
        assert_eq!(freed.thread(), None, "the caller has it");
        drop(region);
        assert!(freed.thread().is_some());
    }
}
