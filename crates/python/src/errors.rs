//! The engine's errors as the package's exceptions.

use std::ffi::OsStr;
use std::path::Path;

use bulk::BulkError;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

/// The package's exception for an error of the engine: its classes live in `sidecore._errors`.
pub fn engine(py: Python<'_>, error: &BulkError) -> PyErr {
    make(py, (error.code(), &error.to_string(), error.errno(), None))
}

/// The same for what was done with a file.
pub fn of_file(py: Python<'_>, error: &BulkError, path: &Path) -> PyErr {
    make(py, (error.code(), &error.to_string(), error.errno(), Some(path.as_os_str())))
}

/// A transfer of a process that this one was forked from.
pub fn forked(py: Python<'_>, parent: u32) -> PyErr {
    let why = format!("the transfer belongs to process {parent}, of which this one is a fork");
    make(py, ("forked", &why, None, None))
}

/// Code, text, the system's number, the file.
type Made<'a> = (&'a str, &'a str, Option<i32>, Option<&'a OsStr>);

fn make(py: Python<'_>, arguments: Made<'_>) -> PyErr {
    let made = py
        .import("sidecore._errors")
        .and_then(|module| module.getattr("of_engine")?.call1(arguments));
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
pub fn named(error: &std::io::Error, path: &Path) -> PyErr {
    let number = error.raw_os_error().unwrap_or(0);
    PyOSError::new_err((number, error.to_string(), path.to_path_buf()))
}
