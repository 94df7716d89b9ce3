//! A side core: serves its rings, one step at a time.
//!
//! A step never blocks and knows no clock; whoever calls it says what time it is. A panic inside
//! ends the side core, not its caller: the supervisor then answers for its requests.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;

use abi::ring::STATE_CLOSED;
use mem::fence_payload;
use stats::{Role, Writer};

use crate::counters::{SharedCoreCounters, SideCoreCounters};
use crate::hooks::Hooks;
use crate::registry::{Registry, Tables};
use crate::ring::RingShared;
use crate::service::Service;

/// How a side core stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CoreState {
    /// The supervisor has given it up; it serves nothing any more.
    Deposed,
    /// It panicked; it serves nothing any more.
    Lost,
    /// No ring is attached to it.
    NoRings,
    /// It serves.
    Serving,
}

/// What one step did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Requests copied out of rings.
    pub fetched: u32,
    /// Completions written.
    pub completed: u32,
    /// Requests begun and not ended.
    pub in_flight: u32,
    /// How the side core stands after the step.
    pub state: CoreState,
}

impl Progress {
    const fn nothing(state: CoreState) -> Self {
        Self { fetched: 0, completed: 0, in_flight: 0, state }
    }

    /// Whether anything was done.
    pub const fn is_busy(&self) -> bool {
        self.fetched != 0 || self.completed != 0
    }
}

const STANDING_ALIVE: u8 = 0;
const STANDING_PARKED: u8 = 1;
const STANDING_OVER: u8 = 2;

/// What is shared by a side core, the supervisor and the engine.
pub(crate) struct CoreShared {
    pub index: u32,
    /// Moves with every step.
    pub beat: AtomicU64,
    /// It panicked.
    pub lost: AtomicBool,
    /// The supervisor has given it up.
    pub deposed: AtomicBool,
    standing: AtomicU8,
    seen: AtomicU64,
    rings: Mutex<Vec<Arc<RingShared>>>,
    rings_version: AtomicU64,
    /// What this side core has let go while it serves: the supervisor frees the memory that goes with it,
    /// since freeing may wait for kernels, which may wait for this side core.
    left: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
    pub counters: SharedCoreCounters,
    thread: Mutex<Option<Thread>>,
}

impl CoreShared {
    pub fn new(index: u32, rings: Vec<Arc<RingShared>>) -> Arc<Self> {
        Arc::new(Self {
            index,
            beat: AtomicU64::new(0),
            lost: AtomicBool::new(false),
            deposed: AtomicBool::new(false),
            standing: AtomicU8::new(STANDING_ALIVE),
            seen: AtomicU64::new(0),
            rings: Mutex::new(rings),
            rings_version: AtomicU64::new(1),
            left: Mutex::default(),
            counters: SharedCoreCounters::default(),
            thread: Mutex::new(None),
        })
    }

