//! Serves N requests without payload from memory storage, for counting instructions.
//!
//! The submitter is a host loop that packs the words and publishes them; it takes a few dozen
//! instructions a request, which are counted too.

use std::sync::Arc;

use abi::ring::{OP_FLUSH, Request};
use gpu::{Gpu, SimulatedGpu, SimulatedOptions};
use sidecore::{Engine, Rights, RingConfig};
use storage::MemoryStorage;
use testkit::submitter::Submitter;

const RECORDS: u32 = 32;

fn main() {
    let count: u64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(10_000);
    let gpu: Arc<dyn Gpu> = Arc::new(SimulatedGpu::new(SimulatedOptions::default()));
    let mut stepped = Engine::builder(gpu).side_cores(1).start_stepped().expect("an engine");
    let storage = MemoryStorage::new(1 << 20).expect("a little memory");
    let source = stepped.engine.register_source(Arc::new(storage), Rights::READ_WRITE);
    let source = source.expect("a source").id();
    let config = RingConfig { depth: 64, records: RECORDS, ..RingConfig::default() };
    let ring = stepped.engine.create_ring(config).expect("a ring");
    let mut submitter = Submitter::new(&ring);
    let memory = stepped.engine.gpu().allocate_device(1 << 20).expect("device memory");
    let buffer = stepped.engine.register_buffer(memory, Rights::READ_WRITE).expect("a buffer").id();
    let mut request = Request {
        opcode: OP_FLUSH,
        source,
        source_offset: 0,
        buffer,
        buffer_offset: 0,
        length: 1,
        record: 0,
        record_turn: 0,
        limit_ms: 0,
    };
    let mut now_ns = 0;
    let mut submitted = 0;
    while submitted < count {
        for record in 0..RECORDS {
            request.record = record;
            submitter.submit(request).expect("the ring holds all records");
        }
        submitted += u64::from(RECORDS);
        now_ns += 1000;
        stepped.side_cores[0].step(now_ns);
    }
    stepped.side_cores[0].step(now_ns);
    let counters = ring.counters();
    assert_eq!(counters.succeeded, submitted, "every request ends in success");
}
