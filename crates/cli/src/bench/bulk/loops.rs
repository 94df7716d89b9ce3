//! What anybody writes by hand: threads that read into pinned memory and copy.
//!
//! | peer | what each thread does |
//! | --- | --- |
//! | `plain` | reads into one pinned buffer while the copy of another goes on |
//! | `posix` | reads, copies, waits, as GPUDirect Storage's compatibility mode does |
//! | `ceiling` | copies pinned memory only: what the link carries |

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use gpu::{CopyQueue, Gpu, Span};
use mem::{MemoryKind, Region};

use super::{Peer, Task};
use crate::args::{PeerSpec, Work};
use crate::commands::engine::Memory;

/// A thread's buffers and its copies.
struct Hand {
    buffers: Vec<Region>,
    queue: Option<Box<dyn CopyQueue>>,
    marks: Vec<u64>,
}

/// One of these peers.
pub struct Loops {
    hands: Vec<Hand>,
    shared: Shared,
}

/// What all threads look at.
struct Shared {
    task: Task,
    slot: u64,
    overlap: bool,
    ceiling: bool,
    device: Option<u64>,
    host: Option<Region>,
    rows: Vec<u64>,
    bytes: u64,
}

/// Opens one of these peers.
///
/// # Errors
/// No memory, options that are no numbers.
pub fn open(
    spec: &PeerSpec,
    task: &Task,
    gpu: Option<&Arc<dyn Gpu>>,
    memory: &Memory,
) -> Result<Loops> {
    let number = |key, otherwise| spec.number(key, otherwise).map_err(anyhow::Error::msg);
    let (ceiling, overlap) = (spec.name == "ceiling", spec.name != "posix");
    let threads = number("threads", if ceiling { 1 } else { 8 })?;
    let slot = number("slot", 4 << 20)?;
    let buffers = number("slots", if overlap { 2 } else { 1 })?;
    let hands = (0..threads).map(|_| {
        let buffers = (0..buffers.max(1)).map(|_| {
            Ok(match gpu {
                Some(gpu) => gpu.allocate_host(slot)?,
                None => Region::map_anonymous(usize::try_from(slot)?, MemoryKind::Host)?,
            })
        });
        let buffers = buffers.collect::<Result<Vec<_>>>()?;
        let queue = gpu.map(|gpu| gpu.copy_queue()).transpose()?;
        Ok(Hand { marks: vec![0; buffers.len()], buffers, queue })
    });
    let (device, host) = match memory {
        Memory::Device(_, memory) => (Some(memory.address), None),
        Memory::Host(region) => (None, Some(region.clone())),
    };
    let rows = if task.work == Work::Rows { task.rows()? } else { Vec::new() };
    let (task, bytes, hands) = (task.clone(), task.bytes()?, hands.collect::<Result<_>>()?);
    let shared = Shared { task, slot, overlap, ceiling, device, host, rows, bytes };
    Ok(Loops { hands, shared })
}

impl Peer for Loops {
    fn run(&mut self) -> Result<u64> {
        let next = AtomicU64::new(0);
        let Self { hands, shared } = self;
        let (shared, path) = (&*shared, shared.task.file());
        let file = match shared.task.work {
            Work::Files => None,
            Work::Write => Some(File::options().write(true).open(path)?),
            Work::Read | Work::Rows => Some(File::open(path)?),
        };
        let (next, file) = (&next, file.as_ref());
        let results = std::thread::scope(|scope| {
            let threads: Vec<_> = hands
                .iter_mut()
                .map(|hand| scope.spawn(move || shared.hand(hand, file, next)))
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
        });
        results.into_iter().sum()
    }

    fn pinned_most(&self) -> u64 {
        self.hands.iter().flat_map(|hand| &hand.buffers).map(|b| b.len_bytes() as u64).sum()
    }
}

impl Shared {
    /// Bytes that a thread takes at once: whole rows or files in one buffer.
    fn step(&self) -> u64 {
        match self.task.work {
            Work::Read | Work::Write => self.slot,
            Work::Rows | Work::Files => (self.slot / self.task.each).max(1) * self.task.each,
        }
    }

