//! One access of a lane: decoded, and made through the memory model or on plain memory.
// UNSAFETY: device code's accesses to memory that is not registered, made as it asked.
#![expect(unsafe_code, reason = "raw accesses on behalf of device code")]

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use mem::model::{AgentId, Model, Order, Scope};

use super::observed::{AccessKind, FenceKind, LaneAccess};
use crate::device::{Access, Reply};

/// Operations, mirroring `impl/arch_simt.h`.
const LOAD: u32 = 0;
const STORE: u32 = 1;
const CAS: u32 = 2;
const FETCH_ADD: u32 = 3;
const COPY: u32 = 4;
const FENCE: u32 = 5;

fn order_of(code: u32) -> Order {
    match code {
        2 => Order::Acquire,
        3 => Order::Release,
        // The model has one order of all full fences: more than those give that are not total.
        4 | 5 => Order::Full,
        _ => Order::Relaxed,
    }
}

/// Makes one access.
pub(super) fn perform(model: &mut Model, lane: AgentId, access: &Access) -> Reply {
    let Access { what, address, a, b } = *access;
    let bytes = (what >> 8 & 0xff) as usize;
    let order = order_of(what >> 16 & 0xff);
    match what & 0xff {
        LOAD => {
            let [lo, hi] = load(model, lane, address, bytes, order);
            Reply { lo, hi }
        }
        STORE => {
            store(model, lane, address, bytes, [a, b], order);
            Reply::default()
        }
        CAS => {
            let change = |old| (old == a).then_some(b);
            Reply::word(update(model, lane, address, bytes, change))
        }
        FETCH_ADD => {
            let change = |old: u64| Some(old.wrapping_add(a));
            Reply::word(update(model, lane, address, bytes, change))
        }
        COPY if bytes == 16 && model.copy(lane, address, a) => Reply::default(),
        COPY => {
            let values = load(model, lane, a, bytes, order);
            store(model, lane, address, bytes, values, order);
            Reply::default()
        }
        FENCE => {
            let scope = if what >> 24 == 0 { Scope::Device } else { Scope::System };
            model.fence(lane, order, scope);
            Reply::default()
        }
        other => unreachable!("operation {other} is not in arch_simt.h"),
    }
}

/// What an observer is told of an access that was made.
pub(super) fn tell(access: &Access, reply: &Reply) -> LaneAccess {
    let system = access.what >> 24 != 0;
    let kind = match (access.what & 0xff, access.what >> 16 & 0xff) {
        (LOAD, _) => AccessKind::Load,
        (STORE, _) => AccessKind::Store,
        (CAS, _) => AccessKind::CompareSwap,
        (FETCH_ADD, _) => AccessKind::Add,
        (COPY, _) => AccessKind::Copy,
        (_, 2) => AccessKind::Fence { kind: FenceKind::Acquire, system },
        (_, 5) => AccessKind::Fence { kind: FenceKind::Total, system },
        _ => AccessKind::Fence { kind: FenceKind::Full, system },
    };
    LaneAccess { kind, address: access.address, given: [access.a, access.b], found: reply.lo }
}

/// The address as a pointer into memory that device code has.
fn pointer<T>(address: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(usize::try_from(address).expect("64-bit addresses"))
}

fn load(model: &mut Model, lane: AgentId, address: u64, bytes: usize, order: Order) -> [u64; 2] {
    if let Some(values) = model.load(lane, address, bytes, order) {
        return values;
    }
    match bytes {
        // SAFETY: device code asks for a naturally aligned access to memory of its own; that it is
        // mapped is the kernel's duty, as on a GPU. The same holds for every access below.
        1 => [unsafe { AtomicU8::from_ptr(pointer(address)) }.load(Ordering::SeqCst).into(), 0],
        // SAFETY: as above.
        4 => [unsafe { AtomicU32::from_ptr(pointer(address)) }.load(Ordering::SeqCst).into(), 0],
        // SAFETY: as above.
        8 => [unsafe { AtomicU64::from_ptr(pointer(address)) }.load(Ordering::SeqCst), 0],
        // SAFETY: as above; one OS thread runs all agents, so two halves are one access.
        _ => unsafe { pointer::<[u64; 2]>(address).read() },
    }
}

fn narrow<T: TryFrom<u64>>(value: u64) -> T {
    let mask = u64::MAX >> (64 - 8 * size_of::<T>());
    T::try_from(value & mask).ok().expect("masked to its width")
}

fn store(
    model: &mut Model,
    lane: AgentId,
    address: u64,
    bytes: usize,
    values: [u64; 2],
    order: Order,
) {
    if model.store(lane, address, bytes, values, order) {
        return;
    }
    let [lo, _] = values;
    match bytes {
        // SAFETY: as in `load`.
        1 => unsafe { AtomicU8::from_ptr(pointer(address)) }.store(narrow(lo), Ordering::SeqCst),
        // SAFETY: as in `load`.
        4 => unsafe { AtomicU32::from_ptr(pointer(address)) }.store(narrow(lo), Ordering::SeqCst),
        // SAFETY: as in `load`.
        8 => unsafe { AtomicU64::from_ptr(pointer(address)) }.store(lo, Ordering::SeqCst),
        // SAFETY: as in `load`.
        _ => unsafe { pointer::<[u64; 2]>(address).write(values) },
    }
}

fn update(
    model: &mut Model,
    lane: AgentId,
    address: u64,
    bytes: usize,
    change: impl Fn(u64) -> Option<u64>,
) -> u64 {
    if let Some(old) = model.update(lane, address, bytes, Order::Relaxed, &change) {
        return old;
    }
    // One OS thread runs all agents: nobody comes between.
    let [old, _] = load(model, lane, address, bytes, Order::Full);
    if let Some(new) = change(old) {
        store(model, lane, address, bytes, [new, 0], Order::Full);
    }
    old
}
