//! Many small cached reads into one slot: no step of them touches what other threads touch too.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mem::Region;
use rustix::fs::{FileType, Mode, OFlags};
use storage::Residency;

use super::Seat;
use super::fill::{failed, move_all, route_of};
use super::flight::Part;
use crate::error::BulkError;
use crate::file::CachePolicy;
use crate::job::{Job, Target, What};
use crate::request::{From, Request};
use crate::route::Op;
use crate::runs::Way;
use crate::threads::Core;

/// From so many rows of a chunk on, opening the file again is worth its microseconds.
const MANY_ROWS: usize = 64;

/// What a read in passing came to.
enum Quick {
    Done(usize),
    Failed(BulkError),
    /// Not cached, or odd: the careful way is for it.
    NotForMe,
}

impl Seat {
    /// Reads the parts of a flight one after the other, up to the first one that is not cached; how many.
    pub(super) fn fill_quickly(&mut self, core: &Core, slot: usize) -> Result<usize, BulkError> {
        let mut flight = self.flights[slot].take().expect("a flight in this slot");
        let memory = self.memory(core);
        let job = Arc::clone(&flight.job);
        // By whether the target is host memory.
        let (mut bytes, mut done) = ([None; 2], 0);
        if let Ok(memory) = &memory {
            self.open_again(&job, flight.parts.len());
            for part in &mut flight.parts {
                match self.read_in_passing(core, &job, part, memory) {
                    Quick::Done(got) => {
                        part.got = got;
                        *bytes[usize::from(!part.staged)].get_or_insert(0) += got as u64;
                    }
                    Quick::Failed(error) => (part.error, part.got) = (Some(Box::new(error)), 0),
                    Quick::NotForMe => break,
                }
                done += 1;
            }
        }
        self.flights[slot] = Some(flight);
        memory?;
        for (host, bytes) in [false, true].into_iter().zip(bytes) {
            let Some(bytes) = bytes else { continue };
            core.counters.moved(route_of(host, Way::Cached, false), Op::Read, bytes);
            core.counters.hot_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(done)
    }

    fn read_in_passing(
        &mut self,
        core: &Core,
        job: &Job,
        part: &mut Part,
        memory: &Region,
    ) -> Quick {
        if job.rules.policy == CachePolicy::Direct {
            return Quick::NotForMe;
        }
        let (target, at) = match job.target(&part.piece) {
            Target::Device(_) => (memory, part.at),
            Target::Host(region, at) => (region, at),
        };
        part.staged = matches!(job.target(&part.piece), Target::Device(_));
        let piece = part.piece;
        match &job.what {
            What::Rows { file, .. } => {
                if job.row_way(&piece) == Some(Way::Direct) && file.direct().is_some() {
                    return Quick::NotForMe;
                }
                let again = self.again.as_ref().and_then(|(_, fd)| fd.as_ref());
                let fd = again.map_or(file.buffered.as_fd(), AsFd::as_fd);
                let got = move_all(core, Op::Read, fd, piece.offset, (target, at), piece.bytes);
                quick(got, |e| failed(Op::Read, file, piece.offset, e))
            }
            What::Items { requests, .. } => {
                let Request { from, offset, .. } = &requests[piece.item];
                if let Err(error) = requests[piece.item].check(core.gpu.as_deref()) {
                    return Quick::Failed(error);
                }
                let all = job.rules.policy == CachePolicy::Cached;
                let cached = |way: Residency, fd: BorrowedFd<'_>| {
                    let pages = || way.pages(fd, *offset, piece.bytes as u64);
                    all || pages().is_some_and(|pages| pages.cached * 2 >= pages.total)
                };
                match from {
                    From::File(file) => {
                        let file = &*file.0;
                        let fd = file.buffered.as_fd();
                        if !cached(file.residency, fd) {
                            return Quick::NotForMe;
                        }
                        let got = move_all(core, Op::Read, fd, *offset, (target, at), piece.bytes);
                        quick(got, |e| failed(Op::Read, file, *offset, e))
                    }
                    From::Path(path) => {
                        let opened = self.open_in_passing(core, path);
                        let Ok(Passing { fd, way, looked_at }) = opened else {
                            return Quick::NotForMe;
                        };
                        if !cached(way, fd.as_fd()) {
                            return Quick::NotForMe;
                        }
                        let fd = fd.as_fd();
                        let got = move_all(core, Op::Read, fd, *offset, (target, at), piece.bytes);
                        if !looked_at && got.is_err() {
                            return Quick::NotForMe;
                        }
                        let place = || format!("{} at byte {offset}", path.display());
                        quick(got, |e| BulkError::os("reading", place(), e))
                    }
                }
            }
            What::Range { .. } => Quick::NotForMe,
        }
    }

    /// Opens the file of many rows once more, for this thread alone: every call counts itself in what was
    /// opened, and threads that count in one place wait for each other longer than for the rows.
    fn open_again(&mut self, job: &Arc<Job>, parts: usize) {
        let What::Rows { file, .. } = &job.what else { return self.let_go() };
        let known = self.again.as_ref().is_some_and(|(of, _)| of.as_ptr() == Arc::as_ptr(job));
        if known {
            return;
        }
        let many = job.chunks > 1 && parts >= MANY_ROWS;
        let again = || {
            // Whatever has its name by now, this is the same file.
            let path = format!("/proc/self/fd/{}", file.buffered.as_raw_fd());
            rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
        };
        let opened = (many && file.is_regular()).then(again).flatten();
        self.again = Some((Arc::downgrade(job), opened));
    }

    /// Opens a file for one read. What is odd about it is said by the careful way.
    ///
    /// Of files in one folder of a file system in memory, the first is looked at: others are there too,
    /// unless the name is a link, which is not followed.
    fn open_in_passing(&mut self, core: &Core, path: &Path) -> io::Result<Passing> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let bytes = path.as_os_str().as_bytes();
        let folder = &bytes[..bytes.iter().rposition(|byte| *byte == b'/').unwrap_or(0)];
        if !folder.is_empty() && folder == self.folder {
            let fd = rustix::fs::open(path, flags | OFlags::NOFOLLOW, Mode::empty());
            if let Ok(fd) = fd {
                return Ok(Passing { fd, way: Residency::AlwaysCached, looked_at: false });
            }
        }
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&fd)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let known = self.devices.iter().find(|(device, _)| *device == stat.st_dev);
        let way = match known {
            Some((_, way)) => *way,
            None => {
                let way = core.residency(stat.st_dev, FileType::RegularFile, fd.as_fd());
                self.devices.push((stat.st_dev, way));
                way
            }
        };
        let link = || std::fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
        if way == Residency::AlwaysCached && !folder.is_empty() && folder != self.folder && !link()
        {
            self.folder.clear();
            self.folder.extend_from_slice(folder);
        }
        Ok(Passing { fd, way, looked_at: true })
    }
}

/// A file that was opened for one read.
struct Passing {
    fd: OwnedFd,
    way: Residency,
    /// Whether it is known to be a regular file.
    looked_at: bool,
}

fn quick(got: io::Result<usize>, failed: impl FnOnce(&io::Error) -> BulkError) -> Quick {
    got.map_or_else(|error| Quick::Failed(failed(&error)), Quick::Done)
}
