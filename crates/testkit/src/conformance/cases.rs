//! The properties, one function each.

use std::collections::HashSet;

use mem::{MemoryKind, Region};
use storage::{Op, QueueOptions, Rejected, Storage, pattern, status};

use super::user::{POISON, User};

const AREA: usize = 128 << 10;

pub(super) fn geometry_makes_sense(storage: &dyn Storage) {
    let geometry = storage.geometry();
    assert!(geometry.block_bytes.is_power_of_two(), "{geometry:?}");
    assert!(geometry.bytes.is_multiple_of(u64::from(geometry.block_bytes)), "{geometry:?}");
    assert!(geometry.transfer_bytes_max >= 4096, "{geometry:?}");
    assert_eq!(geometry, storage.geometry(), "asked twice");
    assert!(!storage.explain().trim().is_empty());
    assert!(!storage.explain().contains('\n'), "one line: {}", storage.explain());
}

/// Lengths and offsets worth trying, rounded to what the storage can address.
fn edges(storage: &dyn Storage, candidates: &[usize]) -> Vec<usize> {
    let block = storage.geometry().block_bytes as usize;
    let rounded = candidates.iter().map(|n| n.next_multiple_of(block));
    let mut edges: Vec<usize> = rounded.collect();
    edges.dedup();
    edges
}

pub(super) fn every_alignment_moves_exactly_its_bytes(storage: &dyn Storage) {
    let mut user = User::new(storage, 4, AREA + 8192);
    let offsets = edges(storage, &[0, 1, 15, 511, 512, 4095, 4096, 4097, 8192, 12345]);
    let lengths = edges(storage, &[1, 7, 16, 511, 512, 513, 4096, 4097, 12288, 65537]);
    let mut generation = 1;
    for offset in offsets {
        for &bytes in &lengths {
            // Memory offsets in turn: every one meets every kind of offset and length somewhere.
            for at in [[0, 1, 4096], [4, 512, 4093]][bytes.count_ones() as usize % 2] {
                generation += 1;
                user.fill(0, AREA, generation);
                one_alignment(&mut user, offset, bytes, at, generation);
            }
        }
    }
}

/// Overwrites a range in the middle, then checks it, its neighbours, and memory around a read.
fn one_alignment(user: &mut User, offset: usize, bytes: usize, at: usize, generation: u64) {
    let start = offset as u64;
    pattern::fill_region(&user.memory, at, bytes, start, generation + 1_000_000);
    let request = user.request(2, Op::Write, start, bytes, at);
    assert_eq!(user.moved(request), bytes);
    let whole = user.memory.len_bytes();
    user.memory.fill(0, whole, POISON);
    let request = user.request(3, Op::Read, start, bytes, at);
    assert_eq!(user.moved(request), bytes);
    let read = pattern::check_region(&user.memory, at, bytes, start, generation + 1_000_000);
    assert_eq!(read, Ok(()), "{bytes} bytes at {offset} with memory at {at}");
    user.assert_untouched(0, at);
    user.assert_untouched(at + bytes, whole - at - bytes);
    let contents = user.contents(0, AREA);
    let end = offset + bytes;
    let place = format!("{bytes} bytes at {offset} with memory at {at}");
    assert_eq!(pattern::check(&contents[..offset], 0, generation), Ok(()), "before {place}");
    assert_eq!(pattern::check(&contents[end..], end as u64, generation), Ok(()), "after {place}");
    let middle = pattern::check(&contents[offset..end], start, generation + 1_000_000);
    assert_eq!(middle, Ok(()), "within {place}");
}

/// A small generator of our own: the suite has no other use for one.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let scaled = u128::from(pattern::mix(self.0)) * limit as u128;
        usize::try_from(scaled >> 64).expect("below a usize")
    }
}

pub(super) fn random_operations_agree_with_a_model(storage: &dyn Storage) {
    let block = storage.geometry().block_bytes as usize;
    let mut user = User::new(storage, 8, AREA);
    user.fill(0, AREA, 1);
    let mut model = vec![0; AREA];
    pattern::fill(&mut model, 0, 1);
    let mut random = Random(7);
    for step in 0..400u64 {
        let offset = random.below(AREA / block) * block;
        let longest = (AREA - offset).min(20_000) / block;
        let bytes = (1 + random.below(longest.max(1))) * block;
        let bytes = bytes.min(AREA - offset);
        let range = offset..offset + bytes;
        let at = random.below(AREA - bytes + 1);
        match random.below(8) {
            0 => {
                let request = user.request(step, Op::WriteZeroes, offset as u64, bytes, 0);
                assert_eq!(user.moved(request), bytes);
                model[range].fill(0);
            }
            1..4 => {
                pattern::fill(&mut model[range.clone()], offset as u64, step + 2);
                user.memory.write_bytes(at, &model[range]);
                let request = user.request(step, Op::Write, offset as u64, bytes, at);
                assert_eq!(user.moved(request), bytes);
            }
            _ => {
                user.memory.fill(at, bytes, POISON);
                let request = user.request(step, Op::Read, offset as u64, bytes, at);
                assert_eq!(user.moved(request), bytes);
                let mut found = vec![0; bytes];
                user.memory.read_bytes(at, &mut found);
                assert!(found == model[range], "step {step}: {bytes} bytes at {offset}");
            }
        }
    }
    assert!(user.contents(0, AREA) == model, "the whole at the end");
}

