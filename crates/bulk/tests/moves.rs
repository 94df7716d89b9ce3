//! Bytes arrive, at any offset, length and alignment, and nothing around them changes.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bulk::{Access, Bulk, BulkError, CachePolicy, Options, Place, Request, Route};
use common::odd::{Lacks, Odd, Throttled};
use common::{Guarded, check_file, drop_pages, engine, make, quiet};

const FILE_BYTES: u64 = (5 << 20) + 1234;
const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn reads_of_many_shapes_hot_and_cold_to_host_and_device() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("data");
    make(&path, FILE_BYTES, 3);
    for cache in [CachePolicy::Auto, CachePolicy::Cached, CachePolicy::Direct] {
        let (bulk, gpu) = engine(Options { cache, ..quiet() });
        let file = bulk.open_file(&path, Access::Read).unwrap();
        for (offset, bytes, shift) in [
            (0, 1, 0),
            (0, 4096, 0),
            (4096, 8192, 0),
            (1, 4095, 7),
            (4095, 2, 4095),
            (512, 100_000, 512),
            (1_000_001, 3_000_003, 13),
            (0, 5 << 20, 0),
            (FILE_BYTES - 10, 100, 1),
            (FILE_BYTES - 4096 - 17, 2 << 20, 0),
            (FILE_BYTES, 10, 0),
            (FILE_BYTES + 5_000_000, 4096, 0),
            (77, 0, 0),
        ] {
            for side in [Some(&gpu), None] {
                if cache == CachePolicy::Auto {
                    drop_pages(&path, 0, 0);
                }
                let target = Guarded::new(side, shift, bytes);
                let moved = bulk.read(&file, offset, target.place()).unwrap();
                let there = FILE_BYTES.saturating_sub(offset).min(bytes as u64);
                assert_eq!(moved, there, "{offset} {bytes} {cache:?}");
                target.check(offset, usize::try_from(there).unwrap(), 3);
            }
        }
        let counters = bulk.counters();
        assert!(counters.pinned_bytes_max <= 256 << 20 && counters.in_flight == 0);
    }
}

#[test]
fn writes_of_many_shapes_come_back() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("data");
    for cache in [CachePolicy::Auto, CachePolicy::Direct] {
        let (bulk, gpu) = engine(Options { cache, ..quiet() });
        for (offset, bytes, shift) in
            [(0, 1, 0), (0, 4096, 0), (5, 100_000, 9), (4096, 3 << 20, 0), (123_457, 2_345_678, 3)]
        {
            for side in [Some(&gpu), None] {
                make(&path, FILE_BYTES, 1);
                let access = Access::Write { create: true, truncate: false };
                let file = bulk.open_file(&path, access).unwrap();
                let source = Guarded::new(side, shift, bytes);
                source.fill(offset, 2);
                assert_eq!(bulk.write(&file, offset, source.place()).unwrap(), bytes as u64);
                file.sync().unwrap();
                check_file(&path, offset, bytes, 2);
                check_file(&path, 0, usize::try_from(offset).unwrap(), 1);
                let behind = offset + bytes as u64;
                check_file(&path, behind, usize::try_from(FILE_BYTES - behind).unwrap(), 1);
            }
        }
    }
}

#[test]
fn addresses_futures_batches_and_rows() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("data");
    make(&path, FILE_BYTES, 1);
    let (bulk, gpu) = engine(quiet());
    let file = bulk.open_file(&path, Access::Read).unwrap();

    let target = Guarded::new(Some(&gpu), 0, 3 << 20);
    let transfer = bulk.submit(Request::read(&file, 4096, target.address()));
    assert_eq!(transfer.wait(MINUTE).unwrap(), Some(3 << 20));
    assert!(transfer.is_done() && transfer.moved() == 3 << 20);
    target.check(4096, 3 << 20, 1);

    let targets: Vec<_> = (0..500).map(|i| Guarded::new(Some(&gpu), i % 7, 100 + i * 41)).collect();
    let requests = targets.iter().enumerate().map(|(i, target)| match i % 2 {
        0 => Request::read(&file, i as u64 * 9_999, target.place()),
        _ => Request::read_path(&path, i as u64 * 9_999, target.address()),
    });
    let copies = bulk.counters().copies;
    let batch = bulk.submit_many(requests.collect());
    for (i, result) in batch.wait(MINUTE).unwrap().into_iter().enumerate() {
        assert_eq!(result.unwrap(), 100 + i as u64 * 41);
        targets[i].check(i as u64 * 9_999, 100 + i * 41, 1);
    }
    assert_eq!(bulk.counters().copies - copies, 500);
    let whole = (0..500).map(|i| 100 + i * 41).sum();
    assert_eq!(batch.wait_whole(MINUTE).unwrap(), Some(whole));

    for row_bytes in [100_u64, 4096, 1 << 20] {
        let rows = FILE_BYTES / row_bytes;
        let indices: Vec<u64> = (0..rows.min(300)).map(|i| (i * 7919) % rows).collect();
        let bytes = usize::try_from(indices.len() as u64 * row_bytes).unwrap();
        for side in [Some(&gpu), None] {
            let target = Guarded::new(side, 0, bytes);
            let copies = bulk.counters().copies;
            let moved = bulk.read_rows(&file, &indices, row_bytes, target.place()).unwrap();
            assert_eq!(moved, bytes as u64);
            if side.is_some() && row_bytes == 4096 {
                // Gathered: a copy for each slot, not for each row.
                assert!(bulk.counters().copies - copies <= 8);
            }
            let data = target.get();
            for (i, index) in indices.iter().enumerate() {
                let at = common::SENTINEL_BYTES + i * usize::try_from(row_bytes).unwrap();
                let row = &data[at..][..usize::try_from(row_bytes).unwrap()];
                storage::pattern::check(row, index * row_bytes, 1).unwrap();
            }
        }
    }
    let outside = bulk.read_rows(
        &file,
        &[FILE_BYTES / 4096],
        4096,
        Place::device(target_address(&target), 4096),
    );
    assert!(matches!(outside, Err(BulkError::Misuse(_))), "{outside:?}");
    assert!(bulk.counters().route(Route::Staged).bytes_read > 0);
}

