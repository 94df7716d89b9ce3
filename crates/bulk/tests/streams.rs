//! Transfers in the order of a stream, on a real GPU where there is one and on a driver without a device
//! (`fake/cuda.cpp`) everywhere.
//!
//! A closed gate stands for a long kernel: what is behind it in the stream waits.

mod common;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bulk::{Access, Bulk, BulkError, Cause, Options, Place, Request};
use common::{check_file, make, quiet};
use gpu::{Copy, CopyQueue, CudaGpu, CudaOptions, Gpu, GpuError, Span};
use mem::Region;

const BYTES: usize = 3 << 20;
const MINUTE: Duration = Duration::from_secs(60);

/// The GPU by CUDA; `None` where there is none: then the driver without a device stands in, in a test below.
fn cuda() -> Option<Arc<dyn Gpu>> {
    match CudaGpu::open(CudaOptions { index: 0, window: false }) {
        Ok(gpu) => Some(Arc::new(gpu)),
        Err(GpuError::Unavailable(why)) => {
            println!("no GPU here: {why}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Runs a test of this file again, by the driver without a device.
fn with_fake(test: &str, variables: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    // Functions that the driver has and the fake does not: all fail.
    let api = std::fs::read_to_string(crates.join("cuda/src/api.rs")).unwrap();
    let names = api.split('"').filter(|word| word.starts_with("cu") && !word.contains(' '));
    let weak = names.map(|name| format!("__attribute__((weak)) int {name}() {{ return 1; }}\n"));
    let rest = folder.path().join("rest.c");
    std::fs::write(&rest, weak.collect::<String>()).unwrap();
    let compile = |tool: &str, arguments: &[&str], sources: &[&Path], target: &str| {
        let mut compiler = Command::new(tool);
        compiler.args(["-fPIC", "-O1", "-w"]).args(arguments).args(sources);
        assert!(compiler.arg("-o").arg(folder.path().join(target)).status().unwrap().success());
    };
    compile("g++", &["-x", "c", "-std=gnu11", "-c"], &[&rest], "rest.o");
    let object = folder.path().join("rest.o");
    let fake = crates.join("bulk/tests/fake/cuda.cpp");
    compile("g++", &["-shared", "-std=c++17", "-pthread"], &[&fake, &object], "libcuda.so.1");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("LD_LIBRARY_PATH", folder.path())
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    assert!(text.contains("1 passed") && !text.contains("no GPU here"), "{text}\n{errors}");
    text.into_owned()
}

/// Brings device memory to pinned memory in the order of a stream; the answer waits and looks at it.
///
/// Nothing is allocated: the driver might wait for a stream that waits for us.
fn bring(
    host: &Region,
    queue: &mut dyn CopyQueue,
    address: u64,
    bytes: usize,
) -> impl FnOnce(&mut dyn CopyQueue) -> Vec<u8> + use<> {
    let host = host.clone();
    queue.start_to_host(Span { host: &host, host_offset: 0, device: address, bytes }).unwrap();
    let mark = queue.mark().unwrap();
    move |queue| {
        queue.wait(mark).unwrap();
        let mut data = vec![0; bytes];
        host.read_bytes(0, &mut data);
        data
    }
}

#[test]
// tidy: long because it is one story in the order of one stream
fn order_on_cuda() {
    let Some(gpu) = cuda() else { return };
    // On an H200, eight streams that wait, and whose work is copies, held up all copies otherwise.
    const CONNECTIONS: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
    if std::env::var_os(CONNECTIONS).is_none() {
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "order_on_cuda", "--nocapture"]).env(CONNECTIONS, "32");
        return assert!(again.status().unwrap().success());
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    make(&path, BYTES as u64 + 4096, 5);
    let bulk = Bulk::open(Options { gpu: Some(Arc::clone(&gpu)), ..quiet() }).unwrap();
    let file = bulk.open_file(&path, Access::ReadWrite).unwrap();
    let memory = gpu.allocate_device(BYTES as u64).unwrap();
    let mut ours = gpu.copy_queue().unwrap();
    let mut stream = gpu.copy_queue().unwrap();
    let (back, host) = [gpu.allocate_host(BYTES as u64), gpu.allocate_host(BYTES as u64)]
        .map(Result::unwrap)
        .into();
    let mut streams: Vec<_> = (0..8).map(|_| gpu.copy_queue().unwrap()).collect();
    let begin = Instant::now();
    bulk.prepare_streams().unwrap();
    println!("threads, pinned memory and streams made in {:?}", begin.elapsed());

    // A long kernel; a read behind it; what comes after the read.
    let kernel = gpu.stream_gate(stream.stream()).unwrap();
    let begin = Instant::now();
    let request = Request::read(&file, 4096, Place::device(memory.address, BYTES as u64));
    let transfer = bulk.submit_on_stream(request, stream.stream()).unwrap();
    let asked = begin.elapsed();
    let after = bring(&back, stream.as_mut(), memory.address, BYTES);
    std::thread::sleep(Duration::from_millis(200));
    assert!(!transfer.is_done());
    let meanwhile = bring(&back, ours.as_mut(), memory.address, BYTES)(ours.as_mut());
    assert!(meanwhile.iter().all(|byte| *byte == 0), "untouched before the kernel has ended");
    println!("asked in {asked:?}");
    // Far below what it would take to wait for the kernel; a machine with much to do takes its time.
    assert!(asked < Duration::from_millis(100), "{asked:?}");
    drop(kernel);
    let data = after(stream.as_mut());
    storage::pattern::check(&data, 4096, 5).unwrap();
    assert_eq!(transfer.wait(MINUTE).unwrap(), Some(BYTES as u64));

    println!("read");
    // A write takes what the stream has put there before it.
    let kernel = gpu.stream_gate(stream.stream()).unwrap();
    storage::pattern::fill_region(&host, 0, BYTES, 0, 6);
    let span = Span { host: &host, host_offset: 0, device: memory.address, bytes: BYTES };
    stream.start_to_device(span).unwrap();
    let request = Request::write(&file, 0, Place::device(memory.address, BYTES as u64));
    let transfer = bulk.submit_on_stream(request, stream.stream()).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    check_file(&path, 0, BYTES, 5);
    drop(kernel);
    assert_eq!(transfer.wait(MINUTE).unwrap(), Some(BYTES as u64));
    check_file(&path, 0, BYTES, 6);

    println!("written");
    // Cancelled behind a kernel: it ends at once, moves nothing, and the stream goes on.
    let kernel = gpu.stream_gate(stream.stream()).unwrap();
    let request = Request::read(&file, 0, Place::device(memory.address, 4096));
    let transfer = bulk.submit_on_stream(request, stream.stream()).unwrap();
    transfer.cancel();
    assert!(matches!(transfer.wait(MINUTE), Err(BulkError::Cancelled)));
    let after = bring(&back, stream.as_mut(), memory.address, 4096);
    drop(kernel);
    storage::pattern::check(&after(stream.as_mut()), 0, 6).unwrap();

    println!("cancelled");
    // Many on several streams, all behind kernels.
    let kernels: Vec<_> =
        streams.iter().map(|stream| gpu.stream_gate(stream.stream()).unwrap()).collect();
    let begin = Instant::now();
    let transfers: Vec<_> = (0..64_u64)
        .map(|i| {
            let place = Place::device(memory.address + i * 16384, 16384);
            let stream = streams[usize::try_from(i).unwrap() % 8].stream();
            bulk.submit_on_stream(Request::read(&file, i * 16384, place), stream).unwrap()
        })
        .collect();
    println!("64 asked in {:?}", begin.elapsed());
    assert!(transfers.iter().all(|transfer| !transfer.is_done()));
    drop(kernels);
    for transfer in &transfers {
        assert_eq!(transfer.wait(MINUTE).unwrap(), Some(16384));
    }
    let data = bring(&back, streams[0].as_mut(), memory.address, 64 * 16384);
    storage::pattern::check(&data(streams[0].as_mut()), 0, 6).unwrap();
    assert_eq!(bulk.counters().in_flight, 0);
    let fallbacks = bulk.counters().fallbacks(Cause::StreamWords);
    assert_eq!(fallbacks > 0, std::env::var_os("FAKE_NO_STREAM_WAITS").is_some());

    // Addresses that are none.
    for (address, bytes) in [(memory.address, BYTES as u64 + 1), (4096, 1)] {
        let error = bulk.read(&file, 0, Place::device(address, bytes)).unwrap_err();
        assert!(matches!(error, BulkError::Misuse(_)), "{error}");
    }
}

#[test]
fn bytes_on_cuda() {
    let Some(gpu) = cuda() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    make(&path, 40 << 20, 1);
    let begin = Instant::now();
    let bulk = Bulk::open(Options { gpu: Some(Arc::clone(&gpu)), ..quiet() }).unwrap();
    let opened = begin.elapsed();
    let file = bulk.open_file(&path, Access::Read).unwrap();
    let begin = Instant::now();
    for _ in 0..1000 {
        bulk.open_file(&path, Access::Read).unwrap();
    }
    println!("engine opened in {opened:?}, a file in {:?}", begin.elapsed() / 1000);
    let memory = gpu.allocate_device(48 << 20).unwrap();
    // Threads that never had to do with CUDA.
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let place = Place::device(memory.address + (40 << 20) + thread * 4096, 4096);
            let (bulk, file) = (&bulk, &file);
            scope.spawn(move || assert_eq!(bulk.read(file, thread, place).unwrap(), 4096));
        }
    });
    let host = gpu.allocate_host(48 << 20).unwrap();
    for (offset, bytes) in [(0, 1), (4095, 300_000), (77, 33_000_001), (0, 40 << 20)] {
        let place = Place::device(memory.address + 13, bytes);
        assert_eq!(bulk.read(&file, offset, place).unwrap(), bytes);
        let bytes = usize::try_from(bytes).unwrap();
        let device = &memory;
        let copy = Copy { host: &host, host_offset: 0, device, device_offset: 13, bytes };
        gpu.copy_to_host(copy).unwrap();
        let mut data = vec![0; bytes];
        host.read_bytes(0, &mut data);
        storage::pattern::check(&data, offset, 1).unwrap();
    }
    assert!(bulk.counters().pinned_bytes_max > 0);

    // Small ones share slots, and go from there to places that lie the other way round.
    const SMALL: u64 = 300;
    let small = |i: u64| (i * 70_001, memory.address + (SMALL - i) * 5000);
    let requests = (0..SMALL).map(|i| {
        let (offset, address) = small(i);
        Request::read(&file, offset, Place::device(address, 4000))
    });
    let before = bulk.counters().copies;
    let results = bulk.submit_many(requests.collect()).wait(MINUTE).unwrap();
    assert!(results.iter().all(|result| matches!(result, Ok(4000))));
    assert_eq!(bulk.counters().copies - before, SMALL);
    for i in 0..SMALL {
        let (offset, address) = small(i);
        let device_offset = address - memory.address;
        let (host, device) = (&host, &memory);
        let copy = Copy { host, host_offset: 0, device, device_offset, bytes: 4000 };
        gpu.copy_to_host(copy).unwrap();
        let mut data = vec![0; 4000];
        host.read_bytes(0, &mut data);
        storage::pattern::check(&data, offset, 1).unwrap();
    }
}

