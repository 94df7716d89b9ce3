//! Where things are in the working tree, and which files belong to it.

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the root of the workspace that this program was built from.
pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).expect("crates/xtask lies two below the root").to_path_buf()
}

/// Returns the folder for what the tasks build, `target` below the root.
pub fn target() -> PathBuf {
    root().join("target")
}

/// Returns `target/xtask/NAME`, its folder made.
pub fn scratch(name: &str) -> Result<PathBuf> {
    let folder = target().join("xtask");
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    Ok(folder.join(name))
}

/// Lists the files of the tree relative to the root: tracked, or new and not ignored.
pub fn files() -> Result<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .context("running git ls-files")?;
    ensure!(
        output.status.success(),
        "git ls-files failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    let mut files: Vec<String> = text
        .split('\0')
        .filter(|name| !name.is_empty() && root().join(name).is_file())
        .map(str::to_owned)
        .collect();
    files.sort();
    files.dedup();
    Ok(files)
}

/// Reads a file of the tree.
pub fn read(name: &str) -> Result<String> {
    std::fs::read_to_string(root().join(name)).with_context(|| format!("reading {name}"))
}
