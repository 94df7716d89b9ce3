//! Software NVMe controllers: made, started, stopped, counted.
// UNSAFETY: exported C functions.
#![expect(unsafe_code, reason = "functions that C calls")]

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use ctrl::{Controller, Counters, NamespaceOptions, Server, ServerOptions, SharedCounters};
use mem::{AddressMap, Region};
use storage::faults::{FaultScript, Injector};

use crate::bus::sidecore_bus;
use crate::failure::{Failure, guard, swallow};
use crate::gpu_edge::sidecore_gpu;
use crate::handle::{self, borrow, destroy, options, place, text_if_any};
use crate::storage_edge::sidecore_storage;

/// Bytes of registers before the doorbells. Source: NVMe over PCIe Transport 1.0c, 3.1.1.
const DOORBELLS_AT: u64 = 0x1000;
/// Bytes from one doorbell to the next.
const DOORBELL_BYTES: u32 = 4;
/// How long stopping a controller's thread may take.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Options of a controller. Zero the structure, set `struct_bytes`, then what shall differ from the
/// defaults; 0 or null means the default.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct sidecore_controller_options {
    /// sizeof(sidecore_controller_options).
    pub struct_bytes: u32,
    /// Bytes of a logical block: 512 (default) or 4096.
    pub block_bytes: u32,
    /// I/O queue pairs; default 64.
    pub queue_pairs: u32,
    /// Entries of a queue at most; default 65536.
    pub queue_entries: u32,
    /// Largest Read or Write in bytes, 4096 times a power of two; default 1 MiB.
    pub transfer_bytes: u32,
    /// Zero.
    pub reserved: u32,
    /// The drive that it stands for, as "iops=1400000,bandwidth=7e9,latency=lognormal:60us:0.3";
    /// default: nothing is delayed.
    pub timing: *const c_char,
    /// What shall go wrong with commands, as "late:ms=10,rate=0.02;error:n=3"; default: nothing.
    pub faults: *const c_char,
}

impl Default for sidecore_controller_options {
    fn default() -> Self {
        Self {
            struct_bytes: 0,
            block_bytes: 0,
            queue_pairs: 0,
            queue_entries: 0,
            transfer_bytes: 0,
            reserved: 0,
            timing: std::ptr::null(),
            faults: std::ptr::null(),
        }
    }
}

impl handle::Options for sidecore_controller_options {
    fn struct_bytes(&self) -> u32 {
        self.struct_bytes
    }
}

/// Registers and doorbells of a controller: memory that CPU and kernels store to.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct sidecore_registers {
    /// For the CPU: CAP is at byte 0.
    pub host: *mut c_void,
    /// The same for kernels.
    pub device_address: u64,
    /// Bytes of registers and doorbells.
    pub bytes: u64,
    /// Where the doorbells begin: the SQ tail of queue q is the doorbell 2 q, its CQ head 2 q + 1.
    pub doorbells: u64,
    /// Bytes from one doorbell to the next.
    pub doorbell_bytes: u32,
    /// Zero.
    pub reserved: u32,
}

/// What a controller did since it was started.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct sidecore_controller_counts {
    /// Admin commands fetched.
    pub admin_commands: u64,
    /// I/O commands fetched.
    pub io_commands: u64,
    /// I/O commands that ended well.
    pub io_succeeded: u64,
    /// I/O commands that ended with an error.
    pub io_failed: u64,
    /// Completions written to I/O queues.
    pub completions: u64,
    /// Submission doorbells seen to have moved.
    pub doorbells: u64,
    /// Payload bytes to host or device memory.
    pub bytes_read: u64,
    /// Payload bytes to the storage.
    pub bytes_written: u64,
    /// Doorbells written wrongly and fatal states.
    pub stray_errors: u64,
    /// Faults injected by its script.
    pub faults: u64,
    /// CPU time of its thread in ns.
    pub cpu_ns: u64,
}

enum State {
    Fresh(Box<Controller>),
    Running { server: Server, counters: SharedCounters },
    Stopped { counters: Counters, cpu_ns: u64 },
}

