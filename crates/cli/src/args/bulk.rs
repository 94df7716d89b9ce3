//! Options of what runs on the bulk engine.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};

use super::{LimitArgs, count};
use crate::units::parse_bytes;

/// How the bulk engine is opened.
#[derive(Args, Debug, Clone)]
pub struct EngineArgs {
    /// Threads [default: as tuned for this file system and GPU].
    #[arg(long, value_parser = count)]
    pub threads: Option<u32>,
    /// Refuse, and move nothing, where bytes would not take this route: direct, host, host-direct, staged,
    /// staged-direct, window.
    #[arg(long, value_name = "ROUTE")]
    pub require: Option<bulk::Route>,
    /// When to go around the page cache.
    #[arg(long, value_enum, default_value = "auto")]
    pub cache: CacheName,
    /// Bytes of a slot [default: as tuned].
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub slot: Option<u64>,
    /// Slots of a thread [default: as tuned].
    #[arg(long, value_name = "N", value_parser = count)]
    pub slots: Option<u32>,
    /// Into or from host memory, without a GPU.
    #[arg(long)]
    pub host: bool,
}

/// When to go around the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum CacheName {
    /// Reads: where the pages are not in it. Writes: never.
    Auto,
    /// Never.
    Cached,
    /// Wherever the file system allows.
    Direct,
}

impl From<CacheName> for bulk::CachePolicy {
    fn from(name: CacheName) -> Self {
        match name {
            CacheName::Auto => Self::Auto,
            CacheName::Cached => Self::Cached,
            CacheName::Direct => Self::Direct,
        }
    }
}

/// Options of `save`.
#[derive(Args, Debug, Clone)]
pub struct SaveArgs {
    /// File whose bytes are brought into GPU memory first.
    pub source: PathBuf,
    /// File that is written out of GPU memory: complete, or not changed at all.
    pub target: PathBuf,
    /// Allow the target to be there already: it is replaced.
    #[arg(long)]
    pub overwrite: bool,
    /// How the engine is opened.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Limits that hold for all commands.
    #[command(flatten)]
    pub limits: LimitArgs,
}

/// Options of `tune`.
#[derive(Args, Debug, Clone)]
pub struct TuneArgs {
    /// Directory on the file system that is measured.
    #[arg(default_value = ".")]
    pub directory: PathBuf,
    /// Length of the file that is made for it.
    #[arg(long, value_parser = parse_bytes, default_value = "256M")]
    pub size: u64,
    /// Times that each thing is measured.
    #[arg(long, value_parser = count, default_value = "3")]
    pub repeats: u32,
    /// Host memory, without a GPU.
    #[arg(long)]
    pub host: bool,
    /// Print the knees, and do not store them.
    #[arg(long)]
    pub dry_run: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Limits that hold for all commands.
    #[command(flatten)]
    pub limits: LimitArgs,
}

/// What `bench bulk` does with files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Work {
    /// Many small files into device memory.
    Files,
    /// One file into device memory.
    Read,
    /// Rows of one file, at random, into device memory.
    Rows,
    /// Device memory into one file in the page cache.
    Write,
}

impl Work {
    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Read => "read",
            Self::Rows => "rows",
            Self::Write => "write",
        }
    }
}

/// Who does the work, and how: `NAME[:key=value[,key=value]...]`.
#[derive(Clone, Debug)]
pub struct PeerSpec {
    /// All of it.
    pub text: String,
    /// The name.
    pub name: String,
    /// The values by key.
    values: Vec<(String, String)>,
}

impl FromStr for PeerSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let pairs = rest.split(',').filter(|pair| !pair.is_empty()).map(|pair| {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| format!("'{pair}' in '{text}' is not key=value"))?;
            Ok((key.to_owned(), value.to_owned()))
        });
        let values = pairs.collect::<Result<_, String>>()?;
        Ok(Self { text: text.to_owned(), name: name.to_owned(), values })
    }
}

