//! Whole files: complete, or not there.
//!
//! ```text
//! temporary file in the same directory -> write all parts -> set length -> fsync(file)
//!   -> rename over the name -> fsync(directory)
//! ```
//!
//! Whenever the process or the machine stops, the name has the old file or the complete new one. A
//! temporary file that was left behind begins with `.sidecore-`. Of a symbolic link it is the file it leads
//! to that is saved, as other writers do it; the link stays.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{Access as Right, Mode, OFlags};

use crate::batch::Batch;
use crate::engine::Bulk;
use crate::error::BulkError;
use crate::file::Access;
use crate::place::Place;
use crate::request::Request;

/// How often `stop` is asked.
const LOOK: Duration = Duration::from_millis(50);

/// Bytes that a file gets at an offset.
#[derive(Clone, Debug)]
pub struct Part {
    /// Where in the file.
    pub offset: u64,
    /// What.
    pub place: Place,
}

/// The temporary file, removed unless it was renamed.
struct Temporary(Option<PathBuf>);

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _gone = std::fs::remove_file(path);
        }
    }
}

/// Makes a file of a name that nobody has: one that was left behind, or a link, may be in the way.
pub(crate) fn make_temporary(folder: &Path) -> io::Result<PathBuf> {
    const TRIES: u32 = 1000;
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let process = std::process::id();
    let mut tries = 0;
    loop {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!(".sidecore-{process}-{count}.tmp"));
        tries += 1;
        match std::fs::File::options().write(true).create_new(true).open(&path) {
            Ok(_made) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tries < TRIES => {}
            Err(error) => return Err(error),
        }
    }
}

/// Where a chain of symbolic links ends, whether or not a file is there.
///
/// # Errors
/// More links than the system follows.
pub fn end_of_links(path: &Path) -> io::Result<PathBuf> {
    /// Source: Linux, `MAXSYMLINKS`.
    const LINKS_MAX: u32 = 40;
    let mut at = path.to_owned();
    for _ in 0..LINKS_MAX {
        match std::fs::read_link(&at) {
            Ok(next) => at = at.parent().unwrap_or(Path::new("")).join(next),
            Err(_no_link) => return Ok(at),
        }
    }
    Err(rustix::io::Errno::LOOP.into())
}

/// What is saved to: a name whose file, if there is one, is a regular one that may be written.
fn target(path: &Path) -> Result<(PathBuf, Option<std::fs::Metadata>), BulkError> {
    let os = |operation: &'static str, error: &io::Error| {
        BulkError::os(operation, path.display().to_string(), error)
    };
    let path = end_of_links(path).map_err(|e| os("following", &e))?;
    if path.file_name().is_none() {
        let why = format!("{} does not end in a file's name", path.display());
        return Err(BulkError::Misuse(why));
    }
    let Ok(old) = std::fs::metadata(&path) else { return Ok((path, None)) };
    if !old.is_file() {
        // A rename would put a file into its place, even of a device.
        let what = format!("saving {}", path.display());
        let why = if old.is_dir() { "it is a directory" } else { "it is no regular file" };
        return Err(BulkError::Unsupported { what, why: format!("{why}; name another file") });
    }
    // A rename asks for the directory's permission only; who took a file's own meant it.
    rustix::fs::access(&path, Right::WRITE_OK).map_err(|e| os("writing", &e.into()))?;
    Ok((path, Some(old)))
}

/// Writes a whole file: when this returns well, the name has it, durably; else it has what it had before.
///
/// Parts may come in any order; bytes between them are zeros. `bytes` is the length of the file.
///
/// # Errors
/// [`BulkError::Os`]: no room, no permission, a drive that fails; what [`Bulk::write`] may say.
pub fn save_atomically(
    bulk: &Bulk,
    path: &Path,
    bytes: u64,
    parts: Vec<Part>,
) -> Result<u64, BulkError> {
    save_atomically_unless(bulk, path, bytes, parts, &|| false)
}

/// As [`save_atomically`]; ends early, with the name as it was, once `stop` says so.
///
/// # Errors
/// As [`save_atomically`]; [`BulkError::Cancelled`].
pub fn save_atomically_unless(
    bulk: &Bulk,
    path: &Path,
    bytes: u64,
    parts: Vec<Part>,
    stop: &dyn Fn() -> bool,
) -> Result<u64, BulkError> {
    let os = |operation: &'static str, path: &Path, error: &io::Error| {
        BulkError::os(operation, path.display().to_string(), error)
    };
    let (path, old) = target(path)?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    let temporary = make_temporary(&folder).map_err(|e| os("making a file in", &folder, &e))?;
    let mut guard = Temporary(Some(temporary.clone()));
    let file = bulk.open_file(&temporary, Access::ReadWrite)?;
    if let Some(old) = old {
        let kept = std::fs::set_permissions(&temporary, old.permissions());
        kept.map_err(|e| os("giving the old file's permissions to", &temporary, &e))?;
    }
    file.set_bytes(bytes)?;
    let requests = parts.into_iter().map(|part| {
        let (offset, place) = (part.offset, part.place);
        Request::write(&file, offset, place)
    });
    let moved = all_of(&bulk.submit_many(requests.collect()), stop)?;
    file.sync()?;
    if stop() {
        return Err(BulkError::Cancelled);
    }
    std::fs::rename(&temporary, &path).map_err(|e| os("renaming to", &path, &e))?;
    guard.0 = None;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(&folder, flags, Mode::empty())
        .map_err(|e| os("opening", &folder, &e.into()))?;
    rustix::fs::fsync(directory.as_fd()).map_err(|e| os("syncing", &folder, &e.into()))?;
    Ok(moved)
}

/// Waits until all have ended; what they moved. Ends them once `stop` says so.
fn all_of(batch: &Batch, stop: &dyn Fn() -> bool) -> Result<u64, BulkError> {
    loop {
        if let Some(results) = batch.wait(LOOK) {
            return results.into_iter().sum();
        }
        if stop() {
            batch.cancel();
        }
    }
}
