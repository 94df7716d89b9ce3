//! Shared memory of a block: objects made at their first use, found again by their key.
// UNSAFETY: hands raw memory to device code.
#![expect(unsafe_code, reason = "raw memory of device code")]

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;

/// What a fresh object holds: nothing that a kernel may rely on.
const POISON: u8 = 0xa5;
/// Bytes an object may have; more than any real GPU's block.
const OBJECT_BYTES_MAX: usize = 1 << 20;

struct Object {
    key: usize,
    layout: Layout,
    memory: NonNull<u8>,
}

/// The objects of one block. Freed with the block.
#[derive(Default)]
pub(crate) struct SharedMemory {
    objects: Vec<Object>,
}

impl SharedMemory {
    /// Address of the object `key`; `None` where it is impossible or differs from its first use.
    pub(crate) fn object(&mut self, key: usize, bytes: usize, align: usize) -> Option<u64> {
        let layout = Layout::from_size_align(bytes, align).ok()?;
        if bytes == 0 || bytes > OBJECT_BYTES_MAX {
            return None;
        }
        if let Some(object) = self.objects.iter().find(|object| object.key == key) {
            return (object.layout == layout).then(|| object.memory.addr().get() as u64);
        }
        // SAFETY: `bytes` is not 0, checked above.
        let memory = NonNull::new(unsafe { alloc(layout) })?;
        // SAFETY: `memory` was allocated with `bytes` bytes just now.
        unsafe { memory.write_bytes(POISON, bytes) };
        let address = memory.as_ptr().expose_provenance() as u64;
        self.objects.push(Object { key, layout, memory });
        Some(address)
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        for object in &self.objects {
            // SAFETY: allocated in `object` with this layout; the block's lanes run no more.
            unsafe { dealloc(object.memory.as_ptr(), object.layout) };
        }
    }
}
