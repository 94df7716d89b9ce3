//! The C interface between device code and the simulator; mirrors `impl/arch_simt.h`.
//!
//! Each function turns a lane's request into a [`Call`], switches to the worker that runs the lane
//! and returns the worker's [`Reply`]. Nothing is decided here, on the lane's small stack, so nothing
//! here can panic with C++ frames above it.
// UNSAFETY: exported C functions, and the C thread-local that says which lane runs.
#![expect(unsafe_code, reason = "the C interface of device code")]

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};

use corosensei::Yielder;

use crate::warp::{Collective, CollectiveKind};

/// A kernel's entry point, called once a lane with the argument structure's address.
///
/// It must be a device function compiled for the simulator (`SIDECORE_SIMT`).
#[derive(Clone, Copy, Debug)]
pub struct Entry(pub unsafe extern "C" fn(*const c_void));

/// What a lane knows about itself. Mirrors `sidecore_simt_lane_view`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneView {
    pub thread: u32,
    pub block: u32,
    pub block_threads: u32,
    pub grid_blocks: u32,
    pub lane: u32,
    pub warp: u32,
}

/// Text with static lifetime from device code: a file's name or a `pause` site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StaticText(*const c_char);

// SAFETY: points to a string literal of device code: immutable, alive as long as the process.
unsafe impl Send for StaticText {}

impl StaticText {
    pub(crate) fn to_text(self) -> String {
        if self.0.is_null() {
            return "?".into();
        }
        // SAFETY: arch.h demands string literals (`__builtin_FILE`, the `site` of a pause).
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_string_lossy().into_owned()
    }
}

/// Where in device code a call stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Site {
    pub file: StaticText,
    pub line: u32,
}

/// One access of a lane to modelled memory.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "read by the seeded mode alone")]
pub(crate) struct Access {
    /// Operation, bytes, order and scope, a byte each from the lowest.
    pub what: u32,
    pub address: u64,
    pub a: u64,
    pub b: u64,
}

/// What a lane asks of the simulator.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Access(Access),
    Collective(Collective),
    Pause { ns: u32, site: StaticText },
    Shared { key: usize, bytes: usize, align: usize },
    Timer,
}

/// What it gets back. Mirrors `sidecore_simt_pair`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Reply {
    pub lo: u64,
    pub hi: u64,
}

impl Reply {
    pub(crate) fn word(lo: u64) -> Self {
        Self { lo, hi: 0 }
    }
}

/// A lane as its own fiber sees it; `view` comes first so that device code can read it.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct LaneContext {
    pub view: LaneView,
    /// Set by the fiber when it starts; points into its stack.
    pub yielder: Cell<*const Yielder<Reply, Call>>,
    pub modelled: bool,
}

/// Mirrors `sidecore_simt_thread_state`.
#[repr(C)]
struct ThreadState {
    view: *const LaneView,
    modelled: u32,
}

unsafe extern "C" {
    safe fn sidecore_simt_thread_address() -> *mut ThreadState;
}

/// The same for device code that is linked to a shared library, which exports functions only.
#[unsafe(no_mangle)]
extern "C" fn sidecore_simulated_thread() -> *mut ThreadState {
    sidecore_simt_thread_address()
}

/// That this OS thread runs a lane; it runs none any more when this is dropped.
pub(crate) struct InLane {
    /// Address of the thread's own thread-local. Neither `Send` nor `Sync`, so it stays that.
    state: *mut ThreadState,
}

/// Says which lane this OS thread runs from now on.
pub(crate) fn enter_lane(context: &LaneContext) -> InLane {
    let state = sidecore_simt_thread_address();
    let entered = ThreadState {
        view: std::ptr::from_ref(context).cast::<LaneView>(),
        modelled: u32::from(context.modelled),
    };
    // SAFETY: the address of this thread's own thread-local, which no one else holds a reference to.
    unsafe { state.write(entered) };
    InLane { state }
}

impl Drop for InLane {
    fn drop(&mut self) {
        // SAFETY: as in `enter_lane`; this value cannot leave the thread that it was made on.
        unsafe { self.state.write(ThreadState { view: std::ptr::null(), modelled: 0 }) };
    }
}

/// Asks the worker, from inside a lane.
fn ask(call: Call) -> Reply {
    // SAFETY: as in `enter_lane`.
    let view = unsafe { (*sidecore_simt_thread_address()).view };
    if view.is_null() {
        eprintln!("device code was called outside of a launch; it has no lane");
        std::process::abort();
    }
    // SAFETY: `enter_lane` stored the address of a LaneContext's first field; the worker keeps the
    // context alive while its fiber runs, and this is that fiber.
    let context = unsafe { &*view.cast::<LaneContext>() };
    // SAFETY: the fiber stored its own yielder before it called device code, further up this stack.
    unsafe { &*context.yielder.get() }.suspend(call)
}

#[unsafe(no_mangle)]
extern "C" fn sidecore_simt_collective(
    kind: u32,
    mask: u32,
    value: u64,
    source: u32,
    file: *const c_char,
    line: u32,
) -> u64 {
    let kind = CollectiveKind::from_code(kind);
    let site = Site { file: StaticText(file), line };
    ask(Call::Collective(Collective { kind, mask, value, source, site })).lo
}

#[unsafe(no_mangle)]
extern "C" fn sidecore_simt_access(what: u32, address: *const c_void, a: u64, b: u64) -> Reply {
    ask(Call::Access(Access { what, address: address.addr() as u64, a, b }))
}

#[unsafe(no_mangle)]
extern "C" fn sidecore_simt_shared(key: *const c_void, bytes: u64, align: u64) -> *mut c_void {
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    let align = usize::try_from(align).unwrap_or(usize::MAX);
    let reply = ask(Call::Shared { key: key.addr(), bytes, align });
    std::ptr::with_exposed_provenance_mut(usize::try_from(reply.lo).unwrap_or(0))
}

#[unsafe(no_mangle)]
extern "C" fn sidecore_simt_timer() -> u64 {
    ask(Call::Timer).lo
}

#[unsafe(no_mangle)]
extern "C" fn sidecore_simt_pause(ns: u32, site: *const c_char) {
    ask(Call::Pause { ns, site: StaticText(site) });
}
