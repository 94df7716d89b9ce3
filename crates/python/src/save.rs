//! Whole files, complete or not there: a temporary file beside the target takes its name at the end.
//!
//! Also the sums of what was written, from the page cache: many threads, each with its own part, and the
//! parts' sums combined.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crc32fast::Hasher;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::os;
use crate::waiting::wait_unlocked;

/// What one thread sums at a time.
const PART_BYTES: u64 = 32 << 20;
/// What it reads at a time.
const CHUNK_BYTES: usize = 1 << 20;
/// More threads gain nothing over the memory's own speed.
const THREADS_MAX: usize = 8;

/// Numbers temporary files of this process.
static SERIAL: AtomicU64 = AtomicU64::new(0);

/// A file that is being written; without [`Save::commit`] it vanishes.
#[pyclass(frozen, module = "sidecore._sidecore")]
pub struct Save {
    target: PathBuf,
    temporary: PathBuf,
    file: File,
    ended: AtomicBool,
    process: u32,
}

impl Drop for Save {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// The folder of a file, by a name that can be opened.
fn folder(of: &Path) -> &Path {
    match of.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Makes a file beside `target` of a name that nobody has: a process of the same number may have been
/// killed and have left one.
fn make_temporary(target: &Path) -> io::Result<(PathBuf, File)> {
    const TRIES: u32 = 1000;
    /// Names have at most 255 bytes, and the rest of this one fewer than 55.
    const NAME_CHARS_MAX: usize = 50;
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let name: String = name.chars().take(NAME_CHARS_MAX).collect();
    let mut tries = 0;
    loop {
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let hidden = format!(".{name}.{}-{serial}.tmp", std::process::id());
        let temporary = folder(target).join(hidden);
        tries += 1;
        match File::options().read(true).write(true).create_new(true).open(&temporary) {
            Ok(file) => return Ok((temporary, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tries < TRIES => {}
            Err(error) => return Err(error),
        }
    }
}

#[pymethods]
impl Save {
    /// Makes the temporary file, with the rights of the one that it will replace.
    #[new]
    fn new(target: PathBuf) -> PyResult<Self> {
        // A link stays a link: what it leads to is replaced, or made.
        let target = bulk::end_of_links(&target).map_err(|e| os(&e))?;
        let old = std::fs::metadata(&target).ok();
        if let Some(old) = old.as_ref().filter(|old| !old.is_file()) {
            /// Source: Linux.
            const EISDIR: i32 = 21;
            const EINVAL: i32 = 22;
            // A rename would put a file into its place, even of a device.
            let number = if old.is_dir() { EISDIR } else { EINVAL };
            return Err(PyOSError::new_err((number, "it is no regular file")));
        }
        if old.is_some() {
            // A rename asks for the folder's permission only; who took a file's own meant it.
            drop(File::options().write(true).open(&target).map_err(|e| os(&e))?);
        }
        let (temporary, file) = make_temporary(&target).map_err(|e| os(&e))?;
        let save =
            Self { target, temporary, file, ended: false.into(), process: std::process::id() };
        if let Some(old) = old {
            let mode = old.permissions().mode() & 0o777;
            save.file.set_permissions(Permissions::from_mode(mode)).map_err(|e| os(&e))?;
        }
        Ok(save)
    }

    /// Where it is written for now.
    #[getter]
    fn temporary(&self) -> PathBuf {
        self.temporary.clone()
    }

    /// Writes a few bytes at an offset.
    fn write_at(&self, data: &Bound<'_, PyBytes>, offset: u64) -> PyResult<()> {
        self.file.write_all_at(data.as_bytes(), offset).map_err(|e| os(&e))
    }

    /// CRC-32 of ranges, in their order; releases the GIL.
    fn crc32(&self, py: Python<'_>, ranges: Vec<(u64, u64)>) -> PyResult<Vec<u32>> {
        let stop = AtomicBool::new(false);
        wait_unlocked(py, &stop, || sums(&self.file, &ranges, &stop))?.map_err(|e| os(&e))
    }

    /// Makes the bytes durable, then gives the file its name, then makes the name durable.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| -> io::Result<()> {
            // What was written through other descriptors is the same file's.
            self.file.sync_all()?;
            std::fs::rename(&self.temporary, &self.target)?;
            self.ended.store(true, Ordering::Release);
            File::open(folder(&self.target))?.sync_all()
        })
        .map_err(|e| os(&e))
    }

    /// Removes the temporary file, where it has not taken its name yet.
    fn abandon(&self) {
        // A child of a fork in the middle of a save leaves it to its parent.
        let ours = self.process == std::process::id();
        if !self.ended.swap(true, Ordering::AcqRel) && ours {
            // It may be gone with its folder; there is nobody to tell.
            let _gone = std::fs::remove_file(&self.temporary);
        }
    }
}

/// A part of a range, and its sum once it is known.
struct Part {
    range: usize,
    offset: u64,
    bytes: u64,
}

fn sums(file: &File, ranges: &[(u64, u64)], stop: &AtomicBool) -> io::Result<Vec<u32>> {
    let parts: Vec<Part> =
        ranges.iter().enumerate().flat_map(|(at, range)| cut(at, *range)).collect();
    let next = AtomicUsize::new(0);
    let results = Mutex::new(vec![None; parts.len()]);
    let failed = Mutex::new(None);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(parts.len()) {
            scope.spawn(|| {
                let mut chunk = vec![0; CHUNK_BYTES];
                while !stop.load(Ordering::Relaxed) {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(part) = parts.get(at) else { break };
                    match sum(file, part, &mut chunk) {
                        Ok(hasher) => {
                            let mut results =
                                results.lock().unwrap_or_else(PoisonError::into_inner);
                            results[at] = Some(hasher);
                        }
                        Err(error) => {
                            *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                            stop.store(true, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    let mut whole: Vec<Hasher> = ranges.iter().map(|_| Hasher::new()).collect();
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    for (part, hasher) in parts.iter().zip(results) {
        if let Some(hasher) = hasher {
            whole[part.range].combine(&hasher);
        }
    }
    Ok(whole.into_iter().map(Hasher::finalize).collect())
}

fn cut(range: usize, (offset, bytes): (u64, u64)) -> impl Iterator<Item = Part> {
    (0..bytes.div_ceil(PART_BYTES)).map(move |n| {
        let begin = n * PART_BYTES;
        Part { range, offset: offset + begin, bytes: PART_BYTES.min(bytes - begin) }
    })
}

fn sum(file: &File, part: &Part, chunk: &mut [u8]) -> io::Result<Hasher> {
    let mut hasher = Hasher::new();
    let mut at = 0;
    while at < part.bytes {
        let left = usize::try_from(part.bytes - at).unwrap_or(usize::MAX);
        let most = left.min(chunk.len());
        file.read_exact_at(&mut chunk[..most], part.offset + at)?;
        hasher.update(&chunk[..most]);
        at += most as u64;
    }
    Ok(hasher)
}
