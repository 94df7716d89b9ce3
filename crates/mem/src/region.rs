//! A range of foreign memory that is kept alive by whoever holds it.
// UNSAFETY: raw accesses to mappings that others write.
#![expect(unsafe_code, reason = "raw accesses to foreign memory; bounds are checked here")]

use std::any::Any;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Weak};

use rustix::fd::AsFd;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::cell::{SharedRows, SharedU32, SharedU64, SharedWords};
use crate::{streaming, streaming_loads};

/// Where a region lies, which decides how stores to it may be ordered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryKind {
    /// Ordinary write-back host memory.
    Host,
    /// Device memory as the CPU sees it through a window: write combining, write only.
    Window,
}

/// What can go wrong with foreign memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemError {
    /// The operating system gave no memory. Remedy: ask for less, or raise the limit it names.
    #[error("mapping {bytes} bytes of memory: {source}")]
    Map {
        /// How much was asked for.
        bytes: usize,
        /// The system's own error.
        source: std::io::Error,
    },
    /// A range does not lie inside the region. Remedy: fix the offset or the length.
    #[error("bytes {offset}..{offset}+{bytes} do not lie inside a region of {len} bytes")]
    OutOfRange {
        /// First byte asked for.
        offset: usize,
        /// How many.
        bytes: usize,
        /// Length of the region.
        len: usize,
    },
    /// The address range is registered already. Remedy: deregister it first.
    #[error("addresses {address:#x}..+{bytes:#x} overlap a registered region")]
    Overlap {
        /// First address.
        address: u64,
        /// How many bytes.
        bytes: usize,
    },
}

/// A range of foreign memory; clones share it, and the last one to go unmaps it.
#[derive(Clone)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    kind: MemoryKind,
    /// Keeps the mapping alive.
    owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: all access is atomic or a raw copy of memory that is shared by design; `owner` is Send.
unsafe impl Send for Region {}
// SAFETY: as above; `owner` is Sync.
unsafe impl Sync for Region {}

struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is process-wide; unmapping from another thread is allowed.
unsafe impl Send for Mapping {}
// SAFETY: no method takes `&self`.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `base` and `len` are what mmap returned in `map_anonymous` or `map_file`; the last `Region`
        // that pointed into it is gone, since each holds an Arc of this value.
        let result = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(result.is_ok(), "munmap of our own mapping succeeds");
    }
}

