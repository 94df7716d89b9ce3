//! `cargo xtask abi`: the generated C++ twin of the structures shared with the GPU.

use crate::tree;
use anyhow::{Context, Result};

/// Where the twin is committed.
pub const HEADER: &str = "include/sidecore/impl/abi__types.h";

/// Options of `cargo xtask abi`.
#[derive(clap::Args)]
pub struct Options {
    /// Only compare; exit 1 where the committed file differs
    #[arg(long)]
    check: bool,
}

/// Writes the header, or compares it.
pub fn run(options: &Options) -> Result<bool> {
    let text = abi::generate();
    if options.check {
        let same = is_current()?;
        println!("{HEADER} {}", if same { "is current" } else { "differs: run cargo xtask abi" });
        return Ok(same);
    }
    let path = tree::root().join(HEADER);
    std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    println!("wrote {HEADER}");
    Ok(true)
}

/// Whether the committed header is what the generator writes.
pub fn is_current() -> Result<bool> {
    Ok(tree::read(HEADER)? == abi::generate())
}
