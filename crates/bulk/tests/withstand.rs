//! Faults, crowds, files that change, processes that die.

mod common;

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bulk::{
    Access, Bulk, BulkError, CachePolicy, Call, Interference, Op, Options, Place, Request,
    SavePart, Strike, save_atomically,
};
use common::{Guarded, check_file, drop_pages, engine, make, quiet};
use mem::{MemoryKind, Region};
use storage::pattern::{self, mix};

const MINUTE: Duration = Duration::from_secs(60);
/// Source: Linux.
const EINTR: i32 = 4;
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

fn disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Strikes each call of a kind that `when` chooses, by its number.
struct Every {
    op: Op,
    strike: Strike,
    when: fn(u64, &Call) -> bool,
    count: AtomicU64,
}

impl Interference for Every {
    fn strike(&self, call: Call) -> Strike {
        if call.op != self.op {
            return Strike::Pass;
        }
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        if (self.when)(number, &call) { self.strike } else { Strike::Pass }
    }
}

fn struck(op: Op, strike: Strike, when: fn(u64, &Call) -> bool, cache: CachePolicy) -> Options {
    let every = Every { op, strike, when, count: AtomicU64::new(0) };
    Options { interference: Some(Arc::new(every)), cache, ..quiet() }
}

#[test]
fn interrupted_and_short_calls_change_nothing_and_errors_surface() {
    let folder = disk();
    let path = folder.path().join("data");
    make(&path, 20 << 20, 1);
    for cache in [CachePolicy::Cached, CachePolicy::Direct] {
        for strike in [Strike::Errno(EINTR), Strike::Short(1), Strike::Short(5000)] {
            let (bulk, gpu) = engine(struck(Op::Read, strike, |n, _| n % 3 == 0, cache));
            let file = bulk.open_file(&path, Access::Read).unwrap();
            let target = Guarded::new(Some(&gpu), 5, 15 << 20);
            assert_eq!(bulk.read(&file, 12345, target.place()).unwrap(), 15 << 20);
            target.check(12345, 15 << 20, 1);
        }
        // One bad place: the whole request fails, and says where; another one does not notice.
        let bad = |_: u64, call: &Call| {
            (call.offset..call.offset + call.bytes as u64).contains(&(9 << 20))
        };
        let (bulk, gpu) = engine(struck(Op::Read, Strike::Errno(EIO), bad, cache));
        let file = bulk.open_file(&path, Access::Read).unwrap();
        let target = Guarded::new(Some(&gpu), 0, 15 << 20);
        let error = bulk.read(&file, 0, target.place()).unwrap_err();
        assert_eq!(error.errno(), Some(EIO));
        assert!(error.to_string().contains("data at byte"), "{error}");
        let target = Guarded::new(Some(&gpu), 0, 4 << 20);
        assert_eq!(bulk.read(&file, 10 << 20, target.place()).unwrap(), 4 << 20);
        target.check(10 << 20, 4 << 20, 1);
        // Of a batch, only the request at the bad place.
        let targets: Vec<_> = (0..300).map(|_| Guarded::new(Some(&gpu), 0, 4096)).collect();
        let requests = (0..300_u64)
            .map(|i| Request::read(&file, i << 16, targets[usize::try_from(i).unwrap()].place()));
        let batch = bulk.submit_many(requests.collect());
        assert_eq!(batch.wait_whole(MINUTE).unwrap_err().errno(), Some(EIO));
        let results = batch.wait(MINUTE).unwrap();
        for (i, result) in results.into_iter().enumerate() {
            assert_eq!(result.is_err(), i == 9 * 16, "{i}: {result:?}");
            if i != 9 * 16 {
                targets[i].check((i as u64) << 16, 4096, 1);
            }
        }
        let rows = bulk.read_rows(
            &file,
            &[1, 9 << 8, 5],
            4096,
            Guarded::new(Some(&gpu), 0, 12288).place(),
        );
        assert_eq!(rows.unwrap_err().errno(), Some(EIO));
        for errno in [ENOSPC, EIO] {
            let (bulk, gpu) = engine(struck(Op::Write, Strike::Errno(errno), bad, cache));
            let target = folder.path().join("target");
            make(&target, 1 << 20, 1);
            let file = bulk.open_file(&target, Access::ReadWrite).unwrap();
            let source = Guarded::new(Some(&gpu), 0, 12 << 20);
            source.fill(0, 2);
            assert_eq!(bulk.write(&file, 0, source.place()).unwrap_err().errno(), Some(errno));
            // A save that fails leaves the old file, and nothing else.
            let parts = vec![SavePart { offset: 0, place: source.place() }];
            make(&target, 1 << 20, 1);
            let before = std::fs::read_dir(folder.path()).unwrap().count();
            let saved = save_atomically(&bulk, &target, 12 << 20, parts);
            assert_eq!(saved.unwrap_err().errno(), Some(errno));
            check_file(&target, 0, 1 << 20, 1);
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), before);
        }
    }
}

