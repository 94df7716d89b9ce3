//! What `explain` says is what happens; a moved knee moves the switch; each fallback is said once, and
//! counted.

mod common;

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bulk::{
    Access, Bulk, BulkError, CachePolicy, Cause, Interference, Knees, Need, Op, Options, Place,
    Request, Route, Store, TuneOptions,
};
use common::odd::{Lacks, Odd, Refuses, RefusesDirect, Throttled};
use common::{Guarded, Lines, drop_pages, engine, gpu, make, quiet};
use mem::{MemoryKind, Region};
use storage::pattern::mix;

const FILE_BYTES: u64 = 24 << 20;
const MINUTE: Duration = Duration::from_secs(60);

/// Numbers from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0) % end
    }
}

fn disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Bytes by route, less those of before.
fn moved(bulk: &Bulk, before: &bulk::Counters, op: Op) -> Vec<(Route, u64)> {
    let now = bulk.counters();
    let bytes = |counters: &bulk::Counters, route| match op {
        Op::Read => counters.route(route).bytes_read,
        Op::Write => counters.route(route).bytes_written,
    };
    let differences = Route::ALL.map(|route| (route, bytes(&now, route) - bytes(before, route)));
    differences.into_iter().filter(|(_, bytes)| *bytes > 0).collect()
}

#[test]
fn the_route_that_is_explained_is_the_one_that_is_counted() {
    let folder = disk();
    let (path, target) = (folder.path().join("data"), folder.path().join("target"));
    make(&path, FILE_BYTES, 1);
    make(&target, FILE_BYTES, 1);
    let mut dice = Dice(7);
    let mut by_route = std::collections::BTreeMap::new();
    for case in 0..240 {
        let cache =
            [CachePolicy::Auto, CachePolicy::Auto, CachePolicy::Cached, CachePolicy::Direct];
        let cache = cache[usize::try_from(dice.below(4)).unwrap()];
        let (bulk, gpu) = engine(Options { cache, ..quiet() });
        let op = if dice.below(4) == 0 { Op::Write } else { Op::Read };
        let size = 1 << dice.below(23);
        let bytes = 1 + dice.below(size) + if dice.below(3) == 0 { size } else { 0 };
        let align = [1, 512, 4096][usize::try_from(dice.below(3)).unwrap()];
        let offset = dice.below(FILE_BYTES - 1) / align * align;
        let bytes = usize::try_from(bytes).unwrap();
        let side = (dice.below(3) > 0).then_some(&gpu);
        let shift = if dice.below(2) == 0 { 0 } else { usize::try_from(dice.below(4096)).unwrap() };
        if op == Op::Read && dice.below(2) == 0 {
            let from = dice.below(FILE_BYTES) / 65536 * 65536;
            drop_pages(&path, from, 1 + dice.below(FILE_BYTES));
        }
        let memory = Guarded::new(side, shift, bytes);
        let request = match op {
            Op::Read => {
                Request::read(&bulk.open_file(&path, Access::Read).unwrap(), offset, memory.place())
            }
            Op::Write => {
                let file = bulk.open_file(&target, Access::ReadWrite).unwrap();
                Request::write(&file, offset, memory.place())
            }
        };
        let plan = bulk.plan(&request).unwrap();
        let before = bulk.counters();
        let done = bulk.submit(request).wait(MINUTE).unwrap().unwrap();
        let counted = moved(&bulk, &before, op);
        let planned: Vec<_> = plan.parts.iter().map(|part| (part.route, part.bytes)).collect();
        // Direct I/O into host memory that is not aligned for it goes by a slot: the same route.
        assert_eq!(counted, planned, "case {case}: {op:?} {offset} {bytes} {}", plan.explain());
        assert_eq!(planned.iter().map(|(_, bytes)| bytes).sum::<u64>(), done);
        for (route, _) in planned {
            *by_route.entry(route).or_insert(0) += 1;
        }
    }
    println!("240 requests, by route: {by_route:?}");
    assert!(by_route.len() >= 4, "{by_route:?}");
}

