//! Real device code over NVMe queue pairs against the software controller, by seed: lanes, drive and
//! CPU agent are stepped by one scheduler, and memory is as adverse as its model allows.
//!
//! Shallow queues, counters below their wraps, all placements, lanes that leave with commands in
//! flight, more in flight than the queue is deep, errors, duplicates, hand-overs of the CQ, and queues
//! made anew under their users. In all of them every lane is watched: it must fence what `queues/order.rs`
//! says. `SIDECORE_SEEDS=N` tries the first N seeds; `SIDECORE_SEED=S` replays
//! one.

#[path = "queues/order.rs"]
mod order;

use std::cell::RefCell;
use std::mem::offset_of;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use abi::bench::{ProbeResult, QueueProbeArgs};
use abi::queue::{CID_TAKEN, CompletionWord, DmaBufferView, QUEUE_CLOSED, QueueState};
use abi::status;
use ctrl::Progress;
use gpu::Kernel;
use mem::{MemoryKind, Region};
use order::Order;
use selftest::queue_bed::{Agent, Config, QueueBed, SOURCE_BYTES, Turn, later_start, open};
use sidecore_testkit::pattern::mix;
use sidecore_testkit::seeds;
use simt::Shape;
use simt::seeded::{AgentStep, Limits, Options, Policy, Simulation};
use zerocopy::{FromZeros, IntoBytes};

const SEEDS: u64 = 24;
const LANES: usize = 64;
const LIMITS: Limits = Limits { steps: 30_000_000, quiet_ns: 200_000_000 };

/// What happens in a seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    None,
    Duplicates,
    Errors,
    Flips,
    /// The host answers for all that is in flight, and closes the queues.
    Closing,
    NewEpoch,
}

/// One seed's case.
struct Case {
    config: Config,
    kernel: Kernel,
    trouble: Trouble,
    batch: u32,
    /// Lanes of a warp; each block is one.
    warp: u32,
    patience_ns: u64,
    rounds: u32,
    memory: Option<Policy>,
}

impl Case {
    fn draw(seed: u64) -> Self {
        let draw = |salt: u64, bound: u64| mix(seed.wrapping_mul(64) + salt) % bound;
        let bam = seed.is_multiple_of(2);
        let depth_log2 = u32::try_from(1 + draw(1, 4)).unwrap();
        let mut config = if bam { Config::bam(depth_log2) } else { Config::copilot(depth_log2) };
        config.start = [0, 0xffff, 0xffff_ffff, u64::MAX - (8 << depth_log2)]
            [usize::try_from(draw(2, 4)).unwrap()]
        .saturating_sub(2 << depth_log2);
        let kinds = [MemoryKind::Window, MemoryKind::Host];
        config.sq = kinds[usize::try_from(draw(3, 2)).unwrap()];
        config.cq = kinds[usize::try_from(draw(4, 2)).unwrap()];
        config.prp_lists = false;
        let troubles = [
            Trouble::None,
            Trouble::Errors,
            Trouble::Duplicates,
            if bam { Trouble::None } else { Trouble::Flips },
            Trouble::NewEpoch,
        ];
        let trouble = troubles[usize::try_from(seed / 2 % 5).unwrap()];
        config.faults = match trouble {
            Trouble::Errors => "error:n=9,status=2/81".to_owned(),
            Trouble::Duplicates => "duplicate:n=9".to_owned(),
            _ => String::new(),
        };
        let reads = if bam { kernels::BAM_READ } else { kernels::COPILOT_READ };
        let batches = if bam { kernels::BAM_BATCH } else { kernels::COPILOT_BATCH };
        let batch = if draw(5, 2) == 0 { 1 } else { 4 };
        // Leaving lanes need few ids, batches as many as they have in flight; a duplicate is told
        // from the end of a later command by nothing but time between two uses of an id.
        config.cid_log2 = match (trouble, batch) {
            (Trouble::Duplicates, _) | (_, 4) => 9,
            _ => 4,
        };
        let kernel = if batch == 1 { reads } else { batches };
        Self { trouble, batch, ..Self::plain(config, kernel) }
    }

    fn plain(config: Config, kernel: Kernel) -> Self {
        let (trouble, patience_ns) = (Trouble::None, u64::MAX);
        Self { config, kernel, trouble, batch: 1, warp: 32, patience_ns, rounds: 4, memory: None }
    }
}

