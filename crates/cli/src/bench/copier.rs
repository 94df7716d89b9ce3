//! The copy engine as a thread: copies batches, joined where they lie side by side.
//!
//! On the simulated GPU a copy is this thread's own work, and is counted as the GPU's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use gpu::{Copy, DeviceMemory, Gpu};
use mem::Region;
use spec::Status;

use crate::bench::cpu;
use crate::bench::round::Round;
use crate::bench::worker::{edges_right, nanoseconds_since};

/// Which way a copy goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Staging to device memory, before the end of a read.
    ToDevice,
    /// Device memory to staging, before a write.
    ToHost,
}

/// One I/O's copy.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    /// The worker's slot.
    pub slot: usize,
    /// Index in the round.
    pub index: usize,
    /// Which way.
    pub direction: Direction,
    /// First byte in staging.
    pub staging_offset: usize,
    /// Set when done: when the last byte was read.
    pub end_ns: u64,
    /// Set when done: whether the edges at the destination are right.
    pub right: bool,
}

/// Copies of one worker.
#[derive(Debug)]
pub struct Batch {
    /// What to copy.
    pub items: Vec<Item>,
    /// The worker's staging.
    pub staging: Region,
    /// Where to return it.
    pub reply: Option<Sender<Batch>>,
    /// Set when the engine refused.
    pub failure: Option<Status>,
}

/// What the engine needs to know of the round under way.
#[derive(Debug)]
pub struct Current {
    /// The I/Os.
    pub round: Arc<Round>,
    /// Time zero.
    pub start: Instant,
}

/// The engine: end it by dropping every sender.
pub struct Copier {
    sender: Sender<Batch>,
    rounds: Sender<Current>,
    cpu_ns: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Copier {
    /// Starts it over one device buffer.
    pub fn start(gpu: Arc<dyn Gpu>, device: DeviceMemory) -> std::io::Result<Self> {
        let (sender, batches) = channel();
        let (rounds, current) = channel();
        let cpu_ns = Arc::new(AtomicU64::new(0));
        let spent = Arc::clone(&cpu_ns);
        let thread = std::thread::Builder::new()
            .name("copy-engine".to_owned())
            .spawn(move || serve(&*gpu, &device, &batches, &current, &spent))?;
        Ok(Self { sender, rounds, cpu_ns, thread })
    }

    /// A way to send batches.
    pub fn sender(&self) -> Sender<Batch> {
        self.sender.clone()
    }

    /// Says which round the next batches belong to. No batch is under way.
    pub fn begin(&self, current: Current) {
        self.rounds.send(current).expect("the engine runs until its senders are gone");
    }

    /// CPU seconds that copying took.
    pub fn cpu_seconds(&self) -> f64 {
        self.cpu_ns.load(Ordering::Relaxed) as f64 * 1e-9
    }

    /// Ends it; the workers' senders are gone.
    pub fn end(self) {
        drop(self.sender);
        // A panic there has been printed and has failed the run already.
        let _ = self.thread.join();
    }
}

fn serve(
    gpu: &dyn Gpu,
    device: &DeviceMemory,
    batches: &Receiver<Batch>,
    rounds: &Receiver<Current>,
    spent: &AtomicU64,
) {
    let mut current: Option<Current> = None;
    while let Ok(mut batch) = batches.recv() {
        while let Ok(next) = rounds.try_recv() {
            current = Some(next);
        }
        let Some(now) = &current else { return };
        copy_all(gpu, device, now, &mut batch);
        spent.store(crate::units::whole(cpu::thread_seconds() * 1e9), Ordering::Relaxed);
        if let Some(reply) = batch.reply.take() {
            // A worker that is gone needs no answer.
            let _ = reply.send(batch);
        }
    }
}

fn copy_all(gpu: &dyn Gpu, device: &DeviceMemory, now: &Current, batch: &mut Batch) {
    let io_bytes = now.round.io_bytes as usize;
    let mut first = 0;
    while first < batch.items.len() {
        let item = batch.items[first];
        let follows = |ahead: usize| {
            batch.items.get(first + ahead).is_some_and(|other| {
                other.direction == item.direction
                    && other.staging_offset == item.staging_offset + ahead * io_bytes
                    && now.round.place(other.index)
                        == now.round.place(item.index) + ahead * io_bytes
            })
        };
        let run = (1..).take_while(|ahead| follows(*ahead)).count() + 1;
        let copy = Copy {
            host: &batch.staging,
            host_offset: item.staging_offset,
            device,
            device_offset: now.round.place(item.index) as u64,
            bytes: run * io_bytes,
        };
        let result = match item.direction {
            Direction::ToDevice => gpu.copy_to_device(copy),
            Direction::ToHost => gpu.copy_to_host(copy),
        };
        if result.is_err() {
            batch.failure = Some(Status::from_bits(abi::status::BUFFER_RANGE));
        }
        for item in &mut batch.items[first..first + run] {
            item.right = match (&device.window, item.direction) {
                (Some(window), Direction::ToDevice) => {
                    edges_right(&now.round, item.index, window, now.round.place(item.index))
                }
                _ => false,
            };
            item.end_ns = nanoseconds_since(now.start);
        }
        first += run;
    }
}