/// A software NVMe controller over a storage.
pub struct sidecore_controller {
    pub(crate) map: Arc<AddressMap>,
    pub(crate) registers: Region,
    options: ctrl::Options,
    injector: Option<Arc<Injector>>,
    state: Mutex<State>,
    /// Held by the driver handle that drives it.
    driven: Mutex<Weak<()>>,
}

fn cpu_ns(seconds: f64) -> u64 {
    u64::try_from(Duration::from_secs_f64(seconds.max(0.0)).as_nanos()).unwrap_or(u64::MAX)
}

impl sidecore_controller {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self) -> Result<(), Failure> {
        let mut state = self.state();
        let none = State::Stopped { counters: Counters::default(), cpu_ns: 0 };
        let controller = match std::mem::replace(&mut *state, none) {
            State::Fresh(controller) => *controller,
            State::Stopped { .. } => {
                let (map, registers) = (Arc::clone(&self.map), self.registers.clone());
                Controller::with_bar(self.options.clone(), map, registers)?
            }
            running @ State::Running { .. } => {
                *state = running;
                return Err(Failure::misuse("the controller is running already"));
            }
        };
        let counters = controller.counters();
        let server = Server::start(vec![controller], ServerOptions::default())?;
        *state = State::Running { server, counters };
        Ok(())
    }

    fn stop(&self) -> Result<(), Failure> {
        let mut state = self.state();
        let none = State::Stopped { counters: Counters::default(), cpu_ns: 0 };
        match std::mem::replace(&mut *state, none) {
            State::Running { server, counters } => {
                let seconds = server.stop(STOP_LIMIT)?;
                *state = State::Stopped { counters: counters.read(), cpu_ns: cpu_ns(seconds) };
                Ok(())
            }
            other => {
                *state = other;
                Err(Failure::misuse("the controller is not running"))
            }
        }
    }

    /// Whether a thread serves it.
    pub(crate) fn is_running(&self) -> bool {
        matches!(*self.state(), State::Running { .. })
    }

    /// Leave to drive it, for one at a time: another driver would reset it, and end the queues of the first.
    pub(crate) fn take(&self) -> Result<Arc<()>, Failure> {
        let mut driven = self.driven.lock().unwrap_or_else(PoisonError::into_inner);
        if driven.strong_count() > 0 {
            let text = "the controller has a driver already: close that one first";
            return Err(Failure::misuse(text));
        }
        let token = Arc::new(());
        *driven = Arc::downgrade(&token);
        Ok(token)
    }

    fn counts(&self) -> sidecore_controller_counts {
        let (c, cpu_ns) = match &*self.state() {
            State::Fresh(_) => (Counters::default(), 0),
            State::Running { server, counters } => (counters.read(), cpu_ns(server.cpu_seconds())),
            State::Stopped { counters, cpu_ns } => (*counters, *cpu_ns),
        };
        sidecore_controller_counts {
            admin_commands: c.admin_commands,
            io_commands: c.io_commands,
            io_succeeded: c.io_succeeded,
            io_failed: c.io_failed,
            completions: c.completions,
            doorbells: c.doorbells,
            bytes_read: c.bytes_read,
            bytes_written: c.bytes_written,
            stray_errors: c.stray_errors,
            faults: self.injector.as_ref().map_or(0, |injector| injector.injected_total()),
            cpu_ns,
        }
    }
}

/// A number, or the default where it is 0.
fn or<T: From<u8> + PartialEq>(given: T, default: T) -> T {
    if given == T::from(0) { default } else { given }
}

/// # Safety
/// The texts of `given` follow the rule for texts.
unsafe fn settings(
    given: &sidecore_controller_options,
    storage: &sidecore_storage,
) -> Result<(ctrl::Options, Option<Arc<Injector>>), Failure> {
    let block_bytes = or(given.block_bytes, 512);
    // SAFETY: this function's own condition.
    let script = unsafe { text_if_any(given.faults, "options.faults") }?;
    let script: Option<FaultScript> = script.map(str::parse).transpose()?;
    let injector = script.map(|script| Arc::new(Injector::new(&script, block_bytes)));
    let mut namespace = NamespaceOptions::new(Arc::clone(&storage.storage));
    namespace.block_bytes = block_bytes;
    namespace.faults.clone_from(&injector);
    let mut options = ctrl::Options::new(vec![namespace]);
    // SAFETY: this function's own condition.
    if let Some(timing) = unsafe { text_if_any(given.timing, "options.timing") }? {
        options.timing = timing.parse()?;
    }
    let pairs = or(given.queue_pairs, options.queue_pairs_max.into());
    options.queue_pairs_max =
        u16::try_from(pairs).map_err(|_| Failure::misuse(format!("{pairs} queue pairs")))?;
    options.queue_entries_max = or(given.queue_entries, options.queue_entries_max);
    options.transfer_bytes_max = or(given.transfer_bytes, options.transfer_bytes_max);
    Ok((options, injector))
}

