//! File storage from the inside: which way a request goes, and what follows an error.

use std::io::Write;

use mem::{MemoryKind, Region};
use rustix::fs::Advice;

use super::residency::Map;
use super::target::Route;
use super::*;
use crate::queue::{Lent, Op};

/// A file beside the test's own binary, since the usual place may be a tmpfs.
pub(super) fn on_disk(bytes: usize) -> tempfile::NamedTempFile {
    let binary = std::env::current_exe().unwrap();
    let mut file = tempfile::NamedTempFile::new_in(binary.parent().unwrap()).unwrap();
    file.write_all(&vec![7; bytes]).unwrap();
    file.as_file().sync_all().unwrap();
    file
}

fn read(memory: &Region, offset: u64, bytes: u32, memory_offset: usize) -> Lent<'_> {
    Lent { token: 0, op: Op::Read, offset, bytes, memory, memory_offset }
}

fn route(target: &Target, request: &Lent<'_>) -> Route {
    target.choose(request, &mut Map::new(target.bytes()), &mut 0)
}

#[test]
fn cold_and_aligned_is_direct_and_all_else_is_buffered() {
    let file = on_disk(8 << 20);
    let target = Target::open(file.path(), &FileOptions::default()).unwrap();
    if target.residency.cached_share(&target).is_none() {
        eprintln!("residency cannot be known here: everything is buffered");
        return;
    }
    let memory = Region::map_anonymous(8192, MemoryKind::Host).unwrap();
    assert_eq!(route(&target, &read(&memory, 0, 4096, 0)), Route::Buffered, "just written");
    rustix::fs::fadvise(target.buffered(), 0, None, Advice::DontNeed).unwrap();
    let always = FileOptions { direct: Direct::Always, ..FileOptions::default() };
    if Target::open(file.path(), &always).is_err() {
        eprintln!("no direct I/O here");
        return;
    }
    assert_eq!(route(&target, &read(&memory, 0, 4096, 0)), Route::Direct);
    assert_eq!(route(&target, &read(&memory, 1, 4096, 0)), Route::Buffered, "offset");
    assert_eq!(route(&target, &read(&memory, 0, 4095, 0)), Route::Buffered, "length");
    assert_eq!(route(&target, &read(&memory, 0, 4096, 1)), Route::Buffered, "memory");
    let window = Region::map_anonymous(8192, MemoryKind::Window).unwrap();
    assert_eq!(route(&target, &read(&window, 0, 4096, 0)), Route::Buffered, "window");
    let never = FileOptions { direct: Direct::Never, ..FileOptions::default() };
    let never = Target::open(file.path(), &never).unwrap();
    assert_eq!(route(&never, &read(&memory, 0, 4096, 0)), Route::Buffered);
    // A direct read leaves no page behind; that is how it is seen to have been one.
    let storage = FileStorage::open(file.path(), &FileOptions::default()).unwrap();
    let options = QueueOptions { depth: 1, registered: Vec::new() };
    let mut queue = storage.open_queue(&options).unwrap();
    queue.try_submit(read(&memory, 4 << 20, 8192, 0)).unwrap();
    let mut found = Vec::new();
    while found.is_empty() {
        queue.wait_for_completion(std::time::Duration::from_secs(1));
        queue.poll(&mut found);
    }
    assert_eq!((found[0].status.is_success(), found[0].bytes), (true, 8192));
    assert_eq!(storage.cached_share(), Some(0.0));
}

#[test]
fn residency_is_asked_once_a_chunk_and_again_now_and_then() {
    let file = on_disk(6 << 20);
    let target = Target::open(file.path(), &FileOptions::default()).unwrap();
    if target.residency != residency::Method::Cachestat {
        eprintln!("not the way of this machine: {:?}", target.residency);
        return;
    }
    let mut map = Map::new(target.bytes());
    let mut syscalls = 0;
    for i in 0..300u64 {
        assert!(map.is_cached(&target, i % 3 * (2 << 20), &mut syscalls));
    }
    assert_eq!(syscalls, 3);
    rustix::fs::fadvise(target.buffered(), 0, None, Advice::DontNeed).unwrap();
    let seen = (0..10_000).position(|_| !map.is_cached(&target, 0, &mut syscalls));
    assert!(seen.is_some_and(|i| i > 1000), "{seen:?}");
    assert!(map.is_cached(&target, 1 << 40, &mut syscalls), "behind the end");
}

#[test]
fn this_process_chooses_by_the_environment() {
    let file = on_disk(4096);
    let storage = FileStorage::open(file.path(), &FileOptions::default()).unwrap();
    let forbidden = std::env::var_os(NO_IO_URING_VARIABLE).is_some();
    if forbidden {
        assert!(!storage.uses_io_uring());
        assert!(storage.explain().contains(NO_IO_URING_VARIABLE), "{}", storage.explain());
        return;
    }
    // The same test once more, where io_uring is forbidden.
    let name = "file::tests::this_process_chooses_by_the_environment";
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env(NO_IO_URING_VARIABLE, "1")
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
fn what_is_no_file_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |path: &Path| match FileStorage::open(path, &FileOptions::default()) {
        Ok(_) => panic!("{} was opened", path.display()),
        Err(error) => error.to_string(),
    };
    let error = refused(directory.path());
    assert!(error.contains("directory") && error.contains("opening /"), "{error}");
    assert!(refused(Path::new("/dev/null")).contains("neither a regular file nor"));
    let missing = directory.path().join("missing");
    let error = refused(&missing);
    assert!(error.contains("missing") && error.contains("No such file"), "{error}");
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        let file = tempfile::NamedTempFile::new_in(memory).unwrap();
        let always = FileOptions { direct: Direct::Always, ..FileOptions::default() };
        let error = FileStorage::open(file.path(), &always).err().expect("refused").to_string();
        assert!(error.contains("direct I/O is demanded"), "{error}");
    }
}