impl Region {
    /// Maps zeroed anonymous memory that is shared with forked and foreign users, page aligned.
    ///
    /// # Errors
    /// [`MemError::Map`] where the system has no room.
    pub fn map_anonymous(bytes: usize, kind: MemoryKind) -> Result<Self, MemError> {
        let len = bytes.max(1).next_multiple_of(4096);
        // SAFETY: a new mapping at an address that the kernel chooses touches nothing of ours.
        let pointer = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
            )
        }
        .map_err(|e| MemError::Map { bytes, source: e.into() })?;
        let base = NonNull::new(pointer.cast::<u8>()).expect("mmap never returns null");
        let owner = Arc::new(Mapping { base, len });
        Ok(Self { base, len: bytes, kind, owner })
    }

    /// Maps zeroed memory of this process alone, page aligned, in huge pages where the system has them.
    ///
    /// # Errors
    /// [`MemError::Map`] where the system has no room.
    pub fn map_private(bytes: usize) -> Result<Self, MemError> {
        let len = bytes.max(1).next_multiple_of(4096);
        // SAFETY: a new mapping at an address that the kernel chooses touches nothing of ours.
        let pointer = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(|e| MemError::Map { bytes, source: e.into() })?;
        // SAFETY: the range was mapped just now. Small pages do as well, so a refusal is no error.
        let _small_pages = unsafe { madvise(pointer, len, Advice::LinuxHugepage) };
        let base = NonNull::new(pointer.cast::<u8>()).expect("mmap never returns null");
        let owner = Arc::new(Mapping { base, len });
        Ok(Self { base, len: bytes, kind: MemoryKind::Host, owner })
    }

    /// Enters all pages into this process's tables now, those of a file as they are in the page cache, rather
    /// than at their first use. Where the system cannot, they come as they are used.
    pub fn populate(&self) {
        let first = self.as_ptr().map_addr(|address| address & !4095);
        let bytes = self.len + (self.as_ptr().addr() - first.addr());
        // SAFETY: pages are mapped as wholes, as long as `self`; what they hold does not change.
        let _as_used = unsafe { madvise(first.cast(), bytes, Advice::LinuxPopulateRead) };
    }

    /// Keeps its pages out of children that are forked later: a device that works with pinned pages must
    /// never be left with the child's copy of them. Whole pages of a mapping of its own only; elsewhere,
    /// and where the system refuses, nothing changes.
    pub fn keep_from_children(&self) {
        let whole = self.address().is_multiple_of(4096) && self.len.is_multiple_of(4096);
        if whole {
            // SAFETY: the range is mapped as long as `self`; what a child sees is no business of this
            // process, which loses nothing.
            let _refused =
                unsafe { madvise(self.as_ptr().cast(), self.len, Advice::LinuxDontFork) };
        }
    }

    /// Asks for huge pages where its pages have not been touched yet: new memory is then there after far
    /// fewer faults. The whole huge pages inside of it only; where the system refuses, nothing changes.
    pub fn prefer_huge_pages(&self) {
        /// Source: Linux on x86-64.
        const HUGE_BYTES: usize = 2 << 20;
        let address = self.base.addr().get();
        let first = address.next_multiple_of(HUGE_BYTES) - address;
        let bytes = self.len.saturating_sub(first) / HUGE_BYTES * HUGE_BYTES;
        if self.kind == MemoryKind::Host && bytes > 0 {
            let pointer = self.pointer(first, bytes);
            // SAFETY: the range is mapped as long as `self`, and keeps its bytes.
            let _refused = unsafe { madvise(pointer.cast(), bytes, Advice::LinuxHugepage) };
        }
    }

    /// Maps the first `bytes` bytes of a file, readable and writable, shared with whoever maps it.
    ///
    /// The file must stay that long: touching a page beyond its end raises SIGBUS. So map only files
    /// that this user alone can write.
    ///
    /// # Errors
    /// [`MemError::Map`] where the system refuses (the descriptor is not open for both).
    pub fn map_file(file: impl AsFd, bytes: usize) -> Result<Self, MemError> {
        let len = bytes.max(1).next_multiple_of(4096);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses touches nothing of ours.
        let pointer =
            unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0) }
                .map_err(|e| MemError::Map { bytes, source: e.into() })?;
        let base = NonNull::new(pointer.cast::<u8>()).expect("mmap never returns null");
        let owner = Arc::new(Mapping { base, len });
        Ok(Self { base, len: bytes, kind: MemoryKind::Host, owner })
    }

    /// Wraps memory that somebody else mapped; `owner` keeps it mapped.
    ///
    /// # Safety
    /// * `base..base + len` is mapped readable and writable for as long as `owner` lives.
    /// * Nobody holds a Rust reference into it other than atomics.
    pub unsafe fn from_raw(
        base: NonNull<u8>,
        len: usize,
        kind: MemoryKind,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self { base, len, kind, owner }
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        self.base.as_ptr().addr() as u64
    }

    /// Pointer to the first byte, for handing to a kernel or a device.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len
    }

    /// Where it lies.
    pub fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// Whether the other is the same range.
    pub fn is_same(&self, other: &Self) -> bool {
        self.base == other.base && self.len == other.len
    }

    /// A part of this region that keeps the whole alive.
    ///
    /// # Errors
    /// [`MemError::OutOfRange`].
    pub fn slice(&self, offset: usize, bytes: usize) -> Result<Self, MemError> {
        self.check(offset, bytes)?;
        // SAFETY: `offset <= len` was checked by the line above, so this stays in the mapping.
        let base = unsafe { self.base.add(offset) };
        Ok(Self { base, len: bytes, kind: self.kind, owner: Arc::clone(&self.owner) })
    }

    /// The same range to be lent: it keeps this region, and who has it is counted apart.
    pub(crate) fn lent(&self) -> Self {
        Self { base: self.base, len: self.len, kind: self.kind, owner: Arc::new(self.clone()) }
    }

    /// How many share it: clones and slices, itself among them.
    pub(crate) fn holders(&self) -> usize {
        Arc::strong_count(&self.owner)
    }

    /// The same range without keeping it alive.
    pub fn downgrade(&self) -> WeakRegion {
        let owner = Arc::downgrade(&self.owner);
        WeakRegion { base: self.base, len: self.len, kind: self.kind, owner }
    }

    /// Checks that a range lies inside.
    ///
    /// # Errors
    /// [`MemError::OutOfRange`].
    #[inline]
    pub fn check(&self, offset: usize, bytes: usize) -> Result<(), MemError> {
        if offset.checked_add(bytes).is_some_and(|end| end <= self.len) {
            Ok(())
        } else {
            Err(MemError::OutOfRange { offset, bytes, len: self.len })
        }
    }

    #[inline]
    fn pointer(&self, offset: usize, bytes: usize) -> *mut u8 {
        if offset.checked_add(bytes).is_none_or(|end| end > self.len) {
            out_of_range(offset, bytes, self.len);
        }
        // SAFETY: the check above holds `offset + bytes <= len`.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// The aligned word at a byte offset.
    ///
    /// # Panics
    /// Where the offset is outside or not a multiple of 8 from an aligned base.
    #[inline]
    pub fn u64_at(&self, offset: usize) -> SharedU64<'_> {
        let pointer = self.pointer(offset, 8).cast::<AtomicU64>();
        if !pointer.is_aligned() {
            unaligned(offset);
        }
        // SAFETY: in bounds and aligned by the checks above; alive as long as `self`; only atomics
        // and raw copies ever touch it.
        SharedU64::new(unsafe { &*pointer })
    }

    /// The `N` aligned words from a byte offset on: one check for all.
    ///
    /// # Panics
    /// As [`Region::u64_at`].
    #[inline]
    pub fn words_at<const N: usize>(&self, offset: usize) -> [SharedU64<'_>; N] {
        let pointer = self.pointer(offset, N * 8).cast::<[AtomicU64; N]>();
        if !pointer.is_aligned() {
            unaligned(offset);
        }
        // SAFETY: as in `u64_at`, for all `N` words.
        unsafe { &*pointer }.each_ref().map(SharedU64::new)
    }

    /// The `count` aligned words from a byte offset on, each found by its position among them.
    ///
    /// # Panics
    /// As [`Region::u64_at`].
    #[inline]
    pub fn words(&self, offset: usize, count: usize) -> SharedWords<'_> {
        let pointer = self.pointer(offset, count.saturating_mul(8)).cast::<AtomicU64>();
        if !pointer.is_aligned() {
            unaligned(offset);
        }
        // SAFETY: as in `u64_at`, for all `count` words.
        SharedWords::new(unsafe { std::slice::from_raw_parts(pointer, count) })
    }

    /// The `count` rows of `N` aligned words from a byte offset on, each found by its position.
    ///
    /// # Panics
    /// As [`Region::u64_at`].
    #[inline]
    pub fn rows<const N: usize>(&self, offset: usize, count: usize) -> SharedRows<'_, N> {
        let bytes = count.saturating_mul(N * 8);
        let pointer = self.pointer(offset, bytes).cast::<[AtomicU64; N]>();
        if !pointer.is_aligned() {
            unaligned(offset);
        }
        // SAFETY: as in `u64_at`, for all words of `count` rows.
        SharedRows::new(unsafe { std::slice::from_raw_parts(pointer, count) })
    }

    /// The aligned half word at a byte offset.
    ///
    /// # Panics
    /// Where the offset is outside or not a multiple of 4 from an aligned base.
    #[inline]
    pub fn u32_at(&self, offset: usize) -> SharedU32<'_> {
        let pointer = self.pointer(offset, 4).cast::<AtomicU32>();
        if !pointer.is_aligned() {
            unaligned(offset);
        }
        // SAFETY: as in `u64_at`.
        SharedU32::new(unsafe { &*pointer })
    }

    /// Copies bytes out of the region. What others write meanwhile may be seen in part. Out of a window,
    /// by streaming loads of whole lines, as far as they are whole.
    ///
    /// # Panics
    /// Where the range is outside.
    pub fn read_bytes(&self, offset: usize, target: &mut [u8]) {
        let source = self.pointer(offset, target.len());
        #[cfg(feature = "model")]
        if crate::model::read_bytes(source.addr(), target) {
            return;
        }
        if self.kind == MemoryKind::Window {
            // SAFETY: in bounds by `pointer`; `target` is exclusive and does not overlap foreign memory.
            unsafe { streaming_loads::load(target.as_mut_ptr(), source, target.len()) };
            return;
        }
        // SAFETY: in bounds by `pointer`; `target` is exclusive and cannot overlap foreign memory.
        unsafe { std::ptr::copy_nonoverlapping(source, target.as_mut_ptr(), target.len()) };
    }

    /// Copies bytes into the region. Into a window, by non-temporal stores: `fence_payload` orders them.
    ///
    /// # Panics
    /// Where the range is outside.
    pub fn write_bytes(&self, offset: usize, source: &[u8]) {
        let target = self.pointer(offset, source.len());
        #[cfg(feature = "model")]
        if crate::model::write_bytes(target.addr(), source) {
            return;
        }
        if self.kind == MemoryKind::Window {
            // SAFETY: in bounds by `pointer`; a Rust slice does not overlap foreign memory.
            unsafe { streaming::copy(target, source.as_ptr(), source.len(), None) };
            return;
        }
        // SAFETY: as in `read_bytes`, in the other direction.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), target, source.len()) };
    }

    /// Copies from another region (or another part of this one; overlap is allowed). Into a window, by
    /// non-temporal stores: `fence_payload` orders them.
    ///
    /// # Panics
    /// Where a range is outside.
    pub fn copy_from(&self, offset: usize, source: &Region, source_offset: usize, bytes: usize) {
        self.copy_from_ahead(offset, source, source_offset, bytes, None);
    }

    /// As [`Region::copy_from`]; copying into a window asks the caches meanwhile for as many bytes at
    /// `ahead`, which are to be copied next.
    ///
    /// # Panics
    /// As [`Region::copy_from`].
    pub fn copy_from_ahead(
        &self,
        offset: usize,
        source: &Region,
        source_offset: usize,
        bytes: usize,
        ahead: Option<(&Region, usize)>,
    ) {
        let from = source.pointer(source_offset, bytes);
        let to = self.pointer(offset, bytes);
        #[cfg(feature = "model")]
        if crate::model::is_active() {
            let mut copy = vec![0; bytes];
            source.read_bytes(source_offset, &mut copy);
            self.write_bytes(offset, &copy);
            return;
        }
        if self.kind == MemoryKind::Window && from.addr().abs_diff(to.addr()) >= bytes {
            // SAFETY: both ranges are in bounds by `pointer`, and at least their length apart.
            unsafe { streaming::copy(to, from, bytes, ahead.map(|(r, at)| r.hint(at))) };
            return;
        }
        // SAFETY: both ranges are in bounds by `pointer`; `copy` allows overlap.
        unsafe { std::ptr::copy(from, to, bytes) };
    }

    /// As [`Region::copy_from_ahead`], by non-temporal stores into host memory too: for data that nobody
    /// here reads soon. `fence_payload` orders them.
    ///
    /// # Panics
    /// As [`Region::copy_from`].
    pub fn stream_from(
        &self,
        offset: usize,
        source: &Region,
        source_offset: usize,
        bytes: usize,
        ahead: Option<(&Region, usize)>,
    ) {
        let from = source.pointer(source_offset, bytes);
        let to = self.pointer(offset, bytes);
        #[cfg(feature = "model")]
        if crate::model::is_active() {
            return self.copy_from(offset, source, source_offset, bytes);
        }
        if from.addr().abs_diff(to.addr()) < bytes {
            return self.copy_from(offset, source, source_offset, bytes);
        }
        // SAFETY: both ranges are in bounds by `pointer`, and at least their length apart.
        unsafe { streaming::copy(to, from, bytes, ahead.map(|(r, at)| r.hint(at))) };
    }

    /// Asks the caches for bytes that will be read soon, which may be none of the region's.
    pub fn ask_for(&self, offset: usize, bytes: usize) {
        streaming::ask_for(self.hint(offset), bytes);
    }

    /// As [`Region::ask_for`], one line.
    #[inline]
    pub fn ask_for_line(&self, offset: usize) {
        streaming::ask_for_line(self.hint(offset));
    }

    /// An address to ask the caches for, which may be none of the region's.
    #[inline]
    fn hint(&self, offset: usize) -> *const u8 {
        self.base.as_ptr().wrapping_add(offset)
    }

    /// Sets bytes.
    ///
    /// # Panics
    /// Where the range is outside.
    pub fn fill(&self, offset: usize, bytes: usize, value: u8) {
        let target = self.pointer(offset, bytes);
        #[cfg(feature = "model")]
        if crate::model::is_active() {
            return self.write_bytes(offset, &vec![value; bytes]);
        }
        // SAFETY: in bounds by `pointer`.
        unsafe { std::ptr::write_bytes(target, value, bytes) };
    }
}

