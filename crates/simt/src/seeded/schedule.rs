//! Who goes next: the runnable, the sleeping, and a policy drawn from the seed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use mem::model::Rng;

/// Somebody who can be run. The order is only that of a heap's ties.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Runner {
    /// A CPU agent, by its index.
    Agent(usize),
    /// A lane: index of its block, thread in the block.
    Lane(usize, u32),
}

/// How the next one is chosen; chances are of 256.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interleaving {
    /// Whether the runnable lanes of a warp take their steps together, in lane order.
    pub lockstep: bool,
    /// Chance that whoever ran last goes on.
    pub burst: u32,
    /// Chance that a CPU agent is preferred where both could run.
    pub agents_first: u32,
    /// Chance, of 65,536, that who is chosen is held up for up to 20 us instead.
    pub stall: u32,
}

impl Interleaving {
    /// Draws one.
    pub fn from_seed(rng: &mut Rng) -> Self {
        Self {
            lockstep: rng.chance(96),
            burst: [0, 128, 240][rng.below(3)],
            agents_first: [0, 32, 160][rng.below(3)],
            stall: [0, 16, 64][rng.below(3)],
        }
    }
}

/// The longest that somebody is held up.
const STALL_NS_MAX: usize = 20_000;

/// The runnable and the sleeping.
pub(super) struct Schedule {
    pub interleaving: Interleaving,
    agents: Vec<Runner>,
    lanes: Vec<Runner>,
    /// The rest of a warp's round in lockstep.
    round: VecDeque<Runner>,
    last: Option<Runner>,
    sleeping: BinaryHeap<Reverse<(u64, Runner)>>,
}

impl Schedule {
    pub(super) fn new(interleaving: Interleaving) -> Self {
        Self {
            interleaving,
            agents: Vec::new(),
            lanes: Vec::new(),
            round: VecDeque::new(),
            last: None,
            sleeping: BinaryHeap::new(),
        }
    }

    pub(super) fn make_runnable(&mut self, runner: Runner) {
        match runner {
            Runner::Agent(_) => self.agents.push(runner),
            Runner::Lane(..) => self.lanes.push(runner),
        }
    }

    pub(super) fn sleep_until(&mut self, runner: Runner, time_ns: u64) {
        self.sleeping.push(Reverse((time_ns, runner)));
    }

    /// When the next sleeper wakes.
    pub(super) fn next_waking(&self) -> Option<u64> {
        self.sleeping.peek().map(|Reverse((time, _))| *time)
    }

    /// Takes a sleeper whose time has come.
    pub(super) fn pop_awake(&mut self, now_ns: u64) -> Option<Runner> {
        let Reverse((time, runner)) = *self.sleeping.peek()?;
        if time > now_ns {
            return None;
        }
        self.sleeping.pop();
        Some(runner)
    }

    /// Takes the next one from the runnable; it comes back by `make_runnable`.
    pub(super) fn pick(&mut self, rng: &mut Rng, now_ns: u64) -> Option<Runner> {
        loop {
            let runner = self.choose(rng)?;
            let stall = self.interleaving.stall;
            if stall > 0 && rng.below(65_536) < stall as usize {
                self.last = None;
                // A lane that is held up sleeps in the schedule only; its own state stays ready.
                self.sleep_until(runner, now_ns + rng.below(STALL_NS_MAX) as u64);
                continue;
            }
            self.last = Some(runner);
            return Some(runner);
        }
    }

    fn choose(&mut self, rng: &mut Rng) -> Option<Runner> {
        while let Some(next) = self.round.pop_front() {
            if take(&mut self.lanes, next) {
                return Some(next);
            }
        }
        if let Some(last) = self.last
            && self.interleaving.burst > 0
            && rng.chance(self.interleaving.burst)
        {
            // Whoever ran last was made runnable last, unless it waits.
            let list =
                if matches!(last, Runner::Agent(_)) { &mut self.agents } else { &mut self.lanes };
            if list.last() == Some(&last) {
                return list.pop();
            }
        }
        let (agents, lanes) = (self.agents.len(), self.lanes.len());
        if agents + lanes == 0 {
            return None;
        }
        let prefer_agent = agents > 0 && rng.chance(self.interleaving.agents_first);
        let at = rng.below(if prefer_agent { agents } else { agents + lanes });
        let Some(at) = at.checked_sub(agents) else {
            return Some(self.agents.swap_remove(at));
        };
        let lane = self.lanes.swap_remove(at);
        if self.interleaving.lockstep {
            return Some(self.start_round(lane));
        }
        Some(lane)
    }

    /// Lets the runnable lanes of a lane's warp go one after the other; returns the first.
    fn start_round(&mut self, chosen: Runner) -> Runner {
        let Runner::Lane(block, thread) = chosen else { return chosen };
        let warp = thread / 32;
        let mut round: Vec<Runner> = self
            .lanes
            .iter()
            .copied()
            .filter(|lane| matches!(lane, Runner::Lane(b, t) if *b == block && t / 32 == warp))
            .collect();
        round.push(chosen);
        round.sort_unstable();
        self.lanes.push(chosen);
        self.round = round.into();
        let first = self.round.pop_front().expect("the chosen lane at least");
        take(&mut self.lanes, first);
        first
    }
}

/// Removes a runner from a list, if it is there.
fn take(list: &mut Vec<Runner>, runner: Runner) -> bool {
    let found = list.iter().position(|other| *other == runner);
    if let Some(at) = found {
        list.swap_remove(at);
    }
    found.is_some()
}
