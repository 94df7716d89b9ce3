//! Device memory that the CPU can store to, made by Vulkan and imported into CUDA.
//!
//! An allocation of memory that is DEVICE_LOCAL, HOST_VISIBLE and HOST_COHERENT is mapped by Vulkan
//! (a write-combining mapping through BAR1) and exported as an opaque descriptor, which CUDA imports
//! as plain device memory. No buffer is bound and the allocation is not dedicated: a buffer made for
//! export does not list that memory type, but the allocation itself exports all the same.
//!
//! CUDA's and Vulkan's device are matched by UUID. All of it happens before anything is served.
//!
//! Sources: Vulkan 1.1, `VK_KHR_external_memory_fd`; CUDA Driver API, external resources.
// UNSAFETY: calls Vulkan and the driver, and wraps what they map.
#![expect(unsafe_code, reason = "Vulkan is unsafe throughout; its mappings become regions")]

use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use ash::vk;
use mem::{MemoryKind, Region};

use crate::api::{ExternalBuffer, ExternalHandle, ExternalMemory, Opaque, call};
use crate::device::{Context, Device, WriteOrdering};
use crate::error::CudaError;

/// Allocations are rounded up to this, a page of the device.
const PAGE_BYTES: u64 = 2 << 20;
/// What the memory must be.
const FLAGS: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::from_raw(
    vk::MemoryPropertyFlags::DEVICE_LOCAL.as_raw()
        | vk::MemoryPropertyFlags::HOST_VISIBLE.as_raw()
        | vk::MemoryPropertyFlags::HOST_COHERENT.as_raw(),
);

/// Makes device memory with a CPU mapping.
#[derive(Clone, Debug)]
pub struct Window {
    context: Arc<Context>,
    vulkan: Arc<Vulkan>,
}

/// A window's memory: both addresses of the same bytes.
#[derive(Clone, Debug)]
pub struct WindowMemory {
    /// Device address of the first byte.
    pub address: u64,
    /// The CPU's mapping, which keeps the memory.
    pub region: Region,
}

fn no_window(why: impl std::fmt::Display, remedy: &str) -> CudaError {
    CudaError::unavailable("the window onto device memory", why.to_string(), remedy)
}

const REMEDY_ICD: &str = "install NVIDIA's Vulkan driver and libvulkan1; in a container add the driver \
                          capability graphics (NVIDIA_DRIVER_CAPABILITIES=all)";
const REMEDY_BAR: &str = "enable resizable BAR (large BAR1); without MIG, which has no graphics";

impl Window {
    /// Opens Vulkan's side of a device.
    ///
    /// # Errors
    /// `Unavailable`, with the reason, where there is no window.
    pub fn open(device: &Device) -> Result<Self, CudaError> {
        if device.facts().write_ordering < WriteOrdering::Owner {
            let why = "this device does not order the CPU's stores for its own kernels";
            return Err(no_window(why, "use a GPU of compute capability 8.0 or newer"));
        }
        let vulkan = Arc::new(Vulkan::open(device.facts().uuid)?);
        Ok(Self { context: Arc::clone(&device.context), vulkan })
    }

    /// Bytes of the heap that can be mapped.
    pub fn heap_bytes(&self) -> u64 {
        self.vulkan.heap_bytes
    }

    /// Why so many bytes can never be mapped, where they cannot.
    pub fn too_long(&self, bytes: u64) -> Option<String> {
        let (size, heap) = (bytes.max(1).next_multiple_of(PAGE_BYTES), self.vulkan.heap_bytes);
        (size > heap).then(|| format!("{size} bytes are more than the {heap} of BAR1"))
    }

    /// Allocates memory; what is in it is unknown.
    ///
    /// # Errors
    /// `Unavailable` where the heap is too small or the mapping is refused, `Call` for the import.
    pub fn allocate(&self, bytes: u64) -> Result<WindowMemory, CudaError> {
        let size = bytes.max(1).next_multiple_of(PAGE_BYTES);
        if let Some(why) = self.too_long(bytes) {
            return Err(no_window(why, REMEDY_BAR));
        }
        let mapping = Mapping::new(&self.vulkan, size)?;
        self.context.enter()?;
        let import = Import::new(&self.context, &mapping, size)?;
        let address = import.address;
        let base = mapping.base;
        let len = usize::try_from(bytes).map_err(|e| CudaError::Misuse(e.to_string()))?;
        // The import goes before the mapping: fields drop in order.
        let owner = Arc::new(Both { _import: import, _mapping: mapping });
        // SAFETY: Vulkan mapped `size >= bytes` bytes at `base` until `owner` unmaps them; nobody
        // else knows the address.
        let region = unsafe { Region::from_raw(base, len, MemoryKind::Window, owner) };
        Ok(WindowMemory { address, region })
    }
}

