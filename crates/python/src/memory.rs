//! Memory by its address: what the face of the package hands over, and what it gets.
//!
//! The face finds out where an array lies and hands over address, length and the object that keeps it. The
//! address is believed: that is the contract of array interfaces and of DLPack.
// UNSAFETY: memory of Python objects becomes regions, by its address.
#![expect(unsafe_code, reason = "array interfaces and DLPack name memory by its address")]

use std::ptr::NonNull;
use std::sync::Arc;

use bulk::{BulkError, Place};
use gpu::{DeviceMemory, Gpu};
use mem::{MemoryKind, Region};
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors;

/// Host memory at an address; the caller holds the object that keeps it.
fn region(address: u64, bytes: u64) -> Result<Region, BulkError> {
    let misuse = || BulkError::Misuse(format!("{bytes} bytes at address {address:#x}"));
    let len = usize::try_from(bytes).map_err(|_| misuse())?;
    let address = usize::try_from(address).map_err(|_| misuse())?;
    let base = match NonNull::new(std::ptr::with_exposed_provenance_mut(address)) {
        Some(base) => base,
        None if len == 0 => NonNull::dangling(),
        None => return Err(misuse()),
    };
    // SAFETY: an object said by its array interface, buffer or capsule that this range is its memory. It
    // is held until the transfer has ended (`engine::Pending`, and callers that wait), and by the
    // package's documentation nobody resizes it meanwhile.
    Ok(unsafe { Region::from_raw(base, len, MemoryKind::Host, Arc::new(())) })
}

/// Memory of an array: on a GPU, or on the host. The caller holds what keeps it.
///
/// Objects of Python are not handed to the engine: its threads would have to take the GIL to let them go.
pub fn place(address: u64, bytes: u64, on_device: bool) -> Result<Place, BulkError> {
    if on_device {
        return Ok(Place::device(address, bytes));
    }
    region(address, bytes).map(Place::host)
}

/// Copies host memory that `owner` keeps.
#[pyfunction]
pub fn copy_bytes<'py>(
    py: Python<'py>,
    address: u64,
    bytes: u64,
    owner: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyBytes>> {
    let _kept_by_the_caller = owner;
    let region = region(address, bytes).map_err(|e| errors::engine(py, &e))?;
    PyBytes::new_with(py, region.len_bytes(), |target| {
        region.read_bytes(0, target);
        Ok(())
    })
}

/// Asks for huge pages under new host memory, which the caller keeps.
#[pyfunction]
pub fn prefer_huge_pages(py: Python<'_>, address: u64, bytes: u64) -> PyResult<()> {
    region(address, bytes).map_err(|e| errors::engine(py, &e))?.prefer_huge_pages();
    Ok(())
}

/// The numbers of an array of 64-bit ones, which the caller keeps.
pub fn numbers(address: u64, count: u64) -> Result<Vec<u64>, BulkError> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let region = region(address, count.saturating_mul(8))?;
    let mut words = vec![0_u64; region.len_bytes() / 8];
    // SAFETY: the vector's own memory, of which any bytes are numbers.
    let bytes = unsafe {
        std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), region.len_bytes())
    };
    region.read_bytes(0, bytes);
    Ok(words)
}

enum Kept {
    Device { _memory: DeviceMemory },
    Host { _region: Region },
}

/// Memory of this package's own.
#[pyclass(frozen, module = "sidecore._sidecore")]
pub struct Memory {
    /// Address of the first byte.
    #[pyo3(get)]
    address: u64,
    /// Length in bytes.
    #[pyo3(get)]
    nbytes: u64,
    _kept: Kept,
}

impl Memory {
    /// Host memory, page aligned, zeroed.
    pub fn host(bytes: u64) -> PyResult<Self> {
        let no_room = |why: String| PyMemoryError::new_err(why);
        let len = usize::try_from(bytes).map_err(|e| no_room(e.to_string()))?;
        let region = Region::map_private(len).map_err(|e| no_room(e.to_string()))?;
        let address = region.address();
        Ok(Self { address, nbytes: bytes, _kept: Kept::Host { _region: region } })
    }

    /// Device memory, zeroed.
    pub fn device(gpu: &dyn Gpu, bytes: u64) -> PyResult<Self> {
        let memory =
            gpu.allocate_device(bytes).map_err(|e| PyMemoryError::new_err(e.to_string()))?;
        let address = memory.address;
        Ok(Self { address, nbytes: bytes, _kept: Kept::Device { _memory: memory } })
    }
}
