//! A ring: its memory, how it starts, and what its host side may ask of it.
//!
//! ```text
//! pinned host memory   entries: depth x 32 bytes | staging: records x stride
//! device memory        control: tail, fetched, state (128 bytes each) | records x 8 | turns x 4
//! ```
//!
//! All of it is allocated once, when the ring is created. The host never loads from the part in
//! device memory: what it stored there it remembers here.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use abi::ring::{
    ABI_VERSION, CompletionRecord, RECORDS_MAX, RING_MAGIC, ROUTE_BOUNCE, ROUTE_DIRECT, ROUTE_PULL,
    ROUTE_PUSH, ROUTE_WINDOW, RequestEntry, RingControl, RingView, STATE_CLOSED, STATE_DRAINING,
    STATE_OPEN, TRANSFER_BYTES_MAX,
};
use gpu::{Copy, DeviceMemory, Gpu};
use mem::{Region, SharedRows, SharedWords, fence_payload};

use crate::counters::{RingCounters, SharedRingCounters, report};
use crate::engine::Inner;
use crate::error::EngineError;
use crate::paths::Route;
use crate::service::Service;
use crate::slots::Slots;

/// Byte offset of the completion records in the ring's device memory.
const RECORDS_AT: usize = size_of::<RingControl>();
pub(crate) const FETCHED_AT: usize = core::mem::offset_of!(RingControl, fetched);
const STATE_AT: usize = core::mem::offset_of!(RingControl, state);
pub(crate) const ENTRY_BYTES: usize = size_of::<RequestEntry>();
const RECORD_BYTES: usize = size_of::<CompletionRecord>();

/// Which way the payload of reads goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadRoute {
    /// By the copy engine.
    Bounce,
    /// Stored by the drive, where the source's reaches the buffer; else as [`ReadRoute::Window`].
    Direct,
    /// Loaded by the GPU's lanes.
    Pull,
    /// Stored by the side core.
    Window,
}

/// Which way the payload of writes goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteRoute {
    /// By the copy engine.
    Bounce,
    /// Stored by the GPU's lanes before they publish.
    Push,
}

impl ReadRoute {
    /// Its row in the table of routes.
    pub const fn route(self) -> Route {
        match self {
            Self::Bounce => Route::Bounce,
            Self::Direct => Route::Direct,
            Self::Pull => Route::Pull,
            Self::Window => Route::Window,
        }
    }

    const fn number(self) -> u32 {
        match self {
            Self::Bounce => ROUTE_BOUNCE,
            Self::Direct => ROUTE_DIRECT,
            Self::Pull => ROUTE_PULL,
            Self::Window => ROUTE_WINDOW,
        }
    }
}

impl WriteRoute {
    /// Its row in the table of routes.
    pub const fn route(self) -> Route {
        match self {
            Self::Bounce => Route::Bounce,
            Self::Push => Route::Push,
        }
    }

    const fn number(self) -> u32 {
        match self {
            Self::Bounce => ROUTE_BOUNCE,
            Self::Push => ROUTE_PUSH,
        }
    }
}

/// How a ring is made.
#[derive(Clone, Debug)]
pub struct RingConfig {
    /// Entries; a power of two, at least 2.
    pub depth: u32,
    /// Completion records, and so the most requests in flight.
    pub records: u32,
    /// Staging bytes a record: the largest transfer of one request.
    pub staging_stride: u32,
    /// Which way the payload of reads goes.
    pub read_route: ReadRoute,
    /// Which way the payload of writes goes.
    pub write_route: WriteRoute,
    /// Limit of a request that brings none, from when it is fetched: 1 ms to 65 s.
    pub limit: Duration,
    /// How long storage may stay silent after it was asked to end a request early; then its queue
    /// is quiesced.
    pub grace: Duration,
    /// Most requests in flight at each storage queue.
    pub storage_depth: u32,
    /// First ticket. Tests start just below a wrap.
    pub start_ticket: u64,
    /// Turn that every record has had. Tests start just below a wrap.
    pub start_turn: u32,
}

impl Default for RingConfig {
    fn default() -> Self {
        Self {
            depth: 1024,
            records: 1024,
            staging_stride: 4096,
            read_route: ReadRoute::Window,
            write_route: WriteRoute::Push,
            limit: Duration::from_secs(10),
            grace: Duration::from_millis(200),
            storage_depth: 256,
            start_ticket: 0,
            start_turn: 0,
        }
    }
}

