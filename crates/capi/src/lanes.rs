//! Queue pairs for the device headers `sidecore/bam.h` and `sidecore/copilot.h`, with completion
//! pollers and recovery.
// UNSAFETY: exported C functions.
#![expect(unsafe_code, reason = "functions that C calls")]

use std::ffi::{c_char, c_int, c_void};
use std::sync::Mutex;
use std::time::Duration;

use sidecore::gpu_queues::{
    AgentPlacement, DmaBuffer, GpuQueues, Placement, Polling, QueueOptions,
};
use zerocopy::IntoBytes;

use crate::driver_edge::sidecore_driver;
use crate::failure::{Failure, guard, swallow};
use crate::gpu_edge::sidecore_gpu;
use crate::handle::{self, borrow, bytes_mut, destroy, options, place, text};
use crate::memory::sidecore_memory;

/// Lanes poll completion queues themselves (as BaM).
pub const SIDECORE_POLLING_LANES: u32 = 0;
/// CPU threads poll them and store a word for each command (as CoPilotIO).
pub const SIDECORE_POLLING_CPU: u32 = 1;
/// In device memory, through the window.
pub const SIDECORE_QUEUE_DEVICE: u32 = 0;
/// In host memory.
pub const SIDECORE_QUEUE_HOST: u32 = 1;

/// Options of queue pairs for lanes. Zero the structure, set `struct_bytes`, then what shall differ
/// from the defaults.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct sidecore_lanes_options {
    /// sizeof(sidecore_lanes_options).
    pub struct_bytes: u32,
    /// Queue pairs; default 1.
    pub pairs: u32,
    /// Entries a queue, a power of two; default 1024.
    pub depth: u32,
    /// Command ids a pair, a power of two; default 1024.
    pub command_ids: u32,
    /// SIDECORE_POLLING_*.
    pub polling: u32,
    /// Polling threads of SIDECORE_POLLING_CPU; default 1.
    pub pollers: u32,
    /// SIDECORE_QUEUE_*: where submission entries lie.
    pub submission: u32,
    /// SIDECORE_QUEUE_*: where completion entries lie.
    pub completion: u32,
    /// How long a command may take, in ms; default 5,000.
    pub limit_ms: u32,
    /// 1: each command id gets a page for a PRP list, for transfers of more than 8 KiB.
    pub prp_lists: u32,
}

impl handle::Options for sidecore_lanes_options {
    fn struct_bytes(&self) -> u32 {
        self.struct_bytes
    }
}

/// Queue pairs that lanes drive through sidecore's device headers, their pollers and their recovery.
pub struct sidecore_lanes {
    queues: GpuQueues,
    /// Keeps what lanes and drive share reachable.
    buffers: Mutex<Vec<DmaBuffer>>,
}

fn placement(number: u32) -> Result<Placement, Failure> {
    match number {
        SIDECORE_QUEUE_DEVICE => Ok(Placement::Device),
        SIDECORE_QUEUE_HOST => Ok(Placement::Host),
        other => Err(Failure::misuse(format!("queue placement {other}: 0 and 1 are known"))),
    }
}

fn settings(given: &sidecore_lanes_options) -> Result<QueueOptions, Failure> {
    let polling = match given.polling {
        SIDECORE_POLLING_LANES => Polling::Gpu,
        SIDECORE_POLLING_CPU => Polling::Cpu,
        other => return Err(Failure::misuse(format!("polling {other}: 0 and 1 are known"))),
    };
    let default = QueueOptions::bam();
    let or = |given: u32, default: u32| if given == 0 { default } else { given };
    let limit = match given.limit_ms {
        0 => default.limit,
        limit_ms => Duration::from_millis(limit_ms.into()),
    };
    Ok(QueueOptions {
        depth: or(given.depth, default.depth),
        command_ids: or(given.command_ids, default.command_ids),
        sq: placement(given.submission)?,
        cq: placement(given.completion)?,
        prp_lists: given.prp_lists != 0,
        polling,
        limit,
        ..default
    })
}