struct Both {
    _import: Import,
    _mapping: Mapping,
}

/// CUDA's side of an allocation.
struct Import {
    context: Arc<Context>,
    external: Opaque,
    address: u64,
}

// SAFETY: handles may be used and freed from any thread; the driver locks.
unsafe impl Send for Import {}
// SAFETY: no method takes `&self`.
unsafe impl Sync for Import {}

impl Import {
    fn new(context: &Arc<Context>, mapping: &Mapping, size: u64) -> Result<Self, CudaError> {
        let fd = mapping.export()?;
        let handle = ExternalHandle { fd, rest: [0; 3] };
        let import = ExternalMemory { kind: 1, handle, bytes: size, flags: 0, reserved: [0; 16] };
        let mut external = std::ptr::null_mut();
        // On success the descriptor is the driver's.
        if let Err(error) =
            call!(context.api, external_import(&raw mut external, &raw const import))
        {
            // SAFETY: Vulkan made the descriptor for us, and nobody took it.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
            return Err(error);
        }
        let mut made = Self { context: Arc::clone(context), external, address: 0 };
        let buffer = ExternalBuffer { offset: 0, bytes: size, flags: 0, reserved: [0; 16] };
        call!(context.api, external_map(&raw mut made.address, external, &raw const buffer))?;
        Ok(made)
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        if self.context.enter().is_err() {
            return;
        }
        if self.address != 0 {
            let _lost = call!(self.context.api, memory_free(self.address));
        }
        let _lost = call!(self.context.api, external_destroy(self.external));
    }
}

/// Vulkan's side of an allocation, mapped.
struct Mapping {
    vulkan: Arc<Vulkan>,
    memory: vk::DeviceMemory,
    base: NonNull<u8>,
}

// SAFETY: the mapping is the process's; Vulkan's calls on it are made by the one owner.
unsafe impl Send for Mapping {}
// SAFETY: `&self` is only used for exporting, which the owner does once.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(vulkan: &Arc<Vulkan>, size: u64) -> Result<Self, CudaError> {
        let mut export = vk::ExportMemoryAllocateInfo::default()
            .handle_types(vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD);
        let allocate = vk::MemoryAllocateInfo::default()
            .allocation_size(size)
            .memory_type_index(vulkan.memory_type)
            .push_next(&mut export);
        let failed = |e: vk::Result| no_window(format!("{size} bytes of it: {e}"), REMEDY_BAR);
        // SAFETY: the device is alive in `vulkan`, and the structures live until the call returns.
        let memory = unsafe { vulkan.device.allocate_memory(&allocate, None) }.map_err(failed)?;
        let whole = vk::WHOLE_SIZE;
        let flags = vk::MemoryMapFlags::empty();
        // SAFETY: the memory is host visible by its type, and not mapped yet.
        let mapped = unsafe { vulkan.device.map_memory(memory, 0, whole, flags) };
        let base = mapped.map(|pointer| NonNull::new(pointer.cast::<u8>()));
        match base {
            Ok(Some(base)) => Ok(Self { vulkan: Arc::clone(vulkan), memory, base }),
            other => {
                // SAFETY: allocated above, not mapped, and forgotten here.
                unsafe { vulkan.device.free_memory(memory, None) };
                let why = other.err().map_or("mapped at null".to_owned(), |e| e.to_string());
                Err(no_window(format!("mapping {size} bytes: {why}"), REMEDY_BAR))
            }
        }
    }

    /// A descriptor of the memory, for the caller to give away.
    fn export(&self) -> Result<i32, CudaError> {
        let get = vk::MemoryGetFdInfoKHR::default()
            .memory(self.memory)
            .handle_type(vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD);
        // SAFETY: the memory is alive and was allocated for this kind of handle.
        unsafe { self.vulkan.external.get_memory_fd(&get) }
            .map_err(|e| no_window(format!("exporting: {e}"), REMEDY_ICD))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and no region points into it any more.
        unsafe { self.vulkan.device.unmap_memory(self.memory) };
        // SAFETY: allocated in `new`; CUDA's import is gone, since it drops before.
        unsafe { self.vulkan.device.free_memory(self.memory, None) };
    }
}

