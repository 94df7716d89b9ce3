//! The engine: what is registered, which rings there are and who serves them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abi::ring::Id;
use gpu::{DeviceMemory, Gpu};
use stats::Page;
use storage::Storage;

use crate::builder::EngineBuilder;
use crate::counters::SideCoreCounters;
use crate::error::EngineError;
use crate::hooks::Hooks;
use crate::registry::{Buffer, Registry, Retirement, Rights, Source};
use crate::ring::{ENTRY_BYTES, Ring, RingConfig, RingShared};
use crate::side_core::{CoreShared, SideCore};
use crate::threads::Threads;

/// What an engine is made with, besides its GPU and the number of side cores.
pub(crate) struct Parts {
    pub pinned_max: u64,
    pub hooks: Hooks,
    pub page: Option<Arc<Page>>,
}

/// What the engine's parts share.
pub(crate) struct Inner {
    pub gpu: Arc<dyn Gpu>,
    pub registry: Arc<Registry>,
    pub hooks: Hooks,
    page: Option<Arc<Page>>,
    pub stop: AtomicBool,
    cores: Mutex<Vec<Arc<CoreShared>>>,
    /// What side cores that were replaced had done.
    past: Mutex<SideCoreCounters>,
    pinned_max: u64,
    pinned_used: AtomicU64,
    /// CPU time of the supervisor's thread.
    pub supervisor_cpu_ns: AtomicU64,
}

impl Inner {
    pub fn new(gpu: Arc<dyn Gpu>, side_cores: u32, parts: Parts) -> Arc<Self> {
        let Parts { pinned_max, hooks, page } = parts;
        Arc::new(Self {
            gpu,
            page,
            registry: Arc::new(Registry::default()),
            hooks,
            stop: AtomicBool::new(false),
            cores: Mutex::new((0..side_cores).map(|i| CoreShared::new(i, Vec::new())).collect()),
            past: Mutex::new(SideCoreCounters::default()),
            pinned_max,
            pinned_used: AtomicU64::new(0),
            supervisor_cpu_ns: AtomicU64::new(0),
        })
    }

    fn lock_cores(&self) -> MutexGuard<'_, Vec<Arc<CoreShared>>> {
        self.cores.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn cores(&self) -> Vec<Arc<CoreShared>> {
        self.lock_cores().clone()
    }

    pub fn side_core(&self, shared: Arc<CoreShared>) -> SideCore {
        // A page has room for hundreds of writers; a side core without one serves all the same.
        let writer = self.page.as_ref().and_then(|page| page.writer().ok());
        SideCore::new(shared, Arc::clone(&self.registry), self.hooks.clone(), writer)
    }

    /// Puts a new side core in the place of a lost one.
    pub fn replace_core(&self, lost: &Arc<CoreShared>, new: &Arc<CoreShared>) {
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        past.add(&lost.counters.read());
        for core in self.lock_cores().iter_mut().filter(|core| Arc::ptr_eq(core, lost)) {
            *core = Arc::clone(new);
        }
    }

    /// Gives a ring to the side core with the fewest, unless one has it.
    pub fn attach(&self, ring: &Arc<RingShared>) {
        let cores = self.lock_cores();
        let has = |core: &Arc<CoreShared>| core.rings().iter().any(|r| Arc::ptr_eq(r, ring));
        if !cores.iter().any(has) {
            let idlest = cores.iter().min_by_key(|core| core.ring_count());
            idlest.expect("there is at least one side core").attach(ring);
        }
    }

    /// Wakes whoever serves a ring.
    pub fn wake(&self, ring: &Arc<RingShared>) {
        for core in self.lock_cores().iter() {
            if core.rings().iter().any(|r| Arc::ptr_eq(r, ring)) {
                core.wake();
            }
        }
    }

    /// Takes a ring from its side core.
    pub fn forget(&self, ring: &Arc<RingShared>) {
        for core in self.lock_cores().iter() {
            if core.detach(ring) {
                core.wake();
            }
        }
        self.pinned_used.fetch_sub(pinned_bytes(&ring.config), Ordering::Relaxed);
    }
}

fn pinned_bytes(config: &RingConfig) -> u64 {
    u64::from(config.depth) * ENTRY_BYTES as u64
        + u64::from(config.records) * u64::from(config.staging_stride)
}

/// The engine. Dropping it ends its threads; rings that are still open are closed, and what is in flight
/// there ends.
pub struct Engine {
    pub(crate) inner: Arc<Inner>,
    pub(crate) threads: Option<Threads>,
}

