//! A peer from inside: opens what it needs, then works when it is told to.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use bulk::{Access, Bulk, CachePolicy, Options, Place, Request};
use gpu::Gpu;
use serde::{Deserialize, Serialize};
use storage::pattern;

use super::loops;
use crate::args::{LimitArgs, PeerSpec, Work};
use crate::bench::data::write_pattern;
use crate::bench::order::Order;
use crate::commands::engine::{Memory, open_gpu};

/// One repeat, as a peer tells of it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Repeat {
    /// How long it took.
    pub seconds: f64,
    /// Bytes that were moved.
    pub bytes: u64,
    /// What was wrong with them, where they were looked at.
    #[serde(default)]
    pub wrong: Option<String>,
    /// Most pinned memory, where it is known.
    #[serde(default)]
    pub pinned_bytes: u64,
}

/// What files there are.
#[derive(Clone, Debug)]
pub enum Files {
    /// One.
    One(PathBuf),
    /// Many of equal length: `0`, `1` and so on in a folder.
    Many(PathBuf),
}

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Task {
    /// What.
    pub work: Work,
    /// With which files.
    pub files: Files,
    /// Small files, or rows.
    pub count: u64,
    /// Bytes of each.
    pub each: u64,
    /// Take files out of the page cache first.
    pub cold: bool,
}

impl Task {
    /// Bytes of memory.
    ///
    /// # Errors
    /// The file is not there.
    pub fn bytes(&self) -> Result<u64> {
        match &self.files {
            Files::One(path) if self.work != Work::Rows => Ok(std::fs::metadata(path)?.len()),
            _ => Ok(self.count * self.each),
        }
    }

    /// The file of work that has one.
    pub fn file(&self) -> &Path {
        match &self.files {
            Files::One(path) | Files::Many(path) => path,
        }
    }

    /// The path of a small file.
    pub fn small(&self, index: u64) -> PathBuf {
        self.file().join(index.to_string())
    }

    /// Rows in the order in which they are asked for: all different, as far as there are so many.
    ///
    /// # Errors
    /// A file shorter than a row.
    pub fn rows(&self) -> Result<Vec<u64>> {
        let rows = std::fs::metadata(self.file())?.len() / self.each.max(1);
        ensure!(rows > 0, "{} is shorter than a row", self.file().display());
        let mut order = Order::new(rows, true, 1);
        Ok((0..self.count).map(|_| order.next_block()).collect())
    }
}

/// Whoever does the work.
pub trait Peer {
    /// Makes ready what a user would have at hand: names of files. Not timed.
    ///
    /// # Errors
    /// Its own.
    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }
    /// Does it once; the bytes moved.
    ///
    /// # Errors
    /// Its own.
    fn run(&mut self) -> Result<u64>;
    /// Most pinned memory so far.
    fn pinned_most(&self) -> u64 {
        0
    }
}

struct Ours {
    bulk: Bulk,
    task: Task,
    place: Place,
    rows: Vec<u64>,
    /// Small files to read next.
    requests: Vec<Request>,
}

impl Peer for Ours {
    fn prepare(&mut self) -> Result<()> {
        let task = &self.task;
        if task.work == Work::Files {
            let requests = (0..task.count).map(|index| {
                let place = self.place.part(index * task.each, task.each)?;
                Ok(Request::read_path(task.small(index), 0, place))
            });
            self.requests = requests.collect::<Result<_>>()?;
        }
        Ok(())
    }

    fn run(&mut self) -> Result<u64> {
        let (bulk, task) = (&self.bulk, &self.task);
        let open = |access| bulk.open_file(task.file(), access);
        Ok(match task.work {
            Work::Read => bulk.read(&open(Access::Read)?, 0, self.place.clone())?,
            Work::Write => bulk.write(&open(Access::ReadWrite)?, 0, self.place.clone())?,
            Work::Rows => {
                bulk.read_rows(&open(Access::Read)?, &self.rows, task.each, self.place.clone())?
            }
            Work::Files => {
                let batch = bulk.submit_many(std::mem::take(&mut self.requests));
                batch.wait_whole(std::time::Duration::MAX)?.context("it ends")?
            }
        })
    }

    fn pinned_most(&self) -> u64 {
        self.bulk.counters().pinned_bytes_max
    }
}

fn ours(
    spec: &PeerSpec,
    task: &Task,
    gpu: Option<&Arc<dyn Gpu>>,
    memory: &Memory,
    pinned_max: u64,
) -> Result<Ours> {
    let number = |key, otherwise| spec.number(key, otherwise).map_err(anyhow::Error::msg);
    let mut knees = bulk::Knees::default();
    knees.slot_bytes = number("slot", knees.slot_bytes)?;
    knees.slots = usize::try_from(number("slots", knees.slots as u64)?)?;
    let threads = spec.get("threads").map(|_| number("threads", 0)).transpose()?;
    let cache = match spec.get("cache").unwrap_or("auto") {
        "auto" => CachePolicy::Auto,
        "cached" => CachePolicy::Cached,
        "direct" => CachePolicy::Direct,
        other => bail!("cache={other}: auto, cached or direct"),
    };
    let bulk = Bulk::open(Options {
        gpu: gpu.cloned(),
        threads: threads.map(usize::try_from).transpose()?,
        pool_bytes: number("pool", pinned_max.min(256 << 20))?,
        knees: Some(knees),
        cache,
        ..Options::default()
    })?;
    let rows = if task.work == Work::Rows { task.rows()? } else { Vec::new() };
    let (task, place, requests) = (task.clone(), memory.place(), Vec::new());
    Ok(Ours { bulk, task, place, rows, requests })
}

