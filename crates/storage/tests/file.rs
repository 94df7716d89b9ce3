//! Files that change, disks that are full or broken, block devices: what a person's machine does.
//!
//! Some of these need the right to mount; where that is missing they say so and pass.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use mem::{MemoryKind, Region};
use sidecore_storage as storage;
use storage::{
    Completion, Direct, Engine, FileOptions, FileStorage, Op, QueueOptions, Request, Storage,
    StorageQueue, pattern, status,
};
use testkit::conformance;

const ENGINES: [Engine; 2] = [Engine::Auto, Engine::ThreadPool];

fn options(engine: Engine) -> FileOptions {
    FileOptions { writable: true, engine, ..FileOptions::default() }
}

struct User {
    queue: Box<dyn StorageQueue>,
    memory: Region,
}

impl User {
    fn new(storage: &dyn Storage) -> Self {
        let memory = Region::map_anonymous(1 << 20, MemoryKind::Host).unwrap();
        let options = QueueOptions { depth: 32, registered: vec![memory.clone()] };
        Self { queue: storage.open_queue(&options).unwrap(), memory }
    }

    fn submit(&mut self, op: Op, offset: u64, bytes: u32) {
        let memory = &self.memory;
        let request = Request { token: offset, op, offset, bytes, memory, memory_offset: 0 };
        self.queue.try_submit(request).expect("taken");
    }

    fn end(&mut self) -> Completion {
        let begin = Instant::now();
        let mut found = Vec::new();
        while found.is_empty() && begin.elapsed() < Duration::from_secs(30) {
            self.queue.poll(&mut found);
            if found.is_empty() {
                self.queue.wait_for_completion(Duration::from_secs(1));
            }
        }
        assert_eq!(found.len(), 1);
        found[0]
    }

    fn run(&mut self, op: Op, offset: u64, bytes: u32) -> Completion {
        self.submit(op, offset, bytes);
        self.end()
    }
}

fn pattern_file(directory: &Path, bytes: usize) -> PathBuf {
    let path = directory.join("data");
    let mut data = vec![0; bytes];
    pattern::fill(&mut data, 0, 1);
    std::fs::write(&path, data).unwrap();
    path
}

fn on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[test]
fn a_file_may_shrink_and_grow_while_it_is_open() {
    for engine in ENGINES {
        for direct in [Direct::Auto, Direct::Always] {
            let directory = on_disk();
            let path = pattern_file(directory.path(), 40_000);
            let options = FileOptions { direct, ..options(engine) };
            let storage = FileStorage::open(&path, &options).unwrap();
            let mut user = User::new(&storage);
            assert_eq!(user.run(Op::Read, 32_768, 8192).bytes, 7232, "odd length");
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.set_len(10_000).unwrap();
            let end = user.run(Op::Read, 8192, 8192);
            assert_eq!((end.status.is_success(), end.bytes), (true, 1808), "shrunk");
            assert_eq!(user.run(Op::Read, 20_000, 100).bytes, 0);
            std::fs::remove_file(&path).unwrap();
            file.set_len(100_000).unwrap();
            assert_eq!(user.run(Op::Read, 90_112, 4096).bytes, 4096, "grown, and unlinked");
            assert_eq!(storage.geometry().bytes, 100_000);
        }
    }
}

#[test]
fn quiesce_ends_a_read_that_would_go_on() {
    for engine in ENGINES {
        let directory = on_disk();
        let path = pattern_file(directory.path(), 10_000);
        let storage = FileStorage::open(&path, &options(engine)).unwrap();
        let mut user = User::new(&storage);
        // Across the end: the kernel answers short, and a second read would look for more.
        user.submit(Op::Read, 8192, 8192);
        let mut found = Vec::new();
        user.queue.quiesce(&mut found);
        assert_eq!((found.len(), user.queue.in_flight()), (1, 0));
        assert_eq!(user.run(Op::Read, 0, 4096).bytes, 4096);
    }
}

#[test]
fn cached_reads_at_depth_32_cost_an_eighth_of_a_system_call_each() {
    let directory = on_disk();
    let path = pattern_file(directory.path(), 4 << 20);
    let storage = FileStorage::open(&path, &options(Engine::Auto)).unwrap();
    if !storage.uses_io_uring() {
        eprintln!("not by io_uring: {}", storage.explain());
        return;
    }
    let mut user = User::new(&storage);
    let (mut submitted, mut ended) = (0u64, 0u64);
    let mut found = Vec::new();
    while ended < 4096 {
        while submitted < 4096 && user.queue.in_flight() < 32 {
            user.submit(Op::Read, submitted * 7 % 1024 * 4096, 4096);
            submitted += 1;
        }
        user.queue.poll(&mut found);
        if found.is_empty() {
            user.queue.wait_for_completion(Duration::from_secs(1));
        }
        ended +=
            found.drain(..).filter(|c| c.status.is_success() && c.bytes == 4096).count() as u64;
    }
    let counters = user.queue.counters();
    assert_eq!(counters.ios_at_device, 4096);
    assert!(counters.syscalls * 8 <= 4096, "{counters:?}");
}

/// A mount or a loop device of our own, taken down when it is dropped.
struct Own {
    undo: Vec<String>,
}

