//! The engine's errors as the package's exceptions.

use bulk::BulkError;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

/// The package's exception for an error of the engine: its classes live in `sidecore._errors`.
pub fn engine(py: Python<'_>, error: &BulkError) -> PyErr {
    let made = py.import("sidecore._errors").and_then(|module| {
        let arguments = (error.code(), error.to_string(), error.errno());
        module.getattr("of_engine")?.call1(arguments)
    });
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(failed) => failed,
    }
}

/// Python's own exception for an error of the system, with its number.
pub fn os(error: &std::io::Error) -> PyErr {
    /// Source: `EIO` of Linux, for errors that never were the system's.
    const EIO: i32 = 5;
    PyOSError::new_err((error.raw_os_error().unwrap_or(EIO), error.to_string()))
}

/// The same with the file's name.
pub fn named(error: &std::io::Error, path: &std::path::Path) -> PyErr {
    let number = error.raw_os_error().unwrap_or(0);
    PyOSError::new_err((number, error.to_string(), path.to_path_buf()))
}
