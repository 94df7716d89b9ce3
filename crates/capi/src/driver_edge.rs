//! The user-space driver for a controller, and queue pairs at memory of the caller's choice.
// UNSAFETY: exported C functions.
#![expect(unsafe_code, reason = "functions that C calls")]

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use driver::{Device, Driver, DriverOptions, LentMemory, LentQueue, LentState, RegionDevice};
use mem::Region;
use storage::{NvmeOptions, NvmeStorage};

use crate::controller::sidecore_controller;
use crate::failure::{Failure, guard, swallow};
use crate::handle::{borrow, destroy, place};
use crate::memory::sidecore_memory;
use crate::storage_edge::sidecore_storage;

/// A controller as sidecore's driver drives it. Programs that bring a driver of their own need none.
pub struct sidecore_driver {
    pub(crate) driver: Driver,
    device: Arc<RegionDevice>,
    registers: Region,
    options: NvmeOptions,
    /// Leave to drive the controller.
    _driving: Arc<()>,
}

/// What a program needs to know of a drive to build commands for it.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct sidecore_drive {
    /// Length of the namespace in blocks.
    pub blocks: u64,
    /// Its identifier.
    pub nsid: u32,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Largest Read or Write.
    pub transfer_bytes_max: u32,
    /// Most entries of a queue.
    pub queue_entries_max: u32,
    /// Queue pairs that can be open at once.
    pub queue_pairs_max: u32,
    /// Zero.
    pub reserved: u32,
}

/// A queue pair that the drive serves, and whose entries and doorbells are the caller's business.
pub struct sidecore_queue_pair {
    lent: Mutex<LentQueue>,
    options: NvmeOptions,
}

/// Where a queue pair's doorbells are.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct sidecore_queue_pair_view {
    /// Bus address of the submission entries, 64 bytes each.
    pub submission: u64,
    /// Bus address of the completion entries, 16 bytes each.
    pub completion: u64,
    /// The SQ tail doorbell (32 bits) for kernels.
    pub submission_doorbell: u64,
    /// The CQ head doorbell (32 bits) for kernels.
    pub completion_doorbell: u64,
    /// The same for the CPU.
    pub submission_doorbell_host: *mut c_void,
    /// The same for the CPU.
    pub completion_doorbell_host: *mut c_void,
    /// Identifier of both queues.
    pub id: u32,
    /// Entries of either.
    pub entries: u32,
}

/// Starts a controller with sidecore's driver; it must run, and have no other driver. `queue_pairs` is how
/// many are asked for (0: 64).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_driver_open(
    controller: *const sidecore_controller,
    queue_pairs: u32,
    limit_ms: u32,
    driver: *mut *mut sidecore_driver,
) -> c_int {
    guard(|| {
        // SAFETY: the rule for pointers, see the crate's documentation; so in all functions here.
        let place = unsafe { place(driver, "driver") }?;
        // SAFETY: as above.
        let controller = unsafe { borrow(controller, "controller") }?;
        if !controller.is_running() {
            return Err(Failure::misuse("the controller does not run: start it first"));
        }
        let driving = controller.take()?;
        let queues_max = match queue_pairs {
            0 => DriverOptions::default().queues_max,
            pairs => u16::try_from(pairs).map_err(|_| {
                Failure::misuse(format!("{pairs} queue pairs: a drive has at most 65535"))
            })?,
        };
        let options = NvmeOptions {
            driver: DriverOptions { queues_max, ..DriverOptions::default() },
            open_limit: Duration::from_millis(limit_ms.into()),
            ..NvmeOptions::default()
        };
        let registers = controller.registers.clone();
        let device = Arc::new(RegionDevice::new(registers.clone(), Arc::clone(&controller.map)));
        let shared: Arc<dyn Device> = Arc::clone(&device) as _;
        let nvme = NvmeStorage::wait_open(shared, &options)?;
        let driver = nvme.driver().clone();
        place.give_handle(sidecore_driver {
            driver,
            device,
            registers,
            options,
            _driving: driving,
        });
        Ok(())
    })
}

/// What the drive is: its first namespace.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_driver_drive(
    driver: *const sidecore_driver,
    drive: *mut sidecore_drive,
) -> c_int {
    guard(|| {
        // SAFETY: as in `sidecore_driver_open`.
        let place = unsafe { place(drive, "drive") }?;
        // SAFETY: as in `sidecore_driver_open`.
        let driver = &unsafe { borrow(driver, "driver") }?.driver;
        let (controller, namespaces) = (driver.controller(), driver.namespaces());
        let (Some(controller), Some(namespace)) = (controller, namespaces.first()) else {
            return Err(Failure::unsupported("the drive is not ready, or has no namespace"));
        };
        place.give(sidecore_drive {
            blocks: namespace.blocks,
            nsid: namespace.nsid.0,
            block_bytes: namespace.block_bytes,
            transfer_bytes_max: controller.transfer_bytes_max,
            queue_entries_max: controller.entries_max,
            queue_pairs_max: controller.queues_max.into(),
            reserved: 0,
        });
        Ok(())
    })
}

/// The drive as a storage: a ring can serve requests from it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_driver_storage(
    driver: *const sidecore_driver,
    storage: *mut *mut sidecore_storage,
) -> c_int {
    guard(|| {
        // SAFETY: as in `sidecore_driver_open`.
        let place = unsafe { place(storage, "storage") }?;
        // SAFETY: as in `sidecore_driver_open`.
        let driver = unsafe { borrow(driver, "driver") }?;
        let nvme = NvmeStorage::over(driver.driver.clone(), &driver.options)?;
        place.give_handle(sidecore_storage::new(Arc::new(nvme)));
        Ok(())
    })
}