impl RingConfig {
    fn check(&self) -> Result<(), EngineError> {
        let wrong = |text: String| Err(EngineError::Misuse(text));
        // More entries than records would never be in use.
        if !self.depth.is_power_of_two() || !(2..=RECORDS_MAX).contains(&self.depth) {
            let text = format!("ring depth {} is no power of two from 2 to", self.depth);
            return wrong(format!("{text} {RECORDS_MAX}"));
        }
        if self.records == 0 || self.records > RECORDS_MAX {
            return wrong(format!("{} records: 1 to {RECORDS_MAX} are possible", self.records));
        }
        if self.staging_stride == 0 || self.staging_stride > TRANSFER_BYTES_MAX {
            let text = "a staging stride of 1 to 16777216 bytes is possible, not";
            return wrong(format!("{text} {}", self.staging_stride));
        }
        if !(1..=u128::from(u16::MAX)).contains(&self.limit.as_millis()) {
            return wrong(format!("limit {:?}: 1 ms to 65.535 s are possible", self.limit));
        }
        if self.storage_depth == 0 {
            return wrong("storage depth 0".into());
        }
        Ok(())
    }

    pub(crate) fn limit_ms(&self) -> u32 {
        u32::try_from(self.limit.as_millis()).expect("`check` bounds the limit")
    }
}

/// The memory of a ring.
#[derive(Clone, Debug)]
pub struct RingMemory {
    /// Request entries, in pinned host memory.
    pub entries: Region,
    /// Staging areas, in pinned host memory.
    pub staging: Region,
    /// Control block, completion records and turns, in device memory, through the window.
    pub device: Region,
}

/// What the host asks of a ring's side core.
#[derive(Default)]
pub(crate) struct Wishes {
    /// One of the `STATE_` constants.
    pub mode: AtomicU32,
    /// End everything in flight.
    pub quiesce: AtomicBool,
}

/// What is shared by a ring's owner, its side core and the supervisor.
pub(crate) struct RingShared {
    pub config: RingConfig,
    pub view: RingView,
    pub depth_log2: u32,
    pub entries: Region,
    pub staging: Region,
    /// Control block, records and turns, through the window.
    pub window: Region,
    /// Keeps the device memory.
    device: DeviceMemory,
    pub gpu: Arc<dyn Gpu>,
    pub slots: Slots,
    /// Next ticket to copy out.
    pub head: AtomicU64,
    pub epoch: AtomicU32,
    pub wishes: Wishes,
    /// Entries of tickets before this one are refused: their lanes saw the ring closed.
    pub refuse_below: AtomicU64,
    pub in_flight: AtomicU32,
    /// Steps that found nothing published and left nothing in flight.
    pub looks: AtomicU64,
    /// Requests that the supervisor ended; side cores count the others.
    pub lost: AtomicU64,
    pub restarts: AtomicU64,
    pub counters: SharedRingCounters,
    /// What the shared page was told of already.
    reported: Mutex<RingCounters>,
    /// Serializes stores to the state word.
    state: Mutex<()>,
    service: Mutex<Arc<Mutex<Service>>>,
    /// Why a source could not be opened, newest last.
    pub complaints: Mutex<Vec<String>>,
}

impl RingShared {
    pub fn new(gpu: &Arc<dyn Gpu>, config: &RingConfig) -> Result<Arc<Self>, EngineError> {
        config.check()?;
        let entries = gpu.allocate_host(u64::from(config.depth) * ENTRY_BYTES as u64)?;
        let staging_bytes = u64::from(config.records) * u64::from(config.staging_stride);
        let staging = gpu.allocate_host(staging_bytes)?;
        let turns_at = RECORDS_AT + config.records as usize * RECORD_BYTES;
        let device = gpu.allocate_words((turns_at + config.records as usize * 4) as u64)?;
        let window = device.window.clone().ok_or_else(|| EngineError::Unsupported {
            what: "a ring",
            why: "this GPU offers no CPU mapping of its memory for completion records".into(),
        })?;
        let view = RingView {
            magic: RING_MAGIC,
            version: ABI_VERSION,
            bytes: u32::try_from(size_of::<RingView>()).expect("a few dozen bytes"),
            depth_log2: config.depth.trailing_zeros(),
            entries: entries.address(),
            control: device.address,
            records: device.address + RECORDS_AT as u64,
            turns: device.address + turns_at as u64,
            staging: staging.address(),
            staging_stride: config.staging_stride,
            record_count: config.records,
            read_route: config.read_route.number(),
            write_route: config.write_route.number(),
            limit_ms: config.limit_ms(),
            reserved: 0,
        };
        let epoch = 1;
        let shared = Arc::new(Self {
            config: config.clone(),
            view,
            depth_log2: view.depth_log2,
            entries,
            staging,
            window,
            device,
            gpu: Arc::clone(gpu),
            slots: Slots::new(config.records, low_turn(config.start_turn), epoch),
            head: AtomicU64::new(config.start_ticket),
            epoch: AtomicU32::new(epoch),
            wishes: Wishes { mode: AtomicU32::new(STATE_OPEN), quiesce: AtomicBool::new(false) },
            refuse_below: AtomicU64::new(config.start_ticket),
            in_flight: AtomicU32::new(0),
            looks: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            restarts: AtomicU64::new(0),
            counters: SharedRingCounters::default(),
            reported: Mutex::new(RingCounters::default()),
            state: Mutex::new(()),
            service: Mutex::new(Arc::new(Mutex::new(Service::new(config, epoch)))),
            complaints: Mutex::new(Vec::new()),
        });
        shared.initialise(turns_at);
        Ok(shared)
    }

