//! Ctrl-C: the first asks for an end, the second kills. What was made is removed either way.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};

use crate::printer::tell;

static ASKED: AtomicBool = AtomicBool::new(false);
/// Files, and folders of them, to remove should the second Ctrl-C come.
static MADE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Exit code of an interrupted run.
pub const INTERRUPTED: u8 = 130;

/// Starts listening.
///
/// # Errors
/// The system refuses signal handlers.
pub fn listen() -> Result<()> {
    ctrlc::set_handler(|| {
        if ASKED.swap(true, Ordering::Relaxed) {
            for path in MADE.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
                // Nothing more can be done about what does not go.
                let _stays = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir_all(path));
            }
            std::process::exit(i32::from(INTERRUPTED));
        }
        tell!("\nending; Ctrl-C again kills");
    })
    .context("listening for Ctrl-C")
}

/// Whether the end was asked for.
pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Notes a file, or a folder, that must not stay behind.
pub fn note_made(path: &Path) {
    MADE.lock().unwrap_or_else(PoisonError::into_inner).push(path.to_owned());
}
