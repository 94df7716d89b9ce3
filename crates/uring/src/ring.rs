//! One io_uring, with everything that the kernel may touch on its behalf.
//!
//! Slots and their memory:
//!
//! ```text
//! push     slot <- transfer (with its Region)       nothing known to the kernel yet
//! submit   entries to the kernel, one system call for all
//! reap     slot -> Ended (with the Region)          only after the kernel's completion entry
//! drop     cancel all, wait up to DROP_LIMIT; what has not ended by then is leaked, not freed
//! ```
//!
//! A completion entry carries the slot's index. A slot is reused only after its completion has been
//! reaped, so an index is never ambiguous; cancellations have an index of their own.
//!
//! Threads: a ring may be used from any thread, one at a time. With
//! [`RingOptions::bound_to_thread`] it may be used only by the thread that made it, and is cheaper
//! there; elsewhere its calls fail with `EEXIST`.
// UNSAFETY: submission entries carry raw addresses.
#![expect(unsafe_code, reason = "submission entries and registrations carry raw addresses")]

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::types::{Fixed, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, opcode, squeue};
use mem::{MemoryKind, Region};

/// `user_data` of entries that are no transfer.
const NO_SLOT: u64 = u64::MAX;
/// Longest that a dropped ring waits for what is in flight.
const DROP_LIMIT: Duration = Duration::from_secs(5);
/// Largest registered buffer that the kernel takes. Source: Linux, io_uring/rsrc.c.
const BUFFER_BYTES_MAX: usize = 1 << 30;

/// Added files that are kept although nothing in flight uses them.
const ADDED_FILES: usize = 8;

/// What can go wrong with a ring as a whole.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UringError {
    /// The kernel refuses io_uring: too old, switched off, or filtered. Remedy: blocking I/O.
    #[error("io_uring_setup: {0}")]
    Setup(#[source] io::Error),
    /// The kernel's io_uring lacks what is needed here. Remedy: Linux 5.11 or newer.
    #[error("this kernel's io_uring has no {0}")]
    Feature(&'static str),
    /// The system call that submits and waits failed. Remedy: see the source.
    #[error("io_uring_enter: {0}")]
    Enter(#[source] io::Error),
}

/// How completions find their way back to the ring's user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Completion work runs when the user enters the kernel anyway (Linux 5.19).
    Cooperative,
    /// Completion work runs only when the one user thread asks for it (Linux 6.1).
    Deferred,
    /// Completion work interrupts the user.
    Plain,
}

/// What a ring is made of.
#[derive(Clone, Debug)]
pub struct RingOptions {
    /// Most transfers in flight.
    pub depth: u32,
    /// Whether only the thread that makes the ring will ever use it.
    pub bound_to_thread: bool,
    /// Files, named by their position; registered with the kernel where it allows.
    pub files: Vec<Arc<OwnedFd>>,
    /// Memory that is often used; registered where the kernel allows.
    pub buffers: Vec<Region>,
}

/// Position in [`RingOptions::files`], or behind them by [`Ring::add_file`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileIndex(pub u32);

/// What a transfer does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `fallocate` with this mode; memory is ignored.
    Allocate(i32),
    /// File to memory.
    Read,
    /// `fdatasync`; range and memory are ignored.
    Sync,
    /// Memory to file.
    Write,
}

/// One operation.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// On which file.
    pub file: FileIndex,
    /// What to do.
    pub kind: Kind,
    /// Byte offset in the file.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u32,
    /// Memory to fill or empty; kept alive while the kernel may touch it.
    pub memory: Region,
    /// First byte in `memory`.
    pub memory_offset: usize,
}

/// The end of one operation.
#[derive(Debug)]
pub struct Ended {
    /// The tag given to `push`.
    pub tag: u64,
    /// Bytes moved, or a negative errno.
    pub result: i32,
    /// The operation, handed back with its memory.
    pub transfer: Transfer,
}

/// What a ring has cost and done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RingCounters {
    /// System calls made since the ring was set up.
    pub syscalls: u64,
    /// Transfers whose completion was reaped.
    pub ended: u64,
    /// Of these, those that used a registered buffer.
    pub fixed: u64,
}

