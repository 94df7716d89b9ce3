//! One device: its context, and what it is.
// UNSAFETY: calls the driver.
#![expect(unsafe_code, reason = "calls the driver and keeps its handles")]

use std::ffi::{CStr, c_int};
use std::sync::Arc;

use crate::api::{Api, Opaque, call};
use crate::error::CudaError;
use crate::library::Driver;
use crate::pointer::Pointer;

/// Attributes of a device. Source: `CUdevice_attribute` in cuda.h.
mod attribute {
    pub const MULTIPROCESSORS: i32 = 16;
    pub const PCI_BUS: i32 = 33;
    pub const PCI_DEVICE: i32 = 34;
    pub const UNIFIED_ADDRESSING: i32 = 41;
    pub const PCI_DOMAIN: i32 = 50;
    pub const CAPABILITY_MAJOR: i32 = 75;
    pub const CAPABILITY_MINOR: i32 = 76;
    pub const RDMA_WRITES_ORDERING: i32 = 118;
}

/// For whom the device orders writes that reach it over PCIe from others.
///
/// Source: `CUGPUDirectRDMAWritesOrdering` in cuda.h.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum WriteOrdering {
    /// For nobody: payload and completion word may be seen in the wrong order.
    Nobody,
    /// For kernels of the owning context.
    Owner,
    /// For all devices.
    AllDevices,
}

/// What a device is.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Name by the driver.
    pub name: String,
    /// Index by the driver.
    pub index: u32,
    /// The same in CUDA and Vulkan.
    pub uuid: [u8; 16],
    /// Domain, bus and device on PCI.
    pub pci: String,
    /// Compute capability.
    pub capability: (i32, i32),
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Device memory, in bytes.
    pub memory_bytes: u64,
    /// Order of writes by others.
    pub write_ordering: WriteOrdering,
    /// CUDA version of the driver.
    pub driver: String,
}

impl Facts {
    /// The name that NVRTC has for its machine code.
    pub fn architecture(&self) -> String {
        format!("sm_{}{}", self.capability.0, self.capability.1)
    }
}

/// A context: the retained primary one, given back with the last user, or a caller's own.
#[derive(Debug)]
pub(crate) struct Context {
    pub api: Arc<Api>,
    handle: Opaque,
    /// The device whose primary context it is; `None` where it is the caller's.
    retained: Option<c_int>,
    /// Its id, where others may destroy it: a primary context that was reset has the same handle, and
    /// nothing of what was made in it.
    id: Option<u64>,
}

// SAFETY: contexts may be made current in any thread; the driver locks.
unsafe impl Send for Context {}
// SAFETY: as above; nothing is changed through `&self` but by the driver.
unsafe impl Sync for Context {}

impl Context {
    /// Whether it is still the one in which things were made.
    fn check(&self) -> Result<(), CudaError> {
        let Some(id) = self.id else { return Ok(()) };
        let mut present = 0;
        call!(self.api, context_id(self.handle, &raw mut present))?;
        if present == id {
            return Ok(());
        }
        let remedy = "close what was made on it, and open the GPU again";
        Err(CudaError::unavailable("the GPU's context", "the program has reset it", remedy))
    }

    /// Makes it the calling thread's.
    pub fn enter(&self) -> Result<(), CudaError> {
        self.check()?;
        call!(self.api, context_set(self.handle))
    }
}

/// A thread's stay in a context; the one that it had before comes back with its end.
pub(crate) struct Visit<'a>(&'a Context);

impl Context {
    /// Makes it the calling thread's until the answer is dropped.
    pub fn visit(&self) -> Result<Visit<'_>, CudaError> {
        self.check()?;
        call!(self.api, context_push(self.handle))?;
        Ok(Visit(self))
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        let mut handle = std::ptr::null_mut();
        let _lost = call!(self.0.api, context_pop(&raw mut handle));
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(ordinal) = self.retained {
            // A device that is lost says so here; there is nobody to tell.
            let _lost = call!(self.api, context_release(ordinal));
        }
    }
}

/// A device that is open.
#[derive(Clone, Debug)]
pub struct Device {
    pub(crate) context: Arc<Context>,
    facts: Arc<Facts>,
}

impl Device {
    /// Opens a device.
    ///
    /// # Errors
    /// `Unavailable` for an index that there is none of, or a device that is too old; `Call`.
    pub fn open(driver: &Driver, index: u32) -> Result<Self, CudaError> {
        Self::open_in(driver, index, None)
    }

    /// Opens the device that an address belongs to, in the context that it was allocated in; that
    /// context must outlive the device.
    ///
    /// # Errors
    /// `Misuse` where the driver does not know the address; as [`Device::open`].
    pub fn open_of(driver: &Driver, address: u64) -> Result<Self, CudaError> {
        let Some(pointer) = Pointer::of(&driver.api, address) else {
            let why = "CUDA does not know it, so it leads to no GPU";
            return Err(CudaError::Misuse(format!("address {address:#x}: {why}")));
        };
        let context = Some(pointer.context).filter(|context| !context.is_null());
        Self::open_in(driver, pointer.device, context)
    }

