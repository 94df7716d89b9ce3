//! Fences of the host side of queue pairs, one by one, each in a case of its own that goes wrong without
//! it. Those of lanes: `queues/order.rs`.
//!
//! Under the memory model, with lanes played by the test: a core's write-combining stores leave in any
//! order and, where nothing fences them, only when the test says so.

#![allow(dead_code, reason = "the bed has more than is needed here")]

#[path = "../../sidecore/tests/gpu_queues/bed.rs"]
mod bed;

use std::cell::RefCell;
use std::mem::offset_of;
use std::rc::Rc;

use abi::queue::{
    OWNER_CPU, OWNER_GPU, OWNER_RECALL, OwnerWord, QUEUE_CLOSED, QUEUE_OPEN, QUEUE_QUIESCED,
    QueueState, complaint,
};
use abi::status;
use bed::{Bed, COPOLL, DWELL_NS, IDS, WINDOW_NS};
use mem::model::{AgentId, Model, Order, Policy, Scope, with_agent};
use sidecore::gpu_queues::{PairState, Polling, QueueOptions};

const STEP_NS: u64 = 10_000;

fn options(polling: Polling) -> QueueOptions {
    bed::small(QueueOptions { polling, ..QueueOptions::copilot() })
}

/// Who accesses memory in a test.
struct Stage {
    model: Rc<RefCell<Model>>,
    lane: AgentId,
    host: AgentId,
    core: AgentId,
    drive: AgentId,
}

impl Stage {
    fn new(bed: &Bed, seed: u64, drain: u32, stale: u32) -> Self {
        let policy = Policy { drain, stale, lazy_window: true, late_copies: 0 };
        let mut model = Model::new(seed, policy);
        for [window, host] in bed.queues.memory() {
            model.register("window", &window);
            model.register("host", &host);
        }
        let device = model.add_device();
        let block = model.add_block(device);
        let lane = model.add_lane(block);
        let [host, core, drive] = [0; 3].map(|_| model.add_cpu());
        Self { model: Rc::new(RefCell::new(model)), lane, host, core, drive }
    }

    fn as_agent<R>(&self, agent: AgentId, work: impl FnOnce() -> R) -> R {
        with_agent(&self.model, agent, work)
    }

    /// A lane's turn, before and after which everything of its own is ordered.
    fn as_lane<R>(&self, work: impl FnOnce() -> R) -> R {
        self.as_agent(self.lane, || {
            mem::fence_full();
            let result = work();
            mem::fence_full();
            result
        })
    }

    fn step(&self, bed: &mut Bed) {
        self.step_host(bed);
        self.step_agent(bed);
    }

    fn step_host(&self, bed: &mut Bed) {
        bed.now_ns += STEP_NS;
        self.as_agent(self.drive, || bed.settle());
        self.as_agent(self.host, || bed.recovery.step(bed.now_ns));
    }

    fn step_agent(&self, bed: &mut Bed) {
        if let [agent] = &mut bed.agents[..] {
            self.as_agent(self.core, || agent.step(bed.now_ns));
        }
    }

    /// Steps until the host has brought it to that; nobody has run since then, whom it would hand on to
    /// what it has stored.
    fn step_until(&self, bed: &mut Bed, state: PairState) {
        for _ in 0..2000 {
            self.step_host(bed);
            if bed.queues.states() == [state] {
                return;
            }
            self.step_agent(bed);
        }
        panic!("{state:?} never comes: {:?}", bed.queues.states());
    }

    /// A word, as a lane loads it that looks now.
    fn load(&self, address: u64, order: Order) -> u64 {
        let found = self.model.borrow_mut().load(self.lane, address, 8, order);
        found.expect("registered")[0]
    }

    /// Looks at the state until it says so.
    fn await_state(&self, bed: &Bed, mode: u32, epoch: u32) {
        let wanted = u64::from(mode) | u64::from(epoch) << 32;
        let at = bed.queues.views()[0].state + offset_of!(QueueState, state) as u64;
        let looks = (0..10_000).take_while(|_| self.load(at, Order::Acquire) != wanted);
        assert!(looks.count() < 10_000, "state {mode} of epoch {epoch} is never seen");
    }
}

#[test]
fn what_recovery_says_of_a_pair_leaves_its_core() {
    let mut bed = Bed::new("", options(Polling::Cpu), 1);
    let stage = Stage::new(&bed, 1, 0, 0);
    let seen = |bed: &Bed| stage.as_lane(|| bed.state(0));
    assert_eq!(seen(&bed), (QUEUE_OPEN, 1));
    stage.as_lane(|| bed.complain(0, IDS));
    stage.step_until(&mut bed, PairState::Opening);
    assert_eq!(seen(&bed), (QUEUE_QUIESCED, 1), "before it looks whether lanes are inside");
    stage.step_until(&mut bed, PairState::Serving);
    assert_eq!(seen(&bed), (QUEUE_OPEN, 2));
    bed.recovery.close();
    stage.step_until(&mut bed, PairState::Closed);
    assert_eq!(seen(&bed).0, QUEUE_CLOSED);
}

