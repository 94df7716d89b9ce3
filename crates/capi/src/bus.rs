//! The bus: which memory drives reach, and under which addresses.
// UNSAFETY: exported C functions.
#![expect(unsafe_code, reason = "functions that C calls")]

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};

use mem::{AddressMap, RegionId};

use crate::failure::{Failure, guard, swallow};
use crate::handle::{borrow, destroy, place};
use crate::memory::sidecore_memory;

/// In place of a bus address: the address that the CPU has for the memory.
pub const SIDECORE_BUS_SAME: u64 = u64::MAX;

/// The addresses that drives see. A drive touches nothing that is not mapped here.
pub struct sidecore_bus {
    pub(crate) map: Arc<AddressMap>,
    mapped: Mutex<HashMap<u64, RegionId>>,
}

/// Makes a bus on which nothing is mapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_bus_create(bus: *mut *mut sidecore_bus) -> c_int {
    guard(|| {
        // SAFETY: the rule for pointers, see the crate's documentation; so in all functions here.
        let place = unsafe { place(bus, "bus") }?;
        place.give_handle(sidecore_bus { map: Arc::default(), mapped: Mutex::default() });
        Ok(())
    })
}

/// Maps part of a memory at a bus address of the caller's choice (or SIDECORE_BUS_SAME); `address`, which
/// may be null, gets the one it has. The memory must have a CPU mapping: host or window memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_bus_map(
    bus: *const sidecore_bus,
    memory: *const sidecore_memory,
    offset: u64,
    bytes: u64,
    wanted: u64,
    address: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: as in `sidecore_bus_create`.
        let bus = unsafe { borrow(bus, "bus") }?;
        // SAFETY: as in `sidecore_bus_create`.
        let memory = unsafe { borrow(memory, "memory") }?;
        let number = |n: u64| usize::try_from(n).map_err(|e| Failure::misuse(e.to_string()));
        let region = memory.region("mapping it on a bus")?;
        let part = region.slice(number(offset)?, number(bytes)?);
        let part = part.map_err(|e| Failure::misuse(e.to_string()))?;
        let at = if wanted == SIDECORE_BUS_SAME { part.address() } else { wanted };
        if bytes == 0 || at.checked_add(bytes).is_none() {
            let text = format!("{bytes} bytes at {at:#x}: none, or more than there are addresses");
            return Err(Failure::misuse(text));
        }
        let id = bus.map.register_at(at, part).map_err(|e| Failure::misuse(e.to_string()))?;
        bus.mapped.lock().unwrap_or_else(PoisonError::into_inner).insert(at, id);
        // SAFETY: as in `sidecore_bus_create`; null is no place.
        if let Ok(place) = unsafe { place(address, "address") } {
            place.give(at);
        }
        Ok(())
    })
}

/// Takes what is mapped at a bus address away. A drive may still finish what it has begun: end its
/// commands first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_bus_unmap(bus: *const sidecore_bus, address: u64) -> c_int {
    guard(|| {
        // SAFETY: as in `sidecore_bus_create`.
        let bus = unsafe { borrow(bus, "bus") }?;
        let id = bus.mapped.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
        let id = id.ok_or_else(|| Failure::misuse(format!("nothing is mapped at {address:#x}")))?;
        bus.map.deregister(id);
        Ok(())
    })
}

/// Destroys the handle; controllers keep the bus that they were made with.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_bus_destroy(bus: *mut sidecore_bus) {
    // SAFETY: as in `sidecore_bus_create`.
    swallow(|| unsafe { destroy(bus, "bus") });
}