pub(super) fn large_requests_arrive_whole(storage: &dyn Storage) {
    let geometry = storage.geometry();
    let bytes = geometry.transfer_bytes_max.min(4 << 20);
    let bytes = usize::try_from(u64::from(bytes).min(geometry.bytes)).expect("at most 4 MiB");
    let bytes = bytes - bytes % geometry.block_bytes as usize;
    let mut user = User::new(storage, 2, bytes);
    user.fill(0, bytes, 11);
    user.verify(0, bytes, 11);
}

pub(super) fn depth_is_a_limit(storage: &dyn Storage) {
    for depth in [1u32, 4, 33] {
        let mut user = User::new(storage, depth, 4096 * 33);
        user.fill(0, 4096 * 33, 12);
        for i in 0..depth {
            let request = user.request(u64::from(i), Op::Read, u64::from(i) * 4096, 4096, 0);
            user.submit(request);
        }
        assert_eq!(user.queue.in_flight(), depth);
        let extra = user.request(77, Op::Read, 0, 4096, 8192);
        let answer = user.queue.try_submit(extra.lend());
        assert_eq!(answer, Err(Rejected::QueueFull), "depth {depth} is full");
        user.completions(depth as usize);
        assert_eq!(user.queue.in_flight(), 0);
        user.verify(0, 4096, 12);
    }
    let none = storage.open_queue(&QueueOptions { depth: 0, registered: Vec::new() });
    assert!(none.is_err(), "a queue of depth 0");
}

pub(super) fn tokens_come_back_once(storage: &dyn Storage) {
    let mut user = User::new(storage, 16, AREA);
    user.fill(0, AREA, 13);
    let tokens = [0, 1, u64::MAX, u64::MAX - 1, 1 << 63, 0xffff, 0x1_0000, 0xffff_ffff, 1 << 32];
    for round in 0..20 {
        user.memory.fill(0, AREA, POISON);
        for (i, token) in tokens.iter().enumerate() {
            let request = user.request(*token, Op::Read, i as u64 * 8192, 4096, i * 4096);
            user.submit(request);
        }
        let found = user.completions(tokens.len());
        let distinct: HashSet<u64> = found.iter().map(|c| c.token).collect();
        assert_eq!(distinct, HashSet::from(tokens), "round {round}");
        for (i, _) in tokens.iter().enumerate() {
            let check = pattern::check_region(&user.memory, i * 4096, 4096, i as u64 * 8192, 13);
            assert_eq!(check, Ok(()), "the right payload for each token");
        }
    }
}

pub(super) fn reads_end_where_the_storage_ends(storage: &dyn Storage) {
    let geometry = storage.geometry();
    let (end, block) = (geometry.bytes, geometry.block_bytes as usize);
    let mut user = User::new(storage, 4, 16 * 4096);
    let tail = (3 * 4096usize).next_multiple_of(block);
    let start = end - tail as u64;
    user.fill(start, tail, 14);
    user.memory.fill(0, 16 * 4096, POISON);
    let request = user.request(1, Op::Read, start, 2 * tail, 0);
    assert_eq!(user.moved(request), tail, "a read across the end");
    assert_eq!(pattern::check_region(&user.memory, 0, tail, start, 14), Ok(()));
    user.assert_untouched(tail, tail);
    let far = (1u64 << 40).next_multiple_of(block as u64);
    for offset in [end, end + block as u64, end + far] {
        let request = user.request(2, Op::Read, offset, block.max(512), 8 * 4096);
        assert_eq!(user.moved(request), 0, "a read at {offset} of {end}");
        user.assert_untouched(8 * 4096, block.max(512));
    }
}

