//! Measured knees on disk: one JSON file of the user, by file system and GPU.
//!
//! `$XDG_CONFIG_HOME/sidecore/knees.json`, else `~/.config/sidecore/knees.json`. A key is the type of the
//! file system, where it is mounted, and the name of the GPU, or `host`.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::BulkError;
use crate::knees::Knees;

mod mount {
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    /// Type and mount point of the file system that a path is on.
    pub fn of(path: &Path) -> std::io::Result<(String, String)> {
        let device = std::fs::metadata(path)?.dev();
        let wanted = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let found = table.lines().rev().find_map(|line| {
            let mut words = line.split(' ');
            let (number, point) = (words.nth(2)?, words.nth(1)?);
            let kind = line.split(" - ").nth(1)?.split(' ').next()?;
            (number == wanted).then(|| (kind.to_owned(), point.to_owned()))
        });
        Ok(found.unwrap_or_else(|| ("unknown".to_owned(), wanted)))
    }
}

/// The file's form; a later one will have another number.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Table {
    version: u32,
    knees: BTreeMap<String, Knees>,
}

impl Default for Table {
    fn default() -> Self {
        Self { version: VERSION, knees: BTreeMap::new() }
    }
}

/// Where knees are kept.
#[derive(Clone, Debug)]
pub struct Store {
    path: PathBuf,
}

impl Store {
    /// The user's own; `None` where neither `XDG_CONFIG_HOME` nor `HOME` says where that is.
    pub fn of_user() -> Option<Self> {
        Self::by(|name| std::env::var_os(name).map(PathBuf::from))
    }

    /// Paths that are not absolute count as none. Source: XDG Base Directory Specification 0.8, 2.
    fn by(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<Self> {
        let absolute = |name: &str| variable(name).filter(|path| path.is_absolute());
        let config = absolute("XDG_CONFIG_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".config")))?;
        Some(Self::at(config.join("sidecore").join("knees.json")))
    }

    /// A file.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The key for files on the file system of `path`, and a GPU by its name.
    ///
    /// # Errors
    /// [`BulkError::Os`] where there is no such path.
    pub fn key(path: &Path, gpu: Option<&str>) -> Result<String, BulkError> {
        let (kind, point) = mount::of(path)
            .map_err(|e| BulkError::os("looking at", path.display().to_string(), &e))?;
        Ok(format!("{kind} at {point}, {}", gpu.unwrap_or("host")))
    }

    fn read(&self) -> Result<Table, BulkError> {
        let unreadable = |why: String| BulkError::Unsupported {
            what: format!("the knees in {}", self.path.display()),
            why: format!("{why}; remove the file and run sidecore tune"),
        };
        let text = match std::fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Table::default()),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(unreadable("it is not UTF-8".to_owned()));
            }
            Err(error) => {
                return Err(BulkError::os("reading", self.path.display().to_string(), &error));
            }
        };
        let table: Table = serde_json::from_str(&text).map_err(|e| unreadable(e.to_string()))?;
        if table.version != VERSION {
            return Err(unreadable(format!("version {} is not {VERSION}", table.version)));
        }
        Ok(table)
    }

    /// The knees under a key.
    ///
    /// # Errors
    /// [`BulkError::Unsupported`] where the file is not one of knees, [`BulkError::Os`].
    pub fn get(&self, key: &str) -> Result<Option<Knees>, BulkError> {
        Ok(self.read()?.knees.remove(key))
    }

    /// Makes the folder, and finds out whether knees can be kept there: before they are measured at length.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub fn prepare(&self) -> Result<(), BulkError> {
        self.read()?;
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let failed = |what: &'static str, e: &io::Error| {
            BulkError::os(what, folder.display().to_string(), e)
        };
        std::fs::create_dir_all(folder).map_err(|e| failed("making", &e))?;
        let rights = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
        rustix::fs::access(folder, rights).map_err(|e| failed("writing into", &e.into()))
    }

    /// Keeps knees under a key; the file is complete at every moment.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn put(&self, key: &str, knees: Knees) -> Result<(), BulkError> {
        self.prepare()?;
        let mut table = self.read()?;
        table.knees.insert(key.to_owned(), knees);
        let text = serde_json::to_string_pretty(&table).expect("numbers and words");
        let temporary = self.path.with_extension(format!("{}.tmp", std::process::id()));
        let written = std::fs::write(&temporary, text + "\n");
        let kept = written.and_then(|()| std::fs::rename(&temporary, &self.path));
        kept.map_err(|error| {
            let _gone = std::fs::remove_file(&temporary);
            BulkError::os("writing", self.path.display().to_string(), &error)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knees_come_back_by_key_and_other_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::at(folder.path().join("new").join("knees.json"));
        let key = Store::key(folder.path(), Some("a GPU")).unwrap();
        assert!(key.ends_with(", a GPU") && key.contains(" at /"), "{key}");
        assert_eq!(store.get(&key).unwrap(), None);
        let knees = Knees { threads_cached: 3, ..Knees::default() };
        store.put(&key, knees).unwrap();
        store.put("other", Knees::default()).unwrap();
        assert_eq!(store.get(&key).unwrap(), Some(knees));
        for text in [&b""[..], b"{", b"{\"version\":2,\"knees\":{}}", b"[]", b"\xff\xfe"] {
            std::fs::write(store.path(), text).unwrap();
            let error = store.get(&key).unwrap_err();
            assert!(error.to_string().contains("sidecore tune"), "{error}");
            assert!(store.prepare().is_err());
            assert!(store.put(&key, knees).is_err());
        }
    }

    #[test]
    fn the_users_place_is_an_absolute_one() {
        let of = |config: &str, home: &str| {
            let (config, home) = (PathBuf::from(config), PathBuf::from(home));
            let of = |name: &str| Some(if name == "HOME" { home.clone() } else { config.clone() });
            Store::by(of).map(|store| store.path().display().to_string())
        };
        assert_eq!(of("/c", "/h").as_deref(), Some("/c/sidecore/knees.json"));
        for config in ["", "c", "./c"] {
            assert_eq!(of(config, "/h").as_deref(), Some("/h/.config/sidecore/knees.json"));
        }
        assert_eq!(of("", "h"), None);
    }

    #[test]
    fn a_place_that_takes_no_knees_is_found_out_before() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, b"").unwrap();
        let error = Store::at(file.join("knees.json")).prepare().unwrap_err();
        assert!(error.to_string().contains("file"), "{error}");
        let store = Store::at(folder.path().join("knees.json"));
        std::fs::create_dir(store.path()).unwrap();
        assert!(store.prepare().is_err() && store.put("key", Knees::default()).is_err());
    }
}
