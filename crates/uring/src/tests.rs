//! The ring against a real kernel: what is skipped says so.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mem::{MemoryKind, Region};

use super::*;

fn file(bytes: usize) -> Arc<OwnedFd> {
    let mut file = tempfile::tempfile().unwrap();
    let data: Vec<u8> = (0..bytes).map(|i| u8::try_from(i * 7 % 251).unwrap()).collect();
    file.write_all(&data).unwrap();
    Arc::new(OwnedFd::from(file))
}

fn pipe() -> (Arc<OwnedFd>, File) {
    let (reader, writer) = std::io::pipe().unwrap();
    (Arc::new(OwnedFd::from(reader)), File::from(OwnedFd::from(writer)))
}

fn ring(depth: u32, file: &Arc<OwnedFd>, buffers: Vec<Region>) -> Ring {
    let files = vec![Arc::clone(file)];
    Ring::new(RingOptions { depth, bound_to_thread: false, files, buffers }).expect("io_uring")
}

fn read(offset: u64, bytes: u32, memory: &Region, memory_offset: usize) -> Transfer {
    let memory = memory.clone();
    Transfer { file: FileIndex(0), kind: Kind::Read, offset, bytes, memory, memory_offset }
}

fn memory(bytes: usize) -> Region {
    Region::map_anonymous(bytes, MemoryKind::Host).unwrap()
}

fn byte_at(memory: &Region, offset: usize) -> u8 {
    let mut byte = [0];
    memory.read_bytes(offset, &mut byte);
    byte[0]
}

#[test]
fn a_batch_is_one_system_call_and_uses_registered_buffers() {
    let memory = memory(16 * 512);
    let mut ring = ring(16, &file(16 * 512), vec![memory.clone()]);
    assert!(ring.files_registered() && ring.buffers_registered());
    let before = ring.counters().syscalls;
    for i in 0..16u32 {
        ring.push(u64::from(i), read(u64::from(i) * 512, 512, &memory, i as usize * 512)).unwrap();
    }
    assert!(ring.push(16, read(0, 512, &memory, 0)).is_err(), "all slots are taken");
    ring.wait(16, Duration::from_secs(5), Duration::from_secs(5)).unwrap();
    let mut ended = Vec::new();
    ring.reap(&mut ended);
    assert_eq!(ring.counters().syscalls - before, 1);
    assert_eq!(ring.counters().fixed, 16);
    assert!(ended.len() == 16 && ended.iter().all(|e| e.result == 512));
    for i in [0, 511, 512, 8191] {
        assert_eq!(usize::from(byte_at(&memory, i)), i * 7 % 251);
    }
}

#[test]
fn memory_is_kept_until_the_completion_is_reaped() {
    let (reader, mut writer) = pipe();
    let mut ring = ring(4, &reader, Vec::new());
    let memory = memory(4096);
    let probe = memory.clone();
    ring.push(1, Transfer { offset: u64::MAX, ..read(0, 5, &memory, 0) }).unwrap();
    drop(memory);
    ring.submit().unwrap();
    writer.write_all(b"hello").unwrap();
    ring.wait(1, Duration::ZERO, Duration::from_secs(5)).unwrap();
    let mut ended = Vec::new();
    ring.reap(&mut ended);
    assert_eq!((ended[0].tag, ended[0].result), (1, 5));
    assert_eq!(ended[0].transfer.memory.address(), probe.address());
    assert_eq!(byte_at(&probe, 4), b'o');
}

#[test]
fn a_wait_ends_in_time_and_a_cancelled_read_ends_as_cancelled() {
    let (reader, _writer) = pipe();
    let mut ring = ring(4, &reader, Vec::new());
    ring.push(7, Transfer { offset: u64::MAX, ..read(0, 5, &memory(64), 0) }).unwrap();
    let begin = Instant::now();
    ring.wait(1, Duration::ZERO, Duration::from_millis(20)).unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(19));
    let mut ended = Vec::new();
    ring.reap(&mut ended);
    assert!(ended.is_empty());
    ring.cancel(7);
    ring.wait(1, Duration::ZERO, Duration::from_secs(5)).unwrap();
    while ended.is_empty() && begin.elapsed() < Duration::from_secs(5) {
        ring.wait(1, Duration::ZERO, Duration::from_secs(1)).unwrap();
        ring.reap(&mut ended);
    }
    assert_eq!((ended[0].tag, ended[0].result), (7, -libc::ECANCELED));
}