pub(super) fn what_cannot_succeed_is_handed_back(storage: &dyn Storage) {
    let geometry = storage.geometry();
    let (end, block) = (geometry.bytes, geometry.block_bytes as usize);
    let mut user = User::new(storage, 4, 16 * 4096);
    user.fill(0, 8192, 15);
    for op in [Op::Read, Op::Write] {
        let empty = user.request(1, op, 0, 0, 0);
        assert_eq!(user.refused(empty), status::INVALID_FIELD, "{op:?} of no bytes");
        let outside = user.request(2, op, 0, 8192, 15 * 4096);
        assert_eq!(user.refused(outside), status::INVALID_FIELD, "{op:?} outside memory");
        let outside = user.request(3, op, 0, 4096, usize::MAX);
        assert_eq!(user.refused(outside), status::INVALID_FIELD, "{op:?} at no memory");
        if let Some(bytes) = geometry.transfer_bytes_max.checked_add(geometry.block_bytes) {
            let large = user.request(4, op, 0, bytes as usize, 0);
            assert_eq!(user.refused(large), status::INVALID_FIELD, "{op:?} too large");
        }
        if block > 1 {
            let request = user.request(5, op, 1, block, 0);
            assert_eq!(user.refused(request), status::INVALID_FIELD, "{op:?} off the grid");
            let request = user.request(6, op, 0, block + 1, 0);
            assert_eq!(user.refused(request), status::INVALID_FIELD, "{op:?} of odd length");
        }
    }
    for op in [Op::Write, Op::WriteZeroes] {
        let last = u64::MAX - u64::MAX % block as u64 - block as u64;
        for offset in [end - block as u64, end, last] {
            let request = user.request(7, op, offset, 2 * block, 0);
            assert_eq!(user.refused(request), status::LBA_OUT_OF_RANGE, "{op:?} at {offset}");
        }
        // The very last block can be written: what is refused begins right behind it.
        let request = user.request(8, op, end - block as u64, block, 0);
        assert_eq!(user.moved(request), block, "{op:?} of the last block");
    }
    assert_eq!(user.queue.in_flight(), 0);
    assert_eq!(storage.geometry().bytes, end, "no longer than before");
    user.verify(0, 8192, 15);
}

pub(super) fn cancelled_requests_end_once(storage: &dyn Storage) {
    let mut user = User::new(storage, 16, AREA);
    user.fill(0, AREA, 16);
    for round in 0..20u64 {
        user.memory.fill(0, AREA, POISON);
        for i in 0..16u64 {
            let at = usize::try_from(i).expect("small") * 4096;
            let request = user.request(i, Op::Read, i * 4096, 4096, at);
            user.submit(request);
        }
        let mut found = Vec::new();
        if round % 2 == 1 {
            user.queue.poll(&mut found);
        }
        for i in (0..16).step_by(3) {
            user.queue.cancel(i);
        }
        user.queue.cancel(4711);
        if found.len() < 16 {
            found.extend(user.completions(16 - found.len()));
        }
        let distinct: HashSet<u64> = found.iter().map(|c| c.token).collect();
        assert_eq!(distinct.len(), 16, "one end for each request");
        for completion in found {
            let cancelled = completion.token % 3 == 0;
            if cancelled && completion.status == status::ABORT_REQUESTED {
                continue;
            }
            assert!(completion.status.is_success(), "{completion:?}");
            let at = usize::try_from(completion.token).expect("small") * 4096;
            let check = pattern::check_region(&user.memory, at, 4096, completion.token * 4096, 16);
            assert_eq!(check, Ok(()), "token {}", completion.token);
        }
        assert_eq!(user.queue.in_flight(), 0);
    }
}

pub(super) fn nothing_is_touched_after_quiesce(storage: &dyn Storage) {
    let mut user = User::new(storage, 16, AREA);
    user.fill(0, AREA, 17);
    for round in 0..20u64 {
        for i in 0..16u64 {
            let at = usize::try_from(i).expect("small") * 4096;
            let request = user.request(i, Op::Read, i * 4096, 4096, at);
            user.submit(request);
        }
        let mut found = Vec::new();
        if round % 2 == 1 {
            user.queue.poll(&mut found);
        }
        user.queue.quiesce(&mut found);
        user.memory.fill(0, AREA, POISON);
        assert_eq!(user.queue.in_flight(), 0);
        let distinct: HashSet<u64> = found.iter().map(|c| c.token).collect();
        assert_eq!((found.len(), distinct.len()), (16, 16), "one end for each request");
        for completion in found {
            let ended = completion.status == status::ABORT_REQUESTED;
            assert!(ended || completion.status.is_success(), "{completion:?}");
        }
        let mut late = Vec::new();
        user.queue.poll(&mut late);
        assert_eq!(late, [], "nothing comes after quiesce");
        user.assert_untouched(0, AREA);
    }
    user.verify(0, AREA, 17);
}

pub(super) fn counters_count(storage: &dyn Storage) {
    let mut user = User::new(storage, 8, AREA);
    let before = user.queue.counters();
    user.fill(0, AREA, 18);
    let written = user.queue.counters();
    assert_eq!(written.bytes_written - before.bytes_written, AREA as u64);
    for i in 0..8u64 {
        let request = user.request(i, Op::Read, i * 4096, 4096, 0);
        user.submit(request);
    }
    user.completions(8);
    let read = user.queue.counters();
    assert_eq!(read.bytes_read - written.bytes_read, 8 * 4096);
    assert_eq!(read.bytes_written, written.bytes_written);
    assert!(read.ios_at_device - written.ios_at_device >= 8, "{read:?} after {written:?}");
    assert!(read.completions_polled - written.completions_polled >= 8);
    let other = User::new(storage, 8, 4096).queue.counters();
    assert_eq!((other.bytes_read, other.bytes_written), (0, 0), "each queue counts for itself");
}

