//! While a ring is attached, serving makes no call of CUDA that allocates, frees, registers or loads: a
//! kernel that waits would deadlock with it. With a driver whose device memory is the process's own, and
//! which notes such calls.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use abi::ring::{OP_READ, OP_WRITE, Request};
use abi::status;
use gpu::{CudaGpu, CudaOptions, Gpu};
use sidecore::{Engine, ReadRoute, Rights, RingConfig, WriteRoute};
use storage::{MemoryStorage, Storage};
use testkit::submitter::Submitter;

const BLOCK: u32 = 4096;
const NAME: &str = "serving_allocates_frees_registers_and_loads_nothing";

/// What threads have called, side cores alone or all.
fn calls(log: &Path, side_cores: bool) -> Vec<String> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let by = |line: &&str| !side_cores || line.ends_with(" by sidecore-0");
    text.lines().filter(by).map(str::to_owned).collect()
}

/// Serves one request after the other.
fn serve(submitter: &mut Submitter, request: Request, rounds: u32) {
    for round in 0..rounds {
        let record = round % 8;
        let offset = u64::from(round % 16) * u64::from(BLOCK);
        submitter.submit(Request { record, source_offset: offset, ..request }).expect("room");
        let start = Instant::now();
        let end = loop {
            match submitter.completion(record) {
                Some(end) => break end,
                None => assert!(start.elapsed() < Duration::from_secs(10), "no end"),
            }
            std::thread::yield_now();
        };
        assert_eq!(end.status(), status::SUCCESS, "round {round}");
    }
}

/// In a process whose driver is the fake one.
fn inner(log: &Path) {
    let gpu = CudaGpu::open(CudaOptions { index: 0, window: true }).unwrap();
    let gpu: Arc<dyn Gpu> = Arc::new(gpu);
    assert!(gpu.describe().name.starts_with("Fake"), "{:?}", gpu.describe());
    let engine = Engine::builder(Arc::clone(&gpu)).side_cores(1).start().unwrap();
    let memory: Arc<dyn Storage> = Arc::new(MemoryStorage::new(16 * BLOCK as usize).unwrap());
    let source = engine.register_source(memory, Rights::READ_WRITE).unwrap();
    let device = gpu.allocate_device(u64::from(BLOCK)).unwrap();
    let buffer = engine.register_buffer(device, Rights::READ_WRITE).unwrap();
    let mut rings = Vec::new();
    for (read_route, write_route) in
        [(ReadRoute::Bounce, WriteRoute::Bounce), (ReadRoute::Pull, WriteRoute::Push)]
    {
        let config =
            RingConfig { depth: 8, records: 8, read_route, write_route, ..RingConfig::default() };
        let ring = engine.create_ring(config).unwrap();
        let mut submitter = Submitter::new(&ring);
        assert!(!calls(log, false).is_empty(), "the driver notes what was allocated so far");
        for opcode in [OP_READ, OP_WRITE] {
            let request = Request {
                opcode,
                source: source.id(),
                source_offset: 0,
                buffer: buffer.id(),
                buffer_offset: 0,
                length: BLOCK,
                record: 0,
                record_turn: 0,
                limit_ms: 0,
            };
            serve(&mut submitter, request, 500);
        }
        // A buffer that is deregistered is freed, but by nobody who serves.
        let spare = gpu.allocate_device(u64::from(BLOCK)).unwrap();
        let spare = engine.register_buffer(spare, Rights::READ).unwrap();
        let retired = engine.deregister_buffer(spare.id()).unwrap();
        drop(spare);
        retired.wait(Duration::from_secs(5)).unwrap();
        let counts = ring.counters();
        let bounced = counts.bounce_bytes > 0;
        assert_eq!(bounced, read_route == ReadRoute::Bounce, "{counts:?}");
        rings.push(ring);
    }
    // The first one goes while the other is attached.
    drop(rings.remove(0));
    let start = Instant::now();
    let freed = |what: &str| calls(log, false).iter().filter(|call| call.starts_with(what)).count();
    while freed("cuMemFree ") < 2 || freed("cuMemFreeHost ") < 3 {
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", calls(log, false));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(calls(log, true), Vec::<String>::new());
}

#[test]
fn serving_allocates_frees_registers_and_loads_nothing() {
    if let Some(log) = std::env::var_os("FAKE_LOG") {
        return inner(Path::new(&log));
    }
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fake/driver.c");
    let mut compiler = Command::new("gcc");
    compiler.args(["-shared", "-fPIC", "-w", "-o"]).arg(folder.path().join("libcuda.so.1"));
    assert!(compiler.arg(source).status().unwrap().success());
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env("FAKE_LOG", folder.path().join("calls"))
        .env("LD_LIBRARY_PATH", folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}{said}", String::from_utf8_lossy(&output.stdout));
}
