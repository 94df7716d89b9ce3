//! Hostile requests: whatever a kernel writes into a ring, it reaches nothing but what was
//! registered, in the way that it was registered, and the answer says so.
//!
//! An oracle of its own says for each request what must come of it, and keeps a copy of all memory
//! that a request can touch, with guard bytes on both sides, to compare with at the end.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use abi::ring::{Id, OP_CANCEL, OP_FLUSH, OP_READ, OP_WRITE, Request, RequestEntry};
use abi::status;
use gpu::{DeviceMemory, Gpu, SimulatedGpu, SimulatedOptions};
use mem::{MemoryKind, Region};
use sidecore::{Engine, Rights, Ring, RingConfig, Stepped};
use storage::MemoryStorage;

use crate::submitter::Submitter;

const GUARD: usize = 4096;
const SOURCE_BYTES: usize = 16384;
const BUFFER_BYTES: usize = 8192;
const RECORDS: u32 = 8;
const STRIDE: u32 = 2048;
const BLOCK: u32 = 16;

/// Memory inside guards, and what it must hold.
struct Watched {
    id: Id,
    rights: Rights,
    whole: Region,
    expected: Vec<u8>,
}

impl Watched {
    fn new(bytes: usize, kind: MemoryKind, seed: u8, rights: Rights) -> Self {
        let whole = Region::map_anonymous(bytes + 2 * GUARD, kind).expect("a little memory");
        let expected: Vec<u8> =
            (0..=250).cycle().map(|i: u8| i ^ seed).take(bytes + 2 * GUARD).collect();
        whole.write_bytes(0, &expected);
        Self { id: Id::new(0, 0), rights, whole, expected }
    }

    fn inside(&self) -> Region {
        self.whole.slice(GUARD, self.whole.len_bytes() - 2 * GUARD).expect("between the guards")
    }

    fn bytes(&self) -> u64 {
        (self.expected.len() - 2 * GUARD) as u64
    }

    fn check(&self, what: &str) {
        let mut found = vec![0; self.expected.len()];
        self.whole.read_bytes(0, &mut found);
        assert!(found == self.expected, "{what} {:?} was touched", self.id);
    }
}

struct World {
    stepped: Stepped,
    ring: Ring,
    submitter: Submitter,
    sources: Vec<Watched>,
    buffers: Vec<Watched>,
    stale: [Id; 2],
    now_ns: u64,
}

thread_local! {
    /// Never dropped: its memory's own thread-local state may be gone by then.
    static WORLD: RefCell<Option<ManuallyDrop<World>>> = const { RefCell::new(None) };
}

/// Serves what `data` says and checks every answer and every byte.
///
/// # Panics
/// Where a request reached what it must not, or was answered wrongly.
pub fn fuzz_ring(data: &[u8]) {
    WORLD.with_borrow_mut(|world| {
        let world = world.get_or_insert_with(|| ManuallyDrop::new(World::new()));
        for chunk in data.chunks(34) {
            world.one(chunk);
        }
        world.check();
    });
}

impl World {
    fn new() -> Self {
        let gpu: Arc<dyn Gpu> = Arc::new(SimulatedGpu::new(SimulatedOptions::default()));
        let builder = Engine::builder(gpu).side_cores(1);
        let stepped = builder.start_stepped().expect("an engine");
        let engine = &stepped.engine;
        let rights = [Rights::READ_WRITE, Rights::READ, Rights::WRITE, Rights::READ_WRITE];
        let mut sources = Vec::new();
        let mut buffers = Vec::new();
        for (seed, rights) in (1..).zip(rights) {
            let mut source = Watched::new(SOURCE_BYTES, MemoryKind::Host, seed, rights);
            let storage = MemoryStorage::over(source.inside()).with_block_bytes(BLOCK);
            let registered = engine.register_source(Arc::new(storage), rights);
            source.id = registered.expect("a source").id();
            sources.push(source);
            let mut buffer = Watched::new(BUFFER_BYTES, MemoryKind::Window, !seed, rights);
            let window = buffer.inside();
            let memory = DeviceMemory {
                address: window.address(),
                bytes: BUFFER_BYTES as u64,
                window: Some(window),
                keeper: None,
            };
            buffer.id = engine.register_buffer(memory, rights).expect("a buffer").id();
            buffers.push(buffer);
        }
        let stale = [sources.pop().expect("four").id, buffers.pop().expect("four").id];
        let _ = engine.deregister_source(stale[0]).expect("registered above");
        let _ = engine.deregister_buffer(stale[1]).expect("registered above");
        let config = RingConfig {
            depth: 4,
            records: RECORDS,
            staging_stride: STRIDE,
            start_ticket: (1 << 32) - 3,
            start_turn: 0xfffd,
            ..RingConfig::default()
        };
        let ring = engine.create_ring(config).expect("a ring");
        let submitter = Submitter::new(&ring);
        Self { stepped, ring, submitter, sources, buffers, stale, now_ns: 0 }
    }

