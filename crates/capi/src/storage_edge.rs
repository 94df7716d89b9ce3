//! Storages: memory and files, with faults where they are wanted.
// UNSAFETY: exported C functions.
#![expect(unsafe_code, reason = "functions that C calls")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::Arc;
use std::time::Instant;

use storage::faults::FaultScript;
use storage::{Faulty, FileOptions, FileStorage, MemoryStorage, Storage};

use crate::failure::{Failure, c_text, guard, swallow};
use crate::handle::{borrow, destroy, name_of_file, place, text};

/// Something with bytes that a controller or a ring reads and writes.
pub struct sidecore_storage {
    pub(crate) storage: Arc<dyn Storage>,
    about: CString,
}

impl sidecore_storage {
    pub(crate) fn new(storage: Arc<dyn Storage>) -> Self {
        let about = c_text(&storage.explain());
        Self { storage, about }
    }
}

/// Storage of zero bytes in host memory; `base`, which may be null, gets its first byte, where the
/// caller may read and write it as long as the handle lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_storage_memory(
    bytes: u64,
    base: *mut *mut c_void,
    storage: *mut *mut sidecore_storage,
) -> c_int {
    guard(|| {
        // SAFETY: the rule for pointers, see the crate's documentation; so in all functions here.
        let handle = unsafe { place(storage, "storage") }?;
        let bytes = usize::try_from(bytes).map_err(|e| Failure::misuse(e.to_string()))?;
        let memory = MemoryStorage::new(bytes)?.with_lending();
        // SAFETY: as above; null is no place.
        if let Ok(place) = unsafe { place(base, "base") } {
            place.give(memory.region().as_ptr().cast());
        }
        handle.give_handle(sidecore_storage::new(Arc::new(memory)));
        Ok(())
    })
}

/// A regular file or a block device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_storage_file(
    path: *const c_char,
    storage: *mut *mut sidecore_storage,
) -> c_int {
    guard(|| {
        // SAFETY: as in `sidecore_storage_memory`.
        let place = unsafe { place(storage, "storage") }?;
        // SAFETY: as in `sidecore_storage_memory`.
        let path = unsafe { name_of_file(path, "path") }?;
        let file = FileStorage::open(path, &FileOptions::default())?;
        place.give_handle(sidecore_storage::new(Arc::new(file)));
        Ok(())
    })
}

/// The same storage with faults by a script, such as "late:ms=10,rate=0.02;lost:n=3".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_storage_faults(
    inner: *const sidecore_storage,
    script: *const c_char,
    storage: *mut *mut sidecore_storage,
) -> c_int {
    guard(|| {
        // SAFETY: as in `sidecore_storage_memory`.
        let place = unsafe { place(storage, "storage") }?;
        // SAFETY: as in `sidecore_storage_memory`.
        let inner = unsafe { borrow(inner, "inner") }?;
        // SAFETY: as in `sidecore_storage_memory`.
        let script: FaultScript = unsafe { text(script, "script") }?.parse()?;
        let start = Instant::now();
        let clock = move || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let faulty = Faulty::new(Arc::clone(&inner.storage), &script, Arc::new(clock));
        place.give_handle(sidecore_storage::new(Arc::new(faulty)));
        Ok(())
    })
}

/// Its length in bytes; 0 for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_storage_bytes(storage: *const sidecore_storage) -> u64 {
    // SAFETY: as in `sidecore_storage_memory`.
    unsafe { borrow(storage, "storage") }.map_or(0, |storage| storage.storage.geometry().bytes)
}

/// What it is and how it is read and written, as long as the handle lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_storage_about(storage: *const sidecore_storage) -> *const c_char {
    // SAFETY: as in `sidecore_storage_memory`.
    unsafe { borrow(storage, "storage") }.map_or(c"".as_ptr(), |storage| storage.about.as_ptr())
}

/// Destroys the handle; what uses the storage keeps it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_storage_close(storage: *mut sidecore_storage) {
    // SAFETY: as in `sidecore_storage_memory`.
    swallow(|| unsafe { destroy(storage, "storage") });
}