impl Own {
    /// Runs a command; `None`, with the reason on standard error, where this machine refuses.
    fn make(command: &[&str], undo: &[&str]) -> Option<(Self, String)> {
        match Command::new(command[0]).args(&command[1..]).output() {
            Ok(output) if output.status.success() => {
                let undo = undo.iter().map(|s| (*s).to_owned()).collect();
                let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
                Some((Self { undo }, said))
            }
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                eprintln!("not tried: {command:?}: {}", said.trim());
                None
            }
            Err(error) => {
                eprintln!("not tried: {command:?}: {error}");
                None
            }
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = Command::new(&self.undo[0]).args(&self.undo[1..]).status();
    }
}

fn loop_device(backing: &Path) -> Option<(Own, PathBuf)> {
    let backing = backing.to_str().unwrap();
    let (mut own, device) = Own::make(&["losetup", "--find", "--show", backing], &[])?;
    own.undo = ["losetup", "--detach", &device].map(str::to_owned).to_vec();
    Some((own, PathBuf::from(device)))
}

#[test]
fn a_full_disk_is_an_error_in_the_completion() {
    let directory = on_disk();
    let at = directory.path().to_str().unwrap();
    let mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "sidecore-test", at];
    let Some((_own, _)) = Own::make(&mount, &["umount", "--lazy", at]) else { return };
    for engine in ENGINES {
        let path = directory.path().join("sparse");
        std::fs::File::create(&path).unwrap().set_len(4 << 20).unwrap();
        let storage = FileStorage::open(&path, &options(engine)).unwrap();
        let mut user = User::new(&storage);
        let ends: Vec<_> = (0..4).map(|i| user.run(Op::Write, i << 20, 1 << 20)).collect();
        let failed: Vec<_> = ends.iter().filter(|c| !c.status.is_success()).collect();
        assert!(failed.len() >= 3, "{ends:?}");
        for end in failed {
            assert_eq!(end.status, status::CAPACITY_EXCEEDED);
            assert_eq!(end.errno, rustix::io::Errno::NOSPC.raw_os_error());
            assert!(end.bytes < 1 << 20);
        }
        assert!(user.run(Op::Read, 0, 4096).status.is_success(), "usable afterwards");
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_broken_disk_is_an_error_in_the_completion() {
    for engine in ENGINES {
        let directory = on_disk();
        let backing = pattern_file(directory.path(), 4 << 20);
        let Some((_own, device)) = loop_device(&backing) else { return };
        // The second half of the medium is gone.
        let file = std::fs::File::options().write(true).open(&backing).unwrap();
        file.set_len(2 << 20).unwrap();
        let options = FileOptions { engine, direct: Direct::Always, ..FileOptions::default() };
        let storage = FileStorage::open(&device, &options).unwrap();
        let mut user = User::new(&storage);
        let good = user.run(Op::Read, 0, 65536);
        assert_eq!((good.status.is_success(), good.bytes), (true, 65536));
        assert_eq!(pattern::check_region(&user.memory, 0, 65536, 0, 1), Ok(()));
        let bad = user.run(Op::Read, 3 << 20, 65536);
        assert_eq!(bad.errno, rustix::io::Errno::IO.raw_os_error(), "{bad:?}");
        assert_eq!(bad.status, status::UNRECOVERED_READ);
    }
}

#[test]
fn a_block_device_conforms() {
    let directory = on_disk();
    let backing = pattern_file(directory.path(), 4 << 20);
    let Some((_own, device)) = loop_device(&backing) else { return };
    for (engine, direct) in [
        (Engine::Auto, Direct::Auto),
        (Engine::Auto, Direct::Always),
        (Engine::ThreadPool, Direct::Auto),
    ] {
        let options = FileOptions { direct, ..options(engine) };
        let storage = FileStorage::open(&device, &options).unwrap();
        assert_eq!(storage.geometry().bytes, 4 << 20);
        assert!(storage.explain().contains("block device"), "{}", storage.explain());
        conformance::run(&storage);
    }
}

#[test]
fn a_stacked_file_system_is_asked_by_mincore() {
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let [lower, upper, work, merged] =
        ["lower", "upper", "work", "merged"].map(|name| memory.path().join(name));
    for directory in [&lower, &upper, &work, &merged] {
        std::fs::create_dir(directory).unwrap();
    }
    pattern_file(&lower, 2 << 20);
    let layers = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.display(),
        upper.display(),
        work.display()
    );
    let at = merged.to_str().unwrap();
    let mount = ["mount", "-t", "overlay", "-o", &layers, "sidecore-test", at];
    let Some((_own, _)) = Own::make(&mount, &["umount", "--lazy", at]) else { return };
    let storage = FileStorage::open(merged.join("data"), &FileOptions::default()).unwrap();
    assert!(storage.explain().contains("100 % of its pages cached (by mincore)"));
    conformance::run_read_only(&storage, 1);
}

#[test]
fn a_bound_queue_works_on_its_thread() {
    let directory = on_disk();
    let path = pattern_file(directory.path(), 1 << 20);
    for direct in [Direct::Never, Direct::Always] {
        let options = FileOptions { bound_to_thread: true, direct, ..FileOptions::default() };
        let storage = FileStorage::open(&path, &options).unwrap();
        let mut user = User::new(&storage);
        for i in 0..64u64 {
            assert_eq!(user.run(Op::Read, i * 8192, 8192).bytes, 8192);
            assert_eq!(pattern::check_region(&user.memory, 0, 8192, i * 8192, 1), Ok(()));
        }
    }
}