impl Engine {
    /// Begins to build an engine on a GPU.
    pub fn builder(gpu: Arc<dyn Gpu>) -> EngineBuilder {
        EngineBuilder::new(gpu)
    }

    /// The GPU that it was built on.
    pub fn gpu(&self) -> &Arc<dyn Gpu> {
        &self.inner.gpu
    }

    /// Makes a storage usable in requests.
    ///
    /// Where it lends memory that the GPU reaches, lanes of a ring with route `pull` load that memory
    /// itself: it must then stay for as long as a kernel runs that was given the source.
    ///
    /// # Errors
    /// `Unsupported` where it is too long or read-only, `Exhausted` beyond 4,096 sources.
    pub fn register_source(
        &self,
        storage: Arc<dyn Storage>,
        rights: Rights,
    ) -> Result<Source, EngineError> {
        let lent = storage.lent();
        let address = lent.and_then(|memory| self.inner.gpu.host_address(&memory)).unwrap_or(0);
        let source = self.inner.registry.register_source(storage, rights, address)?;
        self.wake_all();
        Ok(source)
    }

    /// Makes device memory usable in requests.
    ///
    /// # Errors
    /// `Unsupported` where it is too long, `Exhausted` beyond 4,096 buffers.
    pub fn register_buffer(
        &self,
        memory: DeviceMemory,
        rights: Rights,
    ) -> Result<Buffer, EngineError> {
        self.inner.registry.register_buffer(memory, rights)
    }

    /// Refuses new requests that name the source; the answer tells when the old ones are over.
    ///
    /// # Errors
    /// `Misuse` where it is not registered.
    pub fn deregister_source(&self, id: Id) -> Result<Retirement, EngineError> {
        let retirement = self.inner.registry.deregister_source(id)?;
        self.wake_all();
        Ok(retirement)
    }

    /// Refuses new requests that name the buffer; the answer tells when its memory is free.
    ///
    /// # Errors
    /// `Misuse` where it is not registered.
    pub fn deregister_buffer(&self, id: Id) -> Result<Retirement, EngineError> {
        self.inner.registry.deregister_buffer(id)
    }

    /// Allocates a ring and attaches it to the side core with the fewest.
    ///
    /// # Errors
    /// `Misuse` for an impossible configuration, `Exhausted` beyond the bound on pinned memory,
    /// `Gpu` where it has no memory, `Unsupported` where it has no window.
    pub fn create_ring(&self, config: RingConfig) -> Result<Ring, EngineError> {
        let bytes = pinned_bytes(&config);
        let limit = self.inner.pinned_max;
        let used = self.inner.pinned_used.fetch_add(bytes, Ordering::Relaxed);
        let made = if used.saturating_add(bytes) > limit {
            Err(EngineError::Exhausted { resource: "bytes of pinned memory", limit })
        } else {
            RingShared::new(&self.inner.gpu, &config)
        };
        match made {
            Ok(shared) => {
                self.inner.attach(&shared);
                if let Some(threads) = &self.threads {
                    threads.wake_supervisor();
                }
                Ok(Ring { shared, engine: Arc::clone(&self.inner) })
            }
            Err(error) => {
                self.inner.pinned_used.fetch_sub(bytes, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    /// Number of side cores.
    pub fn side_cores(&self) -> u32 {
        u32::try_from(self.inner.cores().len()).expect("their number came as a u32")
    }

    /// What each side core did. Those that were replaced are not in it, see
    /// [`Engine::past_side_cores`].
    pub fn side_core_counters(&self) -> Vec<SideCoreCounters> {
        self.inner.cores().iter().map(|core| core.counters.read()).collect()
    }

    /// What side cores that were replaced had done, all together.
    pub fn past_side_cores(&self) -> SideCoreCounters {
        *self.inner.past.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// CPU seconds of all side cores and the supervisor, past ones too.
    pub fn cpu_seconds(&self) -> f64 {
        let mut sum = self.past_side_cores().cpu_ns;
        sum += self.side_core_counters().iter().map(|counters| counters.cpu_ns).sum::<u64>();
        sum += self.inner.supervisor_cpu_ns.load(Ordering::Relaxed);
        std::time::Duration::from_nanos(sum).as_secs_f64()
    }

    /// Bytes of pinned host memory that its rings hold.
    pub fn pinned_bytes(&self) -> u64 {
        self.inner.pinned_used.load(Ordering::Relaxed)
    }

    fn wake_all(&self) {
        for core in self.inner.cores() {
            core.wake();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.inner.stop.store(true, Ordering::Release);
        if let Some(threads) = self.threads.take() {
            self.wake_all();
            threads.join();
        }
    }
}
