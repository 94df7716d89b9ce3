//! One worker: an OS thread and the blocks it owns.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Shared;
use crate::block::{Block, Event, Plan};
use crate::clock;
use crate::device::Reply;
use crate::fiber::StackPool;
use crate::report::LaunchError;
use crate::{Entry, Shape};

/// Lanes run between two looks at the clock and at the abort flag.
const LANES_PER_LOOK: u32 = 64;
/// How much later than asked a worker may wake.
const TIMER_SLACK_NS: u64 = 1_000;
/// A shorter wait than this is spent in `sched_yield`: falling asleep and waking take as long.
const YIELD_NS_MAX: u64 = 10_000;
/// The longest sleep, so that an abort is seen.
const SLEEP_NS_MAX: u64 = 1_000_000;
/// Looks between two records of the CPU time; a system call each.
const LOOKS_PER_CPU_RECORD: u32 = 256;

/// What a worker is to do.
pub(super) struct Assignment {
    pub entry: Entry,
    pub shape: Shape,
    pub worker: usize,
    pub workers: usize,
    pub resident_lanes: usize,
    pub launch: Arc<Shared>,
    pub pool: Arc<StackPool>,
}

impl Assignment {
    /// Runs all blocks of this worker, and records how it ended.
    pub(super) fn run(self) {
        // Sleeping lanes shall wake in time: the default slack is 50 us. Where it is refused, they
        // wake late.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(TIMER_SLACK_NS));
        let result = catch_unwind(AssertUnwindSafe(|| {
            let mut worker = Worker::new(&self);
            let result = worker.run();
            worker.retire();
            result
        }));
        let result = result.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(LaunchError::Panicked(text.unwrap_or("no message").to_owned()))
        });
        self.record_cpu();
        let mut outcome = self.launch.outcome();
        if let Err(error) = result {
            // The other workers' lanes may wait for this one's.
            self.launch.abort.store(true, Ordering::Release);
            match error {
                LaunchError::Aborted(report) => outcome.report.waiting.extend(report.waiting),
                error => outcome.error = outcome.error.take().or(Some(error)),
            }
        }
        outcome.running -= 1;
        drop(outcome);
        self.launch.ended.notify_all();
    }

    fn record_cpu(&self) {
        self.launch.cpu_ns[self.worker].store(clock::thread_cpu_ns(), Ordering::Relaxed);
    }
}

/// A lane among the resident blocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LaneId {
    slot: usize,
    thread: u32,
}

struct Worker<'a> {
    assignment: &'a Assignment,
    plan: Plan,
    next_block: usize,
    blocks: Vec<Option<Block>>,
    resident: usize,
    ready: VecDeque<LaneId>,
    /// Sleeping lanes by the time they go on.
    sleeping: BinaryHeap<Reverse<(u64, LaneId)>>,
    /// Lanes run since one did something else than go to sleep again.
    fruitless: usize,
    now_ns: u64,
}

impl<'a> Worker<'a> {
    fn new(assignment: &'a Assignment) -> Self {
        Self {
            assignment,
            plan: assignment.launch.plan(assignment.entry, assignment.shape),
            next_block: assignment.worker,
            blocks: Vec::new(),
            resident: 0,
            ready: VecDeque::new(),
            sleeping: BinaryHeap::new(),
            fruitless: 0,
            now_ns: clock::now_ns(),
        }
    }

    fn run(&mut self) -> Result<(), LaunchError> {
        let mut looks = 0;
        self.admit()?;
        while self.resident > 0 {
            for _ in 0..LANES_PER_LOOK {
                let Some(lane) = self.ready.pop_front() else { break };
                self.run_lane(lane)?;
            }
            if self.assignment.launch.abort.load(Ordering::Acquire) {
                return Err(LaunchError::Aborted(self.report()));
            }
            self.wake_sleepers();
            looks += 1;
            if self.ready.is_empty() && self.resident > 0 {
                self.rest();
            } else if self.fruitless > self.ready.len() + self.sleeping.len() {
                // Every lane has looked in vain since: what they wait for needs a CPU too.
                self.fruitless = 0;
                std::thread::yield_now();
            }
            if looks % LOOKS_PER_CPU_RECORD == 0 {
                self.assignment.record_cpu();
            }
        }
        Ok(())
    }

    /// Starts blocks while there is room.
    fn admit(&mut self) -> Result<(), LaunchError> {
        let lanes = self.plan.shape.threads_per_block as usize;
        let resident_max = (self.assignment.resident_lanes / lanes).max(1);
        while self.resident < resident_max && self.next_block < self.plan.shape.blocks as usize {
            let index = u32::try_from(self.next_block).expect("blocks are numbered with 32 bits");
            let block = Block::new(index, &self.plan, &self.assignment.pool)?;
            self.next_block += self.assignment.workers;
            self.resident += 1;
            let free = self.blocks.iter().position(Option::is_none);
            let slot = free.unwrap_or_else(|| {
                self.blocks.push(None);
                self.blocks.len() - 1
            });
            self.blocks[slot] = Some(block);
            let threads = 0..self.plan.shape.threads_per_block;
            self.ready.extend(threads.map(|thread| LaneId { slot, thread }));
        }
        Ok(())
    }

    fn run_lane(&mut self, lane: LaneId) -> Result<(), LaunchError> {
        let LaneId { slot, thread } = lane;
        let block = self.blocks[slot].as_mut().expect("a ready lane has its block");
        loop {
            match block.run(thread, &self.assignment.pool)? {
                Event::Timer => block.answer(thread, Reply::word(clock::now_ns())),
                Event::Access(access) => unreachable!("{access:?} in bench mode"),
                Event::Sleeps { ns } => {
                    let until = clock::now_ns() + u64::from(ns);
                    self.sleeping.push(Reverse((until, lane)));
                    self.fruitless += 1;
                    break;
                }
                Event::Blocked | Event::Returned => {
                    self.fruitless = 0;
                    break;
                }
            }
        }
        self.ready.extend(block.woken.drain(..).map(|thread| LaneId { slot, thread }));
        block.released.clear();
        if block.live() == 0 {
            self.blocks[slot] = None;
            self.resident -= 1;
            self.admit()?;
        }
        Ok(())
    }

    fn wake_sleepers(&mut self) {
        if self.sleeping.is_empty() {
            return;
        }
        self.now_ns = clock::now_ns();
        while let Some(Reverse((until, lane))) = self.sleeping.peek().copied() {
            if until > self.now_ns {
                break;
            }
            self.sleeping.pop();
            self.blocks[lane.slot]
                .as_mut()
                .expect("a sleeping lane has its block")
                .wake(lane.thread);
            self.ready.push_back(lane);
        }
    }

    /// All lanes sleep: lets others have the CPU until the first wakes.
    fn rest(&self) {
        let Some(Reverse((until, _))) = self.sleeping.peek() else { return };
        let left = until.saturating_sub(self.now_ns).min(SLEEP_NS_MAX);
        if left > YIELD_NS_MAX {
            self.assignment.record_cpu();
            std::thread::sleep(Duration::from_nanos(left));
        } else {
            std::thread::yield_now();
        }
    }

    fn report(&self) -> crate::Report {
        let waiting = self.blocks.iter().flatten().flat_map(Block::waiting).collect();
        crate::Report { waiting }
    }

    fn retire(&mut self) {
        for block in self.blocks.iter_mut().flatten() {
            block.retire(&self.assignment.pool);
        }
    }
}
