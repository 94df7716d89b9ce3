//! The memory model against plain memory: who is alone, or synchronises at each step, sees no delay.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use sidecore_mem as mem;

use mem::model::{AgentId, Model, Order, Policy, Rng, Scope, with_agent};
use mem::{MemoryKind, Region};

const BYTES: usize = 256;
const STEPS: usize = 1000;
const SEEDS: u64 = 40;

struct Bed {
    region: Region,
    model: Model,
    /// What memory would be without any buffer.
    plain: [u8; BYTES],
}

impl Bed {
    fn new(seed: u64, kind: MemoryKind) -> Self {
        let region = Region::map_anonymous(BYTES, kind).unwrap();
        let policy = Policy::from_seed(&mut Rng::new(seed));
        let mut model = Model::new(seed, policy);
        model.register("memory", &region);
        Self { region, model, plain: [0; BYTES] }
    }

    fn plain_word(&self, offset: usize, bytes: usize) -> u64 {
        let mut word = [0; 8];
        word[..bytes].copy_from_slice(&self.plain[offset..offset + bytes]);
        u64::from_le_bytes(word)
    }

    fn store_plain(&mut self, offset: usize, bytes: usize, value: u64) {
        self.plain[offset..offset + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
    }

    /// One random access by an agent, made and checked on both memories.
    fn access(&mut self, agent: AgentId, rng: &mut Rng) {
        let bytes = [1, 4, 8, 16][rng.below(4)];
        let offset = rng.below(BYTES / bytes) * bytes;
        match rng.below(7) {
            6 => self.copy(agent, rng),
            0 | 1 => self.load(agent, offset, bytes),
            2 => self.store(agent, offset, bytes, rng),
            3 if bytes == 4 || bytes == 8 => self.update(agent, offset, bytes, rng.bits()),
            4 => {
                let from = rng.below(BYTES);
                let mut seen = vec![0; rng.below(BYTES - from)];
                let address = self.region.address() + from as u64;
                assert!(self.model.read_bytes(agent, address, &mut seen));
                assert_eq!(seen, self.plain[from..from + seen.len()], "copy from {from}");
            }
            _ => {
                let from = rng.below(BYTES);
                let count = rng.below(40).min(BYTES - from);
                let bytes: Vec<u8> = (0..count).map(|_| rng.bits().to_le_bytes()[0]).collect();
                let address = self.region.address() + from as u64;
                assert!(self.model.write_bytes(agent, address, &bytes));
                self.plain[from..from + count].copy_from_slice(&bytes);
            }
        }
    }

    fn load(&mut self, agent: AgentId, offset: usize, bytes: usize) {
        let address = self.region.address() + offset as u64;
        let [lo, hi] = self.model.load(agent, address, bytes, Order::Relaxed).unwrap();
        assert_eq!(lo, self.plain_word(offset, bytes.min(8)), "load of {bytes} at {offset}");
        if bytes == 16 {
            assert_eq!(hi, self.plain_word(offset + 8, 8), "load of 16 at {offset}");
        }
    }

    fn store(&mut self, agent: AgentId, offset: usize, bytes: usize, rng: &mut Rng) {
        let address = self.region.address() + offset as u64;
        let low = bytes.min(8);
        let values = [rng.bits() & ones(low), rng.bits()];
        assert!(self.model.store(agent, address, bytes, values, Order::Relaxed));
        self.store_plain(offset, low, values[0]);
        if bytes == 16 {
            self.store_plain(offset + 8, 8, values[1]);
        }
    }

    fn copy(&mut self, agent: AgentId, rng: &mut Rng) {
        let [to, from] = [0; 2].map(|_: usize| rng.below(BYTES / 16) * 16);
        let base = self.region.address();
        assert!(self.model.copy(agent, base + to as u64, base + from as u64));
        self.plain.copy_within(from..from + 16, to);
    }

    fn update(&mut self, agent: AgentId, offset: usize, bytes: usize, add: u64) {
        let address = self.region.address() + offset as u64;
        let change = |old: u64| Some(old.wrapping_add(add) & ones(bytes));
        let old = self.model.update(agent, address, bytes, Order::Relaxed, change).unwrap();
        assert_eq!(old, self.plain_word(offset, bytes), "update of {bytes} at {offset}");
        self.store_plain(offset, bytes, change(old).unwrap());
    }

    fn finish(mut self) {
        self.model.settle();
        let mut memory = [0; BYTES];
        self.region.read_bytes(0, &mut memory);
        assert_eq!(memory, self.plain, "memory in the end");
    }
}

fn ones(bytes: usize) -> u64 {
    u64::MAX >> (64 - 8 * bytes)
}

#[test]
fn an_agent_alone_sees_plain_memory() {
    for seed in 0..SEEDS {
        let mut rng = Rng::new(seed + 1000);
        let mut cpu = Bed::new(seed, MemoryKind::Host);
        let agent = cpu.model.add_cpu();
        let mut gpu = Bed::new(seed, MemoryKind::Window);
        let device = gpu.model.add_device();
        let block = gpu.model.add_block(device);
        let lane = gpu.model.add_lane(block);
        for _ in 0..STEPS {
            cpu.access(agent, &mut rng);
            gpu.access(lane, &mut rng);
            if rng.chance(4) {
                cpu.model.rest();
                gpu.model.rest();
            }
        }
        cpu.finish();
        gpu.finish();
    }
}

#[test]
fn lanes_that_meet_after_each_access_see_plain_memory() {
    for seed in 0..SEEDS {
        let mut rng = Rng::new(seed + 2000);
        let mut bed = Bed::new(seed, MemoryKind::Host);
        let device = bed.model.add_device();
        let block = bed.model.add_block(device);
        let lanes: Vec<_> = (0..4).map(|_| bed.model.add_lane(block)).collect();
        for _ in 0..STEPS {
            bed.access(lanes[rng.below(4)], &mut rng);
            for lane in &lanes {
                bed.model.arrive(*lane);
            }
            bed.model.meet(&lanes);
        }
        bed.finish();
    }
}

#[test]
fn agents_that_fence_around_each_access_see_plain_memory() {
    for seed in 0..SEEDS {
        let mut rng = Rng::new(seed + 3000);
        let mut bed = Bed::new(seed, MemoryKind::Host);
        let device = bed.model.add_device();
        let mut agents = vec![bed.model.add_cpu(), bed.model.add_cpu()];
        for _ in 0..2 {
            let block = bed.model.add_block(device);
            agents.push(bed.model.add_lane(block));
        }
        for _ in 0..STEPS {
            let agent = agents[rng.below(4)];
            bed.model.fence(agent, Order::Full, Scope::System);
            bed.access(agent, &mut rng);
            bed.model.fence(agent, Order::Full, Scope::System);
        }
        bed.finish();
    }
}

#[test]
fn blocks_that_fence_for_the_device_see_plain_memory() {
    for seed in 0..SEEDS {
        let mut rng = Rng::new(seed + 4000);
        let mut bed = Bed::new(seed, MemoryKind::Window);
        let device = bed.model.add_device();
        let lanes: Vec<_> = (0..3)
            .map(|_| {
                let block = bed.model.add_block(device);
                bed.model.add_lane(block)
            })
            .collect();
        for _ in 0..STEPS {
            let lane = lanes[rng.below(3)];
            bed.model.fence(lane, Order::Full, Scope::Device);
            bed.access(lane, &mut rng);
            bed.model.fence(lane, Order::Full, Scope::Device);
        }
        bed.finish();
    }
}

#[test]
fn a_late_copy_loads_what_came_after_it_unless_a_fence_follows() {
    for fenced in [false, true] {
        let region = Region::map_anonymous(64, MemoryKind::Host).unwrap();
        let policy = Policy { drain: 0, stale: 0, lazy_window: false, late_copies: 256 };
        let mut model = Model::new(1, policy);
        model.register("memory", &region);
        let device = model.add_device();
        let block = model.add_block(device);
        let [lane, other] = [0; 2].map(|_: usize| model.add_lane(block));
        let address = region.address();
        assert!(model.copy(lane, address + 16, address));
        if fenced {
            model.fence(lane, Order::Full, Scope::System);
        }
        assert!(model.store(other, address, 8, [7, 0], Order::Relaxed));
        model.fence(other, Order::Full, Scope::System);
        let copied = model.load(lane, address + 16, 8, Order::Relaxed).unwrap()[0];
        assert_eq!(copied, if fenced { 0 } else { 7 }, "fenced: {fenced}");
    }
}

#[test]
fn a_region_reaches_the_model_of_its_thread() {
    let region = Region::map_anonymous(64, MemoryKind::Window).unwrap();
    let policy = Policy { drain: 0, stale: 0, lazy_window: true, late_copies: 0 };
    let model = Rc::new(RefCell::new(Model::new(1, policy)));
    model.borrow_mut().register("window", &region);
    let writer = model.borrow_mut().add_cpu();
    let reader = model.borrow_mut().add_cpu();
    let word = |agent| with_agent(&model, agent, || region.u64_at(8).load(Ordering::Relaxed));

    with_agent(&model, writer, || region.write_bytes(8, b"payload!"));
    assert_eq!(word(reader), 0, "kept back");
    assert_eq!(region.u64_at(8).load(Ordering::Relaxed), 0, "not in memory either");
    with_agent(&model, writer, mem::fence_payload);
    for _ in 0..100 {
        model.borrow_mut().rest();
    }
    assert_eq!(word(reader).to_le_bytes(), *b"payload!");
}

#[test]
#[should_panic(expected = "a locked instruction on a window")]
fn a_window_takes_no_locked_instruction() {
    let region = Region::map_anonymous(64, MemoryKind::Window).unwrap();
    let policy = Policy { drain: 64, stale: 0, lazy_window: false, late_copies: 0 };
    let model = Rc::new(RefCell::new(Model::new(1, policy)));
    model.borrow_mut().register("window", &region);
    let agent = model.borrow_mut().add_cpu();
    with_agent(&model, agent, || region.u64_at(0).fetch_add(1, Ordering::Relaxed));
}