    /// Makes every entry look unpublished and every record ended.
    fn initialise(&self, turns_at: usize) {
        let start = self.config.start_ticket;
        for ahead in 0..u64::from(self.config.depth) {
            let ticket = start.wrapping_add(ahead);
            let stale = u64::from(self.tag(ticket).wrapping_sub(1)) << 48;
            let [_, first, _, second] = self.entries().at(self.position_of(ticket) as usize);
            first.store(stale, Ordering::Relaxed);
            second.store(stale, Ordering::Relaxed);
        }
        let turn = self.config.start_turn;
        for record in 0..self.config.records {
            self.store_record(record, CompletionRecord::pack(low_turn(turn), 0, 0));
            self.window.u32_at(turns_at + record as usize * 4).store(turn, Ordering::Relaxed);
        }
        self.window.u64_at(0).store(start, Ordering::Relaxed);
        self.window.u64_at(FETCHED_AT).store(start, Ordering::Relaxed);
        self.store_state(STATE_OPEN);
        fence_payload();
    }

    /// Whether storage may store to buffers itself.
    pub fn is_direct(&self) -> bool {
        self.config.read_route == ReadRoute::Direct
    }

    /// Position of a ticket's entry.
    #[inline]
    pub fn position_of(&self, ticket: u64) -> u32 {
        // The mask keeps it below the depth.
        (ticket & u64::from(self.config.depth - 1) & 0xffff_ffff) as u32
    }

    /// The request entries.
    #[inline]
    pub fn entries(&self) -> SharedRows<'_, 4> {
        self.entries.rows(0, self.config.depth as usize)
    }

    /// Tag that both halves of a ticket's entry end in.
    #[inline]
    pub fn tag(&self, ticket: u64) -> u16 {
        (((ticket >> self.depth_log2) + 1) & 0xffff) as u16
    }

    /// The completion records.
    #[inline]
    pub fn records(&self) -> SharedWords<'_> {
        self.window.words(RECORDS_AT, self.config.records as usize)
    }

    #[inline]
    pub fn store_record(&self, record: u32, word: CompletionRecord) {
        let at = RECORDS_AT + record as usize * RECORD_BYTES;
        self.window.u64_at(at).store(word.word, Ordering::Relaxed);
    }

    /// Stores the state word with the present epoch; the caller fences.
    pub fn store_state(&self, mode: u32) {
        let _one_at_a_time = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let epoch = u64::from(self.epoch.load(Ordering::Acquire));
        self.window.u64_at(STATE_AT).store(u64::from(mode) | epoch << 32, Ordering::Relaxed);
    }

    /// Everything counted, by side cores and the supervisor.
    pub fn counts(&self) -> RingCounters {
        let mut counters = self.counters.read();
        let lost = self.lost.load(Ordering::Relaxed);
        counters.side_core_lost += lost;
        counters.failed += lost;
        counters.completions += lost;
        counters.restarts = self.restarts.load(Ordering::Relaxed);
        counters
    }

    /// Tells a shared page what was counted since the last time.
    pub fn report(&self, writer: &mut stats::Writer) {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = self.counts();
        report(writer, &self.config, &counts.since(&reported));
        *reported = counts;
    }

    pub fn mode(&self) -> u32 {
        self.wishes.mode.load(Ordering::Acquire)
    }

    /// Next ticket to reserve, by the copy engine: the host does not load through the window.
    fn tail(&self) -> Result<u64, EngineError> {
        let host = self.gpu.allocate_host(8)?;
        let copy =
            Copy { host: &host, host_offset: 0, device: &self.device, device_offset: 0, bytes: 8 };
        self.gpu.copy_to_host(copy)?;
        Ok(host.u64_at(0).load(Ordering::Relaxed))
    }

    fn service_place(&self) -> MutexGuard<'_, Arc<Mutex<Service>>> {
        self.service.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn service(&self) -> Arc<Mutex<Service>> {
        Arc::clone(&self.service_place())
    }

    /// Puts a new service in the place of one whose side core was lost.
    pub fn replace_service(&self, service: Service) {
        *self.service_place() = Arc::new(Mutex::new(service));
    }

    pub fn complain(&self, text: String) {
        let mut complaints = self.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        if complaints.len() < 64 {
            complaints.push(text);
        }
    }
}