#[test]
fn a_moved_knee_moves_the_switch() {
    let folder = disk();
    let path = folder.path().join("data");
    make(&path, FILE_BYTES, 1);
    let store = Store::at(folder.path().join("knees.json"));
    let key = Store::key(&path, Some("simulated")).unwrap();
    for knee in [8 << 10, 32 << 10, 128 << 10_u64] {
        let knees = Knees { window_bytes_max: knee, direct_bytes_min: knee, ..Knees::default() };
        store.put(&key, knees).unwrap();
        let lines = Lines::default();
        let stored = Some((store.clone(), key.clone()));
        let (bulk, gpu) = engine(Options { stored, log: lines.log(), ..quiet() });
        assert_eq!(bulk.knees().window_bytes_max, knee);
        let file = bulk.open_file(&path, Access::Read).unwrap();
        for bytes in [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10] {
            let memory = gpu.allocate_device(bytes).unwrap();
            let request = || Request::read(&file, 0, Place::memory(&memory));
            // Hot: by the window up to the knee.
            std::fs::read(&path).unwrap();
            let wanted = if bytes <= knee { Route::Window } else { Route::Staged };
            assert_eq!(bulk.plan(&request()).unwrap().route, wanted, "{bytes} hot, knee {knee}");
            let before = bulk.counters();
            bulk.read(&file, 0, Place::memory(&memory)).unwrap();
            assert_eq!(moved(&bulk, &before, Op::Read), [(wanted, bytes)]);
            // Cold: around the page cache from the knee on.
            drop_pages(&path, 0, 0);
            let direct = bulk.plan(&request()).unwrap().is_all(Route::StagedDirect);
            assert_eq!(direct, bytes >= knee, "{bytes} cold, knee {knee}");
        }
        assert!(lines.all().iter().all(|line| !line.starts_with("knees")), "{:?}", lines.all());
    }
}

#[test]
fn numbers_that_cannot_be_are_refused_with_what_can() {
    let knees = |change: fn(&mut Knees)| {
        let mut knees = Knees::default();
        change(&mut knees);
        Options { knees: Some(knees), ..quiet() }
    };
    for (options, word) in [
        (Options { pool_bytes: 0, ..quiet() }, "1048576"),
        (Options { pool_bytes: (512 << 20) + 1, ..quiet() }, "536870912"),
        (Options { threads: Some(0), ..quiet() }, "256"),
        (Options { threads: Some(1 << 40), ..quiet() }, "256"),
        (knees(|k| k.threads_direct = 0), "256"),
        (knees(|k| k.slot_bytes = 0), "65536"),
        (knees(|k| k.slot_bytes = u64::MAX), "67108864"),
        (knees(|k| k.slots = 1), "64"),
    ] {
        let error = Bulk::open(options).unwrap_err();
        assert!(matches!(&error, BulkError::Misuse(why) if why.contains(word)), "{error}");
    }
    let least = Options { pool_bytes: bulk::POOL_BYTES_MIN, threads: Some(1), ..quiet() };
    let (bulk, gpu) = engine(least);
    let folder = disk();
    make(&folder.path().join("data"), 1 << 20, 1);
    let memory = Guarded::new(Some(&gpu), 0, 1 << 20);
    let file = bulk.open_file(&folder.path().join("data"), Access::Read).unwrap();
    assert_eq!(bulk.read(&file, 0, memory.place()).unwrap(), 1 << 20);
    assert!(bulk.counters().pinned_bytes_max <= bulk::POOL_BYTES_MIN);
}

#[test]
fn a_required_route_is_taken_or_nothing_is_moved() {
    let folder = disk();
    let path = folder.path().join("data");
    make(&path, FILE_BYTES, 1);
    for route in Route::ALL {
        let (bulk, gpu) = engine(Options { require: Some(route), ..quiet() });
        let file = bulk.open_file(&path, Access::Read).unwrap();
        let memory = Guarded::new(Some(&gpu), 0, 1 << 20);
        let result = bulk.read(&file, 0, memory.place());
        match route {
            Route::Staged => {
                assert_eq!(result.unwrap(), 1 << 20);
                memory.check(0, 1 << 20, 1);
            }
            _ => {
                let error = result.unwrap_err();
                assert!(matches!(error, BulkError::RouteRefused { .. }), "{error}");
                assert!(error.to_string().contains(route.name()), "{error}");
                memory.check(0, 0, 1);
                assert!(bulk.counters().routes.iter().all(|count| count.bytes_read == 0));
            }
        }
    }
}