/// What lanes saw, and what the two sides drained.
struct Ran {
    seen: ProbeResult,
    /// The last that each lane was told of a failure.
    statuses: Vec<u32>,
    /// Accesses, steps and time. (Their hash has addresses in it, in the commands.)
    trace: (u64, u64, u64),
    bed: QueueBed,
    agent: Agent,
    /// By rule of order, how often it held.
    held: Vec<u64>,
}

fn run(seed: u64, case: &Case) -> Ran {
    let bed = QueueBed::new(case.config.clone());
    let agent = Rc::new(RefCell::new(bed.agent()));
    let bytes = LANES * 512 * case.batch as usize;
    let buffer = Region::map_anonymous(bytes, MemoryKind::Window).unwrap();
    bed.map.register(buffer.clone()).unwrap();
    let results = Region::map_anonymous(LANES * 32, MemoryKind::Host).unwrap();
    let args = QueueProbeArgs {
        queue: bed.view(),
        buffer: DmaBufferView {
            address: buffer.address(),
            bus: buffer.address(),
            bytes: bytes as u64,
        },
        source_bytes: SOURCE_BYTES as u64,
        results: results.address(),
        patience_ns: case.patience_ns,
        timeout_ns: u64::MAX,
        rounds: case.rounds,
        bytes: 512,
        batch: case.batch,
        seed: u32::try_from(seed % 1000).unwrap(),
    };
    let mut simulation =
        Simulation::new(seed, Options { memory: case.memory, ..Options::default() });
    for (name, region) in [
        ("sq", &bed.sq),
        ("cq", &bed.cq),
        ("device", &bed.device),
        ("host", &bed.host),
        ("bar", &bed.bar),
        ("buffer", &buffer),
    ] {
        simulation.register(name, region);
    }
    let order = Rc::new(RefCell::new(Order::new(args.queue, args.buffer)));
    let watch = Rc::clone(&order);
    simulation.observe(move |observed| watch.borrow_mut().tell(observed));
    let bed = Rc::new(RefCell::new(bed));
    add_agents(&mut simulation, seed, case, &bed, &agent);
    let lanes = u32::try_from(LANES).unwrap();
    let shape = Shape { blocks: lanes / case.warp, threads_per_block: case.warp };
    simulation.launch(case.kernel.simulated, shape, args.as_bytes()).unwrap();
    let outcome = simulation.run(LIMITS).unwrap_or_else(|stuck| panic!("{stuck}"));
    drop(simulation);
    let mut all = vec![ProbeResult::new_zeroed(); LANES];
    results.read_bytes(0, all.as_mut_bytes());
    let mut seen = ProbeResult::new_zeroed();
    for (lane, r) in all.iter().enumerate() {
        assert_eq!(r.finished, 1, "lane {lane}");
        seen.succeeded += r.succeeded;
        seen.failed += r.failed;
        seen.wrong_bytes += r.wrong_bytes;
        seen.not_submitted += r.not_submitted;
        seen.pending += r.pending;
        seen.busy += r.busy;
        seen.status = if r.status == 0 { seen.status } else { r.status };
    }
    let trace = (outcome.accesses, outcome.steps, outcome.now_ns);
    let bed = Rc::into_inner(bed).expect("agents are gone").into_inner();
    let agent = Rc::into_inner(agent).expect("agents are gone").into_inner();
    let held = Rc::into_inner(order).expect("nobody watches").into_inner().held;
    let statuses = all.iter().map(|r| r.status).collect();
    Ran { seen, statuses, trace, bed, agent, held }
}

fn add_agents(
    simulation: &mut Simulation<'_>,
    seed: u64,
    case: &Case,
    bed: &Rc<RefCell<QueueBed>>,
    agent: &Rc<RefCell<Agent>>,
) {
    let drive = Rc::clone(bed);
    simulation.add_agent("drive", move |now_ns| {
        match drive.borrow_mut().controller.step(10_000_000 + now_ns) {
            Progress::Worked => AgentStep::Progress,
            _ => AgentStep::Idle,
        }
    });
    if !case.config.scan {
        let agent = Rc::clone(agent);
        let (bed, flips) = (Rc::clone(bed), case.trouble == Trouble::Flips);
        let mut at_flip = 0;
        simulation.add_agent("agent", move |_| {
            let mut agent = agent.borrow_mut();
            let busy = agent.step();
            let lanes = bed.borrow().state(offset_of!(QueueState, drained));
            let drained = agent.drained + lanes;
            if flips && drained >= at_flip + 1 + seed % 16 {
                at_flip = drained;
                match agent.turn {
                    Turn::Cpu => agent.give(),
                    Turn::Gpu => agent.recall(),
                    Turn::Recalled => {}
                }
            }
            if busy { AgentStep::Progress } else { AgentStep::Idle }
        });
    }
    if case.trouble == Trouble::Closing {
        let bed = Rc::clone(bed);
        simulation.add_client("host", move |_| close(&bed.borrow()));
    }
    if case.trouble == Trouble::NewEpoch {
        let mut renewal = Renewal { bed: Rc::clone(bed), agent: Rc::clone(agent), step: 0 };
        let at_ns = 3_000 + mix(seed) % 30_000;
        simulation.add_client("host", move |now_ns| {
            if now_ns < at_ns { AgentStep::Until(at_ns) } else { renewal.step() }
        });
    }
}