    /// One request: the first byte says which fields are bent towards something that exists.
    fn one(&mut self, chunk: &[u8]) {
        let (bend, raw) = chunk.split_first().expect("chunks are not empty");
        let mut bytes = [0; 33];
        bytes[..raw.len()].copy_from_slice(raw);
        let mut w = [0; 4];
        for (word, bytes) in w.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        }
        let pick = bytes[32];
        let mut request = RequestEntry { w }.unpack();
        self.bend(*bend, pick, &mut request);
        let entry = RequestEntry::pack(&request, 0);
        let request = entry.unpack();
        let before: Vec<_> = (0..RECORDS).map(|r| self.submitter.record(r)).collect();
        self.stage(&request);
        assert!(self.submitter.publish(entry.w), "the ring is drained after each request");
        for _ in 0..2 {
            self.now_ns += 1000;
            self.stepped.side_cores[0].step(self.now_ns);
        }
        assert_eq!(self.ring.in_flight(), 0, "memory answers at once");
        for (record, before) in (0..).zip(before) {
            let after = self.submitter.record(record);
            if record == request.record && answerable(&request, before.turn()) {
                let expected = self.expect(&request);
                assert_eq!(after.turn(), request.record_turn, "answer to {request:?}");
                assert_eq!(after.status(), expected, "answer to {request:?}");
            } else {
                assert_eq!(after, before, "record {record} after {request:?}");
            }
        }
    }

    fn bend(&self, bend: u8, pick: u8, r: &mut Request) {
        let at = usize::from(pick);
        if bend & 1 != 0 {
            r.opcode = 1 + r.opcode % 4;
        }
        if bend & 2 != 0 {
            let ids: Vec<Id> = self.sources.iter().map(|s| s.id).chain([self.stale[0]]).collect();
            r.source = ids[at % ids.len()];
        }
        if bend & 4 != 0 {
            let ids: Vec<Id> = self.buffers.iter().map(|b| b.id).chain([self.stale[1]]).collect();
            r.buffer = ids[at / 4 % ids.len()];
        }
        if bend & 8 != 0 {
            r.source_offset %= SOURCE_BYTES as u64 + 64;
            r.source_offset &= !u64::from(if pick & 64 == 0 { BLOCK - 1 } else { 0 });
        }
        if bend & 16 != 0 {
            r.buffer_offset %= BUFFER_BYTES as u64 + 64;
        }
        if bend & 32 != 0 {
            r.length = (r.length % (STRIDE + 64)).max(1).next_multiple_of(BLOCK);
        }
        if bend & 64 != 0 {
            r.record %= RECORDS;
        }
        if bend & 128 != 0 && r.record < RECORDS {
            r.record_turn = self.submitter.record(r.record).turn().wrapping_add(1);
        }
    }

    /// Puts bytes into the record's staging area, as the lanes of a write would.
    fn stage(&self, r: &Request) {
        if r.record < RECORDS {
            let staging = &self.submitter.memory().staging;
            let value = (r.record_turn & 0xff) as u8 ^ 0x5a;
            staging.fill(self.submitter.staging_at(r.record), STRIDE as usize, value);
        }
    }

    /// What must come of an answerable request; applies what it may do to what is expected.
    fn expect(&mut self, r: &Request) -> u16 {
        let right = match r.opcode {
            OP_READ => Rights::READ,
            OP_WRITE => Rights::WRITE,
            OP_FLUSH => Rights::READ,
            _ => return status::BAD_OPCODE,
        };
        let Some(source) = self.sources.iter_mut().find(|s| s.id == r.source) else {
            return if r.source.index() <= 3 { status::STALE_ID } else { status::BAD_SOURCE };
        };
        if r.opcode == OP_FLUSH {
            return status::SUCCESS;
        }
        let Some(buffer) = self.buffers.iter_mut().find(|b| b.id == r.buffer) else {
            return if r.buffer.index() <= 3 { status::STALE_ID } else { status::BAD_BUFFER };
        };
        if !source.rights.allow(right) || !buffer.rights.allow(right) {
            return status::RIGHTS;
        }
        if r.length > STRIDE || !r.length.is_multiple_of(BLOCK) {
            return status::BAD_LENGTH;
        }
        let length = u64::from(r.length);
        if r.source_offset + length > source.bytes()
            || !r.source_offset.is_multiple_of(u64::from(BLOCK))
        {
            return status::SOURCE_RANGE;
        }
        if r.buffer_offset + length > buffer.bytes() {
            return status::BUFFER_RANGE;
        }
        let from = GUARD + usize::try_from(r.source_offset).expect("small");
        let to = GUARD + usize::try_from(r.buffer_offset).expect("small");
        let length = r.length as usize;
        if r.opcode == OP_READ {
            buffer.expected[to..to + length].copy_from_slice(&source.expected[from..from + length]);
        } else {
            source.expected[from..from + length].fill((r.record_turn & 0xff) as u8 ^ 0x5a);
        }
        status::SUCCESS
    }

    fn check(&self) {
        self.sources.iter().for_each(|source| source.check("source"));
        self.buffers.iter().for_each(|buffer| buffer.check("buffer"));
    }
}

/// Whether a request names a record in a turn that can be answered.
fn answerable(r: &Request, last_turn: u16) -> bool {
    r.opcode != OP_CANCEL && r.record_turn.wrapping_sub(last_turn).cast_signed() > 0
}