    fn lock_rings(&self) -> MutexGuard<'_, Vec<Arc<RingShared>>> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn rings(&self) -> Vec<Arc<RingShared>> {
        self.lock_rings().clone()
    }

    pub fn ring_count(&self) -> usize {
        self.lock_rings().len()
    }

    pub fn attach(&self, ring: &Arc<RingShared>) {
        self.lock_rings().push(Arc::clone(ring));
        self.rings_version.fetch_add(1, Ordering::Release);
        self.wake();
    }

    pub fn detach(&self, ring: &Arc<RingShared>) -> bool {
        let mut rings = self.lock_rings();
        let before = rings.len();
        rings.retain(|other| !Arc::ptr_eq(other, ring));
        self.rings_version.fetch_add(1, Ordering::Release);
        rings.len() != before
    }

    /// What the side core has let go since the last call.
    pub fn take_left(&self) -> Vec<Arc<dyn Any + Send + Sync>> {
        std::mem::take(&mut *self.left.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn leave_to_supervisor(&self, what: Arc<dyn Any + Send + Sync>) {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    pub fn set_thread(&self, thread: Thread) {
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
    }

    pub fn wake(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = &*thread {
            thread.unpark();
        }
    }

    pub fn is_parked(&self) -> bool {
        self.standing.load(Ordering::Acquire) == STANDING_PARKED
    }

    pub fn set_parked(&self, parked: bool) {
        let standing = if parked { STANDING_PARKED } else { STANDING_ALIVE };
        self.standing.store(standing, Ordering::Release);
        // Pairs with the fence in `has_seen`: either that sees this core awake, or this core sees
        // the new version of the tables before it serves.
        fence(Ordering::SeqCst);
    }

    pub fn set_over(&self) {
        self.standing.store(STANDING_OVER, Ordering::Release);
    }

    /// Whether this side core can touch nothing that was deregistered in `version` or before.
    pub fn has_seen(&self, version: u64) -> bool {
        fence(Ordering::SeqCst);
        self.standing.load(Ordering::Acquire) != STANDING_ALIVE
            || self.seen.load(Ordering::Acquire) >= version
    }
}

struct Attached {
    ring: Arc<RingShared>,
    service: Arc<Mutex<Service>>,
    epoch: u32,
}

/// A side core. Exactly one caller steps it.
pub struct SideCore {
    shared: Arc<CoreShared>,
    registry: Arc<Registry>,
    tables: Arc<Tables>,
    /// The tables before, until each ring has followed: storage may store to their buffers until then.
    outdated: Option<Arc<Tables>>,
    attached: Vec<Attached>,
    rings_version: u64,
    hooks: Hooks,
    counts: SideCoreCounters,
    over: Option<CoreState>,
    /// Its part of a shared page.
    writer: Option<Writer>,
}

impl SideCore {
    pub(crate) fn new(
        shared: Arc<CoreShared>,
        registry: Arc<Registry>,
        hooks: Hooks,
        writer: Option<Writer>,
    ) -> Self {
        registry.watch(&shared);
        let tables = registry.snapshot();
        Self {
            shared,
            registry,
            tables,
            outdated: None,
            attached: Vec::new(),
            rings_version: 0,
            hooks,
            counts: SideCoreCounters::default(),
            over: None,
            writer,
        }
    }

    pub(crate) fn shared(&self) -> &Arc<CoreShared> {
        &self.shared
    }

    /// Its number; a replacement has the number of the one that was lost.
    pub fn index(&self) -> u32 {
        self.shared.index
    }

    /// Does what there is to do for each ring. Never blocks, where storage keeps its contract.
    pub fn step(&mut self, now_ns: u64) -> Progress {
        if let Some(state) = self.over {
            return Progress::nothing(state);
        }
        if self.shared.deposed.load(Ordering::Acquire) {
            return self.resign();
        }
        match catch_unwind(AssertUnwindSafe(|| self.serve(now_ns))) {
            Ok(progress) => progress,
            Err(_) => {
                // What this core stored must be out before anybody answers for it.
                fence_payload();
                self.over = Some(CoreState::Lost);
                if !self.attached.iter().any(|attached| attached.ring.is_direct()) {
                    self.shared.set_over();
                }
                self.shared.lost.store(true, Ordering::Release);
                Progress::nothing(CoreState::Lost)
            }
        }
    }

    fn serve(&mut self, now_ns: u64) -> Progress {
        self.counts.steps += 1;
        self.shared.beat.store(self.counts.steps, Ordering::Release);
        if self.shared.rings_version.load(Ordering::Acquire) != self.rings_version {
            self.follow_rings();
        }
        if self.registry.version() != self.tables.version {
            self.outdated = Some(std::mem::replace(&mut self.tables, self.registry.snapshot()));
        }
        if self.attached.is_empty() {
            // Nobody waits for this side core now.
            drop(self.shared.take_left());
        }
        let mut progress = Progress::nothing(CoreState::NoRings);
        for attached in &self.attached {
            progress.state = CoreState::Serving;
            let mut service = attached.service.lock().unwrap_or_else(PoisonError::into_inner);
            if attached.ring.epoch.load(Ordering::Acquire) != attached.epoch {
                continue;
            }
            let stepped = service.step(&attached.ring, &self.tables, &self.hooks, now_ns);
            progress.fetched += stepped.fetched;
            progress.completed += stepped.completed;
            progress.in_flight += service.active();
            if stepped.fetched == 0 && service.active() == 0 {
                // Release: what this step's answers came with is seen by who sees the count.
                attached.ring.looks.fetch_add(1, Ordering::Release);
            }
        }
        if let Some(outdated) = self.outdated.take() {
            self.shared.leave_to_supervisor(outdated);
        }
        self.counts.busy_steps += u64::from(progress.is_busy());
        self.shared.seen.store(self.tables.version, Ordering::Release);
        progress
    }

    fn follow_rings(&mut self) {
        self.rings_version = self.shared.rings_version.load(Ordering::Acquire);
        let rings = self.shared.rings();
        self.attached.retain(|a| {
            let stays = rings.iter().any(|ring| Arc::ptr_eq(ring, &a.ring));
            if !stays {
                let mut service = a.service.lock().unwrap_or_else(PoisonError::into_inner);
                service.leave(&a.ring, &self.tables);
                if let Some(writer) = &mut self.writer {
                    a.ring.report(writer);
                    writer.publish();
                }
                self.shared.leave_to_supervisor(Arc::clone(&a.ring) as _);
            }
            stays
        });
        for ring in rings {
            if !self.attached.iter().any(|a| Arc::ptr_eq(&ring, &a.ring)) {
                let service = ring.service();
                let epoch = service.lock().unwrap_or_else(PoisonError::into_inner).epoch;
                self.attached.push(Attached { ring, service, epoch });
            }
        }
    }

    /// Ends everything in flight and closes its rings, since the engine ends: a kernel that waits there must
    /// not wait for ever.
    pub(crate) fn close_rings(&mut self) {
        if self.over.is_some() {
            return;
        }
        for Attached { ring, service, epoch } in self.attached.drain(..) {
            let mut service = service.lock().unwrap_or_else(PoisonError::into_inner);
            if ring.epoch.load(Ordering::Acquire) == epoch {
                ring.wishes.mode.store(STATE_CLOSED, Ordering::Release);
                service.leave(&ring, &self.tables);
            }
        }
    }

    /// Ends what storage still has of a side core that was given up, and frees what was poisoned.
    fn resign(&mut self) -> Progress {
        for attached in self.attached.drain(..) {
            let mut service = attached.service.lock().unwrap_or_else(PoisonError::into_inner);
            service.abandon();
            attached
                .ring
                .slots
                .absolve(attached.epoch, || attached.ring.epoch.load(Ordering::Acquire));
        }
        self.shared.set_over();
        self.over = Some(CoreState::Deposed);
        Progress::nothing(CoreState::Deposed)
    }

    /// Publishes its counters, to a shared page too where there is one. `cpu_ns` is the CPU time of
    /// its thread, or 0; `slept` is how often it slept since the last time.
    pub fn publish(&mut self, cpu_ns: u64, slept: u64) {
        let charged = cpu_ns.saturating_sub(self.counts.cpu_ns);
        self.counts.cpu_ns = cpu_ns;
        self.counts.sleeps += slept;
        self.shared.counters.publish(&self.counts);
        if let Some(writer) = &mut self.writer {
            writer.cpu(Role::Path, charged);
            for attached in &self.attached {
                attached.ring.report(writer);
            }
            writer.publish();
        }
    }
}