/// The host, once all lanes wait: answers come before the state, and both in one step.
fn close(bed: &QueueBed) -> AgentStep {
    let sent = bed.state(offset_of!(QueueState, in_ticket)).wrapping_sub(bed.first);
    if sent < LANES as u64 || bed.state(offset_of!(QueueState, inside)) != 0 {
        return AgentStep::Idle;
    }
    let view = bed.view();
    let word = |array: u64, id: u64| {
        bed.device.u64_at(usize::try_from(array - bed.device.address() + 8 * id).unwrap())
    };
    for id in 0..1 << view.cid_log2 {
        if word(view.cids, id).load(Ordering::Relaxed) & 0xff == u64::from(CID_TAKEN) {
            let answer = CompletionWord::done(1, status::TIMED_OUT, 0, 0).word;
            word(view.completions, id).store(answer, Ordering::Relaxed);
        }
    }
    mem::fence_payload();
    bed.store_state(u64::from(QUEUE_CLOSED) | 1 << 32);
    mem::fence_payload();
    AgentStep::Done
}

/// The host, which makes the queues anew.
struct Renewal {
    bed: Rc<RefCell<QueueBed>>,
    agent: Rc<RefCell<Agent>>,
    step: u32,
}

impl Renewal {
    fn step(&mut self) -> AgentStep {
        let mut bed = self.bed.borrow_mut();
        match self.step {
            0 => bed.quiesce(1),
            1 if !bed.is_quiet() => return AgentStep::Idle,
            1 => {}
            // Delete the submission queue, then the completion queue, and make them again.
            2 => bed.begin_command(0, 0, 1, 0),
            4 => bed.begin_command(4, 0, 1, 0),
            6 => {
                let mut agent = self.agent.borrow_mut();
                let start = later_start(&bed);
                let [create, _] = bed.creation();
                agent.renew(start, 2);
                bed.prepare(start, 2);
                bed.begin_command(create.0, create.1, create.2, create.3);
            }
            8 => {
                let [_, create] = bed.creation();
                bed.begin_command(create.0, create.1, create.2, create.3);
            }
            3 | 5 | 7 | 9 if !bed.poll_command() => return AgentStep::Idle,
            3 | 5 | 7 | 9 => {}
            _ => {
                bed.store_state(open(2));
                mem::fence_payload();
                return AgentStep::Done;
            }
        }
        self.step += 1;
        AgentStep::Progress
    }
}

fn try_seed(seed: u64) -> (u64, u64, u64) {
    let case = Case::draw(seed);
    let ran = run(seed, &case);
    let (seen, bed) = (ran.seen, &ran.bed);
    let at = format!(
        "seed {seed}, {}, {:?}, {:?}: {seen:?}",
        case.kernel.name, case.trouble, case.config
    );
    let injected = if case.trouble == Trouble::Errors { 9 } else { 0 };
    assert_eq!((seen.wrong_bytes, seen.pending, seen.not_submitted), (0, 0, 0), "{at}");
    // A departed lane's command may be the one that suffered.
    assert!(seen.failed <= injected && seen.failed + seen.busy >= injected, "{at}");
    let commands = bed.controller.counters().read().io_commands;
    let asked = u64::from(seen.succeeded + seen.failed + seen.busy);
    if case.trouble == Trouble::NewEpoch {
        assert!(commands >= asked - u64::from(seen.busy), "{at}");
    } else {
        assert!(commands <= asked, "{at}: {commands}");
        assert!(commands >= asked - u64::from(seen.busy), "{at}: {commands}");
    }
    if case.batch == 4 {
        assert_eq!(u64::from(seen.succeeded + seen.failed), LANES as u64 * 16, "{at}");
    }
    if case.batch == 4 && case.config.scan && case.trouble != Trouble::NewEpoch {
        let (head, drained) = (offset_of!(QueueState, cq_head), offset_of!(QueueState, drained));
        let strays = bed.state(offset_of!(QueueState, strays));
        assert_eq!(bed.state(drained), asked, "{at}");
        let posted = bed.state(head).wrapping_sub(bed.first);
        assert!(posted <= asked + strays && posted >= asked, "{at}: {posted}");
    }
    if case.trouble == Trouble::Flips {
        assert!(ran.agent.flips > 0, "{at}");
    }
    ran.trace
}

