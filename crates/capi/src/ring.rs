//! Request rings: made, drained, quiesced, counted.
// UNSAFETY: exported C functions.
#![expect(unsafe_code, reason = "functions that C calls")]

use std::ffi::{c_char, c_int, c_void};
use std::time::Duration;

use sidecore::{ReadRoute, Ring, RingConfig, WriteRoute};

use crate::engine::{give_view, sidecore_engine};
use crate::failure::{Failure, guard, swallow};
use crate::handle::{self, borrow, destroy, options, place, text};
use crate::lanes::named;

/// By window where the GPU has one, else lanes pull (reads); lanes push (writes).
pub const SIDECORE_ROUTE_AUTO: u32 = 0;
/// Through pinned host memory by the copy engine.
pub const SIDECORE_ROUTE_BOUNCE: u32 = 1;
/// Reads: lanes load from pinned host memory.
pub const SIDECORE_ROUTE_PULL: u32 = 2;
/// Reads: a side core stores through the window.
pub const SIDECORE_ROUTE_WINDOW: u32 = 3;
/// Writes: lanes store to pinned host memory.
pub const SIDECORE_ROUTE_PUSH: u32 = 4;

/// Options of a ring. Zero the structure, set `struct_bytes`, then what shall differ from the defaults.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct sidecore_ring_options {
    /// sizeof(sidecore_ring_options).
    pub struct_bytes: u32,
    /// Entries, a power of two up to 16,777,216; default 1,024.
    pub depth: u32,
    /// Completion records, and so the most requests in flight; default 1,024.
    pub records: u32,
    /// Largest transfer of one request; default 4,096.
    pub transfer_bytes: u32,
    /// SIDECORE_ROUTE_AUTO, _BOUNCE, _PULL or _WINDOW.
    pub read_route: u32,
    /// SIDECORE_ROUTE_AUTO, _BOUNCE or _PUSH.
    pub write_route: u32,
    /// Limit of a request that brings none, in ms, at most 65,535; default 10,000.
    pub limit_ms: u32,
    /// Zero.
    pub reserved: u32,
}

impl handle::Options for sidecore_ring_options {
    fn struct_bytes(&self) -> u32 {
        self.struct_bytes
    }
}

/// A request ring: `sidecore/ring.h` is its device side.
pub struct sidecore_ring {
    ring: Ring,
}

fn settings(engine: &sidecore_engine, o: &sidecore_ring_options) -> Result<RingConfig, Failure> {
    let default = RingConfig::default();
    let or = |given: u32, default: u32| if given == 0 { default } else { given };
    let has_window = engine.engine.gpu().describe().no_window.is_none();
    let unknown = |what: &str, n: u32| Err(Failure::misuse(format!("{what} route {n} is unknown")));
    let read_route = match o.read_route {
        SIDECORE_ROUTE_AUTO if has_window => ReadRoute::Window,
        SIDECORE_ROUTE_AUTO | SIDECORE_ROUTE_PULL => ReadRoute::Pull,
        SIDECORE_ROUTE_BOUNCE => ReadRoute::Bounce,
        SIDECORE_ROUTE_WINDOW => ReadRoute::Window,
        other => return unknown("read", other),
    };
    let write_route = match o.write_route {
        SIDECORE_ROUTE_AUTO | SIDECORE_ROUTE_PUSH => WriteRoute::Push,
        SIDECORE_ROUTE_BOUNCE => WriteRoute::Bounce,
        other => return unknown("write", other),
    };
    let limit = match o.limit_ms {
        0 => default.limit,
        limit_ms => Duration::from_millis(limit_ms.into()),
    };
    Ok(RingConfig {
        depth: or(o.depth, default.depth),
        records: or(o.records, default.records),
        staging_stride: or(o.transfer_bytes, default.staging_stride),
        read_route,
        write_route,
        limit,
        ..default
    })
}

/// Makes a ring and gives it to a side core.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_ring_create(
    engine: *const sidecore_engine,
    given: *const sidecore_ring_options,
    ring: *mut *mut sidecore_ring,
) -> c_int {
    guard(|| {
        // SAFETY: the rule for pointers, see the crate's documentation; so in all functions here.
        let place = unsafe { place(ring, "ring") }?;
        // SAFETY: as above.
        let engine = unsafe { borrow(engine, "engine") }?;
        // SAFETY: as above.
        let given = unsafe { options(given, "options") }?;
        let config = settings(engine, &given)?;
        place.give_handle(sidecore_ring { ring: engine.engine.create_ring(config)? });
        Ok(())
    })
}

/// Copies the sidecore::abi::RingView out that a kernel attaches to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_ring_view(
    ring: *const sidecore_ring,
    view: *mut c_void,
    bytes: usize,
) -> c_int {
    guard(|| {
        // SAFETY: as in `sidecore_ring_create`.
        let ring = unsafe { borrow(ring, "ring") }?;
        // SAFETY: as in `sidecore_ring_create`.
        unsafe { give_view(&ring.ring.view(), view, bytes) }
    })
}

/// A counter by its name, such as requests, succeeded, failed, read_bytes; a wrong name's error lists all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_ring_count(
    ring: *const sidecore_ring,
    name: *const c_char,
    value: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: as in `sidecore_ring_create`.
        let place = unsafe { place(value, "value") }?;
        // SAFETY: as in `sidecore_ring_create`.
        let ring = unsafe { borrow(ring, "ring") }?;
        // SAFETY: as in `sidecore_ring_create`.
        let name = unsafe { text(name, "name") }?;
        place.give(named(&ring.ring.counters().named(), name)?);
        Ok(())
    })
}

/// Requests fetched and not yet answered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_ring_in_flight(ring: *const sidecore_ring) -> u32 {
    // SAFETY: as in `sidecore_ring_create`.
    unsafe { borrow(ring, "ring") }.map_or(0, |ring| ring.ring.in_flight())
}

/// Refuses new requests; what is in flight ends as usual.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_ring_drain(ring: *const sidecore_ring) -> c_int {
    guard(|| {
        // SAFETY: as in `sidecore_ring_create`.
        unsafe { borrow(ring, "ring") }?.ring.drain();
        Ok(())
    })
}

/// Ends everything in flight early and waits for that, at most `limit_ms`: then nothing of the ring
/// touches any buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_ring_quiesce(ring: *const sidecore_ring, limit_ms: u32) -> c_int {
    guard(|| {
        // SAFETY: as in `sidecore_ring_create`.
        let ring = unsafe { borrow(ring, "ring") }?;
        ring.ring.quiesce();
        Ok(ring.ring.wait_quiet(Duration::from_millis(limit_ms.into()))?)
    })
}

/// Serves requests again after a drain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_ring_restart(ring: *const sidecore_ring) -> c_int {
    // SAFETY: as in `sidecore_ring_create`.
    guard(|| Ok(unsafe { borrow(ring, "ring") }?.ring.restart()?))
}

/// Closes the ring. No kernel may use it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_ring_close(ring: *mut sidecore_ring) {
    // SAFETY: as in `sidecore_ring_create`.
    swallow(|| unsafe { destroy(ring, "ring") });
}
