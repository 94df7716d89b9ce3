//! The bulk engine as commands open it, and the memory they give it.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use bulk::{Bulk, Log, Options, POOL_BYTES_MAX, Place, Store};
use gpu::{Copy, DeviceMemory, Gpu};
use mem::{MemoryKind, Region};
use sha2::{Digest, Sha256};

use crate::args::{EngineArgs, LimitArgs};
use crate::bench::machine;
use crate::printer::tell;
use crate::{interrupt, units};

/// Most threads of an engine.
const THREADS_MAX: u32 = 256;
/// Two slots of one thread, and what callers carry small requests out with.
const PINNED_BYTES_MIN: u64 = 2 << 20;

/// An engine, and its GPU if it has one.
pub struct Engine {
    /// The engine.
    pub bulk: Bulk,
    /// The GPU.
    pub gpu: Option<Arc<dyn Gpu>>,
}

/// The GPU of a command that needs no kernel.
///
/// # Errors
/// One was named and cannot be had.
pub fn open_gpu(host: bool, limits: &LimitArgs) -> Result<Option<Arc<dyn Gpu>>> {
    if host {
        return Ok(None);
    }
    let opened = gpu::open_with(limits.gpu, &[], !limits.no_window)
        .with_context(|| format!("--gpu {}", limits.gpu))?;
    if let Some(why) = opened.why_simulated {
        tell!("no GPU, so one is simulated: {why}");
    }
    Ok(Some(opened.gpu))
}

/// Whether memory of this machine that bytes shall come into has room for them: a system that promises
/// more than there is would end processes, and not only this one. A real GPU says it itself.
///
/// # Errors
/// There are fewer.
pub fn check_room(gpu: Option<&Arc<dyn Gpu>>, bytes: u64) -> Result<()> {
    let simulated = gpu.map(|gpu| gpu.describe().simulated);
    let room = machine::available_bytes().unwrap_or(u64::MAX);
    let whose = match simulated {
        Some(false) => return Ok(()),
        Some(true) => "memory of the simulated GPU, which is this machine's",
        None => "memory of this machine",
    };
    ensure!(
        bytes <= room,
        "{bytes} bytes do not fit into {whose}: {} are available",
        units::bytes(room)
    );
    Ok(())
}

/// Refuses what the engine would quietly make something else of.
fn check(args: &EngineArgs, limits: &LimitArgs) -> Result<()> {
    if let Some(threads) = args.threads.filter(|threads| *threads > THREADS_MAX) {
        bail!("--threads {threads}: 1 to {THREADS_MAX} are possible");
    }
    if let Some(bytes) = args.slot.filter(|bytes| !(64 << 10..=64 << 20).contains(bytes)) {
        bail!("--slot {bytes}: 64 KiB to 64 MiB are possible");
    }
    if let Some(slots) = args.slots.filter(|slots| !(2..=64).contains(slots)) {
        bail!("--slots {slots}: 2 to 64 are possible");
    }
    ensure!(
        limits.pinned_max >= PINNED_BYTES_MIN,
        "--pinned-max {}: bulk transfers need {}",
        limits.pinned_max,
        units::bytes(PINNED_BYTES_MIN)
    );
    Ok(())
}

impl Engine {
    /// Opens it for files near `path`, by the knees that were stored for them.
    ///
    /// # Errors
    /// A GPU that cannot be had, options that do not fit.
    pub fn open(path: &Path, args: &EngineArgs, limits: &LimitArgs) -> Result<Self> {
        check(args, limits)?;
        let gpu = open_gpu(args.host, limits)?;
        let name = gpu.as_ref().map(|gpu| gpu.describe().name);
        let folder = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let key = Store::key(folder, name.as_deref()).ok();
        let stored = Store::of_user().zip(key);
        let mut knees = stored.as_ref().and_then(|(store, key)| store.get(key).ok().flatten());
        if args.slot.is_some() || args.slots.is_some() {
            let mut chosen = knees.unwrap_or_default();
            chosen.slot_bytes = args.slot.unwrap_or(chosen.slot_bytes);
            chosen.slots = args.slots.map_or(chosen.slots, |slots| slots as usize);
            knees = Some(chosen);
        }
        let bulk = Bulk::open(Options {
            gpu: gpu.clone(),
            threads: args.threads.map(|threads| threads as usize),
            pool_bytes: limits.pinned_max.min(POOL_BYTES_MAX),
            knees,
            stored,
            require: args.require,
            cache: args.cache.into(),
            log: Log::Stderr,
            ..Options::default()
        })?;
        Ok(Self { bulk, gpu })
    }