pub(super) fn queues_work_side_by_side(storage: &dyn Storage) {
    const THREADS: u64 = 4;
    let stripe = 64u64 << 10;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let mut user = User::new(storage, 8, 32 << 10);
                for round in 0..10 {
                    let generation = 1000 + thread * 100 + round;
                    user.fill(thread * stripe, 64 << 10, generation);
                    user.verify(thread * stripe, 64 << 10, generation);
                }
            });
        }
    });
    let mut user = User::new(storage, 8, 64 << 10);
    for thread in 0..THREADS {
        user.verify(thread * stripe, 64 << 10, 1000 + thread * 100 + 9);
    }
}

pub(super) fn zeroes_read_as_zeros(storage: &dyn Storage) {
    let mut user = User::new(storage, 4, AREA);
    for (offset, bytes) in [(4096, 8192usize), (0, 4096), (12345, 777), (4096, 65536)] {
        let block = storage.geometry().block_bytes as usize;
        let offset = offset - offset % block;
        let bytes = bytes.next_multiple_of(block);
        user.fill(0, AREA, 19);
        let request = user.request(5, Op::WriteZeroes, offset as u64, bytes, 0);
        assert_eq!(user.moved(request), bytes, "zeroes at {offset}");
        let contents = user.contents(0, AREA);
        let end = offset + bytes;
        assert!(contents[offset..end].iter().all(|b| *b == 0), "{bytes} bytes at {offset}");
        assert_eq!(pattern::check(&contents[..offset], 0, 19), Ok(()));
        assert_eq!(pattern::check(&contents[end..], end as u64, 19), Ok(()));
    }
}

pub(super) fn flush_ends_well(storage: &dyn Storage) {
    let mut user = User::new(storage, 4, 8192);
    user.fill(0, 8192, 20);
    let request = user.request(6, Op::Flush, u64::MAX, 0, usize::MAX);
    assert_eq!(user.moved(request), 0, "offset, length and memory are ignored");
    user.verify(0, 8192, 20);
}

pub(super) fn registered_memory_works_like_any_other(storage: &dyn Storage) {
    let memory = |bytes| Region::map_anonymous(bytes, MemoryKind::Host).expect("memory");
    let (first, second) = (memory(AREA), memory(12345));
    let registered = vec![first.clone(), second];
    let mut user = User::with(storage, QueueOptions { depth: 8, registered }, first);
    user.fill(0, AREA, 21);
    user.verify(0, AREA, 21);
    // A part of registered memory, and memory that is not registered, on the same queue.
    user.memory = user.memory.slice(4096, 8192).expect("a part");
    user.verify(0, AREA, 21);
    user.memory = memory(AREA);
    user.verify(0, AREA, 21);
}

pub(super) fn a_queue_may_go_with_requests_in_flight(storage: &dyn Storage) {
    User::new(storage, 1, AREA).fill(0, AREA, 22);
    for _ in 0..5 {
        let mut user = User::new(storage, 16, AREA);
        for i in 0..16u64 {
            let at = usize::try_from(i).expect("small") * 4096;
            let request = user.request(i, Op::Read, i * 4096, 4096, at);
            user.submit(request);
        }
        user.queue.poll(&mut Vec::new());
        drop(user);
    }
    User::new(storage, 1, AREA).verify(0, AREA, 22);
}

pub(super) fn a_queue_may_change_threads(storage: &dyn Storage) {
    let mut user = User::new(storage, 8, AREA);
    user.fill(0, AREA, 23);
    for i in 0..8u64 {
        let request = user.request(i, Op::Read, i * 4096, 4096, 0);
        user.submit(request);
    }
    std::thread::scope(|scope| {
        scope.spawn(move || {
            user.completions(8);
            user.verify(0, AREA, 23);
        });
    });
}

pub(super) fn writes_are_refused(storage: &dyn Storage, generation: u64) {
    assert!(storage.geometry().read_only);
    let mut user = User::new(storage, 4, AREA);
    let block = storage.geometry().block_bytes.max(512) as usize;
    for op in [Op::Write, Op::WriteZeroes] {
        let request = user.request(1, op, 0, block, 0);
        assert_eq!(user.refused(request), status::WRITE_PROTECTED, "{op:?}");
    }
    user.verify(0, AREA, generation);
    let request = user.request(2, Op::Flush, 0, 0, 0);
    assert_eq!(user.moved(request), 0);
}