#[test]
fn hot_and_cold_bytes_are_those_that_mincore_sees() {
    let folder = disk();
    let path = folder.path().join("data");
    make(&path, FILE_BYTES, 1);
    for pattern in 0..3 {
        std::fs::read(&path).unwrap();
        match pattern {
            0 => drop_pages(&path, 0, FILE_BYTES / 2),
            1 => {
                (0..FILE_BYTES / (2 << 20)).for_each(|i| drop_pages(&path, i * (2 << 20), 1 << 20))
            }
            _ => (0..200).for_each(|i| drop_pages(&path, (i * 29) % 384 * 65536, 65536)),
        }
        let plain = std::fs::File::open(&path).unwrap();
        let pages = uring::residency::by_mincore(plain.as_fd(), 0, FILE_BYTES).unwrap();
        let (bulk, gpu) = engine(quiet());
        let file = bulk.open_file(&path, Access::Read).unwrap();
        let memory = Guarded::new(Some(&gpu), 0, usize::try_from(FILE_BYTES).unwrap());
        bulk.read(&file, 0, memory.place()).unwrap();
        memory.check(0, usize::try_from(FILE_BYTES).unwrap(), 1);
        let counters = bulk.counters();
        let by_route = [Route::Staged, Route::StagedDirect].map(|r| counters.route(r).bytes_read);
        let hot = pages.cached * 4096;
        for found in [counters.hot_bytes, FILE_BYTES - counters.cold_bytes, by_route[0]] {
            let apart = found.abs_diff(hot);
            assert!(apart * 50 <= FILE_BYTES, "pattern {pattern}: {found} are not {hot}");
        }
        println!(
            "pattern {pattern}: hot {hot} by mincore, {} here, routes {by_route:?}",
            counters.hot_bytes
        );
    }
}

/// Options by which the system refuses something.
fn refusing(need: Need, options: Options) -> Options {
    Options { interference: Some(Arc::new(Refuses(need))), ..options }
}

/// Forces one cause `times` times and returns the engine; its lines are looked at.
fn forced(cause: Cause, times: u64, options: Options, run: impl Fn(&Bulk, &Arc<dyn gpu::Gpu>)) {
    let lines = Lines::default();
    let gpu = gpu();
    let gpu_of = options.gpu.clone().unwrap_or_else(|| Arc::clone(&gpu));
    let log = lines.log();
    let bulk = Bulk::open(Options { gpu: Some(Arc::clone(&gpu_of)), log, ..options }).unwrap();
    run(&bulk, &gpu_of);
    assert_eq!(bulk.counters().fallbacks(cause), times, "{cause}: {:?}", lines.all());
    assert_eq!(lines.of(cause.name()), 1, "{cause}: {:?}", lines.all());
}

fn read(bulk: &Bulk, path: &Path, place: Place) {
    let file = bulk.open_file(path, Access::Read).unwrap();
    bulk.read(&file, 0, place).unwrap();
}

fn device(gpu: &Arc<dyn gpu::Gpu>, bytes: u64) -> Place {
    Place::memory(&gpu.allocate_device(bytes).unwrap())
}

fn direct() -> Options {
    Options { cache: CachePolicy::Direct, ..quiet() }
}

#[test]
fn each_cause_by_a_file_or_by_options_is_said_once_and_counted() {
    let folder = disk();
    let path = folder.path().join("data");
    make(&path, 4 << 20, 1);
    let memory_folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let in_memory = memory_folder.path().join("data");
    make(&in_memory, 4 << 20, 1);
    let missing = Store::at(folder.path().join("none.json"));
    let broken = Store::at(folder.path().join("broken.json"));
    std::fs::write(broken.path(), "{").unwrap();
    let key = || "somewhere".to_owned();
    let host = |shift: usize, bytes: usize| {
        let region = Region::map_anonymous(shift + bytes, MemoryKind::Host).unwrap();
        Place::host(region.slice(shift, bytes).unwrap())
    };

    forced(
        Cause::KneesMissing,
        1,
        Options { stored: Some((missing, key())), ..quiet() },
        |_, _| (),
    );
    forced(
        Cause::KneesUnreadable,
        1,
        Options { stored: Some((broken, key())), ..quiet() },
        |_, _| (),
    );
    forced(Cause::PoolSmall, 1, Options { pool_bytes: 1 << 20, ..quiet() }, |_, _| ());
    forced(Cause::NoDirect, 3, direct(), |bulk, gpu| {
        (0..3).for_each(|_| read(bulk, &in_memory, device(gpu, 128 << 10)));
    });
    forced(Cause::HostUnaligned, 2, direct(), |bulk, _| {
        (0..2).for_each(|_| read(bulk, &path, host(1, 128 << 10)));
    });
    forced(Cause::Edges, 2, direct(), |bulk, gpu| {
        let file = bulk.open_file(&path, Access::ReadWrite).unwrap();
        (0..2).for_each(|_| {
            assert_eq!(bulk.write(&file, 5, device(gpu, 128 << 10)).unwrap(), 128 << 10)
        });
    });
}

