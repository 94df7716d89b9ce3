//! What the driver knows of an address: which memory it is of, how much, and whose.
// UNSAFETY: calls the driver.
#![expect(unsafe_code, reason = "calls the driver")]

use std::ffi::c_int;

use crate::api::{Api, Opaque, call};
use crate::device::Device;
use crate::error::CudaError;

/// Attributes of a pointer. Source: `CUpointer_attribute` in cuda.h.
mod attribute {
    pub const CONTEXT: i32 = 1;
    pub const MEMORY_TYPE: i32 = 2;
    pub const DEVICE_POINTER: i32 = 3;
    pub const HOST_POINTER: i32 = 4;
    pub const IS_MANAGED: i32 = 8;
    pub const DEVICE_ORDINAL: i32 = 9;
    pub const RANGE_START: i32 = 11;
    pub const RANGE_BYTES: i32 = 12;
    pub const POOL: i32 = 17;
}

/// Neighbouring allocations that a range may span (mappings of virtual memory side by side).
const NEIGHBOURS_MAX: u32 = 1 << 16;

/// Kinds of memory that the driver knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PointerKind {
    /// Device memory of an ordinary allocation, or of a pool.
    Device,
    /// Managed memory: it moves between device and host.
    Managed,
    /// Host memory that is pinned and mapped for the device.
    PinnedHost,
    /// Device memory that was mapped into a reserved range (`cuMemCreate`, `cuMemMap`).
    Virtual,
}

/// Memory that somebody allocated through the driver.
#[derive(Clone, Copy, Debug)]
pub struct Pointer {
    /// What kind of memory it is.
    pub kind: PointerKind,
    /// Index of its device, by the driver.
    pub device: u32,
    /// Where the device finds it.
    pub device_address: u64,
    /// Where the CPU finds it, if it can.
    pub host_address: Option<u64>,
    pub(crate) context: Opaque,
}

fn attribute<T>(api: &Api, which: c_int, address: u64, mut value: T) -> Result<T, CudaError> {
    let place = (&raw mut value).cast();
    call!(api, pointer_attribute(place, which, address))?;
    Ok(value)
}

impl Pointer {
    /// What the driver knows of an address; `None` where it does not know it (plain host memory).
    pub(crate) fn of(api: &Api, address: u64) -> Option<Self> {
        // Zero is the value of no memory type: a driver that answers nothing knows nothing.
        let memory: u32 = attribute(api, attribute::MEMORY_TYPE, address, 0).ok()?;
        let managed = attribute(api, attribute::IS_MANAGED, address, 0_u32).unwrap_or(0);
        let none: Opaque = std::ptr::null_mut();
        let context = attribute(api, attribute::CONTEXT, address, none).unwrap_or(none);
        let pool: u64 = attribute(api, attribute::POOL, address, 0).unwrap_or(0);
        // Source: `CUmemorytype` in cuda.h.
        let kind = match memory {
            _ if managed & 1 != 0 => PointerKind::Managed,
            1 => PointerKind::PinnedHost,
            2 if context.is_null() && pool == 0 => PointerKind::Virtual,
            2 => PointerKind::Device,
            _ => return None,
        };
        let device: c_int = attribute(api, attribute::DEVICE_ORDINAL, address, -1).ok()?;
        let device_address = attribute(api, attribute::DEVICE_POINTER, address, 0_u64);
        let on_host = matches!(kind, PointerKind::Managed | PointerKind::PinnedHost);
        let host_address = attribute(api, attribute::HOST_POINTER, address, 0_u64);
        Some(Self {
            kind,
            device: u32::try_from(device).ok()?,
            device_address: device_address.unwrap_or(address),
            host_address: host_address.ok().filter(|host| on_host && *host != 0),
            context,
        })
    }
}

/// How many bytes from an address on are allocated, as far as `wanted`.
fn allocated(api: &Api, address: u64, wanted: u64) -> Result<u64, CudaError> {
    let mut found = 0;
    for _ in 0..NEIGHBOURS_MAX {
        let at = address.saturating_add(found);
        let start: u64 = attribute(api, attribute::RANGE_START, at, 0)?;
        let bytes: u64 = attribute(api, attribute::RANGE_BYTES, at, 0)?;
        let end = start.saturating_add(bytes);
        if end <= at {
            break;
        }
        found = end - address;
        if found >= wanted {
            return Ok(wanted);
        }
        if Pointer::of(api, end).is_none() {
            break;
        }
    }
    Ok(found)
}

impl Device {
    /// What the driver knows of `bytes` bytes that somebody else allocated.
    ///
    /// # Errors
    /// `Misuse` where it does not know them, where they are of another device, or where the
    /// allocation ends before they do.
    pub fn pointer(&self, address: u64, bytes: u64) -> Result<Pointer, CudaError> {
        let _visit = self.context.visit()?;
        let api = &self.context.api;
        let range = format!("{bytes} bytes at {address:#x}");
        let misuse = |why: String| CudaError::Misuse(format!("{range}: {why}"));
        let Some(pointer) = Pointer::of(api, address) else {
            let why = "CUDA does not know them; pin host memory by cudaHostRegister first";
            return Err(misuse(why.to_owned()));
        };
        let own = self.facts().index;
        if pointer.device != own && pointer.kind != PointerKind::PinnedHost {
            return Err(misuse(format!("they are of GPU {}, this is GPU {own}", pointer.device)));
        }
        let found = allocated(api, address, bytes)?;
        if found < bytes {
            return Err(misuse(format!("the allocation ends after {found} of them")));
        }
        Ok(pointer)
    }
}
