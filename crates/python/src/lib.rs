//! The compiled part of the Python package `sidecore`: headers, capsules, memory, and calls of the engine.
//!
//! The package's face is Python (`python/sidecore`). What is here has the narrow interface that the face
//! needs: addresses and lengths in, numbers out. Who keeps which memory alive is decided in the face, by
//! references that are held here until a request has ended. Nothing here knows of torch, NumPy, CuPy or JAX.
//!
//! Every call that may take long releases the GIL, and looks for signals at least every 50 ms.

mod dlpack;
mod engine;
mod errors;
mod files;
mod header;
mod memory;
mod save;
mod waiting;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::engine::Handle;

/// The compiled part of the package `sidecore`.
#[pymodule]
mod _sidecore {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::dlpack::{DlpackMemory, dlpack_export, dlpack_import};
    #[pymodule_export]
    use super::engine::{Engine, Handle, no_counters};
    #[pymodule_export]
    use super::files::FileList;
    #[pymodule_export]
    use super::memory::{Memory, copy_bytes, prefer_huge_pages};
    #[pymodule_export]
    use super::read_header;
    #[pymodule_export]
    use super::save::Save;
    #[pymodule_export]
    use super::waiting::{Pending, Started};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

/// Name, type, shape, offset and bytes of a tensor.
type Listed = (String, String, Vec<u64>, u64, u64);

/// Tensors, and the metadata in the file's order.
type Read = (Vec<Listed>, Vec<(String, String)>);

/// The tensors of a safetensors file in the order of their data, and its metadata: of the file that is
/// open, whatever has its name by now.
#[pyfunction]
fn read_header(py: Python<'_>, handle: &Bound<'_, Handle>) -> PyResult<Read> {
    let handle = handle.get();
    let read = || {
        let file = handle.file().map_err(header::HeaderError::Io)?;
        header::read(&file)
    };
    let header = py.detach(read).map_err(|error| match error {
        header::HeaderError::Io(error) => errors::os(&error),
        header::HeaderError::Format(why) => PyValueError::new_err(why),
    })?;
    let entries = header.entries.into_iter();
    let listed = entries.map(|e| (e.name, e.dtype, e.shape, e.offset, e.bytes)).collect();
    Ok((listed, header.metadata))
}
