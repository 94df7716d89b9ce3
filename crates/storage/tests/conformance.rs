//! The one conformance suite over every kind of storage that needs no controller.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sidecore_storage as storage;
use storage::{
    Direct, Engine, Faulty, FileOptions, FileStorage, MemoryStorage, Replicated, Storage, Striped,
    pattern,
};
use testkit::conformance;

const BYTES: usize = 4 << 20;

/// A file of the pattern of generation 1, with an odd length.
fn file_in(directory: &Path) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir_in(directory).unwrap();
    let path = directory.path().join("data");
    let mut data = vec![0; BYTES + 777];
    pattern::fill(&mut data, 0, 1);
    std::fs::write(&path, data).unwrap();
    (directory, path)
}

fn on_disk() -> (tempfile::TempDir, PathBuf) {
    // Beside the build, not in /tmp, which may be a tmpfs.
    file_in(Path::new(env!("CARGO_TARGET_TMPDIR")))
}

fn writable(engine: Engine, direct: Direct) -> FileOptions {
    FileOptions { writable: true, engine, direct, bound_to_thread: false }
}

#[test]
fn memory() {
    conformance::run(&MemoryStorage::new(BYTES + 1).unwrap());
    conformance::run(&MemoryStorage::new(BYTES).unwrap().with_block_bytes(512));
    conformance::run(&MemoryStorage::new(BYTES).unwrap().with_block_bytes(4096));
}

#[test]
fn memory_read_only() {
    let storage = MemoryStorage::new(BYTES).unwrap();
    pattern::fill_region(storage.region(), 0, BYTES, 0, 5);
    conformance::run_read_only(&storage.with_read_only(), 5);
}

#[test]
fn faulty_with_an_empty_script() {
    let inner = Arc::new(MemoryStorage::new(BYTES).unwrap().with_block_bytes(512));
    conformance::run(&Faulty::new(inner, &storage::faults::FaultScript::default(), Arc::new(|| 0)));
}

fn memories(lengths: &[usize], block_bytes: u32) -> Vec<Arc<dyn Storage>> {
    let member = |bytes: &usize| {
        let memory = MemoryStorage::new(*bytes).unwrap().with_block_bytes(block_bytes);
        Arc::new(memory) as Arc<dyn Storage>
    };
    lengths.iter().map(member).collect()
}

#[test]
fn striped() {
    conformance::run(&Striped::new(memories(&[BYTES], 1), 4096).unwrap());
    conformance::run(&Striped::new(memories(&[BYTES, BYTES], 512), 512).unwrap());
    conformance::run(&Striped::new(memories(&[BYTES, BYTES + 4096, BYTES], 1), 5000).unwrap());
    let mixed = [memories(&[BYTES], 4096), memories(&[BYTES], 512)].concat();
    conformance::run(&Striped::new(mixed, 64 << 10).unwrap());
}

#[test]
fn striped_files_and_replicas() {
    let (_directory, path) = on_disk();
    let (_other, second) = on_disk();
    let open = |path: &Path, engine| {
        let file = FileStorage::open(path, &writable(engine, Direct::Auto)).unwrap();
        Arc::new(file) as Arc<dyn Storage>
    };
    let files = vec![open(&path, Engine::Auto), open(&second, Engine::ThreadPool)];
    conformance::run(&Striped::new(files.clone(), 16 << 10).unwrap());
    conformance::run(&Replicated::new(files).unwrap());
}

#[test]
fn replicated() {
    conformance::run(&Replicated::new(memories(&[BYTES], 1)).unwrap());
    conformance::run(&Replicated::new(memories(&[BYTES, BYTES + 777, BYTES], 1)).unwrap());
    let pair = Replicated::new(memories(&[BYTES, BYTES], 512)).unwrap();
    let other = Replicated::new(memories(&[BYTES, BYTES], 512)).unwrap();
    conformance::run(&Striped::new(vec![Arc::new(pair), Arc::new(other)], 8192).unwrap());
}

#[test]
fn several_members_read_only() {
    let storage = MemoryStorage::new(BYTES).unwrap();
    pattern::fill_region(storage.region(), 0, BYTES, 0, 5);
    let sealed = Arc::new(storage.clone().with_read_only());
    let replicas = Replicated::new(vec![sealed.clone(), Arc::new(storage)]).unwrap();
    conformance::run_read_only(&replicas, 5);
    conformance::run_read_only(&Striped::new(vec![sealed], 4096).unwrap(), 5);
}

#[test]
fn file_cached() {
    let (_directory, path) = on_disk();
    conformance::run(&FileStorage::open(&path, &writable(Engine::Auto, Direct::Auto)).unwrap());
    conformance::run(&FileStorage::open(&path, &writable(Engine::Auto, Direct::Never)).unwrap());
}

#[test]
fn file_direct() {
    let (_directory, path) = on_disk();
    conformance::run(&FileStorage::open(&path, &writable(Engine::Auto, Direct::Always)).unwrap());
}

#[test]
fn file_in_memory() {
    let (_directory, path) = file_in(Path::new("/dev/shm"));
    let storage = FileStorage::open(&path, &writable(Engine::Auto, Direct::Auto)).unwrap();
    assert!(storage.explain().contains("in memory by its file system"), "{}", storage.explain());
    conformance::run(&storage);
}

#[test]
fn file_by_threads() {
    let (_directory, path) = on_disk();
    for direct in [Direct::Auto, Direct::Always] {
        let storage = FileStorage::open(&path, &writable(Engine::ThreadPool, direct)).unwrap();
        assert!(!storage.uses_io_uring());
        conformance::run(&storage);
    }
}

#[test]
fn file_read_only() {
    let (_directory, path) = on_disk();
    for engine in [Engine::Auto, Engine::ThreadPool] {
        let options = FileOptions { engine, ..FileOptions::default() };
        conformance::run_read_only(&FileStorage::open(&path, &options).unwrap(), 1);
    }
}
