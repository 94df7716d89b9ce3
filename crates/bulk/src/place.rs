//! Where bytes go to, or come from.

use gpu::{DeviceMemory, Gpu, Keeper};
use mem::{MemoryKind, Region};

use crate::error::BulkError;

/// A range of device memory or of host memory.
///
/// Until a transfer has ended, the memory belongs to it. Host memory, and device memory that was named as
/// such, is kept by the place. Memory that was named by its address is its owner's to keep.
#[derive(Clone, Debug)]
pub struct Place {
    pub(crate) kind: Kind,
    bytes: u64,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// An address that the GPU must still be asked about.
    Address {
        address: u64,
        keeper: Option<Keeper>,
    },
    Device {
        address: u64,
        window: Option<Region>,
        keeper: Option<Keeper>,
    },
    Host(Region),
}

impl Place {
    /// Device memory at an address: of any kind of pointer that the GPU reaches. The owner keeps it until
    /// the transfer has ended.
    pub fn device(address: u64, bytes: u64) -> Self {
        Self { kind: Kind::Address { address, keeper: None }, bytes }
    }

    /// The same; `keeper` is dropped when the transfer is, and not before it has ended.
    pub fn device_kept(address: u64, bytes: u64, keeper: Keeper) -> Self {
        Self { kind: Kind::Address { address, keeper: Some(keeper) }, bytes }
    }

    /// All of some device memory.
    pub fn memory(memory: &DeviceMemory) -> Self {
        let (address, window) = (memory.address, memory.window.clone());
        let kind = Kind::Device { address, window, keeper: memory.keeper.clone() };
        Self { kind, bytes: memory.bytes }
    }

    /// All of some host memory. Whoever made the region guarantees that it is there; nobody else may use
    /// the memory until the transfer has ended.
    pub fn host(memory: Region) -> Self {
        let bytes = memory.len_bytes() as u64;
        Self { kind: Kind::Host(memory), bytes }
    }

    /// Its length.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it is host memory.
    pub fn is_host(&self) -> bool {
        matches!(self.kind, Kind::Host(_))
    }

    /// A part of it.
    ///
    /// # Errors
    /// [`BulkError::Misuse`] where the part is not inside.
    pub fn part(&self, offset: u64, bytes: u64) -> Result<Self, BulkError> {
        let outside = || BulkError::Misuse(format!("{offset}..+{bytes} of {} bytes", self.bytes));
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return Err(outside());
        }
        let region = |region: &Region| {
            let (offset, bytes) = (usize::try_from(offset), usize::try_from(bytes));
            let (Ok(offset), Ok(bytes)) = (offset, bytes) else { return Err(outside()) };
            region.slice(offset, bytes).map_err(|_| outside())
        };
        let kind = match &self.kind {
            Kind::Address { address, keeper } => {
                Kind::Address { address: address.wrapping_add(offset), keeper: keeper.clone() }
            }
            Kind::Device { address, window, keeper } => Kind::Device {
                address: address.wrapping_add(offset),
                window: window.as_ref().map(region).transpose()?,
                keeper: keeper.clone(),
            },
            Kind::Host(memory) => Kind::Host(region(memory)?),
        };
        Ok(Self { kind, bytes })
    }

    /// Whether it can be used, as [`Place::resolve`] finds it.
    pub(crate) fn check(&self, gpu: Option<&dyn Gpu>) -> Result<(), BulkError> {
        if matches!((&self.kind, gpu), (Kind::Device { .. }, Some(_))) {
            return Ok(());
        }
        self.clone().resolve(gpu).map(drop)
    }

    /// Asks the GPU about an address.
    pub(crate) fn resolve(self, gpu: Option<&dyn Gpu>) -> Result<Self, BulkError> {
        let Kind::Address { address, keeper } = self.kind else {
            return match (&self.kind, gpu) {
                (Kind::Device { .. }, None) => Err(no_gpu()),
                (Kind::Host(memory), _) if memory.kind() == MemoryKind::Window => {
                    let why = "memory behind a window is device memory: name it as such";
                    Err(BulkError::Misuse(why.to_owned()))
                }
                _ => Ok(self),
            };
        };
        let gpu = gpu.ok_or_else(no_gpu)?;
        let what = || format!("looking for device memory at {address:#x}");
        let found = gpu.memory_at(address, self.bytes).map_err(|e| BulkError::gpu(what(), &e))?;
        let keeper = keeper.or(found.keeper);
        Ok(Self { kind: Kind::Device { address, window: found.window, keeper }, bytes: self.bytes })
    }
}

fn no_gpu() -> BulkError {
    BulkError::Misuse("device memory is named, and the engine was opened without a GPU".to_owned())
}