#[test]
fn what_an_agent_says_of_its_queue_leaves_its_core() {
    let mut bed = Bed::new("", options(Polling::Adaptive(COPOLL)), 1);
    let stage = Stage::new(&bed, 1, 0, 0);
    let step = |bed: &mut Bed, ns: u64| {
        bed.now_ns += ns;
        let now_ns = bed.now_ns;
        stage.as_agent(stage.core, || bed.agents[0].step(now_ns).with_lanes)
    };
    let owner = |bed: &Bed| stage.as_lane(|| bed.owner(0).owner());
    assert_eq!(owner(&bed), OWNER_CPU);
    while step(&mut bed, WINDOW_NS) == 0 {}
    assert_eq!(owner(&bed), OWNER_GPU, "the load is low");
    let much = |head| OwnerWord::pack(OWNER_GPU, true, 1, head);
    stage.as_lane(|| bed.report(0, much(COPOLL.high * 100)));
    step(&mut bed, DWELL_NS);
    assert_eq!(owner(&bed), OWNER_RECALL, "the load is high");
    stage.as_lane(|| bed.report(0, OwnerWord::pack(OWNER_CPU, true, 1, 0)));
    assert_eq!(step(&mut bed, STEP_NS), 0);
    assert_eq!(owner(&bed), OWNER_CPU, "a lane has answered");
}

/// An agent's words and its SQ head are out by the time the drive may use the entries again.
#[test]
fn what_an_agent_has_drained_leaves_its_core() {
    let mut bed = Bed::new("", options(Polling::Cpu), 1);
    let stage = Stage::new(&bed, 1, 0, 0);
    stage.as_lane(|| bed.read(0, 3, 1));
    stage.step(&mut bed);
    assert_eq!(bed.cq_doorbell(0), 1);
    assert_eq!(stage.as_lane(|| bed.status(0, 3)), Some(status::SUCCESS));
    assert_eq!(stage.as_lane(|| bed.sq_head(0)), 1);
}

#[test]
fn who_sees_a_new_epoch_sees_its_positions() {
    for seed in 0..32 {
        let mut bed = Bed::new("", options(Polling::Adaptive(COPOLL)), 1);
        let stage = Stage::new(&bed, seed, 256, 0);
        stage.as_lane(|| bed.complain(0, IDS));
        stage.step_until(&mut bed, PairState::Opening);
        stage.step_until(&mut bed, PairState::Serving);
        let view = bed.queues.views()[0];
        let fields = [
            offset_of!(QueueState, in_ticket),
            offset_of!(QueueState, tail),
            offset_of!(QueueState, sq_head),
            offset_of!(QueueState, cq_head),
        ];
        let of_state = fields.map(|field| view.state + field as u64);
        let marks = (0..u64::from(bed::DEPTH))
            .flat_map(|slot| [view.tail_marks + 8 * slot, view.head_marks + 8 * slot]);
        let places: Vec<u64> = of_state.into_iter().chain(marks).chain([view.owner]).collect();
        stage.await_state(&bed, QUEUE_OPEN, 2);
        let load = |at: &u64| stage.load(*at, Order::Relaxed);
        let seen: Vec<u64> = places.iter().map(load).collect();
        stage.model.borrow_mut().settle();
        let later: Vec<u64> = places.iter().map(load).collect();
        assert_eq!(seen, later, "seed {seed}");
    }
}

#[test]
fn who_sees_a_pair_closed_sees_the_answers_for_what_was_in_flight() {
    for seed in 0..32 {
        let mut bed = Bed::new("lost:n=9,every=1", options(Polling::Cpu), 1);
        let stage = Stage::new(&bed, seed, 256, 0);
        for id in 0..5 {
            stage.as_lane(|| bed.read(0, id, u64::from(id)));
        }
        bed.recovery.close();
        stage.step_until(&mut bed, PairState::Closed);
        stage.await_state(&bed, QUEUE_CLOSED, 1);
        for id in 0..5 {
            let word = stage.load(bed.queues.views()[0].completions + 8 * id, Order::Relaxed);
            let at = format!("seed {seed}, id {id}: {word:#x}");
            assert_eq!((word & 0xffff, word >> 16 & 0xffff), (1, status::TIMED_OUT.into()), "{at}");
        }
    }
}

/// An alarm that was heard is not heard again: the complaint must be found with it.
#[test]
fn who_hears_an_alarm_finds_the_complaint() {
    for seed in 0..64 {
        let mut bed = Bed::new("lost:n=1,every=1", options(Polling::Cpu), 1);
        let stage = Stage::new(&bed, seed, 256, 256);
        stage.as_lane(|| bed.read(0, 3, 0));
        stage.step(&mut bed);
        // A lane's stores, which the test does not hand on as one thread does to another.
        let view = bed.queues.views()[0];
        let store = |at, value| {
            let order = Order::Relaxed;
            assert!(stage.model.borrow_mut().store(stage.lane, at, 8, [value, 0], order));
            stage.model.borrow_mut().fence(stage.lane, Order::Full, Scope::System);
        };
        store(view.complaints + 8 * 3, complaint(1, 1));
        store(view.alarm, 1);
        for _ in 0..40 {
            stage.as_agent(stage.host, || bed.recovery.step(bed.now_ns));
        }
        let aborts = bed.queues.counters_now()[0].aborts;
        assert_eq!(aborts, 1, "seed {seed}: what the lane complained of is aborted");
    }
}
