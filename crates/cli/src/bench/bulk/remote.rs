//! A peer seen from outside: its lines, and its CPU time by the kernel's books.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::Repeat;
use crate::interrupt;

/// How often Ctrl-C is looked for.
const LOOK: Duration = Duration::from_millis(50);

/// A process that does repeats.
pub struct Remote {
    child: Child,
    input: ChildStdin,
    lines: Receiver<std::io::Result<String>>,
    /// What it says that it is.
    pub what: String,
}

impl Remote {
    /// Starts it and waits until it is ready.
    ///
    /// # Errors
    /// It does not start, or ends before it is ready.
    pub fn start(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", command.get_program().display()))?;
        let input = child.stdin.take().context("its input")?;
        let output = BufReader::new(child.stdout.take().context("its output")?);
        let (sender, lines) = channel();
        // It ends with the peer's output, or once nobody listens.
        std::thread::spawn(move || output.lines().try_for_each(|line| sender.send(line)));
        let mut this = Self { child, input, lines, what: String::new() };
        let line = this.line()?;
        let what = line.strip_prefix("ready").with_context(|| format!("it said {line:?}"))?;
        this.what = what.trim().to_owned();
        Ok(this)
    }

    /// Its next line; gives up where the user does not want to wait any longer.
    fn line(&self) -> Result<String> {
        loop {
            match self.lines.recv_timeout(LOOK) {
                Ok(line) => return Ok(line?.trim().to_owned()),
                Err(RecvTimeoutError::Disconnected) => bail!("it ended without an answer"),
                Err(RecvTimeoutError::Timeout) => {
                    ensure!(!interrupt::asked(), "it was interrupted");
                }
            }
        }
    }

    /// Has it do its work once: what it says, and the CPU seconds that this took.
    ///
    /// # Errors
    /// It failed, or what arrived was wrong.
    pub fn repeat(&mut self) -> Result<(Repeat, f64)> {
        let before = cpu_seconds(self.child.id())?;
        self.input.write_all(b"go\n")?;
        let line = self.line()?;
        let after = cpu_seconds(self.child.id())?;
        let repeat: Repeat =
            serde_json::from_str(&line).with_context(|| format!("it said {line:?}"))?;
        if let Some(why) = &repeat.wrong {
            bail!("what arrived is wrong: {why}");
        }
        Ok((repeat, after - before))
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // It ends at the end of its input; this is for one that does not.
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// User and system seconds of a process and all its threads.
fn cpu_seconds(process: u32) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    let behind = text.rsplit_once(") ").map(|(_, rest)| rest).context("its name in its books")?;
    let words: Vec<_> = behind.split(' ').collect();
    let ticks = |at: usize| words.get(at).and_then(|word| word.parse::<f64>().ok());
    // Fields 14 and 15 of proc(5); the first behind the name is field 3.
    let sum = ticks(11).zip(ticks(12)).map(|(user, system)| user + system);
    Ok(sum.context("its CPU time")? / rustix::param::clock_ticks_per_second() as f64)
}