struct Slot {
    tag: u64,
    transfer: Transfer,
    fixed: bool,
}

/// A registered piece of memory: `address..address + bytes` is buffer `index`.
struct Buffer {
    address: u64,
    bytes: u64,
    index: u16,
    /// Keeps the memory mapped while it is registered.
    _memory: Region,
}

/// One io_uring.
pub struct Ring {
    ring: ManuallyDrop<IoUring>,
    mode: Mode,
    files: Vec<Arc<OwnedFd>>,
    /// How many of the files the kernel knows by index.
    files_registered: usize,
    /// Sorted by address.
    buffers: Vec<Buffer>,
    buffers_wanted: usize,
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    /// Pushed and not yet taken by the kernel, cancellations included.
    unsubmitted: u32,
    counters: RingCounters,
}

impl Ring {
    /// Sets up a ring in the best mode that the kernel has.
    ///
    /// Files or buffers that the kernel does not register are used unregistered; see
    /// [`Ring::files_registered`] and [`Ring::buffers_registered`].
    ///
    /// # Errors
    /// [`UringError::Setup`] and [`UringError::Feature`].
    pub fn new(options: RingOptions) -> Result<Self, UringError> {
        let (ring, mode) = set_up(&options)?;
        if !ring.params().is_feature_ext_arg() {
            return Err(UringError::Feature("timeout on waiting"));
        }
        if !ring.params().is_feature_nodrop() {
            return Err(UringError::Feature("protection of completions from overflow"));
        }
        let descriptors: Vec<_> = options.files.iter().map(|f| f.as_raw_fd()).collect();
        let registered = ring.submitter().register_files(&descriptors).is_ok();
        let files_registered = if registered { descriptors.len() } else { 0 };
        let mut this = Self {
            ring: ManuallyDrop::new(ring),
            mode,
            files: options.files,
            files_registered,
            buffers: Vec::new(),
            buffers_wanted: 0,
            slots: (0..options.depth).map(|_| None).collect(),
            free: (0..options.depth).rev().collect(),
            unsubmitted: 0,
            counters: RingCounters { syscalls: 2, ..RingCounters::default() },
        };
        this.register_buffers(&options.buffers);
        Ok(this)
    }

    fn register_buffers(&mut self, regions: &[Region]) {
        let mut pieces = Vec::new();
        for region in regions.iter().filter(|r| r.kind() == MemoryKind::Host) {
            for start in (0..region.len_bytes()).step_by(BUFFER_BYTES_MAX) {
                let bytes = BUFFER_BYTES_MAX.min(region.len_bytes() - start);
                pieces.push(region.slice(start, bytes).expect("a piece lies inside"));
            }
        }
        pieces.sort_by_key(Region::address);
        pieces.truncate(usize::from(u16::MAX));
        self.buffers_wanted = pieces.len();
        let vectors: Vec<libc::iovec> = pieces
            .iter()
            .map(|p| libc::iovec { iov_base: p.as_ptr().cast(), iov_len: p.len_bytes() })
            .collect();
        if vectors.is_empty() {
            return;
        }
        self.counters.syscalls += 1;
        // SAFETY: each vector spans a region that `self.buffers` keeps mapped until the ring, and
        // with it the registration, is gone.
        if unsafe { self.ring.submitter().register_buffers(&vectors) }.is_err() {
            return;
        }
        self.buffers = (0u16..)
            .zip(pieces)
            .map(|(index, memory)| Buffer {
                address: memory.address(),
                bytes: memory.len_bytes() as u64,
                index,
                _memory: memory,
            })
            .collect();
    }

    /// How completions come back.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether the kernel knows the files by index.
    pub fn files_registered(&self) -> bool {
        self.files_registered > 0
    }

