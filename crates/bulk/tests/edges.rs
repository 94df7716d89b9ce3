//! Where slots and ranges end: rows that fill a slot to its last byte, writes that fail half way.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bulk::{
    Access, BulkError, CachePolicy, Call, Interference, Knees, Op, Options, Request, SavePart,
    Strike, save_atomically, save_atomically_unless,
};
use common::{Guarded, check_file, engine, make, quiet};

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn rows_that_follow_each_other_stay_in_their_slot() {
    const FILE_BYTES: u64 = 12 << 20;
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("rows");
    make(&path, FILE_BYTES, 7);
    for cache in [CachePolicy::Cached, CachePolicy::Direct] {
        let knees = Knees { slot_bytes: 64 << 10, ..Knees::default() };
        let (bulk, gpu) =
            engine(Options { cache, knees: Some(knees), threads: Some(1), ..quiet() });
        let file = bulk.open_file(&path, Access::Read).unwrap();
        // Rows longer than a slot, as long as one, and shorter ones; none begins where a page does.
        for row_bytes in [1000_u64, 4095, 65_535, 65_536, 100_001] {
            let indices: Vec<u64> = (1..FILE_BYTES / row_bytes).collect();
            let bytes = indices.len() * usize::try_from(row_bytes).unwrap();
            for side in [Some(&gpu), None] {
                let target = Guarded::new(side, 3, bytes);
                let moved = bulk.read_rows(&file, &indices, row_bytes, target.place()).unwrap();
                assert_eq!(moved, bytes as u64);
                target.check(row_bytes, bytes, 7);
            }
        }
    }
}

/// Refuses the writes that are shorter than a page.
struct NoTails;

impl Interference for NoTails {
    fn strike(&self, call: Call) -> Strike {
        const ENOSPC: i32 = 28;
        if call.op == Op::Write && call.bytes < 4096 { Strike::Errno(ENOSPC) } else { Strike::Pass }
    }
}

#[test]
fn a_write_whose_tail_fails_ends_when_its_body_has_landed() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("data");
    make(&path, 4 << 20, 1);
    let options = Options {
        cache: CachePolicy::Direct,
        threads: Some(1),
        interference: Some(Arc::new(NoTails)),
        ..quiet()
    };
    let (bulk, gpu) = engine(options);
    let file = bulk.open_file(&path, Access::ReadWrite).unwrap();
    for side in [Some(&gpu), None] {
        for _ in 0..8 {
            let bad = Guarded::new(side, 0, (512 << 10) + 100);
            bad.fill(4096, 2);
            let transfer = bulk.submit(Request::write(&file, 4096, bad.place()));
            let failed = transfer.wait(MINUTE);
            assert!(matches!(failed, Err(BulkError::Os { errno: 28, .. })), "{failed:?}");
            // The worker and its slots are as good as before.
            let good = Guarded::new(side, 0, 2 << 20);
            good.fill(0, 3);
            let transfer = bulk.submit(Request::write(&file, 0, good.place()));
            assert_eq!(transfer.wait(MINUTE).unwrap(), Some(2 << 20));
            check_file(&path, 0, 2 << 20, 3);
        }
    }
}

/// Saves 100,000 bytes of generation 5 under names in a folder.
fn saver(folder: &std::path::Path) -> impl Fn(&str) -> Result<u64, BulkError> {
    let (bulk, gpu) = engine(quiet());
    let memory = Guarded::new(Some(&gpu), 0, 100_000);
    memory.fill(0, 5);
    move |name| {
        let parts = vec![SavePart { offset: 0, place: memory.place() }];
        save_atomically(&bulk, &folder.join(name), 100_000, parts)
    }
}

#[test]
fn a_save_takes_no_name_that_is_there_and_replaces_files_only() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let save = saver(folder.path());
    // What a killed process of the same number may have left, or somebody else has put there.
    let other = folder.path().join("other");
    make(&other, 5000, 1);
    for count in 0..50 {
        let name = format!(".sidecore-{}-{count}.tmp", std::process::id());
        std::os::unix::fs::symlink(&other, folder.path().join(name)).unwrap();
    }
    assert_eq!(save("data").unwrap(), 100_000);
    check_file(&folder.path().join("data"), 0, 100_000, 5);
    check_file(&other, 0, 5000, 1);

    let pipe = folder.path().join("pipe");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert!(matches!(save("pipe"), Err(BulkError::Unsupported { .. })));
    assert!(!std::fs::metadata(&pipe).unwrap().is_file());
}

#[test]
fn rows_have_threads_of_their_own_number() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("rows");
    make(&path, 4 << 20, 7);
    let few = Knees { threads_cached: 1, threads_direct: 1, threads_write: 1, ..Knees::default() };
    let knees = Knees { threads_rows: 3, slot_bytes: 64 << 10, ..few };
    // A number that the user names is for everything.
    for (threads, expected) in [(None, 3), (Some(2), 2)] {
        let (bulk, _gpu) = engine(Options { knees: Some(knees), threads, ..quiet() });
        let file = bulk.open_file(&path, Access::Read).unwrap();
        let indices: Vec<u64> = (0..1024).collect();
        let target = Guarded::new(None, 0, 4 << 20);
        assert_eq!(bulk.read_rows(&file, &indices, 4096, target.place()).unwrap(), 4 << 20);
        assert_eq!(bulk.counters().threads, expected);
    }
}