#[test]
fn every_seed_moves_the_right_bytes() {
    if let Some(seed) = seeds::alone() {
        try_seed(seed);
        return;
    }
    seeds::each(seeds::count().unwrap_or(SEEDS), |seed| {
        seeds::try_and_tell(seed, "queues", "queues every_seed", || try_seed(seed));
    });
}

#[test]
fn a_seed_replays() {
    assert_eq!(try_seed(3), try_seed(3));
}

/// Every fence is put to the test: by lanes that leave, change hands, complain, have no patience, write,
/// read twice and find their queue made anew.
#[test]
fn lanes_fence_what_they_must() {
    let small = |mut config: Config, cid_log2: u32| {
        (config.cid_log2, config.prp_lists) = (cid_log2, false);
        config
    };
    let twice = Config { second_read: true, ..small(Config::bam(2), 9) };
    let late = Config {
        limit_ms: 1,
        faults: "late:n=5,every=3,ms=3".to_owned(),
        ..small(Config::bam(1), 4)
    };
    let handed = small(Config::copilot(2), 9);
    let anew = small(Config::bam(3), 9);
    let cases = [
        Case::plain(small(Config::bam(2), 4), kernels::BAM_READ),
        Case::plain(twice, kernels::BAM_READ),
        Case { patience_ns: 0, ..Case::plain(late, kernels::BAM_GIVE_UP) },
        Case { trouble: Trouble::Flips, batch: 4, ..Case::plain(handed, kernels::COPILOT_BATCH) },
        Case { trouble: Trouble::NewEpoch, batch: 4, ..Case::plain(anew, kernels::BAM_BATCH) },
        Case::plain(small(Config::bam(2), 6), kernels::BAM_WRITE),
    ];
    let mut held = Vec::new();
    for (seed, case) in (0..).zip(&cases) {
        let ran = run(seed, case);
        assert_eq!(ran.seen.wrong_bytes, 0, "{}", case.kernel.name);
        held.resize(ran.held.len(), 0);
        held.iter_mut().zip(&ran.held).for_each(|(sum, held)| *sum += held);
    }
    assert_eq!(Order::idle(&held), [""; 0], "what was never put to the test: {held:?}");
}

/// A lane that finds its queue closed looks at its word once more, and then no longer.
#[test]
fn lanes_that_see_their_queue_closed_have_seen_their_answers() {
    seeds::each(seeds::count().unwrap_or(SEEDS), |seed| {
        let mut config = Config::copilot(7);
        (config.cid_log2, config.prp_lists) = (9, false);
        config.faults = "lost:n=1000,every=1".to_owned();
        let memory = Policy { drain: 160, stale: 128, lazy_window: false, late_copies: 0 };
        let plain = Case::plain(config, kernels::COPILOT_GIVE_UP);
        let ran = run(
            seed,
            &Case { trouble: Trouble::Closing, rounds: 1, memory: Some(memory), ..plain },
        );
        assert_eq!(ran.statuses, [u32::from(status::TIMED_OUT); LANES], "seed {seed}");
    });
}

fn try_turns(seed: u64) -> (u64, u64, u64) {
    let draw = |bound: u64| u32::try_from(seed % bound).unwrap();
    let mut config = Config::bam(2 + draw(3));
    (config.cid_log2, config.prp_lists) = (9, false);
    let warp = 2 << (draw(6) / 3);
    let kernel = kernels::BAM_TURNS;
    let ran = run(seed, &Case { warp, ..Case::plain(config, kernel) });
    let seen = ran.seen;
    assert_eq!((seen.succeeded, seen.failed, seen.wrong_bytes), (4 * warp, 0, 0), "seed {seed}");
    ran.trace
}

/// The lane that holds the lock of a CQ goes on for as long as others ask it to. What it leaves to lanes
/// that cannot take theirs before it has done with that, others want drained: so it must not leave it.
#[test]
fn who_drains_for_others_leaves_nothing_to_lanes_that_wait_for_it() {
    seeds::each(seeds::count().unwrap_or(SEEDS), |seed| {
        seeds::try_and_tell(seed, "turns", "queues who_drains", || try_turns(seed));
    });
}
