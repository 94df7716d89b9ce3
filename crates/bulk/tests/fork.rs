//! A process that was forked: what its parent has opened and asked for is refused, within bounds.

mod common;

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bulk::{Access, Bulk, BulkError, Call, Interference, Options, Request, Strike};
use common::{Guarded, engine, make, quiet};

const MINUTE: Duration = Duration::from_secs(60);

/// Holds the reads of a transfer back while the process is forked.
struct Held(Mutex<()>);

impl Interference for Held {
    fn strike(&self, _: Call) -> Strike {
        drop(self.0.lock().unwrap());
        Strike::Pass
    }
}

fn is_forked<T: std::fmt::Debug>(result: Result<T, BulkError>) {
    assert!(matches!(result, Err(BulkError::Forked { .. })), "{result:?}");
}

/// What the child sees; it ends as a process does that knows nothing of all this.
fn child(
    bulk: Bulk,
    path: &Path,
    targets: &[Guarded],
    transfers: Vec<bulk::Transfer>,
    batch: bulk::Batch,
) {
    let begin = Instant::now();
    for transfer in &transfers {
        transfer.cancel();
        assert!(transfer.is_done());
        is_forked(transfer.wait(MINUTE));
    }
    for result in batch.wait(MINUTE).unwrap() {
        is_forked(result);
    }
    is_forked(batch.wait_whole(MINUTE));
    is_forked(bulk.open_file(path, Access::Read).map(drop));
    is_forked(bulk.submit(Request::read_path(path, 0, targets[0].place())).wait(MINUTE));
    is_forked(bulk.prepare_streams());
    assert!(bulk.counters().requests > 0);
    drop((bulk, transfers, batch));
    // An engine of its own works.
    let (own, gpu) = engine(quiet());
    let file = own.open_file(path, Access::Read).unwrap();
    let target = Guarded::new(Some(&gpu), 0, 1 << 20);
    assert_eq!(own.read(&file, 0, target.place()).unwrap(), 1 << 20);
    target.check(0, 1 << 20, 1);
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}

/// A part of the test below, in a process that is forked.
#[test]
fn forks() {
    let Some(path) = std::env::var_os("BULK_TEST_FILE") else { return };
    let path = Path::new(&path);
    let held = Arc::new(Held(Mutex::new(())));
    let interference = Some(Arc::clone(&held) as Arc<dyn Interference>);
    let (bulk, gpu) = engine(Options { interference, threads: Some(2), ..quiet() });
    let file = bulk.open_file(path, Access::Read).unwrap();
    let targets: Vec<_> = (0..5).map(|_| Guarded::new(Some(&gpu), 0, 4096)).collect();
    let guard = held.0.lock().unwrap();
    let request =
        |i: u64| Request::read(&file, i * 4096, targets[usize::try_from(i).unwrap()].place());
    let transfers: Vec<_> = (0..2).map(|i| bulk.submit(request(i))).collect();
    let batch = bulk.submit_many((2..5).map(request).collect());
    let parent = std::process::id();
    std::thread::yield_now();
    if std::process::id() != parent {
        child(bulk, path, &targets, transfers, batch);
        // Tests of the harness's other threads are the parent's.
        std::process::exit(5);
    }
    drop(guard);
    let waiting = rustix::process::WaitOptions::empty();
    let (_, status) = rustix::process::waitpid(None, waiting).unwrap().unwrap();
    assert_eq!(status.exit_status(), Some(5), "the child's checks");
    for (i, transfer) in (0..).zip(&transfers) {
        assert_eq!(transfer.wait(MINUTE).unwrap(), Some(4096));
        targets[i].check(i as u64 * 4096, 4096, 1);
    }
    assert_eq!(batch.wait_whole(MINUTE).unwrap(), Some(3 * 4096));
}

#[test]
fn a_forked_child_is_refused_and_its_parent_goes_on() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = folder.path().join("data");
    make(&path, 1 << 20, 1);
    let library = folder.path().join("fork.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake/fork.c");
    let mut compiler = Command::new("gcc");
    compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]).arg(&library).arg(source);
    assert!(compiler.status().unwrap().success());
    let output = Command::new("timeout")
        .arg("60")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "forks", "--nocapture", "--test-threads=1"])
        .env("BULK_TEST_FILE", &path)
        .env("FORK_AT_YIELD", "1")
        .env("LD_PRELOAD", &library)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    assert!(text.contains("1 passed"), "{text}\n{errors}");
}