/// A link was replaced by a file, and so was one whose owner had taken the permission to write it.
#[test]
fn a_save_follows_links_and_respects_permissions() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let save = saver(folder.path());
    let path = |name: &str| folder.path().join(name);
    std::fs::create_dir(path("far")).unwrap();
    make(&path("far/file"), 5000, 1);
    symlink("far/file", path("near")).unwrap();
    symlink("near", path("nearer")).unwrap();
    assert_eq!(save("nearer").unwrap(), 100_000);
    check_file(&path("far/file"), 0, 100_000, 5);
    assert!(path("near").is_symlink() && path("nearer").is_symlink());
    symlink("far/new", path("dangling")).unwrap();
    assert_eq!(save("dangling").unwrap(), 100_000);
    assert!(path("dangling").is_symlink() && path("far/new").is_file());
    symlink("round", path("round")).unwrap();
    assert_eq!(save("round").unwrap_err().errno(), Some(40), "ELOOP");
    assert!(path("round").is_symlink());

    std::fs::set_permissions(path("far/file"), std::fs::Permissions::from_mode(0o444)).unwrap();
    if rustix::process::geteuid().is_root() {
        // Nothing is read-only to it.
        return;
    }
    assert_eq!(save("far/file").unwrap_err().errno(), Some(13), "EACCES");
}

#[test]
fn a_save_that_is_stopped_leaves_what_was_there() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (bulk, gpu) = engine(quiet());
    let memory = Guarded::new(Some(&gpu), 0, 100_000);
    make(&folder.path().join("data"), 5000, 1);
    let parts = vec![SavePart { offset: 0, place: memory.place() }];
    let path = folder.path().join("data");
    let stopped = save_atomically_unless(&bulk, &path, 100_000, parts, &|| true);
    assert!(matches!(stopped, Err(BulkError::Cancelled)), "{stopped:?}");
    check_file(&path, 0, 5000, 1);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// Names of this process's open files.
fn open_files() -> Vec<std::path::PathBuf> {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    all.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok()).collect()
}

fn row_of(whole: &[u8], row: u64) -> &[u8] {
    &whole[usize::try_from(row).unwrap() * 4096..][..4096]
}

/// The most descriptors of a file that were open at a call.
struct Counting(std::path::PathBuf, AtomicUsize);

impl Interference for Counting {
    fn strike(&self, call: Call) -> Strike {
        if call.offset.is_multiple_of(64 << 10) {
            let open = open_files().iter().filter(|path| **path == self.0).count();
            self.1.fetch_max(open, Ordering::Relaxed);
        }
        Strike::Pass
    }
}

#[test]
fn threads_of_many_rows_open_their_file_again_and_close_it() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("again");
    make(&path, 16 << 20, 7);
    let counting = Arc::new(Counting(path.canonicalize().unwrap(), AtomicUsize::new(0)));
    let interference = Some(Arc::clone(&counting) as Arc<dyn Interference>);
    let cache = CachePolicy::Cached;
    let options = Options { threads: Some(3), cache, interference, ..quiet() };
    let (bulk, gpu) = engine(options);
    let file = bulk.open_file(&path, Access::ReadWrite).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let indices: Vec<u64> = (0..4096).map(|row| row * 2731 % 4096).collect();
    // By its own name, or by none: what is open is what is read.
    for name_is_gone in [false, true] {
        if name_is_gone {
            std::fs::remove_file(&path).unwrap();
            std::fs::write(&path, "another one").unwrap();
        }
        for side in [Some(&gpu), None] {
            let target = Guarded::new(side, 3, 16 << 20);
            let moved = bulk.read_rows(&file, &indices, 4096, target.place()).unwrap();
            assert_eq!(moved, 16 << 20);
            let got = target.get();
            let first = target.range().0;
            let rows = got[first..][..16 << 20].chunks_exact(4096).zip(&indices);
            assert!(rows.eq(indices.iter().map(|row| (row_of(&whole, *row), row))));
        }
    }
    let most = counting.1.load(Ordering::Relaxed);
    assert!((2..=4).contains(&most), "{most} descriptors, of 3 threads and one of the user's");
    drop(file);
    let end = Instant::now() + MINUTE;
    while open_files().iter().any(|path| path.starts_with(&counting.0)) {
        assert!(Instant::now() < end, "{:?}", open_files());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn requests_of_a_batch_are_cut_as_coarsely_as_the_whole_would_be() {
    const EACH: u64 = 4 << 20;
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("batch");
    make(&path, 16 * EACH, 7);
    let knees = Knees { slot_bytes: 1 << 20, ..Knees::default() };
    let cache = CachePolicy::Cached;
    let (bulk, gpu) = engine(Options { knees: Some(knees), threads: Some(12), cache, ..quiet() });
    let file = bulk.open_file(&path, Access::Read).unwrap();
    let bytes = usize::try_from(EACH).unwrap();
    let targets: Vec<Guarded> = (0..16).map(|_| Guarded::new(Some(&gpu), 3, bytes)).collect();
    let request = |n: usize| Request::read(&file, n as u64 * EACH, targets[n].place());
    // Alone, so that all threads have some of it; among others there is enough for all.
    for (requests, copies) in [(1, 16), (16, 64)] {
        let before = bulk.counters().copies;
        let results = bulk.submit_many((0..requests).map(request).collect()).wait(MINUTE).unwrap();
        assert!(results.into_iter().all(|result| result.unwrap() == EACH));
        assert_eq!(bulk.counters().copies - before, copies);
        targets[requests - 1].check((requests as u64 - 1) * EACH, bytes, 7);
    }
}
