//! Compiled code on disk, named by what it was compiled from.
//!
//! ```text
//! $XDG_CACHE_HOME/sidecore/KEY.cubin     SHA-256 of the rest (32 bytes) | machine code
//! ```
//!
//! A file is written beside its place and renamed, so that readers see all of it or nothing; one whose
//! sum is wrong is as good as none. A cache that cannot be written costs time, nothing else.

use std::fs;
use std::io::Write;
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
        let file = fs::read(self.path(key)?).ok()?;
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

fn write(path: &Path, code: &[u8]) -> std::io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(directory)?;
    let beside = path.with_extension(format!("{}.tmp", std::process::id()));
    let mut file = fs::File::create(&beside)?;
    file.write_all(Sha256::digest(code).as_ref())?;
    file.write_all(code)?;
    drop(file);
    fs::rename(&beside, path)
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
    fn a_cache_that_cannot_be_written_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, b"").unwrap();
        let cache = Cache::at(&file);
        assert!(!cache.keep("key", b"code"));
        assert_eq!(cache.find("key"), None);
    }
}