/// Makes queue pairs and starts their pollers; returns once the drive serves them, at most after
/// `limit_ms`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_lanes_start(
    gpu: *const sidecore_gpu,
    driver: *const sidecore_driver,
    given: *const sidecore_lanes_options,
    limit_ms: u32,
    lanes: *mut *mut sidecore_lanes,
) -> c_int {
    guard(|| {
        // SAFETY: the rule for pointers, see the crate's documentation; so in all functions here.
        let place = unsafe { place(lanes, "lanes") }?;
        // SAFETY: as above.
        let gpu = unsafe { borrow(gpu, "gpu") }?;
        // SAFETY: as above.
        let driver = unsafe { borrow(driver, "driver") }?;
        // SAFETY: as above.
        let given = unsafe { options(given, "options") }?;
        let agents =
            AgentPlacement { agents: given.pollers.max(1), first_cpu: None, shared: false };
        let queues = GpuQueues::start(
            &gpu.gpu,
            std::slice::from_ref(&driver.driver),
            given.pairs.max(1),
            &settings(&given)?,
            agents,
            None,
            Duration::from_millis(limit_ms.into()),
        )?;
        place.give_handle(sidecore_lanes { queues, buffers: Mutex::default() });
        Ok(())
    })
}

/// Copies the views out, an array of sidecore::abi::QueuePairView that takes `bytes` bytes; `address`, which
/// may be null, gets where kernels find the same array.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_lanes_views(
    lanes: *const sidecore_lanes,
    views: *mut c_void,
    bytes: usize,
    address: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: as in `sidecore_lanes_start`.
        let lanes = unsafe { borrow(lanes, "lanes") }?;
        let own = lanes.queues.views();
        if own.as_bytes().len() != bytes {
            let text = format!("the views take {} bytes, not {bytes}", own.as_bytes().len());
            return Err(Failure::misuse(text));
        }
        // SAFETY: as in `sidecore_lanes_start`.
        unsafe { bytes_mut(views.cast(), bytes, "views") }?.copy_from_slice(own.as_bytes());
        // SAFETY: as in `sidecore_lanes_start`; null is no place.
        if let Ok(place) = unsafe { place(address, "address") } {
            place.give(lanes.queues.views_address());
        }
        Ok(())
    })
}

/// Lets the drive reach a memory; `view` gets the sidecore::abi::DmaBufferView of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_lanes_buffer(
    lanes: *const sidecore_lanes,
    memory: *const sidecore_memory,
    view: *mut c_void,
    bytes: usize,
) -> c_int {
    guard(|| {
        // SAFETY: as in `sidecore_lanes_start`.
        let lanes = unsafe { borrow(lanes, "lanes") }?;
        // SAFETY: as in `sidecore_lanes_start`.
        let memory = unsafe { borrow(memory, "memory") }?;
        let buffer = lanes.queues.buffer(&memory.device)?;
        let own = buffer.view();
        if own.as_bytes().len() != bytes {
            let text = format!("the view takes {} bytes, not {bytes}", own.as_bytes().len());
            return Err(Failure::misuse(text));
        }
        // SAFETY: as in `sidecore_lanes_start`.
        unsafe { bytes_mut(view.cast(), bytes, "view") }?.copy_from_slice(own.as_bytes());
        lanes.buffers.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(buffer);
        Ok(())
    })
}

/// A counter by its name, all pairs together: completions_polled, cpu_doorbells, strays, misbehaved,
/// flips, aborts, aborted, timed_out, epochs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_lanes_count(
    lanes: *const sidecore_lanes,
    name: *const c_char,
    value: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: as in `sidecore_lanes_start`.
        let place = unsafe { place(value, "value") }?;
        // SAFETY: as in `sidecore_lanes_start`.
        let lanes = unsafe { borrow(lanes, "lanes") }?;
        // SAFETY: as in `sidecore_lanes_start`.
        let name = unsafe { text(name, "name") }?;
        let mut sum = sidecore::gpu_queues::QueueCounters::default();
        lanes.queues.counters_now().iter().for_each(|one| sum.add(one));
        place.give(named(&sum.named(), name)?);
        Ok(())
    })
}

/// The value of a counter, or an error that names all.
pub(crate) fn named(all: &[(&'static str, u64)], name: &str) -> Result<u64, Failure> {
    let found = all.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|(known, _)| *known).collect();
        Failure::misuse(format!("no counter {name:?}; there are {}", names.join(", ")))
    })
}

/// Ends the pollers; the drive forgets the pairs. No kernel may use them any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_lanes_stop(lanes: *mut sidecore_lanes) {
    // SAFETY: as in `sidecore_lanes_start`.
    swallow(|| unsafe { destroy(lanes, "lanes") });
}
