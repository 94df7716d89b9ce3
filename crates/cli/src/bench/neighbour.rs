//! The neighbour that only computes: how long it takes alone, beside a kernel that sleeps, and beside one
//! that does I/O.
//!
//! Its time is the GPU's own, by events before and after it; on the simulated GPU the clock's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use abi::bench::FmaArgs;
use anyhow::{Context, Result, bail, ensure};
use gpu::{Copy, DeviceMemory, Gpu, Kernel, LaunchShape};
use mem::Region;
use zerocopy::{FromBytes, IntoBytes};

/// Rounds of the first, short run.
const TRIAL_ROUNDS: u32 = 2_000;
/// How long it may take at most.
const LIMIT: Duration = Duration::from_secs(120);
/// How long another kernel may take to be where it is waited for.
const START_LIMIT: Duration = Duration::from_secs(30);

/// The kernel and its memory.
pub struct Neighbour {
    gpu: Arc<dyn Gpu>,
    memory: DeviceMemory,
    host: Region,
    blocks: u32,
    threads: u32,
    kernel: Kernel,
    rounds: u32,
}

/// One run of it.
#[derive(Clone, Copy, Debug)]
pub struct Computed {
    /// By the GPU's events.
    pub seconds: f64,
    /// SMs on which its blocks ran.
    pub sms: u32,
    /// I/Os taken by the other kernel meanwhile, a second.
    pub ios_per_s: f64,
}

impl Neighbour {
    /// With one block an SM of so many threads, and as many rounds as take `compute` alone.
    ///
    /// # Errors
    /// No memory, a wrong sum.
    pub fn open(
        gpu: &Arc<dyn Gpu>,
        threads: u32,
        kernel: Kernel,
        compute: Duration,
    ) -> Result<Self> {
        let facts = gpu.kernel_facts(&kernel, threads)?;
        let blocks = facts.map_or(2, |facts| facts.multiprocessors);
        let bytes = 8 * (u64::from(blocks) + 1);
        let mut one = Self {
            memory: gpu.allocate_device(bytes)?,
            host: gpu.allocate_host(bytes)?,
            gpu: Arc::clone(gpu),
            blocks,
            threads,
            kernel,
            rounds: TRIAL_ROUNDS,
        };
        one.alone()?;
        let seconds = one.alone()?.seconds.max(1e-6);
        let rounds = f64::from(TRIAL_ROUNDS) * compute.as_secs_f64() / seconds;
        one.rounds = u32::try_from(crate::units::whole(rounds).max(500)).context("so long")?;
        Ok(one)
    }

    /// Blocks, one an SM.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Runs it with no other kernel.
    ///
    /// # Errors
    /// A wrong sum, or no end.
    pub fn alone(&mut self) -> Result<Computed> {
        self.run(None)
    }

    /// Runs it beside a kernel whose I/Os are counted by `tickets`, once `wanted` of them are taken; then
    /// tells that kernel that nothing is left of its `all` I/Os.
    ///
    /// # Errors
    /// The other kernel does not come so far, or is done too early; as [`Neighbour::alone`].
    pub fn beside(&mut self, tickets: &Tickets, wanted: u64, all: u64) -> Result<Computed> {
        let ran = tickets.wait_for(wanted).and_then(|()| self.run(Some(tickets)));
        let taken = tickets.read()?;
        tickets.store(all)?;
        let ran = ran?;
        ensure!(
            taken < all || wanted >= all,
            "the I/O kernel had done its {all} I/Os before its neighbour ended"
        );
        Ok(ran)
    }

    fn run(&mut self, tickets: Option<&Tickets>) -> Result<Computed> {
        self.host.fill(0, self.host.len_bytes(), 0);
        self.gpu.copy_to_device(self.copy())?;
        let arguments = FmaArgs { results: self.memory.address, rounds: self.rounds, reserved: 0 };
        let shape =
            LaunchShape { blocks: self.blocks, threads_per_block: self.threads, shared_bytes: 0 };
        let count = || tickets.map_or(Ok(0), Tickets::read);
        let begun = Instant::now();
        let mut launch = self.gpu.launch(&self.kernel, shape, arguments.as_bytes())?;
        let (first, counted) = (count()?, Instant::now());
        let Some(ended) = launch.wait(LIMIT) else {
            launch.abort();
            bail!("the compute kernel did not end within {LIMIT:?}");
        };
        let elapsed = begun.elapsed().as_secs_f64();
        ended?;
        let (last, over) = (count()?, counted.elapsed().as_secs_f64());
        let seconds = launch.device_seconds().unwrap_or(elapsed);
        self.gpu.copy_to_host(self.copy())?;
        let mut words = vec![0_u64; self.blocks as usize + 1];
        self.host.read_bytes(0, words.as_mut_bytes());
        let threads = u64::from(self.blocks) * u64::from(self.threads);
        ensure!(words[0] == threads, "{} of {threads} threads computed right", words[0]);
        let seats = &mut words[1..];
        seats.sort_unstable();
        let sms = 1 + seats.windows(2).filter(|pair| pair[0] != pair[1]).count();
        let ios_per_s = last.saturating_sub(first) as f64 / over.max(1e-9);
        Ok(Computed { seconds, sms: u32::try_from(sms).unwrap_or(u32::MAX), ios_per_s })
    }

    fn copy(&self) -> Copy<'_> {
        Copy {
            host: &self.host,
            host_offset: 0,
            device: &self.memory,
            device_offset: 0,
            bytes: self.host.len_bytes(),
        }
    }
}

/// The word from which the lanes of another kernel take their I/Os by number, read and stored while it
/// runs.
pub struct Tickets {
    gpu: Arc<dyn Gpu>,
    word: DeviceMemory,
    host: Region,
}

impl Tickets {
    /// Of a kernel's word.
    ///
    /// # Errors
    /// No memory.
    pub fn new(gpu: &Arc<dyn Gpu>, word: DeviceMemory) -> Result<Self> {
        Ok(Self { host: gpu.allocate_host(8)?, gpu: Arc::clone(gpu), word })
    }

    fn copy(&self) -> Copy<'_> {
        let (host, device) = (&self.host, &self.word);
        Copy { host, host_offset: 0, device, device_offset: 0, bytes: 8 }
    }

    /// I/Os taken so far.
    ///
    /// # Errors
    /// The copy engine's.
    pub fn read(&self) -> Result<u64> {
        self.gpu.copy_to_host(self.copy())?;
        let mut bytes = [0; 8];
        self.host.read_bytes(0, &mut bytes);
        Ok(u64::read_from_bytes(&bytes).unwrap_or(0))
    }

    /// Says how many are taken.
    ///
    /// # Errors
    /// The copy engine's.
    pub fn store(&self, taken: u64) -> Result<()> {
        self.host.write_bytes(0, taken.as_bytes());
        Ok(self.gpu.copy_to_device(self.copy())?)
    }

    /// Waits until so many are taken.
    ///
    /// # Errors
    /// They are not within half a minute.
    pub fn wait_for(&self, wanted: u64) -> Result<()> {
        let start = Instant::now();
        loop {
            let taken = self.read()?;
            if taken >= wanted {
                return Ok(());
            }
            ensure!(
                start.elapsed() < START_LIMIT,
                "the I/O kernel took {taken} of {wanted} I/Os in {START_LIMIT:?}"
            );
            std::thread::sleep(Duration::from_micros(300));
        }
    }
}