    /// The index of a file that the ring was not made with, in place of one that nothing in flight uses.
    pub fn add_file(&mut self, file: &Arc<OwnedFd>) -> FileIndex {
        let first = self.files_registered;
        let added = &self.files[first..];
        let index = |at: usize| FileIndex(u32::try_from(first + at).expect("few files"));
        if let Some(at) = added.iter().position(|known| Arc::ptr_eq(known, file)) {
            return index(at);
        }
        let full = added.len() >= ADDED_FILES;
        if let Some(at) = full.then(|| self.unused_file()).flatten() {
            self.files[first + at] = Arc::clone(file);
            return index(at);
        }
        self.files.push(Arc::clone(file));
        index(self.files.len() - 1 - first)
    }

    /// An added file, counted from the first, that no transfer in flight names.
    fn unused_file(&self) -> Option<usize> {
        let first = self.files_registered;
        (0..self.files.len() - first).find(|at| {
            let mut slots = self.slots.iter().flatten();
            slots.all(|slot| slot.transfer.file.0 as usize != first + at)
        })
    }

    /// Whether all memory that was offered is registered; false where none was.
    pub fn buffers_registered(&self) -> bool {
        self.buffers_wanted > 0 && self.buffers.len() == self.buffers_wanted
    }

    /// Transfers pushed and not yet reaped.
    pub fn in_flight(&self) -> u32 {
        u32::try_from(self.slots.len() - self.free.len()).expect("the depth fits")
    }

    /// Entries pushed and not yet given to the kernel.
    pub fn unsubmitted(&self) -> u32 {
        self.unsubmitted
    }

    /// Cost and work so far.
    pub fn counters(&self) -> RingCounters {
        self.counters
    }

    /// Whether the kernel has completions or completion work for us.
    pub fn ready(&mut self) -> bool {
        let waiting = {
            let sq = self.ring.submission();
            sq.taskrun() || sq.cq_overflow()
        };
        waiting || !self.ring.completion().is_empty()
    }