/// Makes a controller over a storage, whose namespace 1 it is. Its registers lie in host memory that the
/// GPU reaches; it touches only what is mapped on the bus. It serves nothing before it is started.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_controller_create(
    gpu: *const sidecore_gpu,
    bus: *const sidecore_bus,
    storage: *const sidecore_storage,
    given: *const sidecore_controller_options,
    controller: *mut *mut sidecore_controller,
) -> c_int {
    guard(|| {
        // SAFETY: the rule for pointers, see the crate's documentation; so in all functions here.
        let place = unsafe { place(controller, "controller") }?;
        // SAFETY: as above.
        let gpu = unsafe { borrow(gpu, "gpu") }?;
        // SAFETY: as above.
        let bus = unsafe { borrow(bus, "bus") }?;
        // SAFETY: as above.
        let storage = unsafe { borrow(storage, "storage") }?;
        // SAFETY: as above.
        let given = unsafe { options(given, "options") }?;
        // SAFETY: as above, for the texts.
        let (options, injector) = unsafe { settings(&given, storage) }?;
        let doorbells = 2 * (u64::from(options.queue_pairs_max) + 1) * u64::from(DOORBELL_BYTES);
        let bytes = (DOORBELLS_AT + doorbells).next_multiple_of(4096);
        let registers = gpu.gpu.allocate_host(bytes)?;
        let map = Arc::clone(&bus.map);
        let made = Controller::with_bar(options.clone(), Arc::clone(&map), registers.clone())?;
        let state = Mutex::new(State::Fresh(Box::new(made)));
        let driven = Mutex::default();
        place.give_handle(sidecore_controller { map, registers, options, injector, state, driven });
        Ok(())
    })
}

/// Where its registers and doorbells are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_controller_registers(
    controller: *const sidecore_controller,
    registers: *mut sidecore_registers,
) -> c_int {
    guard(|| {
        // SAFETY: as in `sidecore_controller_create`.
        let place = unsafe { place(registers, "registers") }?;
        // SAFETY: as in `sidecore_controller_create`.
        let controller = unsafe { borrow(controller, "controller") }?;
        let region = &controller.registers;
        place.give(sidecore_registers {
            host: region.as_ptr().cast(),
            device_address: region.address(),
            bytes: region.len_bytes() as u64,
            doorbells: DOORBELLS_AT,
            doorbell_bytes: DOORBELL_BYTES,
            reserved: 0,
        });
        Ok(())
    })
}

/// Starts the thread that serves it. After a stop it starts as after power-on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_controller_start(
    controller: *const sidecore_controller,
) -> c_int {
    // SAFETY: as in `sidecore_controller_create`.
    guard(|| unsafe { borrow(controller, "controller") }?.start())
}

/// Ends what is in flight, and the thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_controller_stop(controller: *const sidecore_controller) -> c_int {
    // SAFETY: as in `sidecore_controller_create`.
    guard(|| unsafe { borrow(controller, "controller") }?.stop())
}

/// What it did since it was started last.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_controller_count(
    controller: *const sidecore_controller,
    counts: *mut sidecore_controller_counts,
) -> c_int {
    guard(|| {
        // SAFETY: as in `sidecore_controller_create`.
        let place = unsafe { place(counts, "counts") }?;
        // SAFETY: as in `sidecore_controller_create`.
        let controller = unsafe { borrow(controller, "controller") }?;
        place.give(controller.counts());
        Ok(())
    })
}

/// Stops it where it runs, and destroys it. End its users first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_controller_destroy(controller: *mut sidecore_controller) {
    // SAFETY: as in `sidecore_controller_create`.
    swallow(|| unsafe { destroy(controller, "controller") });
}