/// A file system in memory that is gone with this.
struct Small(tempfile::TempDir);

impl Small {
    /// One of so many bytes; `None` where this process may not mount.
    fn mount(bytes: u64) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let size = format!("size={bytes}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(folder.path());
        let mounted = mount.status().is_ok_and(|status| status.success());
        mounted.then_some(Self(folder))
    }
}

impl Small {
    /// A file that is gone is closed by whoever wrote last, a moment after the end of the transfer.
    fn wait_until_empty(&self) {
        let used = || {
            let stat = rustix::fs::statvfs(self.0.path()).unwrap();
            stat.f_blocks - stat.f_bfree
        };
        for _ in 0..500 {
            if used() == 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{} blocks stay in use", used());
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _left = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_file_system_is_told_of_and_leaves_the_old_file() {
    let Some(small) = Small::mount(8 << 20) else {
        println!("no file system can be mounted here");
        return;
    };
    let path = small.0.path().join("data");
    let (bulk, gpu) = engine(quiet());
    let source = Guarded::new(Some(&gpu), 0, 12 << 20);
    source.fill(0, 2);
    let file = bulk.open_file(&path, Access::Write { create: true, truncate: true }).unwrap();
    let error = bulk.write(&file, 0, source.place()).unwrap_err();
    assert_eq!(error.errno(), Some(ENOSPC));
    assert!(error.to_string().contains("data at byte"), "{error}");
    drop(file);
    std::fs::remove_file(&path).unwrap();
    small.wait_until_empty();

    make(&path, 1 << 20, 1);
    let parts = vec![SavePart { offset: 0, place: source.place() }];
    let error = save_atomically(&bulk, &path, 12 << 20, parts).unwrap_err();
    assert_eq!(error.errno(), Some(ENOSPC));
    check_file(&path, 0, 1 << 20, 1);
    assert_eq!(std::fs::read_dir(small.0.path()).unwrap().count(), 1);
    // With the room that there is, all is well.
    let place = source.place().part(0, 4 << 20).unwrap();
    let parts = vec![SavePart { offset: 0, place }];
    // As above, the failed save's file.
    let saved = (0..200).find_map(|_| {
        std::thread::sleep(Duration::from_millis(10));
        save_atomically(&bulk, &path, 4 << 20, parts.clone()).ok()
    });
    assert_eq!(saved, Some(4 << 20));
    check_file(&path, 0, 4 << 20, 2);
}

/// Holds all reads back until it is told to let go.
#[derive(Default)]
struct Hold(Mutex<bool>, Condvar);

impl Hold {
    fn let_go(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }
}

impl Interference for Hold {
    fn strike(&self, _: Call) -> Strike {
        let mut free = self.0.lock().unwrap();
        while !*free {
            free = self.1.wait(free).unwrap();
        }
        Strike::Pass
    }
}

#[test]
fn a_thousand_futures_at_once_some_cancelled_and_an_engine_that_closes() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = folder.path().join("data");
    make(&path, 8 << 20, 1);
    let hold = Arc::new(Hold::default());
    let holding = || Some(Arc::clone(&hold) as Arc<dyn Interference>);
    let (bulk, gpu) = engine(Options { interference: holding(), ..quiet() });
    let file = bulk.open_file(&path, Access::Read).unwrap();
    let targets: Vec<_> = (0..1000).map(|i| Guarded::new(Some(&gpu), i % 5, 4096 + i)).collect();
    let transfers: Vec<_> = targets
        .iter()
        .enumerate()
        .map(|(i, target)| bulk.submit(Request::read(&file, i as u64 * 7000, target.place())))
        .collect();
    assert_eq!(bulk.counters().in_flight, 1000);
    assert_eq!(transfers[0].wait(Duration::from_millis(10)).unwrap(), None, "a bounded wait");
    for transfer in transfers.iter().skip(500).step_by(2) {
        transfer.cancel();
    }
    hold.let_go();
    let mut cancelled = 0;
    for (i, transfer) in transfers.iter().enumerate() {
        match transfer.wait(MINUTE) {
            Ok(moved) => {
                assert_eq!(moved, Some(4096 + i as u64));
                targets[i].check(i as u64 * 7000, 4096 + i, 1);
            }
            Err(BulkError::Cancelled) => cancelled += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(cancelled, 250);
    let counters = bulk.counters();
    println!("most in flight at once: {}", counters.in_flight_max);
    assert!(counters.in_flight == 0 && counters.in_flight_max == 1000);

    *hold.0.lock().unwrap() = false;
    let (closing, gpu) = engine(Options { interference: holding(), threads: Some(1), ..quiet() });
    let file = closing.open_file(&path, Access::Read).unwrap();
    let targets: Vec<_> = (0..20).map(|_| Guarded::new(Some(&gpu), 0, 4096)).collect();
    let transfers: Vec<_> =
        targets.iter().map(|t| closing.submit(Request::read(&file, 0, t.place()))).collect();
    std::thread::sleep(Duration::from_millis(20));
    let freed = std::thread::spawn({
        let hold = Arc::clone(&hold);
        move || {
            std::thread::sleep(Duration::from_millis(50));
            hold.let_go();
        }
    });
    drop(closing);
    freed.join().unwrap();
    let ends: Vec<_> = transfers.iter().map(|transfer| transfer.wait(Duration::ZERO)).collect();
    assert!(matches!(ends[19], Err(BulkError::Closed)), "{ends:?}");
    assert!(ends.iter().all(|end| !matches!(end, Ok(None))), "all have ended: {ends:?}");
}

#[test]
fn files_that_grow_shrink_have_holes_or_may_not_be_written() {
    let folder = disk();
    let path = folder.path().join("data");
    make(&path, 1 << 20, 1);
    let (bulk, gpu) = engine(quiet());
    let file = bulk.open_file(&path, Access::Read).unwrap();
    let target = || Guarded::new(Some(&gpu), 0, 4 << 20);

    let grown = target();
    make(&path, 3 << 20, 1);
    assert_eq!(bulk.read(&file, 0, grown.place()).unwrap(), 3 << 20);
    grown.check(0, 3 << 20, 1);

    let short = target();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(5000).unwrap();
    assert_eq!(bulk.read(&file, 0, short.place()).unwrap(), 5000);
    short.check(0, 5000, 1);

    // Truncated after the request was looked at: the rows say so.
    make(&path, 1 << 20, 1);
    let truncated = path.clone();
    let cut = Cut(Mutex::new(Some(truncated)));
    let (cutting, gpu_of) = engine(Options { interference: Some(Arc::new(cut)), ..quiet() });
    let file_of = cutting.open_file(&path, Access::Read).unwrap();
    let rows = Guarded::new(Some(&gpu_of), 0, 8192);
    let error = cutting.read_rows(&file_of, &[0, 200], 4096, rows.place()).unwrap_err();
    assert!(matches!(error, BulkError::Truncated { .. }), "{error}");

    const HOLE: u64 = 1 << 40;
    let sparse = folder.path().join("sparse");
    let plain = std::fs::File::create(&sparse).unwrap();
    if plain.set_len(HOLE).is_ok() {
        let mut data = vec![0; 8192];
        pattern::fill(&mut data, HOLE - 8192, 1);
        plain.write_all_at(&data, HOLE - 8192).unwrap();
        let file = bulk.open_file(&sparse, Access::Read).unwrap();
        let end = Guarded::new(Some(&gpu), 0, 8192);
        assert_eq!(bulk.read(&file, HOLE - 8192, end.place()).unwrap(), 8192);
        end.check(HOLE - 8192, 8192, 1);
        let rows = Guarded::new(Some(&gpu), 0, 8192);
        let last = HOLE / 4096 - 1;
        assert_eq!(bulk.read_rows(&file, &[last - 1, last], 4096, rows.place()).unwrap(), 8192);
        rows.check(HOLE - 8192, 8192, 1);
        let zeros = Region::map_anonymous(1 << 20, MemoryKind::Host).unwrap();
        zeros.fill(0, 1 << 20, 1);
        assert_eq!(bulk.read(&file, HOLE / 2, Place::host(zeros.clone())).unwrap(), 1 << 20);
        let mut data = vec![1; 1 << 20];
        zeros.read_bytes(0, &mut data);
        assert!(data.iter().all(|byte| *byte == 0));
    } else {
        println!("no file of 1 TiB here");
    }

    let refused = bulk.write(&file, 0, target().place()).unwrap_err();
    assert!(matches!(refused, BulkError::Misuse(_)), "{refused}");
    let missing = bulk.open_file(&folder.path().join("none"), Access::Read).unwrap_err();
    assert!(missing.to_string().contains("none"), "{missing}");
    // As the system says it of writing, so that callers need one case only.
    for access in [Access::Read, Access::ReadWrite] {
        let folder = bulk.open_file(folder.path(), access).unwrap_err();
        assert_eq!(folder.errno(), Some(21), "{folder}");
    }
    let far = bulk.read(&file, u64::MAX - 4, target().place()).unwrap_err();
    assert!(matches!(far, BulkError::Misuse(_)), "{far}");
}

/// Truncates a file before the first read of it.
struct Cut(Mutex<Option<std::path::PathBuf>>);

impl Interference for Cut {
    fn strike(&self, _: Call) -> Strike {
        if let Some(path) = self.0.lock().unwrap().take() {
            std::fs::File::options().write(true).open(path).unwrap().set_len(4096).unwrap();
        }
        Strike::Pass
    }
}

/// Runs a test of this file in a process of its own.
fn alone(test: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env("BULK_TEST_FILE", path);
    command
}

const SAVED_BYTES: usize = 3 << 20;

/// A part of the test below, in a process that is killed.
#[test]
fn saves_for_ever() {
    let Some(path) = std::env::var_os("BULK_TEST_FILE") else { return };
    let (bulk, gpu) = engine(quiet());
    let source = Guarded::new(Some(&gpu), 0, SAVED_BYTES);
    for generation in 2.. {
        source.fill(0, generation);
        let half = SAVED_BYTES as u64 / 2;
        let parts = [0, half].map(|offset| {
            let place = source.place().part(offset, half).unwrap();
            SavePart { offset, place }
        });
        save_atomically(&bulk, Path::new(&path), SAVED_BYTES as u64, parts.into()).unwrap();
        println!("\nsaved {generation}");
        std::io::stdout().flush().unwrap();
    }
}

#[test]
fn killed_at_fifty_moments_of_a_save_a_file_is_the_old_or_the_new_one() {
    let folder = disk();
    let path = folder.path().join("data");
    let (mut left_behind, mut newer) = (0, 0);
    for kill in 0..50_u64 {
        make(&path, SAVED_BYTES as u64, 1);
        let mut child = alone("saves_for_ever", &path).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        // Killed some time after its first save, which it has told of; so within one of the next ones.
        while !line.starts_with("saved") {
            line.clear();
            assert!(lines.read_line(&mut line).unwrap() > 0, "it ended by itself");
        }
        std::thread::sleep(Duration::from_micros(mix(kill) % 12_000));
        child.kill().unwrap();
        child.wait().unwrap();
        let mut rest = String::new();
        let _cut = lines.read_to_string(&mut rest);
        let told = rest.lines().rev().find_map(|line| line.strip_prefix("saved ")?.parse().ok());
        let told: u64 = told.unwrap_or(2);
        let data = std::fs::read(&path).unwrap();
        assert_eq!(data.len(), SAVED_BYTES);
        let generation = u64::from_le_bytes(data[8..16].try_into().unwrap());
        pattern::check(&data, 0, generation).unwrap();
        assert!(generation == told || generation == told + 1, "{generation} after {told}");
        newer += u64::from(generation == told + 1);
        for entry in std::fs::read_dir(folder.path()).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name().to_string_lossy().starts_with(".sidecore-") {
                left_behind += 1;
                std::fs::remove_file(entry.path()).unwrap();
            }
        }
    }
    println!(
        "50 kills: {left_behind} in the middle of a save, {newer} between its rename and its word"
    );
    assert!(left_behind >= 3, "the moments are within saves: {left_behind}");
}

/// A part of the test below, in a process of its own.
#[test]
fn ends_without_closing() {
    let Some(path) = std::env::var_os("BULK_TEST_FILE") else { return };
    let (bulk, gpu) = engine(quiet());
    let file = bulk.open_file(Path::new(&path), Access::Read).unwrap();
    let target = Guarded::new(Some(&gpu), 0, 64 << 20);
    let _transfer = bulk.submit(Request::read(&file, 0, target.place()));
    std::process::exit(7);
}

#[test]
fn a_process_ends_in_the_middle_of_a_transfer() {
    let folder = disk();
    let path = folder.path().join("data");
    make(&path, 64 << 20, 1);
    drop_pages(&path, 0, 32 << 20);
    for _ in 0..5 {
        let mut child = alone("ends_without_closing", &path).stdout(Stdio::null()).spawn().unwrap();
        let begin = std::time::Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "it hangs");
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(status.code(), Some(7));
    }
}

#[test]
fn many_threads_with_small_requests_share_a_bounded_pool() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = folder.path().join("data");
    make(&path, 4 << 20, 1);
    let pool_bytes = 40 << 20;
    let (bulk, gpu) = engine(Options { pool_bytes, threads: Some(4), ..quiet() });
    let file = bulk.open_file(&path, Access::Read).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..40_u64 {
            let (bulk, file, gpu): (&Bulk, _, _) = (&bulk, &file, &gpu);
            scope.spawn(move || {
                for i in 0..20 {
                    let offset = mix(thread * 100 + i) % (3 << 20);
                    let bytes = usize::try_from(1 + mix(offset) % 200_000).unwrap();
                    let target = Guarded::new(Some(gpu), 3, bytes);
                    assert_eq!(bulk.read(file, offset, target.place()).unwrap(), bytes as u64);
                    target.check(offset, bytes, 1);
                }
            });
        }
    });
    let counters = bulk.counters();
    assert!(counters.pinned_bytes_max <= pool_bytes, "{}", counters.pinned_bytes_max);
    drop(bulk);
}
