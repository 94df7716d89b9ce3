//! The simulation: launches, agents, and the loop that steps them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Write;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};

use mem::Region;
use mem::model::{AgentId, Model, Policy, Rng, with_agent};

use super::access;
use super::observed::{LaneId, Observed};
use super::schedule::{Interleaving, Runner, Schedule};
use super::{AgentStep, Limits, Options, Outcome, Stuck, StuckKind};
use crate::block::{Block, Event, Plan};
use crate::device::{Access, Reply};
use crate::fiber::{ArgumentCopy, StackPool};
use crate::report::{LaunchError, Report};
use crate::warp::CollectiveKind;
use crate::{Entry, Shape};

/// Stacks serve one seed after the other.
static POOL: LazyLock<Arc<StackPool>> = LazyLock::new(Arc::default);

/// Simulated time that a step takes, less one.
const STEP_NS_MAX: usize = 8;
/// How soon an idle agent looks again.
const IDLE_NS: usize = 100;
const IDLE_NS_MAX: usize = 3000;

type StepFunction<'a> = Box<dyn FnMut(u64) -> AgentStep + 'a>;
type Observer<'a> = Box<dyn FnMut(Observed<'_>) + 'a>;

struct Agent<'a> {
    name: String,
    step: StepFunction<'a>,
    id: AgentId,
    /// Whether the run lasts until it is done.
    is_client: bool,
    last: Option<AgentStep>,
}

struct Resident {
    block: Block,
    lanes: Vec<AgentId>,
    /// What each lane asked for and did not get yet.
    open: Vec<Option<Access>>,
}

struct Queued {
    plan: Plan,
    index: u32,
}

/// A machine with one GPU, run by a seed.
pub struct Simulation<'a> {
    seed: u64,
    options: Options,
    rng: Rng,
    model: Rc<RefCell<Model>>,
    schedule: Schedule,
    agents: Vec<Agent<'a>>,
    observer: Option<Observer<'a>>,
    blocks: Vec<Option<Resident>>,
    queued: VecDeque<Queued>,
    /// Alive as long as lanes may look at them.
    arguments: Vec<ArgumentCopy>,
    device: AgentId,
    resident_lanes: usize,
    clients: usize,
    now_ns: u64,
    timer_offset_ns: u64,
    steps: u64,
    /// When something last changed, and how many changes memory had seen then.
    changed_ns: u64,
    changes: u64,
}

impl<'a> Simulation<'a> {
    /// A machine with nothing in it.
    pub fn new(seed: u64, options: Options) -> Self {
        let mut rng = Rng::new(seed);
        let drawn = (Policy::from_seed(&mut rng), Interleaving::from_seed(&mut rng));
        let policy = options.memory.unwrap_or(drawn.0);
        let mut model = Model::new(rng.bits(), policy);
        let device = model.add_device();
        let timer_offset_ns = rng.bits() >> 20;
        Self {
            seed,
            options,
            rng,
            model: Rc::new(RefCell::new(model)),
            schedule: Schedule::new(options.interleaving.unwrap_or(drawn.1)),
            agents: Vec::new(),
            observer: None,
            blocks: Vec::new(),
            queued: VecDeque::new(),
            arguments: Vec::new(),
            device,
            resident_lanes: 0,
            clients: 0,
            now_ns: 0,
            timer_offset_ns,
            steps: 0,
            changed_ns: 0,
            changes: 0,
        }
    }

    /// Puts a region under the memory model; its kind says how a CPU's stores to it behave.
    ///
    /// What is not registered is plain memory. Register the whole region, not a slice of it.
    ///
    /// # Panics
    /// Where it overlaps a registered region or is not 16-byte aligned.
    pub fn register(&mut self, name: &str, region: &Region) {
        self.model.borrow_mut().register(name, region);
    }

    /// Adds a CPU thread that serves for as long as others run; `step` gets the simulated time.
    pub fn add_agent(&mut self, name: &str, step: impl FnMut(u64) -> AgentStep + 'a) {
        self.add(name, Box::new(step), false);
    }

    /// Adds a CPU thread that the run waits for until it is done.
    pub fn add_client(&mut self, name: &str, step: impl FnMut(u64) -> AgentStep + 'a) {
        self.add(name, Box::new(step), true);
    }

