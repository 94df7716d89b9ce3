//! What the driver needs of a device: registers, doorbells and addresses.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use mem::{AddressMap, MemError, Region, RegionId};

/// A controller as its driver reaches it.
///
/// Offsets are those of `spec::registers`; the implementation holds at least the first 0x1000 bytes
/// and the doorbells. No method fails: what is no longer there reads as ones.
pub trait Device: Send + Sync {
    /// Loads a 32-bit register.
    fn load32(&self, offset: usize) -> u32;
    /// Loads a 64-bit register.
    fn load64(&self, offset: usize) -> u64;
    /// Stores a 32-bit register, after everything that was stored before.
    fn store32(&self, offset: usize, value: u32);
    /// Stores a 64-bit register, after everything that was stored before.
    fn store64(&self, offset: usize, value: u64);
    /// Rings a doorbell, after everything that was stored to queue memory before.
    fn ring(&self, offset: usize, value: u32);
    /// The address under which a GPU of this machine stores to a doorbell, where it can.
    fn doorbell_address(&self, _offset: usize) -> Option<u64> {
        None
    }
    /// Lets the device reach a region, for as long as the mapping lives.
    ///
    /// # Errors
    /// [`MemError`] where it cannot be mapped.
    fn map(&self, region: &Region) -> Result<Mapping, MemError>;
    /// The address under which the device reaches these bytes, where it can.
    ///
    /// They are contiguous there, and the offset in a page of 4096 bytes is the region's own.
    fn bus_address(&self, region: &Region, offset: usize, bytes: usize) -> Option<u64>;
}

/// A region that a device can reach; dropping it ends that.
pub struct Mapping {
    region: Region,
    address: u64,
    /// Unmaps when it is dropped.
    _guard: Option<Box<dyn Send + Sync>>,
}

impl Mapping {
    /// A region under an address; `guard` unmaps when it is dropped.
    pub fn new(region: Region, address: u64, guard: Option<Box<dyn Send + Sync>>) -> Self {
        Self { region, address, _guard: guard }
    }

    /// The region.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Address of its first byte as the device sees it.
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({:?} at {:#x})", self.region, self.address)
    }
}

/// A controller whose registers are a region of memory and whose DMA goes through an address map.
///
/// The address of a byte is the one that the region has in this process.
#[derive(Clone, Debug)]
pub struct RegionDevice {
    bar: Region,
    dma: Arc<AddressMap>,
    /// What was registered here: mappings of the same memory share it.
    registrations: Arc<Mutex<Vec<Weak<Registration>>>>,
}

impl RegionDevice {
    /// A device from its register region and its address map.
    pub fn new(bar: Region, dma: Arc<AddressMap>) -> Self {
        Self { bar, dma, registrations: Arc::default() }
    }

    fn holds(&self, offset: usize, bytes: usize) -> bool {
        self.bar.check(offset, bytes).is_ok()
    }
}

impl Device for RegionDevice {
    fn load32(&self, offset: usize) -> u32 {
        // Pairs with the controller's Release store of its status.
        if self.holds(offset, 4) { self.bar.u32_at(offset).load(Ordering::Acquire) } else { !0 }
    }

    fn load64(&self, offset: usize) -> u64 {
        if self.holds(offset, 8) { self.bar.u64_at(offset).load(Ordering::Acquire) } else { !0 }
    }

    fn store32(&self, offset: usize, value: u32) {
        if self.holds(offset, 4) {
            self.bar.u32_at(offset).store(value, Ordering::Release);
        }
    }

    fn store64(&self, offset: usize, value: u64) {
        if self.holds(offset, 8) {
            self.bar.u64_at(offset).store(value, Ordering::Release);
        }
    }

    fn ring(&self, offset: usize, value: u32) {
        // Pairs with the controller's Acquire load of the doorbell.
        self.store32(offset, value);
    }

    fn doorbell_address(&self, offset: usize) -> Option<u64> {
        self.holds(offset, 4).then(|| self.bar.address() + offset as u64)
    }

    fn map(&self, region: &Region) -> Result<Mapping, MemError> {
        let (address, bytes) = (region.address(), region.len_bytes());
        let mut known = self.registrations.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|one| one.strong_count() > 0);
        let mut alive = known.iter().filter_map(Weak::upgrade);
        if let Some(shared) = alive.find(|one| one.holds(address, bytes)) {
            return Ok(Mapping::new(region.clone(), address, Some(Box::new(shared))));
        }
        if self.bus_address(region, 0, bytes).is_some() {
            return Ok(Mapping::new(region.clone(), address, None));
        }
        let id = self.dma.register(region.clone())?;
        let dma = Arc::clone(&self.dma);
        let registration = Arc::new(Registration { dma, id, address, bytes });
        known.push(Arc::downgrade(&registration));
        Ok(Mapping::new(region.clone(), address, Some(Box::new(registration))))
    }

    fn bus_address(&self, region: &Region, offset: usize, bytes: usize) -> Option<u64> {
        let address = region.address().checked_add(offset as u64)?;
        self.dma.snapshot().resolve(address, bytes).map(|_| address)
    }
}

#[derive(Debug)]
struct Registration {
    dma: Arc<AddressMap>,
    id: RegionId,
    address: u64,
    bytes: usize,
}

impl Registration {
    fn holds(&self, address: u64, bytes: usize) -> bool {
        let at = address.checked_sub(self.address).and_then(|at| usize::try_from(at).ok());
        at.and_then(|at| at.checked_add(bytes)).is_some_and(|end| end <= self.bytes)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.dma.deregister(self.id);
    }
}