#[test]
fn order_on_a_driver_without_a_device() {
    with_fake("order_on_cuda", &[]);
}

#[test]
fn order_by_host_functions() {
    with_fake("order_on_cuda", &[("FAKE_NO_STREAM_WAITS", "1")]);
}

#[test]
fn bytes_on_a_driver_without_a_device() {
    let text = with_fake("bytes_on_cuda", &[]);
    assert!(text.contains("copies in batches"), "{text}");
}

#[test]
fn bytes_on_a_driver_that_has_no_batches() {
    let text = with_fake("bytes_on_cuda", &[("FAKE_NO_BATCHES", "1")]);
    assert!(!text.contains("copies in batches"), "{text}");
}

#[test]
fn memory_that_is_not_there_on_cuda() {
    let Some(gpu) = cuda() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    make(&path, 1 << 20, 1);
    let bulk = Bulk::open(Options { gpu: Some(Arc::clone(&gpu)), ..quiet() }).unwrap();
    let file = bulk.open_file(&path, Access::Read).unwrap();
    let memory = gpu.allocate_device(1 << 20).unwrap();
    let taken = gpu.allocate_device(1 << 50);
    assert!(matches!(taken, Err(GpuError::Exhausted { .. })), "{taken:?}");
    // Nothing of that is the engine's business.
    let place = Place::device(memory.address, 1 << 20);
    assert_eq!(bulk.read(&file, 0, place).unwrap(), 1 << 20);
}

#[test]
fn device_memory_that_is_exhausted_leaves_the_engine_well() {
    with_fake("memory_that_is_not_there_on_cuda", &[("FAKE_DEVICE_BYTES", "4194304")]);
}
