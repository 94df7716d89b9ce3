//! How an engine is made: with threads, or to be stepped by hand.

use std::sync::Arc;
use std::time::Duration;

use gpu::Gpu;

use crate::engine::{Engine, Inner, Parts};
use crate::error::EngineError;
use crate::hooks::Hooks;
use crate::side_core::SideCore;
use crate::supervisor::Supervisor;
use crate::threads::{Placement, Threads};

/// Side cores that an engine has at most; the same bound as of the command's option.
const SIDE_CORES_MAX: u32 = 1024;

/// Options of an engine.
#[derive(Clone)]
pub struct EngineBuilder {
    gpu: Arc<dyn Gpu>,
    side_cores: Option<u32>,
    cpu_max: Option<u32>,
    pinned_max: u64,
    pin: Option<u32>,
    stall: Duration,
    hooks: Hooks,
    page: Option<Arc<stats::Page>>,
}

/// An engine whose side cores and supervisor are stepped by hand.
pub struct Stepped {
    /// The engine.
    pub engine: Engine,
    /// Its side cores.
    pub side_cores: Vec<SideCore>,
    /// Its supervisor.
    pub supervisor: Supervisor,
}

impl EngineBuilder {
    pub(crate) fn new(gpu: Arc<dyn Gpu>) -> Self {
        Self {
            gpu,
            side_cores: None,
            cpu_max: None,
            pinned_max: u64::MAX,
            pin: None,
            stall: Duration::from_secs(2),
            hooks: Hooks::default(),
            page: None,
        }
    }

    /// Number of side cores. Default: the CPUs that this process may use less one, at least 1.
    #[must_use]
    pub fn side_cores(mut self, count: u32) -> Self {
        self.side_cores = Some(count);
        self
    }

    /// Upper bound on the number of side cores.
    #[must_use]
    pub fn cpu_max(mut self, cpus: u32) -> Self {
        self.cpu_max = Some(cpus);
        self
    }

    /// Upper bound on pinned host memory, in bytes. Default: none.
    #[must_use]
    pub fn pinned_max(mut self, bytes: u64) -> Self {
        self.pinned_max = bytes;
        self
    }

    /// Ties each side core to one CPU, from this one up. Default: the scheduler decides.
    #[must_use]
    pub fn pin_from(mut self, cpu: u32) -> Self {
        self.pin = Some(cpu);
        self
    }

    /// How long a side core may stand still before it is given up. Default: 2 s.
    #[must_use]
    pub fn stall(mut self, limit: Duration) -> Self {
        self.stall = limit;
        self
    }

    /// Tells a shared page what side cores do. Default: none.
    #[must_use]
    pub fn stats(mut self, page: Arc<stats::Page>) -> Self {
        self.page = Some(page);
        self
    }

    /// Breaks side cores on purpose, for tests.
    #[must_use]
    pub fn hooks(mut self, hooks: Hooks) -> Self {
        self.hooks = hooks;
        self
    }

    fn check(&self) -> Result<u32, EngineError> {
        let wanted = self.side_cores.unwrap_or_else(|| usable_cpus().saturating_sub(1).max(1));
        let count = wanted.min(self.cpu_max.unwrap_or(u32::MAX));
        if count == 0 || count > SIDE_CORES_MAX {
            let text = format!("{count} side cores: 1 to {SIDE_CORES_MAX} are possible");
            return Err(EngineError::Misuse(text));
        }
        Ok(count)
    }

    fn inner(&self, count: u32) -> Arc<Inner> {
        let parts = Parts {
            pinned_max: self.pinned_max,
            hooks: self.hooks.clone(),
            page: self.page.clone(),
        };
        Inner::new(Arc::clone(&self.gpu), count, parts)
    }

    fn stall_ns(&self) -> u64 {
        u64::try_from(self.stall.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Starts it with a thread for each side core and one for the supervisor.
    ///
    /// # Errors
    /// `Misuse` for no side core, `Os` where the system gives no thread or refuses to pin it.
    pub fn start(self) -> Result<Engine, EngineError> {
        let count = self.check()?;
        let inner = self.inner(count);
        let placement = Placement { first_cpu: self.pin, shared: count >= usable_cpus() };
        let mut engine = Engine { inner: Arc::clone(&inner), threads: None };
        engine.threads = Some(Threads::start(&inner, placement, self.stall_ns())?);
        Ok(engine)
    }

    /// Starts it without threads: the caller steps its side cores and its supervisor.
    ///
    /// # Errors
    /// `Misuse` for no side core.
    pub fn start_stepped(self) -> Result<Stepped, EngineError> {
        let inner = self.inner(self.check()?);
        let side_cores = inner.cores().into_iter().map(|core| inner.side_core(core)).collect();
        let supervisor = Supervisor::new(Arc::clone(&inner), self.stall_ns());
        Ok(Stepped { engine: Engine { inner, threads: None }, side_cores, supervisor })
    }
}

/// CPUs that this process may use: its affinity mask and its cgroup's quota, whichever is less.
fn usable_cpus() -> u32 {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    u32::try_from(cpus).unwrap_or(u32::MAX)
}
