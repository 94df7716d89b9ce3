//! Lines of results; and what people see while something takes long: only on a terminal, only after
//! two seconds.

use std::io::{ErrorKind, IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Prints a line of results. A reader that has gone away is no failure; a full disk is.
///
/// # Errors
/// The system's own.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out
        .write_all(text.as_bytes())
        .and_then(|()| out.write_all(b"\n"))
        .and_then(|()| out.flush())
    {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("writing to standard output")
        }
        _ => Ok(()),
    }
}

/// Says something on standard error. Where nobody can read it, the command goes on all the same: its exit
/// code tells.
macro_rules! tell {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _unread = writeln!(std::io::stderr(), $($words)*);
    }};
}
pub(crate) use tell;

/// Nothing is shown before this.
const QUIET: Duration = Duration::from_secs(2);

/// Progress of one piece of work, in steps.
#[derive(Debug)]
pub struct Progress {
    started: Instant,
    bar: Option<ProgressBar>,
    steps: u64,
}

impl Progress {
    /// Starts counting towards `steps`.
    pub fn new(steps: u64) -> Self {
        Self { started: Instant::now(), bar: None, steps }
    }

    /// Says how far it is and what is going on.
    pub fn show(&mut self, done: u64, what: &str) {
        if self.bar.is_none() && self.started.elapsed() > QUIET && std::io::stderr().is_terminal() {
            let bar = ProgressBar::with_draw_target(Some(self.steps), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{bar:32.cyan/dim} {percent:>3} %  {msg}");
            bar.set_style(style.expect("the template is well formed"));
            self.bar = Some(bar);
        }
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            bar.set_message(what.to_owned());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