/// Closes it once queue pairs and storages made of it are gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_driver_close(driver: *mut sidecore_driver) {
    // SAFETY: as in `sidecore_driver_open`.
    swallow(|| unsafe { destroy(driver, "driver") });
}

/// Moves a pair on until `done` says so, or the limit has passed.
fn drive_until(
    lent: &mut LentQueue,
    options: &NvmeOptions,
    limit: Duration,
    done: impl Fn(&LentState) -> bool,
) -> Result<(), Failure> {
    let begin = Instant::now();
    loop {
        let state = lent.poll((options.clock)());
        if let LentState::Failed(error) = &state {
            return Err(Failure::unsupported(format!("queue pair {}: {error}", lent.id().0)));
        }
        if done(&state) {
            return Ok(());
        }
        if begin.elapsed() >= limit {
            let text = format!("queue pair {} did not change within {limit:?}", lent.id().0);
            return Err(Failure::timed_out(text));
        }
        std::thread::yield_now();
    }
}

/// Part of a memory: where it is and its bus address, mapped for the drive.
fn part(
    driver: &sidecore_driver,
    memory: &sidecore_memory,
    offset: u64,
    bytes: u64,
) -> Result<(Arc<driver::Mapping>, u64), Failure> {
    let region = memory.region("a queue")?;
    let at = usize::try_from(offset).ok();
    let len = usize::try_from(bytes).ok();
    let inside = at.zip(len).is_some_and(|(at, len)| region.check(at, len).is_ok());
    if !inside {
        let text = format!("a queue of {bytes} bytes at {offset} does not lie inside its memory");
        return Err(Failure::misuse(text));
    }
    let mapping = Arc::new(driver.device.map(region)?);
    let address = mapping.address() + offset;
    if !address.is_multiple_of(4096) {
        return Err(Failure::misuse(format!("a queue at {address:#x}: not page aligned")));
    }
    region.fill(at.unwrap_or(0), len.unwrap_or(0), 0);
    mem::fence_payload();
    Ok((mapping, address))
}

/// Makes a queue pair at memory of the caller's choice: submission and completion entries each at an
/// offset, page aligned, of host or window memory. Their bytes are zeroed: the first phase is 1. `view`
/// says where the doorbells are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_queue_pair_create(
    driver: *const sidecore_driver,
    submission: *const sidecore_memory,
    submission_offset: u64,
    completion: *const sidecore_memory,
    completion_offset: u64,
    entries: u32,
    limit_ms: u32,
    pair: *mut *mut sidecore_queue_pair,
    view: *mut sidecore_queue_pair_view,
) -> c_int {
    guard(|| {
        // SAFETY: as in `sidecore_driver_open`.
        let handle = unsafe { place(pair, "pair") }?;
        // SAFETY: as in `sidecore_driver_open`.
        let view = unsafe { place(view, "view") }?;
        // SAFETY: as in `sidecore_driver_open`.
        let driver = unsafe { borrow(driver, "driver") }?;
        // SAFETY: as in `sidecore_driver_open`.
        let submission = unsafe { borrow(submission, "submission") }?;
        // SAFETY: as in `sidecore_driver_open`.
        let completion = unsafe { borrow(completion, "completion") }?;
        let count = u64::from(entries);
        let (sq, sq_at) = part(driver, submission, submission_offset, count * 64)?;
        let (cq, cq_at) = part(driver, completion, completion_offset, count * 16)?;
        let memory =
            LentMemory { mappings: vec![sq, cq], submission: sq_at, completion: cq_at, entries };
        let mut lent = driver.driver.lend_queue(memory)?;
        lent.create();
        let limit = Duration::from_millis(limit_ms.into());
        drive_until(&mut lent, &driver.options, limit, |s| matches!(s, LentState::Open))?;
        let base = driver.registers.as_ptr();
        let doorbells = [lent.submission_doorbell(), lent.completion_doorbell()];
        view.give(sidecore_queue_pair_view {
            submission: sq_at,
            completion: cq_at,
            submission_doorbell: driver.registers.address() + doorbells[0] as u64,
            completion_doorbell: driver.registers.address() + doorbells[1] as u64,
            submission_doorbell_host: base.wrapping_add(doorbells[0]).cast(),
            completion_doorbell_host: base.wrapping_add(doorbells[1]).cast(),
            id: lent.id().0.into(),
            entries,
        });
        let options = driver.options.clone();
        handle.give_handle(sidecore_queue_pair { lent: Mutex::new(lent), options });
        Ok(())
    })
}

/// Deletes a queue pair: its commands have ended, or never will. The handle is gone in any case.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_queue_pair_delete(
    pair: *mut sidecore_queue_pair,
    limit_ms: u32,
) -> c_int {
    guard(|| {
        // SAFETY: as in `sidecore_driver_open`.
        let result = unsafe { borrow(pair, "pair") }.and_then(|pair| {
            let mut lent = pair.lent.lock().unwrap_or_else(PoisonError::into_inner);
            lent.delete();
            let limit = Duration::from_millis(limit_ms.into());
            drive_until(&mut lent, &pair.options, limit, |s| matches!(s, LentState::Absent))
        });
        // SAFETY: as in `sidecore_driver_open`; the borrow above has ended.
        result.and(unsafe { destroy(pair, "pair") })
    })
}
