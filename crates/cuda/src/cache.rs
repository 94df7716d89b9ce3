//! Compiled code on disk, named by what it was compiled from.
//!
//! ```text
//! $XDG_CACHE_HOME/sidecore/KEY.cubin     SHA-256 of the rest (32 bytes) | machine code
//! ```
//!
//! A file is written beside its place and renamed, so that readers see all of it or nothing; one whose
//! sum is wrong is as good as none, and so is one that somebody else could have written: it would run on
//! this user's GPU. A cache that cannot be written costs time, nothing else.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// Bytes of the sum that a file begins with.
const SUM_BYTES: usize = 32;

/// A directory of compiled code, or none.
#[derive(Clone, Debug)]
pub struct Cache {
    directory: Option<PathBuf>,
}

impl Cache {
    /// The user's: `$XDG_CACHE_HOME/sidecore`, else `$HOME/.cache/sidecore`, else none.
    pub fn of_user() -> Self {
        let absolute = |name: &str| {
            std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
        };
        let base =
            absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
        Self { directory: base.map(|base| base.join("sidecore")) }
    }

    /// In a given directory.
    pub fn at(directory: &Path) -> Self {
        Self { directory: Some(directory.to_owned()) }
    }

    fn path(&self, key: &str) -> Option<PathBuf> {
        Some(self.directory.as_ref()?.join(format!("{key}.cubin")))
    }

    /// What is there for a key.
    pub(crate) fn find(&self, key: &str) -> Option<Vec<u8>> {
        let mut opened = fs::File::open(self.path(key)?).ok()?;
        if !is_ours(&opened.metadata().ok()?) {
            return None;
        }
        let mut file = Vec::new();
        opened.read_to_end(&mut file).ok()?;
        let (sum, code) = file.split_at_checked(SUM_BYTES)?;
        let found = Sha256::digest(code);
        let right: &[u8] = found.as_ref();
        (sum == right).then(|| code.to_owned())
    }

    /// Keeps code for a key; whether it could.
    pub(crate) fn keep(&self, key: &str, code: &[u8]) -> bool {
        let Some(path) = self.path(key) else { return false };
        write(&path, code).is_ok()
    }
}

/// Whether only this user, or root, can have written a file.
fn is_ours(file: &fs::Metadata) -> bool {
    const OTHERS_WRITE: u32 = 0o022;
    let owner = file.uid();
    // Its owner is the user whose rights this process has. Source: proc(5).
    let own = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == owner);
    file.is_file() && (own || owner == 0) && file.mode() & OTHERS_WRITE == 0
}

fn write(path: &Path, code: &[u8]) -> std::io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(directory)?;
    let beside = path.with_extension(format!("{}.tmp", std::process::id()));
    // One that was left behind, or a link that somebody put there.
    let _absent = fs::remove_file(&beside);
    let mut options = fs::File::options();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&beside)?;
    let sum = Sha256::digest(code);
    let kept = file
        .write_all(sum.as_ref())
        .and_then(|()| file.write_all(code))
        .and_then(|()| fs::rename(&beside, path));
    if kept.is_err() {
        let _stays = fs::remove_file(&beside);
    }
    kept
}

/// A name for all of `parts`, each with its length, so that no two lists have the same.
pub(crate) fn key(parts: &[&str]) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part.as_bytes());
    }
    let sum = digest.finalize();
    let sum: &[u8] = sum.as_ref();
    sum.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_was_kept_is_found_until_it_is_spoilt() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(&directory.path().join("deep"));
        let one = key(&["sm_90", "source"]);
        assert_ne!(one, key(&["sm_9", "0source"]));
        assert_eq!(cache.find(&one), None);
        assert!(cache.keep(&one, b"machine code"));
        assert_eq!(cache.find(&one).as_deref(), Some(&b"machine code"[..]));
        assert_eq!(cache.find(&key(&["sm_90", "sourcE"])), None);
        let path = cache.path(&one).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert_eq!(cache.find(&one), None, "a spoilt file");
        fs::write(&path, b"short").unwrap();
        assert_eq!(cache.find(&one), None, "a cut file");
    }

    #[test]
    fn what_others_could_have_written_is_not_run() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path());
        let one = key(&["sm_90", "source"]);
        let path = cache.path(&one).unwrap();
        for mode in [0o606, 0o660, 0o666] {
            assert!(cache.keep(&one, b"machine code"));
            assert!(cache.find(&one).is_some());
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(cache.find(&one), None, "mode {mode:o}");
        }
        // A link where the new file is made: what it leads to stays, and the file is made.
        let other = directory.path().join("other");
        fs::write(&other, b"kept").unwrap();
        let beside = path.with_extension(format!("{}.tmp", std::process::id()));
        std::os::unix::fs::symlink(&other, &beside).unwrap();
        assert!(cache.keep(&one, b"machine code"));
        assert_eq!(fs::read(&other).unwrap(), b"kept");
        // Where the place is taken, nothing is left beside it.
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(!cache.keep(&one, b"machine code"));
        assert!(!beside.exists());
    }

    #[test]
    fn a_cache_that_cannot_be_written_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, b"").unwrap();
        let cache = Cache::at(&file);
        assert!(!cache.keep("key", b"code"));
        assert_eq!(cache.find("key"), None);
    }
}