/// An instance and a device of Vulkan.
struct Vulkan {
    external: ash::khr::external_memory_fd::Device,
    device: ash::Device,
    instance: Instance,
    memory_type: u32,
    heap_bytes: u64,
}

impl std::fmt::Debug for Vulkan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vulkan").field("memory_type", &self.memory_type).finish_non_exhaustive()
    }
}

struct Instance {
    raw: ash::Instance,
    /// Keeps the loader.
    _entry: ash::Entry,
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: the device made from it is destroyed first, by `Vulkan`'s drop.
        unsafe { self.raw.destroy_instance(None) };
    }
}

impl Instance {
    fn open() -> Result<Self, CudaError> {
        // SAFETY: initialisers of the system's Vulkan loader; it is meant to be loaded so.
        let entry = unsafe { ash::Entry::load() }.map_err(|e| {
            no_window(format!("no Vulkan loader: {}", first(&e.to_string())), REMEDY_ICD)
        })?;
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_1);
        let create = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: the structures live until the call returns; the entry is kept.
        let raw = unsafe { entry.create_instance(&create, None) }
            .map_err(|e| no_window(format!("no Vulkan instance: {e}"), REMEDY_ICD))?;
        Ok(Self { raw, _entry: entry })
    }

    /// The device of a UUID.
    fn find(&self, uuid: [u8; 16]) -> Result<vk::PhysicalDevice, CudaError> {
        // SAFETY: the instance is alive.
        let devices = unsafe { self.raw.enumerate_physical_devices() }
            .map_err(|e| no_window(format!("Vulkan's devices: {e}"), REMEDY_ICD))?;
        let count = devices.len();
        for device in devices {
            let mut id = vk::PhysicalDeviceIDProperties::default();
            let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut id);
            // SAFETY: the device is of this instance, and both structures live.
            unsafe { self.raw.get_physical_device_properties2(device, &mut properties) };
            if id.device_uuid == uuid {
                return Ok(device);
            }
        }
        let why = format!("none of Vulkan's {count} devices has this GPU's UUID");
        Err(no_window(why, REMEDY_ICD))
    }

    /// The first memory type that fits, and its heap's size.
    fn memory_type(&self, device: vk::PhysicalDevice) -> Result<(u32, u64), CudaError> {
        // SAFETY: the device is of this instance.
        let memory = unsafe { self.raw.get_physical_device_memory_properties(device) };
        let types = memory.memory_types_as_slice();
        let fits = types.iter().zip(0..).find(|(kind, _)| kind.property_flags.contains(FLAGS));
        let (kind, index) = fits.ok_or_else(|| {
            no_window("no device memory of this GPU is visible to the CPU", REMEDY_BAR)
        })?;
        let heap = memory.memory_heaps_as_slice().get(kind.heap_index as usize);
        Ok((index, heap.map_or(0, |heap| heap.size)))
    }
}

impl Vulkan {
    fn open(uuid: [u8; 16]) -> Result<Self, CudaError> {
        let instance = Instance::open()?;
        let physical = instance.find(uuid)?;
        let (memory_type, heap_bytes) = instance.memory_type(physical)?;
        let priorities = [1.0];
        let queue = vk::DeviceQueueCreateInfo::default().queue_priorities(&priorities);
        let extensions = [ash::khr::external_memory_fd::NAME.as_ptr()];
        let create = vk::DeviceCreateInfo::default()
            .queue_create_infos(std::slice::from_ref(&queue))
            .enabled_extension_names(&extensions);
        // SAFETY: the physical device is of this instance; the structures live until it returns.
        let device = unsafe { instance.raw.create_device(physical, &create, None) }
            .map_err(|e| no_window(format!("Vulkan's device: {e}"), REMEDY_ICD))?;
        let external = ash::khr::external_memory_fd::Device::new(&instance.raw, &device);
        Ok(Self { external, device, instance, memory_type, heap_bytes })
    }
}

impl Drop for Vulkan {
    fn drop(&mut self) {
        // SAFETY: every mapping holds an Arc of `self`, so none is left.
        unsafe { self.device.destroy_device(None) };
        // `instance` goes after this.
        let _ = &self.instance;
    }
}

fn first(text: &str) -> String {
    crate::library::first_line(text)
}