    fn hand(&self, hand: &mut Hand, file: Option<&File>, next: &AtomicU64) -> Result<u64> {
        let step = self.step();
        let mut moved = 0;
        for turn in 0.. {
            let at = next.fetch_add(step, Ordering::Relaxed);
            if at >= self.bytes {
                break;
            }
            let bytes = usize::try_from(step.min(self.bytes - at))?;
            let slot = turn % hand.buffers.len();
            if let Some(queue) = &mut hand.queue {
                queue.wait(hand.marks[slot])?;
            }
            if self.task.work == Work::Write {
                self.write(hand, slot, file.context("a file")?, at, bytes)?;
            } else {
                if !self.ceiling {
                    self.read(&hand.buffers[slot], file, at, bytes)?;
                }
                self.deliver(hand, slot, at, bytes)?;
            }
            moved += bytes as u64;
        }
        if let Some(queue) = &mut hand.queue {
            hand.marks.iter().try_for_each(|mark| queue.wait(*mark))?;
        }
        Ok(moved)
    }

    fn read(&self, buffer: &Region, file: Option<&File>, at: u64, bytes: usize) -> Result<()> {
        let each = usize::try_from(self.task.each)?;
        if matches!(self.task.work, Work::Read) {
            return read_whole(file.context("a file")?, at, buffer, 0, bytes);
        }
        for within in (0..bytes).step_by(each) {
            let index = (at + within as u64) / self.task.each;
            if self.task.work == Work::Files {
                let file = File::open(self.task.small(index))?;
                read_whole(&file, 0, buffer, within, each)?;
            } else {
                let row = self.rows[usize::try_from(index)?];
                let file = file.context("a file")?;
                read_whole(file, row * self.task.each, buffer, within, each)?;
            }
        }
        Ok(())
    }

    fn deliver(&self, hand: &mut Hand, slot: usize, at: u64, bytes: usize) -> Result<()> {
        match (&self.device, &self.host, &mut hand.queue) {
            (Some(device), _, Some(queue)) => {
                let host = &hand.buffers[slot];
                let span = Span { host, host_offset: 0, device: device + at, bytes };
                queue.start_to_device(span)?;
                hand.marks[slot] = queue.mark()?;
                if !self.overlap {
                    queue.wait(hand.marks[slot])?;
                }
            }
            (_, Some(host), _) => {
                host.copy_from(usize::try_from(at)?, &hand.buffers[slot], 0, bytes);
            }
            _ => unreachable!("memory is of one or the other"),
        }
        Ok(())
    }

    fn write(
        &self,
        hand: &mut Hand,
        slot: usize,
        file: &File,
        at: u64,
        bytes: usize,
    ) -> Result<()> {
        let buffer = &hand.buffers[slot];
        match (&self.device, &self.host, &mut hand.queue) {
            (Some(device), _, Some(queue)) => {
                let span = Span { host: buffer, host_offset: 0, device: device + at, bytes };
                queue.start_to_host(span)?;
                let mark = queue.mark()?;
                queue.wait(mark)?;
                hand.marks[slot] = mark;
            }
            (_, Some(host), _) => buffer.copy_from(0, host, usize::try_from(at)?, bytes),
            _ => unreachable!("memory is of one or the other"),
        }
        let mut done = 0;
        while !self.ceiling && done < bytes {
            done += uring::write_at(file.as_fd(), at + done as u64, buffer, done, bytes - done)?;
        }
        Ok(())
    }
}

fn read_whole(file: &File, at: u64, buffer: &Region, first: usize, bytes: usize) -> Result<()> {
    let mut done = 0;
    while done < bytes {
        let from = at + done as u64;
        let count = uring::read_at(file.as_fd(), from, buffer, first + done, bytes - done)?;
        ensure!(count > 0, "the file ended");
        done += count;
    }
    Ok(())
}