/// Is a peer: opens, says that it is ready, and works until its input ends.
///
/// # Errors
/// What opening meets; what working meets is told as a line.
pub fn serve(spec: &PeerSpec, task: &Task, limits: &LimitArgs) -> Result<()> {
    let gpu = open_gpu(spec.get("host").is_some(), limits)?;
    let bytes = task.bytes()?;
    let memory = Memory::allocate(gpu.as_ref(), bytes)?;
    if task.work == Work::Write {
        fill(&memory, bytes)?;
    }
    let mut peer: Box<dyn Peer> = match spec.name.as_str() {
        "ours" => Box::new(ours(spec, task, gpu.as_ref(), &memory, limits.pinned_max)?),
        "plain" | "posix" | "ceiling" => Box::new(loops::open(spec, task, gpu.as_ref(), &memory)?),
        other => bail!("no peer is named {other}"),
    };
    let mut out = std::io::stdout().lock();
    let name = gpu.as_ref().map_or_else(|| "host memory".to_owned(), |gpu| gpu.describe().name);
    writeln!(out, "ready {name}")?;
    let mut first = spec.name != "ceiling" && spec.get("check") != Some("0");
    for line in std::io::stdin().lock().lines() {
        let _go = line?;
        if task.cold {
            drop_pages(task)?;
        }
        peer.prepare()?;
        let begin = Instant::now();
        let moved = peer.run();
        let seconds = begin.elapsed().as_secs_f64();
        let mut wrong = moved.as_ref().err().map(|error| format!("{error:#}"));
        if std::mem::take(&mut first) && wrong.is_none() {
            wrong = check(task, &memory, bytes).err().map(|error| format!("{error:#}"));
        }
        let (bytes, pinned_bytes) = (moved.unwrap_or(0), peer.pinned_most());
        writeln!(
            out,
            "{}",
            serde_json::to_string(&Repeat { seconds, bytes, wrong, pinned_bytes })?
        )?;
        out.flush()?;
    }
    Ok(())
}

/// Takes the files out of the page cache.
fn drop_pages(task: &Task) -> Result<()> {
    if let Files::One(path) = &task.files {
        let file = std::fs::File::open(path)?;
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    Ok(())
}

/// Puts self-describing bytes into memory.
fn fill(memory: &Memory, bytes: u64) -> Result<()> {
    let bulk = Bulk::open(Options {
        gpu: match memory {
            Memory::Device(gpu, _) => Some(Arc::clone(gpu)),
            Memory::Host(_) => None,
        },
        ..Options::default()
    })?;
    let made = tempfile::NamedTempFile::new_in("/dev/shm")?;
    write_pattern(made.as_file(), bytes)?;
    let file = bulk.open_file(made.path(), Access::Read)?;
    ensure!(bulk.read(&file, 0, memory.place())? == bytes, "the source is shorter");
    Ok(())
}

/// Checks every byte where it has arrived.
fn check(task: &Task, memory: &Memory, bytes: u64) -> Result<()> {
    match task.work {
        Work::Read => memory.read_back(bytes, |at, piece| Ok(pattern::check(piece, at, 1)?)),
        Work::Write => {
            let file = std::fs::File::open(task.file())?;
            let mut piece = vec![0; 8 << 20];
            let mut at = 0;
            while at < bytes {
                let len = usize::try_from(bytes - at)?.min(piece.len());
                std::os::unix::fs::FileExt::read_exact_at(&file, &mut piece[..len], at)?;
                pattern::check(&piece[..len], at, 1)?;
                at += len as u64;
            }
            Ok(())
        }
        Work::Rows | Work::Files => {
            let rows = if task.work == Work::Rows { task.rows()? } else { Vec::new() };
            let mut expected = Vec::new();
            memory.read_back(bytes, |mut at, mut piece| {
                while !piece.is_empty() {
                    let (index, within) = (at / task.each, at % task.each);
                    let len = usize::try_from(task.each - within)?.min(piece.len());
                    let row = match task.work {
                        Work::Rows => rows[usize::try_from(index)?],
                        _ => index,
                    };
                    expected.resize(len, 0);
                    pattern::fill(&mut expected, row * task.each + within, 1);
                    ensure!(piece[..len] == expected[..], "row or file {index} differs");
                    piece = &piece[len..];
                    at += len as u64;
                }
                Ok(())
            })
        }
    }
}