    /// Opens a device in a context of the caller's, else in its primary one.
    fn open_in(driver: &Driver, index: u32, own: Option<Opaque>) -> Result<Self, CudaError> {
        if index >= driver.devices() {
            let why = format!("the driver finds {}, counted from 0", driver.devices());
            let remedy = "name one of those, see nvidia-smi -L and CUDA_VISIBLE_DEVICES";
            return Err(CudaError::unavailable(format!("GPU {index}"), why, remedy));
        }
        let api = Arc::clone(&driver.api);
        let mut ordinal = 0;
        let wanted = c_int::try_from(index).expect("below a count that was an int");
        call!(api, device_get(&raw mut ordinal, wanted))?;
        let mut facts = facts(driver, index, ordinal)?;
        if facts.capability < (8, 0) {
            let why = format!("{} has compute capability {:?}", facts.name, facts.capability);
            let remedy = "use a GPU of capability 8.0 or newer (A100, RTX 30 and later)";
            return Err(CudaError::unavailable(format!("GPU {index}"), why, remedy));
        }
        let mut handle = std::ptr::null_mut();
        call!(api, context_retain(&raw mut handle, ordinal))?;
        let mut context = Context { api, handle, retained: Some(ordinal), id: None };
        if let Some(own) = own {
            // Where it is the primary one it stays retained, so that its handle stays one.
            if own != handle {
                let api = Arc::clone(&context.api);
                context = Context { api, handle: own, retained: None, id: None };
            }
            let mut id = 0;
            call!(context.api, context_id(own, &raw mut id))?;
            context.id = Some(id);
        }
        let context = Arc::new(context);
        context.enter()?;
        let (mut free, mut total) = (0, 0);
        call!(context.api, memory_free_and_total(&raw mut free, &raw mut total))?;
        facts.memory_bytes = total as u64;
        Ok(Self { context, facts: Arc::new(facts) })
    }

    /// What it is.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Bytes of device memory that are free now.
    ///
    /// # Errors
    /// `Call`.
    pub fn free_bytes(&self) -> Result<u64, CudaError> {
        self.context.enter()?;
        let (mut free, mut total) = (0_usize, 0_usize);
        call!(self.context.api, memory_free_and_total(&raw mut free, &raw mut total))?;
        Ok(free as u64)
    }

    /// The address by which kernels reach a byte of host memory, `None` where they do not: it was
    /// neither allocated nor registered with the driver.
    pub fn host_address(&self, address: u64) -> Option<u64> {
        /// Source: `CU_POINTER_ATTRIBUTE_DEVICE_POINTER`.
        const DEVICE_POINTER: c_int = 3;
        let _visit = self.context.visit().ok()?;
        let mut reached = 0_u64;
        let place = (&raw mut reached).cast();
        call!(self.context.api, pointer_attribute(place, DEVICE_POINTER, address)).ok()?;
        (reached != 0).then_some(reached)
    }

    /// First address and length of the allocation that an address of this process lies in, `None` where
    /// CUDA does not know it (plain host memory).
    pub fn allocation_of(&self, address: u64) -> Option<(u64, u64)> {
        /// Source: `CU_POINTER_ATTRIBUTE_RANGE_START_ADDR` and `CU_POINTER_ATTRIBUTE_RANGE_SIZE`.
        const START: c_int = 11;
        const BYTES: c_int = 12;
        let _visit = self.context.visit().ok()?;
        let (mut start, mut bytes) = (0_u64, 0_usize);
        let place = (&raw mut start).cast();
        call!(self.context.api, pointer_attribute(place, START, address)).ok()?;
        let place = (&raw mut bytes).cast();
        call!(self.context.api, pointer_attribute(place, BYTES, address)).ok()?;
        (start != 0 && bytes != 0).then_some((start, bytes as u64))
    }
}

fn facts(driver: &Driver, index: u32, ordinal: c_int) -> Result<Facts, CudaError> {
    let api = &driver.api;
    let get = |which: i32| {
        let mut value = 0;
        call!(api, device_attribute(&raw mut value, which, ordinal)).map(|()| value)
    };
    let mut name = [0; 256];
    call!(api, device_name(name.as_mut_ptr(), 255, ordinal))?;
    // SAFETY: the last byte was left 0, so the string ends inside.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    let mut uuid = [0; 16];
    call!(api, device_uuid(&raw mut uuid, ordinal))?;
    if get(attribute::UNIFIED_ADDRESSING)? == 0 {
        let remedy = "use a 64-bit Linux driver";
        return Err(CudaError::unavailable(name, "it has no unified addresses", remedy));
    }
    let write_ordering = match get(attribute::RDMA_WRITES_ORDERING).unwrap_or(0) {
        200.. => WriteOrdering::AllDevices,
        100.. => WriteOrdering::Owner,
        _ => WriteOrdering::Nobody,
    };
    Ok(Facts {
        name,
        index,
        uuid,
        pci: format!(
            "{:04x}:{:02x}:{:02x}",
            get(attribute::PCI_DOMAIN)?,
            get(attribute::PCI_BUS)?,
            get(attribute::PCI_DEVICE)?
        ),
        capability: (get(attribute::CAPABILITY_MAJOR)?, get(attribute::CAPABILITY_MINOR)?),
        multiprocessors: u32::try_from(get(attribute::MULTIPROCESSORS)?).unwrap_or(0),
        memory_bytes: 0,
        write_ordering,
        driver: crate::library::dotted(driver.version()),
    })
}