/// A range of foreign memory that may be gone.
#[derive(Clone)]
pub struct WeakRegion {
    base: NonNull<u8>,
    len: usize,
    kind: MemoryKind,
    owner: Weak<dyn Any + Send + Sync>,
}

// SAFETY: it gives access only through `upgrade`, as a `Region` that is Send.
unsafe impl Send for WeakRegion {}
// SAFETY: as above.
unsafe impl Sync for WeakRegion {}

impl WeakRegion {
    /// The region, while somebody still keeps it.
    pub fn upgrade(&self) -> Option<Region> {
        let owner = self.owner.upgrade()?;
        Some(Region { base: self.base, len: self.len, kind: self.kind, owner })
    }
}

/// Out of line, so that the checks cost their callers two instructions each.
#[cold]
#[inline(never)]
fn out_of_range(offset: usize, bytes: usize, len: usize) -> ! {
    panic!("offset {offset}+{bytes} of {len}");
}

#[cold]
#[inline(never)]
fn unaligned(offset: usize) -> ! {
    panic!("offset {offset} is not aligned to its word");
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Region({:#x}..+{:#x}, {:?})", self.address(), self.len, self.kind)
    }
}

#[cfg(test)]
pub(crate) mod test_support {
    use std::sync::{Arc, Mutex};
    use std::thread::{ThreadId, current};

    use super::{MemoryKind, Region};

    /// Where memory was freed.
    #[derive(Clone, Default)]
    pub(crate) struct Freed(Arc<Mutex<Option<ThreadId>>>);

    impl Freed {
        pub(crate) fn thread(&self) -> Option<ThreadId> {
            *self.0.lock().unwrap()
        }
    }

    struct Owner(Freed, #[expect(dead_code, reason = "it keeps the memory")] Region);

    impl Drop for Owner {
        fn drop(&mut self) {
            *self.0.0.lock().unwrap() = Some(current().id());
        }
    }

    /// Memory that tells where it was freed.
    pub(crate) fn owned(kind: MemoryKind) -> (Region, Freed) {
        let (inner, freed) = (Region::map_anonymous(4096, kind).unwrap(), Freed::default());
        let mut region = inner.clone();
        region.owner = Arc::new(Owner(freed.clone(), inner));
        (region, freed)
    }
}
