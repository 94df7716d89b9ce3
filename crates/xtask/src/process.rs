//! Commands with a bound: every child runs in a process group of its own, writes to a log, and is
//! ended with all of its children when its time is up.

use crate::tree;
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How a command ended.
pub struct Finished {
    /// It exited 0 in time.
    pub ok: bool,
    /// It was ended because its time was up.
    pub timed_out: bool,
    /// Its exit code, where it had one.
    pub code: Option<i32>,
    /// What it wrote, both streams in order.
    pub output: String,
    /// How long it ran.
    pub seconds: f64,
}

impl Finished {
    /// Returns the output, or an error with the whole of it where the command did not exit 0.
    pub fn expect_ok(self, what: &str) -> Result<String> {
        if self.ok {
            return Ok(self.output);
        }
        bail!("{what} {}\n{}", self.how(), self.output)
    }

    /// Says how it ended, for a sentence that begins with its name.
    pub fn how(&self) -> String {
        match (self.timed_out, self.code) {
            (true, _) => format!("did not end within {:.0} s", self.seconds),
            (false, Some(code)) => format!("exited {code}"),
            (false, None) => "was ended by a signal".to_owned(),
        }
    }
}

/// A command to be run.
pub struct Run {
    command: Command,
    line: String,
    limit: Duration,
    log: Option<PathBuf>,
}

impl Run {
    /// Starts the description of a command, run at the root of the tree, ten minutes at most.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new(program.as_ref());
        command.current_dir(tree::root()).stdin(Stdio::null()).process_group(0);
        let line = program.as_ref().to_string_lossy().into_owned();
        Self { command, line, limit: Duration::from_secs(600), log: None }
    }

    /// Starts the description of a cargo command, by the cargo that runs this task.
    pub fn cargo() -> Self {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        Self::new(cargo).env("CARGO_TERM_COLOR", "never")
    }

    /// Adds one argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.line.push(' ');
        self.line.push_str(&arg.as_ref().to_string_lossy());
        self.command.arg(arg);
        self
    }

    /// Adds arguments.
    pub fn args<I>(self, args: I) -> Self
    where
        I: IntoIterator,
        I::Item: AsRef<OsStr>,
    {
        args.into_iter().fold(self, Self::arg)
    }

    /// Adds the words of `line`, split at blanks.
    pub fn words(self, line: &str) -> Self {
        self.args(line.split_whitespace())
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Runs it in another folder.
    pub fn folder(mut self, folder: &Path) -> Self {
        self.command.current_dir(folder);
        self
    }

    /// Bounds its time.
    pub fn seconds(mut self, seconds: u64) -> Self {
        self.limit = Duration::from_secs(seconds);
        self
    }

    /// Keeps its output in `target/xtask/NAME.log`.
    pub fn log(mut self, name: &str) -> Result<Self> {
        self.log = Some(tree::scratch(&format!("{name}.log"))?);
        Ok(self)
    }

    /// Runs it to its end, or to its limit.
    pub fn run(mut self) -> Result<Finished> {
        let path = match self.log.take() {
            Some(path) => path,
            None => tree::scratch("command.log")?,
        };
        let file = File::create(&path).with_context(|| format!("making {}", path.display()))?;
        let second = file.try_clone().context("sharing the log")?;
        let start = Instant::now();
        let mut child = self
            .command
            .stdout(file)
            .stderr(second)
            .spawn()
            .with_context(|| format!("starting `{}`", self.line))?;
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let mut pause = Duration::from_millis(2);
        let (status, timed_out) = loop {
            if let Some(status) = child.try_wait().context("waiting for a command")? {
                break (status, false);
            }
            if start.elapsed() >= self.limit {
                if let Some(group) = group {
                    // The group may be gone by itself meanwhile; then there is nothing to end.
                    let _ = kill_process_group(group, Signal::KILL);
                }
                break (child.wait().context("waiting for an ended command")?, true);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(100));
        };
        let bytes = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        Ok(Finished {
            ok: status.success() && !timed_out,
            timed_out,
            code: status.code(),
            output: String::from_utf8_lossy(&bytes).into_owned(),
            seconds: start.elapsed().as_secs_f64(),
        })
    }
}

/// Finds a program on the search path.
pub fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}