    /// Whether completions of transfers lie in the ring, to be reaped without a system call.
    pub fn has_completions(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    /// Takes a transfer, to be submitted by the next `submit` or `wait`; hands it back where all
    /// slots are taken.
    ///
    /// # Errors
    /// The transfer itself.
    ///
    /// # Panics
    /// Where the transfer names no file of the ring, or memory outside its region.
    pub fn push(&mut self, tag: u64, transfer: Transfer) -> Result<(), Transfer> {
        let (entry, fixed) = self.entry(&transfer);
        let Some(index) = self.free.pop() else { return Err(transfer) };
        self.slots[index as usize] = Some(Slot { tag, transfer, fixed });
        let entry = entry.user_data(u64::from(index));
        // SAFETY: the entry's addresses lie in `transfer.memory` (checked in `entry`), which the
        // slot keeps alive until the completion has been reaped; files live as long as `self`.
        if unsafe { self.enqueue(&entry) } {
            return Ok(());
        }
        self.free.push(index);
        Err(self.slots[index as usize].take().expect("stored above").transfer)
    }

    /// Puts an entry into the submission queue; false where it is full and the kernel takes none.
    ///
    /// # Safety
    /// What the entry points at stays valid until its completion has been reaped.
    unsafe fn enqueue(&mut self, entry: &squeue::Entry) -> bool {
        if self.ring.submission().is_full() && self.submit().is_err() {
            return false;
        }
        // SAFETY: the caller vouches for the entry.
        let taken = unsafe { self.ring.submission().push(entry) }.is_ok();
        self.unsubmitted += u32::from(taken);
        taken
    }

    fn fixed_buffer(&self, address: u64, bytes: u64) -> Option<u16> {
        let after = self.buffers.partition_point(|b| b.address <= address);
        let buffer = self.buffers.get(after.checked_sub(1)?)?;
        (address + bytes <= buffer.address + buffer.bytes).then_some(buffer.index)
    }

    /// Builds the entry for a transfer; true where it uses a registered buffer.
    fn entry(&self, transfer: &Transfer) -> (squeue::Entry, bool) {
        let Transfer { file, kind, offset, bytes, memory, memory_offset } = transfer;
        let descriptor = self.files[file.0 as usize].as_raw_fd();
        let fd = if (file.0 as usize) < self.files_registered {
            FileRef::Registered(Fixed(file.0))
        } else {
            FileRef::Plain(io_uring::types::Fd(descriptor))
        };
        macro_rules! with_file {
            ($fd:ident => $build:expr) => {
                match fd {
                    FileRef::Registered($fd) => $build,
                    FileRef::Plain($fd) => $build,
                }
            };
        }
        match kind {
            Kind::Sync => {
                let entry = with_file!(fd => {
                    opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build()
                });
                return (entry, false);
            }
            Kind::Allocate(mode) => {
                let entry = with_file!(fd => {
                    opcode::Fallocate::new(fd, u64::from(*bytes)).offset(*offset).mode(*mode).build()
                });
                return (entry, false);
            }
            Kind::Read | Kind::Write => {}
        }
        let inside = memory.check(*memory_offset, *bytes as usize).is_ok();
        assert!(inside, "{bytes} bytes at {memory_offset} of {memory:?}");
        let pointer = memory.as_ptr().wrapping_add(*memory_offset);
        let buffer = self.fixed_buffer(pointer.addr() as u64, u64::from(*bytes));
        let entry = match (kind, buffer) {
            (Kind::Read, Some(index)) => with_file!(fd => {
                opcode::ReadFixed::new(fd, pointer, *bytes, index).offset(*offset).build()
            }),
            (Kind::Read, None) => with_file!(fd => {
                opcode::Read::new(fd, pointer, *bytes).offset(*offset).build()
            }),
            (_, Some(index)) => with_file!(fd => {
                opcode::WriteFixed::new(fd, pointer, *bytes, index).offset(*offset).build()
            }),
            (_, None) => with_file!(fd => {
                opcode::Write::new(fd, pointer, *bytes).offset(*offset).build()
            }),
        };
        (entry, buffer.is_some())
    }

    fn enter(&mut self, want: u32, flags: EnterFlags, args: &SubmitArgs<'_, '_>) -> io::Result<()> {
        self.counters.syscalls += 1;
        let submit = u32::try_from(self.ring.submission().len()).expect("the depth fits");
        let flags = (flags | EnterFlags::EXT_ARG | EnterFlags::GETEVENTS).bits();
        // SAFETY: the queue's entries are sound by the contract of `enqueue`; EXT_ARG announces
        // exactly the type of `args`, which lives across the call.
        let result = unsafe { self.ring.submitter().enter(submit, want, flags, Some(args)) };
        self.unsubmitted = u32::try_from(self.ring.submission().len()).expect("the depth fits");
        match result.map_err(|e| (e.raw_os_error(), e)) {
            Ok(_) => Ok(()),
            // Time is up, a signal came, or the kernel wants us to reap first.
            Err((Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY), _)) => Ok(()),
            Err((_, error)) => Err(error),
        }
    }

    /// Gives everything pushed to the kernel and runs pending completion work, in one system call.
    ///
    /// # Errors
    /// [`UringError::Enter`].
    pub fn submit(&mut self) -> Result<(), UringError> {
        self.enter(0, EnterFlags::empty(), &SubmitArgs::new()).map_err(UringError::Enter)
    }

    /// Submits, and waits until `want` completions are there, or at least one after `gather`, or
    /// `limit` has passed. One system call.
    ///
    /// Before Linux 6.12 there is no `gather`, and one completion ends the wait.
    ///
    /// # Errors
    /// [`UringError::Enter`].
    pub fn wait(&mut self, want: u32, gather: Duration, limit: Duration) -> Result<(), UringError> {
        let limit = Timespec::from(limit);
        let mut args = SubmitArgs::new().timespec(&limit);
        let mut want = want;
        if self.ring.params().is_feature_min_timeout() && want > 1 {
            args = args.min_wait_usec(u32::try_from(gather.as_micros()).unwrap_or(u32::MAX));
        } else {
            want = 1;
        }
        self.enter(want, EnterFlags::empty(), &args).map_err(UringError::Enter)
    }

