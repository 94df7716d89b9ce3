//! Serves N requests without payload from memory storage, for counting instructions.
//!
//! Who submits is a host loop that stores prepared words, a few dozen instructions a request; they
//! are counted too.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use abi::ring::{OP_FLUSH, Request, RequestEntry};
use gpu::{Gpu, SimulatedGpu, SimulatedOptions};
use mem::SharedRows;
use sidecore::{Engine, Rights, RingConfig};
use storage::MemoryStorage;

const DEPTH_LOG2: u32 = 5;
const RECORDS: u32 = 1 << DEPTH_LOG2;

/// Publishes one request of every record, all in turn `turn`, into a ring that is empty.
fn publish(entries: SharedRows<'_, 4>, words: &[[u64; 4]], turn: u64) {
    let tag = (turn & 0xffff) << 48;
    for (slot, w) in words.iter().enumerate() {
        let [w0, w1, w2, w3] = entries.at(slot);
        w0.store(w[0] | tag, Ordering::Relaxed);
        w1.store(w[1] | tag, Ordering::Release);
        w2.store(w[2], Ordering::Relaxed);
        w3.store(w[3] | tag, Ordering::Release);
    }
}

fn main() {
    let count: u64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(10_000);
    let gpu: Arc<dyn Gpu> = Arc::new(SimulatedGpu::new(SimulatedOptions::default()));
    let mut stepped = Engine::builder(gpu).side_cores(1).start_stepped().expect("an engine");
    let storage = MemoryStorage::new(1 << 20).expect("a little memory");
    let source = stepped.engine.register_source(Arc::new(storage), Rights::READ_WRITE);
    let source = source.expect("a source").id();
    let config = RingConfig { depth: RECORDS, records: RECORDS, ..RingConfig::default() };
    let ring = stepped.engine.create_ring(config).expect("a ring");
    let memory = stepped.engine.gpu().allocate_device(1 << 20).expect("device memory");
    let buffer = stepped.engine.register_buffer(memory, Rights::READ_WRITE).expect("a buffer").id();
    let request = |record| Request {
        opcode: OP_FLUSH,
        source,
        source_offset: 0,
        buffer,
        buffer_offset: 0,
        length: 1,
        record,
        record_turn: 0,
        limit_ms: 0,
    };
    let words: Vec<_> = (0..RECORDS).map(|r| RequestEntry::pack(&request(r), 0).w).collect();
    let entries = ring.memory().entries;
    let batches = count / u64::from(RECORDS);
    for turn in 1..=batches {
        publish(entries.rows(0, words.len()), &words, turn);
        stepped.side_cores[0].step(turn * 1000);
    }
    stepped.side_cores[0].step(batches * 1000);
    let succeeded = ring.counters().succeeded;
    assert_eq!(succeeded, batches * u64::from(RECORDS), "every request ends in success");
}
