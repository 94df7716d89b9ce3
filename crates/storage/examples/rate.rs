//! Random 4 KiB reads of a file through `FileStorage`, against fio on the same file, interleaved.
//!
//! `cargo run --release -p sidecore-storage --example rate -- [FILE|-] [cached|direct] [SECONDS]`
//!
//! Without a file (`-`) a file of 1 GiB is made in the current directory and removed again. Each of
//! five rounds runs both, and the medians are compared; beside them stand the system calls an I/O
//! and the mean number of requests in flight.
#![forbid(unsafe_code)]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use mem::{MemoryKind, Region};
use sidecore_storage as storage;
use storage::{
    Completion, Direct, FileOptions, FileStorage, Op, QueueOptions, Request, Storage, pattern,
};

const DEPTH: u32 = 32;
const IO_BYTES: u32 = 4096;
const ROUNDS: usize = 5;

struct Round {
    iops: f64,
    syscalls_per_io: f64,
    in_flight_mean: f64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |i: usize, default: &str| arguments.get(i).map_or(default, |a| a).to_owned();
    let direct = argument(1, "cached") == "direct";
    let limit = Duration::from_secs(argument(2, "2").parse()?);
    let made = (argument(0, "-") == "-").then(|| PathBuf::from("rate.tmp"));
    let path = made.clone().unwrap_or_else(|| PathBuf::from(argument(0, "-")));
    if made.is_some() {
        make_file(&path, 1 << 30)?;
    }
    let result = compare(&path, direct, limit);
    if let Some(made) = made {
        std::fs::remove_file(made)?;
    }
    result
}

fn compare(path: &Path, direct: bool, limit: Duration) -> Result<(), Box<dyn Error>> {
    let preference = if direct { Direct::Always } else { Direct::Auto };
    let options = FileOptions { direct: preference, ..FileOptions::default() };
    let storage = FileStorage::open(path, &options)?;
    println!("{}", storage.explain());
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let round = run(&storage, limit)?;
        let fio = run_fio(path, direct, limit)?;
        println!(
            "sidecore {:9.0} IOPS, {:.3} system calls an I/O, {:.1} in flight; fio {fio:9.0} IOPS",
            round.iops, round.syscalls_per_io, round.in_flight_mean
        );
        ours.push(round.iops);
        theirs.push(fio);
    }
    println!("ratio of medians {:.3}", median(&mut ours) / median(&mut theirs));
    Ok(())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn make_file(path: &Path, bytes: u64) -> std::io::Result<()> {
    use std::io::Write;
    let mut file = std::fs::File::create(path)?;
    let mut piece = vec![0; 1 << 20];
    for offset in (0..bytes).step_by(piece.len()) {
        pattern::fill(&mut piece, offset, 1);
        file.write_all(&piece)?;
    }
    file.sync_all()
}

/// A generator that is cheap beside an I/O.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let scaled = (u128::from(pattern::mix(self.0)) * u128::from(limit)) >> 64;
        u64::try_from(scaled).expect("below the limit")
    }
}

fn run(storage: &FileStorage, limit: Duration) -> Result<Round, Box<dyn Error>> {
    let memory = Region::map_anonymous((DEPTH * IO_BYTES) as usize, MemoryKind::Host)?;
    let options = QueueOptions { depth: DEPTH, registered: vec![memory.clone()] };
    let mut queue = storage.open_queue(&options)?;
    let blocks = storage.geometry().bytes / u64::from(IO_BYTES);
    let mut random = Random(Instant::now().elapsed().subsec_nanos().into());
    let mut slots: Vec<u64> = (0..u64::from(DEPTH)).collect();
    let mut completions: Vec<Completion> = Vec::new();
    let (mut ios, mut weighted, mut held) = (0u64, 0.0, 0.0);
    let begin = Instant::now();
    let mut last = begin;
    while begin.elapsed() < limit {
        while let Some(slot) = slots.pop() {
            let request = Request {
                token: slot,
                op: Op::Read,
                offset: random.below(blocks) * u64::from(IO_BYTES),
                bytes: IO_BYTES,
                memory: &memory,
                memory_offset: usize::try_from(slot)? * IO_BYTES as usize,
            };
            queue.try_submit(request).expect("a slot is free");
        }
        // From `held` at the last look the number grew evenly to the whole depth.
        let now = Instant::now();
        weighted += (now - last).as_secs_f64() * (held + f64::from(DEPTH)) / 2.0;
        queue.poll(&mut completions);
        if completions.is_empty() {
            queue.wait_for_completion(Duration::from_millis(100));
            queue.poll(&mut completions);
        }
        last = Instant::now();
        weighted += (last - now).as_secs_f64() * f64::from(DEPTH);
        held = f64::from(queue.in_flight());
        for completion in completions.drain(..) {
            assert!(completion.status.is_success() && completion.bytes == IO_BYTES);
            slots.push(completion.token);
            ios += 1;
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    let syscalls = queue.counters().syscalls;
    Ok(Round {
        iops: ios as f64 / seconds,
        syscalls_per_io: syscalls as f64 / ios as f64,
        in_flight_mean: weighted / seconds,
    })
}

fn run_fio(path: &Path, direct: bool, limit: Duration) -> Result<f64, Box<dyn Error>> {
    let output = Command::new("fio")
        .args(["--name=rate", "--rw=randread", "--bs=4k", "--ioengine=io_uring", "--readonly"])
        .args(["--registerfiles=1", "--fixedbufs=1", "--invalidate=0", "--norandommap"])
        .args(["--time_based", "--output-format=terse", "--terse-version=3"])
        .arg(format!("--iodepth={DEPTH}"))
        .arg(format!("--direct={}", u8::from(direct)))
        .arg(format!("--runtime={}", limit.as_secs()))
        .arg(format!("--filename={}", path.display()))
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    // Field 8 of the terse format, version 3: read IOPS.
    let field = text
        .lines()
        .find_map(|line| line.split(';').nth(7))
        .ok_or_else(|| format!("fio said nothing: {}", String::from_utf8_lossy(&output.stderr)))?;
    Ok(field.parse()?)
}