    /// Appends what has ended. No system call, except where completions overflowed.
    pub fn reap(&mut self, ended: &mut Vec<Ended>) {
        if self.ring.submission().cq_overflow() {
            // The error, if any, comes back by the next `submit`.
            let _ = self.submit();
        }
        let mut completions = self.ring.completion();
        for completion in &mut completions {
            if completion.user_data() == NO_SLOT {
                continue;
            }
            let index = u32::try_from(completion.user_data()).expect("one of our slots");
            let slot = self.slots[index as usize].take().expect("one completion a slot");
            self.free.push(index);
            self.counters.ended += 1;
            self.counters.fixed += u64::from(slot.fixed);
            let Slot { tag, transfer, .. } = slot;
            ended.push(Ended { tag, result: completion.result(), transfer });
        }
    }

    /// Asks the kernel to end the transfer with this tag early; goes with the next submission.
    pub fn cancel(&mut self, tag: u64) {
        let found = self.slots.iter().position(|s| s.as_ref().is_some_and(|s| s.tag == tag));
        if let Some(index) = found {
            let entry = opcode::AsyncCancel::new(index as u64).build().user_data(NO_SLOT);
            // SAFETY: a cancellation points at nothing. Where it finds no room the transfer goes on
            // to its own end, which a cancellation may always come too late for.
            unsafe { self.enqueue(&entry) };
        }
    }

    /// Cancels everything and waits until it has ended, up to `limit`; true where it has.
    pub fn drain(&mut self, limit: Duration, ended: &mut Vec<Ended>) -> bool {
        let begin = Instant::now();
        self.reap(ended);
        for index in 0..self.slots.len() {
            if let Some(slot) = &self.slots[index] {
                self.cancel(slot.tag);
            }
        }
        while self.in_flight() > 0 {
            let left = limit.saturating_sub(begin.elapsed());
            if left.is_zero() || self.wait(1, Duration::ZERO, left).is_err() {
                self.reap(ended);
                return self.in_flight() == 0;
            }
            self.reap(ended);
        }
        true
    }
}

#[derive(Clone, Copy)]
enum FileRef {
    Plain(io_uring::types::Fd),
    Registered(Fixed),
}

fn set_up(options: &RingOptions) -> Result<(IoUring, Mode), UringError> {
    let modes: &[Mode] = if options.bound_to_thread {
        &[Mode::Deferred, Mode::Cooperative, Mode::Plain]
    } else {
        &[Mode::Cooperative, Mode::Plain]
    };
    let entries = options.depth.clamp(1, 16384).next_power_of_two();
    let mut refused = None;
    for mode in modes {
        let mut builder = IoUring::builder();
        match mode {
            Mode::Cooperative => {
                builder.setup_submit_all().setup_coop_taskrun().setup_taskrun_flag();
            }
            Mode::Deferred => {
                builder.setup_submit_all().setup_single_issuer().setup_defer_taskrun();
                builder.setup_taskrun_flag();
            }
            Mode::Plain => {}
        }
        match builder.build(entries) {
            Ok(ring) => return Ok((ring, *mode)),
            // An unknown flag; older modes need fewer.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refused = Some(error),
            Err(error) => return Err(UringError::Setup(error)),
        }
    }
    Err(UringError::Setup(refused.expect("at least one mode was tried")))
}

impl Drop for Ring {
    fn drop(&mut self) {
        let mut ended = Vec::new();
        if self.in_flight() == 0 || self.drain(DROP_LIMIT, &mut ended) {
            // The kernel takes a ring down in its own time; files and memory are let go now, so that
            // a file system can be unmounted right after. Refusals change nothing.
            if self.files_registered > 0 {
                let _ = self.ring.submitter().unregister_files();
            }
            if !self.buffers.is_empty() {
                let _ = self.ring.submitter().unregister_buffers();
            }
            // SAFETY: dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.ring) };
            return;
        }
        // The kernel may still write into the memory of these slots: it stays mapped for good.
        std::mem::forget(std::mem::take(&mut self.slots));
        std::mem::forget(std::mem::take(&mut self.buffers));
        std::mem::forget(std::mem::take(&mut self.files));
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ring({:?}, {} in flight of {})", self.mode, self.in_flight(), self.slots.len())
    }
}