#[test]
fn dropping_a_ring_ends_what_is_in_flight() {
    let (reader, _writer) = pipe();
    let mut ring = ring(4, &reader, Vec::new());
    for tag in 0..4 {
        ring.push(tag, Transfer { offset: u64::MAX, ..read(0, 5, &memory(64), 0) }).unwrap();
    }
    ring.submit().unwrap();
    let begin = Instant::now();
    drop(ring);
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
}

#[test]
fn a_bound_ring_works_on_its_thread() {
    let memory = memory(512);
    let options = RingOptions {
        depth: 1,
        bound_to_thread: true,
        files: vec![file(512)],
        buffers: Vec::new(),
    };
    let mut ring = Ring::new(options).unwrap();
    ring.push(3, read(100, 300, &memory, 0)).unwrap();
    ring.wait(1, Duration::ZERO, Duration::from_secs(5)).unwrap();
    let mut ended = Vec::new();
    ring.reap(&mut ended);
    assert_eq!((ended[0].tag, ended[0].result), (3, 300));
    if ring.mode() == Mode::Deferred {
        ring.push(4, read(100, 300, &memory, 0)).unwrap();
        let refused = std::thread::spawn(move || ring.submit().is_err()).join().unwrap();
        assert!(refused, "another thread is refused");
    }
}

#[test]
#[should_panic(expected = "512 bytes at 1")]
fn memory_outside_the_region_is_never_submitted() {
    let memory = memory(512);
    let _ = ring(1, &file(512), Vec::new()).push(0, read(0, 512, &memory, 1));
}

#[test]
fn blocking_reads_and_writes_stay_inside_the_region() {
    let file = file(100);
    let memory = memory(64);
    assert_eq!(read_at(file.as_fd(), 90, &memory, 10, 54).unwrap(), 10);
    assert_eq!(usize::from(byte_at(&memory, 19)), 99 * 7 % 251);
    let error = read_at(file.as_fd(), 0, &memory, 11, 54).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    assert_eq!(write_at(file.as_fd(), 98, &memory, 10, 10).unwrap(), 10);
    assert_eq!(read_at(file.as_fd(), 0, &memory, 0, 64).unwrap(), 64);
    assert!(write_at(file.as_fd(), u64::MAX, &memory, 0, 1).is_err());
}

#[test]
fn pages_just_written_are_cached_by_both_accounts() {
    let file = file(5 * 4096 + 1);
    let mincore = residency::by_mincore(file.as_fd(), 0, 5 * 4096 + 1).unwrap();
    assert_eq!(mincore, residency::Pages { total: 6, cached: 6 });
    match residency::by_cachestat(file.as_fd(), 4096, 8192) {
        Ok(pages) => assert_eq!(pages, residency::Pages { total: 2, cached: 2 }),
        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOSYS)),
    }
}

#[test]
fn files_that_come_later_are_found_again_and_replaced_when_nothing_uses_them() {
    let memory = memory(4096);
    let mut ring = ring(8, &file(512), vec![]);
    let later: Vec<_> = (1..=20).map(|count| file(count * 16)).collect();
    for (at, file) in later.iter().enumerate() {
        let index = ring.add_file(file);
        assert_eq!(ring.add_file(file), index);
        assert!(index.0 >= 1 && index.0 <= 8, "few are kept: {index:?}");
        let transfer = Transfer { file: index, ..read(0, 4096, &memory, 0) };
        ring.push(at as u64, transfer).unwrap();
        ring.wait(1, Duration::ZERO, Duration::from_secs(5)).unwrap();
        let mut ended = Vec::new();
        ring.reap(&mut ended);
        assert_eq!(
            ended[0].result,
            i32::try_from((at + 1) * 16).unwrap(),
            "each file has a length of its own"
        );
    }
}

#[test]
fn a_file_in_use_is_not_replaced() {
    let memory = memory(4096);
    let (reader, writer) = pipe();
    let mut ring = ring(16, &file(512), vec![]);
    let used = ring.add_file(&reader);
    ring.push(7, Transfer { file: used, ..read(0, 8, &memory, 0) }).unwrap();
    ring.submit().unwrap();
    for count in 1..=12 {
        assert_ne!(ring.add_file(&file(count)), used);
    }
    (&writer).write_all(b"12345678").unwrap();
    let mut ended = Vec::new();
    for _ in 0..100 {
        ring.wait(1, Duration::ZERO, Duration::from_millis(100)).unwrap();
        ring.reap(&mut ended);
        if !ended.is_empty() {
            break;
        }
    }
    assert_eq!((ended[0].tag, ended[0].result), (7, 8));
}