    /// Tells `observer` of all that lanes do. It must not touch registered memory.
    pub fn observe(&mut self, observer: impl FnMut(Observed<'_>) + 'a) {
        self.observer = Some(Box::new(observer));
    }

    fn add(&mut self, name: &str, step: StepFunction<'a>, is_client: bool) {
        let id = self.model.borrow_mut().add_cpu();
        self.clients += usize::from(is_client);
        self.schedule.make_runnable(Runner::Agent(self.agents.len()));
        self.agents.push(Agent { name: name.to_owned(), step, id, is_client, last: None });
    }

    /// Does work on the caller's own thread as a further CPU thread of the machine, at once.
    ///
    /// For what a host does before a launch; all of it is visible afterwards.
    pub fn on_host<R>(&mut self, work: impl FnOnce() -> R) -> R {
        let id = self.model.borrow_mut().add_cpu();
        let result = with_agent(&self.model, id, work);
        self.model.borrow_mut().settle();
        result
    }

    /// Starts a kernel; its lanes see all that was stored before. They run in [`Simulation::run`].
    ///
    /// # Errors
    /// [`LaunchError::Shape`], [`LaunchError::Stack`].
    pub fn launch(
        &mut self,
        entry: Entry,
        shape: Shape,
        arguments: &[u8],
    ) -> Result<(), LaunchError> {
        shape.check()?;
        self.model.borrow_mut().settle();
        let copy = ArgumentCopy::new(arguments);
        let plan = Plan { entry, arguments: copy.address(), shape, modelled: true };
        self.arguments.push(copy);
        self.queued.extend((0..shape.blocks).map(|index| Queued { plan, index }));
        self.admit()
    }

    /// Simulated time now.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Runs until all lanes have returned and all clients are done.
    ///
    /// What the lanes stored is in memory then, and what agents stored in order or fenced. More can be
    /// launched and run afterwards.
    ///
    /// # Errors
    /// [`Stuck`]. The simulation cannot be continued then.
    pub fn run(&mut self, limits: Limits) -> Result<Outcome, Stuck> {
        let steps_max = self.steps.saturating_add(limits.steps);
        self.changed_ns = self.now_ns;
        while self.resident_lanes > 0 || self.clients > 0 {
            if self.steps >= steps_max {
                return Err(self.stuck(StuckKind::Steps));
            }
            let changes = self.model.borrow().changes();
            if changes != self.changes {
                (self.changes, self.changed_ns) = (changes, self.now_ns);
            } else if self.now_ns - self.changed_ns > limits.quiet_ns {
                return Err(self.stuck(StuckKind::Livelock));
            }
            self.wake_sleepers();
            match self.schedule.pick(&mut self.rng, self.now_ns) {
                Some(runner) => self.step(runner)?,
                None => self.rest()?,
            }
        }
        let mut model = self.model.borrow_mut();
        model.settle_device(self.device);
        model.settle_threads();
        let (hash, accesses) = (model.hash(), model.accesses());
        Ok(Outcome { hash, accesses, steps: self.steps, now_ns: self.now_ns })
    }

    fn wake_sleepers(&mut self) {
        while let Some(runner) = self.schedule.pop_awake(self.now_ns) {
            if let Runner::Lane(slot, thread) = runner {
                self.resident(slot).block.wake(thread);
            }
            self.schedule.make_runnable(runner);
        }
    }

    /// Nobody can run: time goes to the next sleeper.
    fn rest(&mut self) -> Result<(), Stuck> {
        let Some(time) = self.schedule.next_waking() else {
            return Err(self.stuck(StuckKind::Deadlock));
        };
        self.now_ns = self.now_ns.max(time);
        self.model.borrow_mut().rest();
        Ok(())
    }

    fn step(&mut self, runner: Runner) -> Result<(), Stuck> {
        self.steps += 1;
        self.now_ns += 1 + self.rng.below(STEP_NS_MAX) as u64;
        match runner {
            Runner::Agent(index) => {
                self.step_agent(index);
                Ok(())
            }
            Runner::Lane(slot, thread) => {
                let result = self.step_lane(slot, thread);
                result.map_err(|error| match error {
                    LaunchError::Deadlock(_) => self.stuck(StuckKind::Deadlock),
                    error => self.stuck(StuckKind::Misuse(error)),
                })
            }
        }
    }

    fn step_agent(&mut self, index: usize) {
        let agent = &mut self.agents[index];
        let now_ns = self.now_ns;
        let step = with_agent(&self.model, agent.id, || (agent.step)(now_ns));
        agent.last = Some(step);
        let runner = Runner::Agent(index);
        let soon = now_ns + (IDLE_NS + self.rng.below(IDLE_NS_MAX - IDLE_NS)) as u64;
        match step {
            AgentStep::Progress => self.schedule.make_runnable(runner),
            AgentStep::Idle => self.schedule.sleep_until(runner, soon),
            AgentStep::Until(time) => self.schedule.sleep_until(runner, time.max(soon)),
            AgentStep::Done => self.clients -= usize::from(agent.is_client),
        }
    }

    fn resident(&mut self, slot: usize) -> &mut Resident {
        self.blocks[slot].as_mut().expect("a lane that runs has its block")
    }

    fn step_lane(&mut self, slot: usize, thread: u32) -> Result<(), LaunchError> {
        let runner = Runner::Lane(slot, thread);
        let at = thread as usize;
        let resident = self.blocks[slot].as_mut().expect("a lane that runs has its block");
        if let Some(access) = resident.open[at].take() {
            let lane = resident.lanes[at];
            let reply = access::perform(&mut self.model.borrow_mut(), lane, &access);
            if let Some(observer) = &mut self.observer {
                let access = access::tell(&access, &reply);
                observer(Observed::Access { lane: (slot, thread), access });
            }
            resident.block.answer(thread, reply);
        }
        loop {
            match resident.block.run(thread, &POOL)? {
                Event::Timer => {
                    let time = self.now_ns + self.timer_offset_ns;
                    resident.block.answer(thread, Reply::word(time));
                }
                Event::Access(access) => {
                    resident.open[at] = Some(access);
                    self.schedule.make_runnable(runner);
                    break;
                }
                Event::Sleeps { ns } => {
                    self.schedule.sleep_until(runner, self.now_ns + u64::from(ns));
                    break;
                }
                Event::Returned => {
                    self.changed_ns = self.now_ns;
                    self.resident_lanes -= 1;
                    break;
                }
                Event::Blocked => break,
            }
        }
        self.meet(slot);
        if self.resident(slot).block.live() == 0 {
            self.blocks[slot] = None;
            self.admit()?;
        }
        Ok(())
    }

    /// Lets released lanes go on; those of a barrier have seen what the others have.
    fn meet(&mut self, slot: usize) {
        let resident = self.blocks[slot].as_mut().expect("its lane has just run");
        for thread in resident.block.woken.drain(..) {
            self.schedule.make_runnable(Runner::Lane(slot, thread));
        }
        let mut model = self.model.borrow_mut();
        let mut observer = self.observer.as_mut();
        let mut barrier = |threads: &[u32]| {
            if threads.is_empty() {
                return;
            }
            let lanes: Vec<_> = threads.iter().map(|at| resident.lanes[*at as usize]).collect();
            lanes.iter().for_each(|lane| model.arrive(*lane));
            model.meet(&lanes);
            if let Some(observer) = &mut observer {
                let lanes: Vec<LaneId> = threads.iter().map(|thread| (slot, *thread)).collect();
                observer(Observed::Barrier { lanes: &lanes });
            }
        };
        let mut block = Vec::new();
        for (warp, released) in resident.block.released.drain(..) {
            let lanes = crate::warp::bits(released.lanes);
            let threads = lanes.map(|lane| warp * 32 + u32::try_from(lane).expect("below 32"));
            match released.kind {
                CollectiveKind::SyncThreads => block.extend(threads),
                CollectiveKind::SyncWarp => barrier(&threads.collect::<Vec<_>>()),
                _ => {}
            }
        }
        barrier(&block);
    }

    /// Starts blocks while there is room.
    fn admit(&mut self) -> Result<(), LaunchError> {
        while let Some(Queued { plan, index }) = self.queued.front() {
            let threads = plan.shape.threads_per_block;
            let lanes = threads as usize;
            if self.resident_lanes > 0 && self.resident_lanes + lanes > self.options.resident_lanes
            {
                break;
            }
            let block = Block::new(*index, plan, &POOL)?;
            let mut model = self.model.borrow_mut();
            let shared = model.add_block(self.device);
            let ids = (0..lanes).map(|_| model.add_lane(shared)).collect();
            drop(model);
            let slot = self.blocks.len();
            self.blocks.push(Some(Resident { block, lanes: ids, open: vec![None; lanes] }));
            for thread in 0..threads {
                self.schedule.make_runnable(Runner::Lane(slot, thread));
            }
            self.resident_lanes += lanes;
            self.queued.pop_front();
        }
        Ok(())
    }

    fn stuck(&self, kind: StuckKind) -> Stuck {
        let waiting = self.blocks.iter().flatten().flat_map(|r| r.block.waiting()).collect();
        let mut report = Report { waiting }.to_string();
        if !self.queued.is_empty() {
            let _ = writeln!(report, "  and {} blocks that have not started", self.queued.len());
        }
        for agent in &self.agents {
            let state = match agent.last {
                None => "not run yet".to_owned(),
                Some(AgentStep::Progress) => "running".to_owned(),
                Some(AgentStep::Idle) => "idle".to_owned(),
                Some(AgentStep::Until(time)) => format!("waits for {time} ns"),
                Some(AgentStep::Done) => "done".to_owned(),
            };
            let _ = writeln!(report, "  agent {}: {state}", agent.name);
        }
        Stuck { seed: self.seed, kind, steps: self.steps, now_ns: self.now_ns, report }
    }
}
