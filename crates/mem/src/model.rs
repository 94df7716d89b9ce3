//! A memory model for the seeded simulator: stores are delayed and reordered, loads may be stale.
//!
//! ```text
//! CPU thread                                lane -> block -> device
//!   in-order buffer   combining buffer        any order, at each level
//!        \               /                              |
//!         `---- memory: present words and their past ---'
//! ```
//!
//! * A CPU's stores to ordinary memory leave in order, all in the end. Its stores to a window leave
//!   in any order, 8 bytes each; under the lazy policy only after its own [`crate::fence_payload`].
//! * A lane's stores leave in any order but for those to one address. A 16-byte store stays whole.
//! * A load may see an old value: any that was still there when the agent last acquired, and not
//!   older than what it saw before at this address. Polling sees every value in the end.
//! * A copy that a lane makes by weak accesses may happen late, until its next fence or barrier: so it
//!   loads what others have stored since. (All other loads happen where they stand.)
//! * An acquire raises what is seen to the store that was read; a full fence to everything.
//! * CPU threads also synchronise by what the model does not see (locks, channels). So one that runs
//!   after another has seen what that one had, and all that it stored in order or fenced.
//! * A barrier makes its lanes share what each has stored and seen; the device and the system learn
//!   of it by a fence at their scope.
//!
//! Who accesses is the thread's current agent ([`with_agent`]); only memory that was registered is
//! modelled. Nothing here knows of GPUs, fibers or rings. What it does not model: speculation,
//! out-of-thin-air values, a load other than a copy's that passes a later store of the same agent.

mod buffers;
mod bulk;
mod copies;
mod drain;
mod fences;
mod loads;
mod machine;
mod rng;
mod space;
mod stores;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::Ordering;

pub use buffers::AgentId;
pub use machine::{Model, Order, Policy, Scope};
pub use rng::Rng;

thread_local! {
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

#[derive(Clone)]
struct Current {
    model: Rc<RefCell<Model>>,
    agent: AgentId,
}

/// Puts back what was current before, also when the agent panics.
struct Restore(Option<Current>);

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.with(|current| current.replace(self.0.take()));
    }
}

/// Runs `work` with all accesses of this thread to registered memory made by `agent`.
pub fn with_agent<R>(model: &Rc<RefCell<Model>>, agent: AgentId, work: impl FnOnce() -> R) -> R {
    model.borrow_mut().take_turn(agent);
    let now = Current { model: Rc::clone(model), agent };
    let _restore = Restore(CURRENT.with(|current| current.replace(Some(now))));
    work()
}

fn ask<R>(question: impl FnOnce(&mut Model, AgentId) -> R) -> Option<R> {
    CURRENT.with(|current| {
        let current = current.borrow();
        let Current { model, agent } = current.as_ref()?;
        Some(question(&mut model.borrow_mut(), *agent))
    })
}

fn order_of(order: Ordering) -> Order {
    match order {
        Ordering::Acquire => Order::Acquire,
        Ordering::Release => Order::Release,
        Ordering::AcqRel | Ordering::SeqCst => Order::Full,
        _ => Order::Relaxed,
    }
}

/// Loads through the model; `None` where it does not apply.
#[inline]
pub(crate) fn load(address: usize, bytes: usize, order: Ordering) -> Option<u64> {
    let address = address as u64;
    ask(|model, agent| model.load(agent, address, bytes, order_of(order))).flatten().map(|v| v[0])
}

/// Stores through the model; `false` where it does not apply.
#[inline]
pub(crate) fn store(address: usize, bytes: usize, value: u64, order: Ordering) -> bool {
    let (address, values) = (address as u64, [value, 0]);
    ask(|model, agent| model.store(agent, address, bytes, values, order_of(order))) == Some(true)
}

/// Changes a word through the model; `None` where it does not apply.
#[inline]
pub(crate) fn update(
    address: usize,
    bytes: usize,
    order: Ordering,
    change: impl FnOnce(u64) -> Option<u64>,
) -> Option<u64> {
    let address = address as u64;
    ask(|model, agent| model.update(agent, address, bytes, order_of(order), change)).flatten()
}

/// Copies out through the model; `false` where it does not apply.
#[inline]
pub(crate) fn read_bytes(address: usize, target: &mut [u8]) -> bool {
    ask(|model, agent| model.read_bytes(agent, address as u64, target)) == Some(true)
}

/// Copies in through the model; `false` where it does not apply.
#[inline]
pub(crate) fn write_bytes(address: usize, source: &[u8]) -> bool {
    ask(|model, agent| model.write_bytes(agent, address as u64, source)) == Some(true)
}

/// Whether this thread's accesses are modelled at all.
#[inline]
pub(crate) fn is_active() -> bool {
    CURRENT.with(|current| current.borrow().is_some())
}

/// The fences of [`crate::fence`].
pub(crate) fn fence_payload() {
    ask(Model::fence_stores);
}
pub(crate) fn fence_acquire() {
    ask(|model, agent| model.fence(agent, Order::Acquire, Scope::System));
}
pub(crate) fn fence_full() {
    ask(|model, agent| model.fence(agent, Order::Full, Scope::System));
}