impl PeerSpec {
    /// Checks the options of a peer that is part of this command.
    ///
    /// # Errors
    /// An option that it does not have, or a number that it cannot use.
    pub fn check_own(&self) -> Result<(), String> {
        const WORDS: [&str; 3] = ["cache", "check", "host"];
        // Threads and slots as no machine needs more of; bytes as pinned memory may have.
        const NUMBERS: [(&str, u64); 4] =
            [("pool", 512 << 20), ("slot", 512 << 20), ("slots", 1024), ("threads", 1024)];
        for (key, _) in &self.values {
            let wrong = |why: String| Err(format!("--with {}: {key}: {why}", self.text));
            let of_ours = matches!(key.as_str(), "cache" | "pool") && self.name != "ours";
            if let Some((_, most)) = NUMBERS.iter().find(|(known, _)| known == key) {
                match self.number(key, 0) {
                    Ok(number) if !of_ours && (1..=*most).contains(&number) => {}
                    Ok(_) if of_ours => return wrong(format!("{} has no such option", self.name)),
                    Ok(_) => return wrong(format!("1 to {most} is possible")),
                    Err(why) => return wrong(why),
                }
            } else if of_ours || !WORDS.contains(&key.as_str()) {
                return wrong(format!("{} has no such option", self.name));
            }
        }
        Ok(())
    }

    /// A value, if it was given.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.values.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    /// A number of bytes, or a count.
    ///
    /// # Errors
    /// What is no number.
    pub fn number(&self, key: &str, otherwise: u64) -> Result<u64, String> {
        self.get(key).map_or(Ok(otherwise), parse_bytes)
    }
}

/// Options of `bench bulk`, and of `bench rows`.
#[derive(Args, Debug, Clone)]
pub struct BulkBenchArgs {
    /// What is done [default: read; for `bench rows`: rows].
    #[arg(long, value_enum)]
    pub work: Option<Work>,
    /// Who does it, again for each: ours, plain (a loop of reads into pinned memory with overlapping
    /// copies), posix (read, copy, wait), numpy, or a name that the script knows, such as kvikio or
    /// safetensors. Options behind a colon: `ours:threads=8,slot=1M`, `kvikio:threads=16`; `check=0` leaves
    /// out the check of every byte.
    #[arg(
        long = "with",
        value_name = "PEER",
        default_values = ["ours", "plain:threads=8", "posix:threads=1"]
    )]
    pub peers: Vec<PeerSpec>,
    /// Existing file of self-describing bytes to use [default: one is made, and removed].
    #[arg(long)]
    pub file: Option<PathBuf>,
    /// Allow a given file to be written.
    #[arg(long)]
    pub overwrite: bool,
    /// Where files are made [default: the system's directory for temporary files].
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Bytes of the file.
    #[arg(long, value_parser = parse_bytes, default_value = "1G")]
    pub size: u64,
    /// Small files, or rows.
    #[arg(long, default_value_t = 100_000)]
    pub count: u64,
    /// Bytes of a small file [default: 16k], or of a row [default: 4k].
    #[arg(long, value_parser = parse_bytes)]
    pub each: Option<u64>,
    /// Timed repeats of each, in turns.
    #[arg(long, value_parser = count, default_value = "5")]
    pub repeats: u32,
    /// Take the file out of the page cache before each repeat.
    #[arg(long)]
    pub cold: bool,
    /// Moves nothing in bulk: what it costs to open the GPU, the engine, a file and memory, and what the
    /// first transfers make.
    #[arg(long, conflicts_with_all = ["work", "cold"])]
    pub opening: bool,
    /// Python that runs peers of the script.
    #[arg(long, default_value = "python3")]
    pub python: PathBuf,
    /// Script with peers in Python.
    #[arg(long, default_value = "benches/bulk_peers.py")]
    pub script: PathBuf,
    /// Print one JSON object a peer.
    #[arg(long)]
    pub json: bool,
    /// Be one of the peers: what this command starts for itself.
    #[arg(long, hide = true)]
    pub be: Option<PeerSpec>,
    /// Limits that hold for all commands.
    #[command(flatten)]
    pub limits: LimitArgs,
}