    /// Memory of the GPU, or of the host where there is none.
    ///
    /// # Errors
    /// None is left.
    pub fn allocate(&self, bytes: u64) -> Result<Memory> {
        Memory::allocate(self.gpu.as_ref(), bytes)
    }

    /// What the memory belongs to, for people.
    pub fn gpu_name(&self) -> String {
        self.gpu.as_ref().map_or_else(|| "none, host memory".to_owned(), |gpu| gpu.describe().name)
    }
}

/// Memory that is loaded into or saved from.
pub enum Memory {
    /// Of the GPU.
    Device(Arc<dyn Gpu>, DeviceMemory),
    /// Of the host.
    Host(Region),
}

impl Memory {
    /// Memory of the GPU, or of the host where there is none.
    ///
    /// # Errors
    /// None is left.
    pub fn allocate(gpu: Option<&Arc<dyn Gpu>>, bytes: u64) -> Result<Self> {
        check_room(gpu, bytes)?;
        match gpu {
            Some(gpu) => Ok(Self::Device(Arc::clone(gpu), gpu.allocate_device(bytes)?)),
            None => {
                let len =
                    usize::try_from(bytes).context("more bytes than this machine can name")?;
                Ok(Self::Host(Region::map_anonymous(len, MemoryKind::Host)?))
            }
        }
    }

    /// All of it.
    pub fn place(&self) -> Place {
        match self {
            Self::Device(_, memory) => Place::memory(memory),
            Self::Host(region) => Place::host(region.clone()),
        }
    }

    /// Calls `each` with its bytes, piece after piece, as they are read back by the copy engine.
    ///
    /// # Errors
    /// The GPU's own, and those of `each`.
    pub fn read_back(
        &self,
        bytes: u64,
        mut each: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        const PIECE: u64 = 8 << 20;
        let staging = match self {
            Self::Device(gpu, _) => Some(gpu.allocate_host(PIECE.min(bytes.max(1)))?),
            Self::Host(_) => None,
        };
        let mut piece = vec![0; usize::try_from(PIECE)?];
        let mut at = 0;
        while at < bytes {
            let len = usize::try_from(PIECE.min(bytes - at))?;
            match (self, &staging) {
                (Self::Device(gpu, device), Some(host)) => {
                    let copy = Copy { host, host_offset: 0, device, device_offset: at, bytes: len };
                    gpu.copy_to_host(copy)?;
                    host.read_bytes(0, &mut piece[..len]);
                }
                (Self::Host(region), _) => {
                    region.read_bytes(usize::try_from(at)?, &mut piece[..len])
                }
                (Self::Device(..), None) => unreachable!("made above"),
            }
            each(at, &piece[..len])?;
            at += len as u64;
        }
        Ok(())
    }

    /// SHA-256 of its first bytes.
    ///
    /// # Errors
    /// As [`Memory::read_back`].
    pub fn sha256(&self, bytes: u64) -> Result<String> {
        let mut digest = Sha256::new();
        self.read_back(bytes, |_, piece| {
            digest.update(piece);
            Ok(())
        })?;
        Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// Waits for a transfer, and looks for Ctrl-C meanwhile; `None` where it came.
///
/// # Errors
/// The transfer's own.
pub fn wait(
    transfer: &bulk::Transfer,
    mut look: impl FnMut(u64),
) -> Result<Option<u64>, bulk::BulkError> {
    loop {
        if let Some(bytes) = transfer.wait(std::time::Duration::from_millis(50))? {
            return Ok(Some(bytes));
        }
        look(transfer.moved());
        if interrupt::asked() {
            transfer.cancel();
            // It has ended, or does so with what is in flight; its error is that it was cancelled.
            let _cancelled = transfer.wait(std::time::Duration::from_secs(10));
            return Ok(None);
        }
    }
}
