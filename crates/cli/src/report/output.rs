//! Report files: checked before the run, written whole or not at all.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// First bytes of a CSV and of an HTML file that sidecore wrote.
const MARKS: [&str; 2] = ["path,route,op,gpu,drive,io_bytes,", "<!DOCTYPE html><!-- sidecore"];

/// A file that will be written at the end of a run.
#[derive(Debug)]
pub struct ReportFile {
    path: PathBuf,
}

/// Names of the reports that are written when nobody names any; replaced only if sidecore made them.
pub fn default_files() -> (PathBuf, PathBuf) {
    (PathBuf::from("sidecore-bench.csv"), PathBuf::from("sidecore-bench.html"))
}

impl ReportFile {
    /// Checks, before anything runs, that the file may and can be written.
    ///
    /// # Errors
    /// It exists and may not be replaced; it is a directory; its directory is missing or read-only.
    pub fn check(path: &Path, overwrite: bool, by_default: bool) -> Result<Self> {
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => {
                bail!("writing the report {}: it is a directory", path.display())
            }
            Ok(_) if overwrite || (by_default && is_ours(path)) => {}
            Ok(_) => bail!(
                "writing the report {}: it exists; add --overwrite to replace it",
                path.display()
            ),
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => {
                return Err(e).with_context(|| format!("writing the report {}", path.display()));
            }
        }
        // A probe beside it shows now, not after the run, that the directory takes files.
        tempfile::Builder::new()
            .prefix(".sidecore-")
            .tempfile_in(directory(path))
            .with_context(|| format!("writing the report {}", path.display()))?;
        Ok(Self { path: path.to_owned() })
    }

    /// Where it goes.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes it whole beside its place and moves it there.
    ///
    /// # Errors
    /// The system's own, with the file's name; nothing is left behind.
    pub fn write(&self, text: &str) -> Result<()> {
        let named = || format!("writing the report {}", self.path.display());
        let mut file = tempfile::Builder::new()
            .prefix(".sidecore-")
            .permissions(public())
            .tempfile_in(directory(&self.path))
            .with_context(named)?;
        file.write_all(text.as_bytes()).with_context(named)?;
        file.as_file().sync_all().with_context(named)?;
        file.persist(&self.path).map_err(|e| e.error).with_context(named)?;
        Ok(())
    }
}

/// Readable by all, as the umask allows.
fn public() -> fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o666)
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    }
}

fn is_ours(path: &Path) -> bool {
    let mut start = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(64).read_to_end(&mut start));
    read.is_ok() && MARKS.iter().any(|mark| start.starts_with(mark.as_bytes()))
}