#[test]
fn each_cause_by_a_gpu_or_by_the_system_is_said_once_and_counted() {
    let folder = disk();
    let path = folder.path().join("data");
    make(&path, 4 << 20, 1);
    let memory_folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let in_memory = memory_folder.path().join("data");
    make(&in_memory, 4 << 20, 1);
    let windowless: Arc<dyn gpu::Gpu> = Arc::new(Odd::new(Lacks::Window));
    forced(Cause::NoWindow, 2, Options { gpu: Some(windowless), ..quiet() }, |bulk, gpu| {
        (0..2).for_each(|_| read(bulk, &in_memory, device(gpu, 4096)));
    });
    let unpinned: Arc<dyn gpu::Gpu> = Arc::new(Odd::new(Lacks::Pinned));
    forced(Cause::PinnedRefused, 1, Options { gpu: Some(unpinned), ..quiet() }, |bulk, gpu| {
        (0..2).for_each(|_| read(bulk, &in_memory, device(gpu, 128 << 10)));
    });
    let wordless: Arc<dyn gpu::Gpu> = Arc::new(Odd::new(Lacks::Words));
    forced(Cause::StreamWords, 2, Options { gpu: Some(wordless), ..quiet() }, |bulk, gpu| {
        let file = bulk.open_file(&in_memory, Access::Read).unwrap();
        for _ in 0..2 {
            let request = Request::read(&file, 0, device(gpu, 4096));
            let transfer = bulk.submit_on_stream(request, 0).unwrap();
            assert_eq!(transfer.wait(MINUTE).unwrap(), Some(4096));
        }
    });
    forced(Cause::ThreadRefused, 1, refusing(Need::Thread, quiet()), |bulk, gpu| {
        (0..2).for_each(|_| read(bulk, &in_memory, device(gpu, 4 << 20)));
    });
    forced(Cause::RingRefused, 1, refusing(Need::Ring, direct()), |bulk, gpu| {
        (0..2).for_each(|_| read(bulk, &path, device(gpu, 128 << 10)));
    });
    forced(Cause::ResidencyUnknown, 2, refusing(Need::Residency, quiet()), |bulk, gpu| {
        (0..2).for_each(|_| read(bulk, &path, device(gpu, 128 << 10)));
    });
    let refuses = Options { interference: Some(Arc::new(RefusesDirect)), ..direct() };
    forced(Cause::DirectRefused, 2, refuses, |bulk, gpu| {
        (0..2).for_each(|_| read(bulk, &path, device(gpu, 128 << 10)));
    });
}

#[test]
fn a_slow_source_makes_tune_store_another_knee() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let tune = |interference: Option<Arc<dyn Interference>>| {
        let (directory, gpu) = (folder.path().to_owned(), None);
        bulk::tune(&TuneOptions {
            directory,
            gpu,
            bytes: 32 << 20,
            repeats: 1,
            stop: None,
            interference,
        })
        .unwrap()
    };
    // Each thread gets 100 MB/s: what one waits for, others do meanwhile.
    let slow = tune(Some(Arc::new(Throttled)));
    assert!(slow.knees.threads_cached >= 8, "{:?}", slow.knees);
    assert!(slow.measured.len() >= 15);
    // Other work on the machine may make many threads look better once.
    let fast = (0..8)
        .map(|_| tune(None).knees)
        .find(|fast| fast.threads_cached < slow.knees.threads_cached);
    println!("slow {:?}\nfast {fast:?}", slow.knees);
    assert!(fast.is_some());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "its file is gone");
}

/// Ctrl-C was without effect until all was measured, and what killed the process left the file.
#[test]
fn a_tuning_that_is_stopped_leaves_nothing() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let tune = |bytes, stop: fn() -> bool| {
        bulk::tune(&TuneOptions {
            directory: folder.path().to_owned(),
            gpu: None,
            bytes,
            repeats: 1,
            stop: Some(Arc::new(stop)),
            interference: None,
        })
    };
    let stopped = tune(32 << 20, || true).unwrap_err();
    assert!(matches!(stopped, BulkError::Cancelled), "{stopped}");
    // Shorter than requests whose rates are compared: the knees would be noise.
    let short = tune(1 << 20, || false).unwrap_err();
    assert!(short.to_string().contains("16777216"), "{short}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