fn target_address(target: &Guarded) -> u64 {
    let Guarded::Device { memory, .. } = target else { panic!("device memory") };
    memory.address
}

#[test]
fn storage_and_link_work_at_the_same_time_within_one_request() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = folder.path().join("data");
    let bytes = 48 << 20;
    make(&path, bytes, 1);
    let gpu: Arc<dyn gpu::Gpu> = Arc::new(Odd::new(Lacks::Speed));
    let (interference, threads) = (Some(Arc::new(Throttled) as _), Some(1));
    let options = Options { gpu: Some(Arc::clone(&gpu)), interference, threads, ..quiet() };
    let bulk = Bulk::open(options).unwrap();
    let file = bulk.open_file(&path, Access::Read).unwrap();
    let memory = gpu.allocate_device(bytes).unwrap();
    let once = || {
        let begin = Instant::now();
        assert_eq!(bulk.read(&file, 0, Place::memory(&memory)).unwrap(), bytes);
        begin.elapsed().as_secs_f64()
    };
    // The best of some, since other work on the machine only makes it longer.
    let took = (0..8).map(|_| once()).fold(f64::MAX, f64::min);
    // Each of the two alone takes 10 ns a byte; one slot is on its way before the second one works.
    let alone = bytes as f64 * 10e-9;
    println!("{took:.3} s, each alone {alone:.3} s");
    assert!(took < alone * 1.25, "{took:.3} s, each alone {alone:.3} s");
}

#[test]
fn many_paths_in_one_folder_in_memory_with_odd_ones_among_them() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let name = |i: u64| folder.path().join(i.to_string());
    for i in 0..200 {
        make(&name(i), 4096 + i, i);
    }
    // A link to a file on a disk that is not cached, a folder, a pipe, and nothing.
    make(&disk.path().join("far"), 1 << 20, 77);
    drop_pages(&disk.path().join("far"), 0, 0);
    std::os::unix::fs::symlink(disk.path().join("far"), name(200)).unwrap();
    std::fs::create_dir(name(201)).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, name(202), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let (bulk, gpu) = engine(Options { threads: Some(1), ..quiet() });
    let targets: Vec<_> = (0..204).map(|_| Guarded::new(Some(&gpu), 0, 8192)).collect();
    let requests = (0..204)
        .map(|i| Request::read_path(name(i), 0, targets[usize::try_from(i).unwrap()].place()));
    let results = bulk.submit_many(requests.collect()).wait(MINUTE).unwrap();
    for (i, result) in (0..).zip(&results[..200]) {
        assert_eq!(*result.as_ref().unwrap(), 4096 + i);
        targets[usize::try_from(i).unwrap()].check(0, usize::try_from(4096 + i).unwrap(), i);
    }
    assert_eq!(*results[200].as_ref().unwrap(), 8192);
    targets[200].check(0, 8192, 77);
    assert_eq!(results[201].as_ref().unwrap_err().errno(), Some(21), "a folder");
    assert!(matches!(results[202], Err(BulkError::Unsupported { .. })), "{:?}", results[202]);
    assert!(matches!(results[203], Err(BulkError::Os { .. })), "{:?}", results[203]);
    // What lies on the disk was seen to be cold.
    assert_eq!(bulk.counters().cold_bytes, 8192);
}