/// The sixteen bits of a turn that travel.
pub(crate) const fn low_turn(turn: u32) -> u16 {
    (turn & 0xffff) as u16
}

/// A ring, as its host side holds it. Dropping it closes it.
pub struct Ring {
    pub(crate) shared: Arc<RingShared>,
    pub(crate) engine: Arc<Inner>,
}

impl Ring {
    /// What a kernel needs to use it.
    pub fn view(&self) -> RingView {
        self.shared.view
    }

    /// How it was made.
    pub fn config(&self) -> &RingConfig {
        &self.shared.config
    }

    /// Its memory, for those who play the GPU's part or watch it in a simulation.
    pub fn memory(&self) -> RingMemory {
        RingMemory {
            entries: self.shared.entries.clone(),
            staging: self.shared.staging.clone(),
            device: self.shared.window.clone(),
        }
    }

    /// What was done for it so far; exact once it has been idle for a step.
    pub fn counters(&self) -> RingCounters {
        self.shared.counts()
    }

    /// Requests fetched and not yet answered.
    pub fn in_flight(&self) -> u32 {
        self.shared.in_flight.load(Ordering::Acquire)
    }

    /// Times it was restarted, plus one.
    pub fn epoch(&self) -> u32 {
        self.shared.epoch.load(Ordering::Acquire)
    }

    /// Why sources could not be opened for it, if any could not.
    pub fn complaints(&self) -> Vec<String> {
        self.shared.complaints.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Refuses new requests from now on; what is in flight ends as usual.
    pub fn drain(&self) {
        if self.shared.mode() == STATE_OPEN {
            self.shared.wishes.mode.store(STATE_DRAINING, Ordering::Release);
            self.shared.store_state(STATE_DRAINING);
            fence_payload();
        }
    }

    /// Asks for an early end of everything in flight. [`Ring::is_quiet`] tells when it is done:
    /// then nothing of this ring touches any buffer, and no record is poisoned any more.
    pub fn quiesce(&self) {
        self.shared.wishes.quiesce.store(true, Ordering::Release);
    }

    /// Whether nothing is in flight and no quiesce is under way. What lanes have published and no
    /// side core has fetched is not in flight: [`Ring::wait_quiet`] waits for that, too.
    pub fn is_quiet(&self) -> bool {
        self.in_flight() == 0 && !self.shared.wishes.quiesce.load(Ordering::Acquire)
    }

    /// Waits until everything is answered that was published before the call (or refused, or left
    /// alone by a closed ring), and it is quiet. For rings that threads serve.
    ///
    /// # Errors
    /// [`EngineError::TimedOut`].
    pub fn wait_quiet(&self, limit: Duration) -> Result<(), EngineError> {
        let start = Instant::now();
        // The step under way may have looked before the call; the one after it has not.
        let enough = self.shared.looks.load(Ordering::Acquire).saturating_add(2);
        while !self.is_quiet() || self.shared.looks.load(Ordering::Acquire) < enough {
            if start.elapsed() >= limit {
                let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
                return Err(EngineError::TimedOut { what: "the ring's requests", limit_ms });
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    /// Serves requests again after a drain or close. What was published while it was closed is
    /// refused, since its lanes were told so.
    ///
    /// # Errors
    /// [`EngineError::Gpu`] where the ring's tail cannot be read; [`EngineError::Misuse`] where the engine
    /// has ended.
    pub fn restart(&self) -> Result<(), EngineError> {
        if self.engine.stop.load(Ordering::Acquire) {
            return Err(EngineError::Misuse("restarting a ring whose engine has ended".to_owned()));
        }
        let shared = &self.shared;
        if shared.mode() == STATE_CLOSED {
            shared.refuse_below.store(shared.tail()?, Ordering::Release);
        }
        self.engine.attach(shared);
        shared.wishes.mode.store(STATE_OPEN, Ordering::Release);
        shared.store_state(STATE_OPEN);
        fence_payload();
        Ok(())
    }

    /// Ends everything in flight and serves nothing any more. The kernel's side sees the ring closed
    /// once nothing can write any buffer: see [`Ring::is_quiet`].
    pub fn close(&self) {
        if self.shared.mode() != STATE_CLOSED {
            self.shared.wishes.mode.store(STATE_CLOSED, Ordering::Release);
            self.shared.store_state(STATE_DRAINING);
            fence_payload();
        }
        self.quiesce();
        self.engine.wake(&self.shared);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.close();
        self.engine.forget(&self.shared);
    }
}
