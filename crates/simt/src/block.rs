//! One block: its fibers, warps, barrier and shared memory; the part that both modes share.
//!
//! The owner calls [`Block::run`] for a ready lane and learns what the lane did. Lanes that became
//! ready by it are in [`Block::woken`]. Invariant: a lane is in the owner's ready set exactly when
//! its state is `Ready` and no access or timer question of it is open.

use crate::device::{Access, Call, LaneContext, LaneView, Reply};
use crate::fiber::{Arguments, Fiber, StackPool};
use crate::report::{LaunchError, Report, WaitingLanes};
use crate::shared::SharedMemory;
use crate::warp::{Broken, Collective, CollectiveKind, Lane, Released, Warp};
use crate::{Entry, Shape, WARP_LANES};

/// What a lane did.
#[derive(Debug)]
pub(crate) enum Event {
    /// Wants an access; it goes on when [`Block::answer`] was called.
    Access(Access),
    /// Waits for other lanes.
    Blocked,
    /// Has returned.
    Returned,
    /// Sleeps; it goes on after [`Block::wake`].
    Sleeps { ns: u32 },
    /// Wants the time; it goes on when [`Block::answer`] was called.
    Timer,
}

/// One block of a launch.
pub(crate) struct Block {
    index: u32,
    fibers: Vec<Fiber>,
    replies: Vec<Reply>,
    warps: Vec<Warp>,
    shared: SharedMemory,
    live: usize,
    ready: usize,
    asleep: usize,
    in_barrier: usize,
    /// Lanes that a call made ready, to be taken by the owner.
    pub woken: Vec<u32>,
    /// What was released by a call, with the warp; to be taken by an owner that cares.
    pub released: Vec<(u32, Released)>,
}

/// What all blocks of a launch have in common.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub entry: Entry,
    pub arguments: Arguments,
    pub shape: Shape,
    pub modelled: bool,
}

impl Block {
    /// Prepares a block; all its lanes are ready.
    pub(crate) fn new(index: u32, plan: &Plan, pool: &StackPool) -> Result<Self, LaunchError> {
        let threads = plan.shape.threads_per_block;
        let fibers = (0..threads)
            .map(|thread| {
                let view = LaneView {
                    thread,
                    block: index,
                    block_threads: threads,
                    grid_blocks: plan.shape.blocks,
                    lane: thread % WARP_LANES,
                    warp: thread / WARP_LANES,
                };
                let yielder = std::cell::Cell::new(std::ptr::null());
                let context = LaneContext { view, yielder, modelled: plan.modelled };
                Fiber::new(pool, plan.entry, plan.arguments, context)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let warps = (0..threads.div_ceil(WARP_LANES))
            .map(|warp| Warp::new((threads - warp * WARP_LANES).min(WARP_LANES)))
            .collect();
        let count = fibers.len();
        Ok(Self {
            index,
            replies: vec![Reply::default(); count],
            fibers,
            warps,
            shared: SharedMemory::default(),
            live: count,
            ready: count,
            asleep: 0,
            in_barrier: 0,
            woken: Vec::new(),
            released: Vec::new(),
        })
    }

    /// Lanes that have not returned.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// Runs a ready lane until it waits, asks or returns.
    pub(crate) fn run(&mut self, thread: u32, pool: &StackPool) -> Result<Event, LaunchError> {
        let at = thread as usize;
        let (warp, lane) = (at / 32, at % 32);
        self.warps[warp].set(lane, Lane::Ready);
        loop {
            let call = self.fibers[at].resume(self.replies[at]);
            let event = match call {
                None => self.returned(at, pool)?,
                Some(Call::Access(access)) => return Ok(Event::Access(access)),
                Some(Call::Timer) => return Ok(Event::Timer),
                Some(Call::Shared { key, bytes, align }) => {
                    let object = self.shared.object(key, bytes, align);
                    let address = object.ok_or(LaunchError::Shared { block: self.index, bytes })?;
                    self.replies[at] = Reply::word(address);
                    continue;
                }
                Some(Call::Pause { ns, site }) => {
                    self.warps[warp].set(lane, Lane::Asleep(site));
                    self.warps[warp].last_pause[lane] = Some(site);
                    self.ready -= 1;
                    self.asleep += 1;
                    Event::Sleeps { ns }
                }
                Some(Call::Collective(collective)) => self.arrive(warp, lane, collective)?,
            };
            self.settle(warp)?;
            return Ok(event);
        }
    }

    /// Gives a lane what it asked for.
    pub(crate) fn answer(&mut self, thread: u32, reply: Reply) {
        self.replies[thread as usize] = reply;
    }

    /// Ends a lane's pause; the lane is ready.
    pub(crate) fn wake(&mut self, thread: u32) {
        let at = thread as usize;
        let warp = &mut self.warps[at / 32];
        if let Lane::Asleep(site) = *warp.lane(at % 32) {
            warp.set(at % 32, Lane::Awake(site));
            self.ready += 1;
            self.asleep -= 1;
        }
    }

    fn arrive(
        &mut self,
        warp: usize,
        lane: usize,
        collective: Collective,
    ) -> Result<Event, LaunchError> {
        self.ready -= 1;
        if collective.kind == CollectiveKind::SyncThreads {
            self.warps[warp].set(lane, Lane::Waiting(collective));
            self.in_barrier += 1;
            self.try_open_barrier();
        } else {
            let released = self.warps[warp].arrive(lane, collective);
            if let Some(released) = released.map_err(|e| self.broken(e, warp))? {
                self.release(warp, released);
            }
        }
        Ok(Event::Blocked)
    }

    fn broken(&self, broken: Broken, warp: usize) -> LaunchError {
        broken.into_error(self.index, u32::try_from(warp).expect("a warp of 32"))
    }

    fn release(&mut self, warp: usize, released: Released) {
        let number = u32::try_from(warp).expect("a warp of 32");
        for lane in crate::warp::bits(released.lanes) {
            let at = warp * 32 + lane;
            self.replies[at] = Reply::word(self.warps[warp].results[lane]);
            self.woken.push(u32::try_from(at).expect("a thread of 1,024"));
            self.ready += 1;
        }
        self.released.push((number, released));
    }

    fn try_open_barrier(&mut self) {
        if self.in_barrier == 0 || self.in_barrier < self.live {
            return;
        }
        self.in_barrier = 0;
        for warp in 0..self.warps.len() {
            let lanes = self.warps[warp].waiting_in(|w| w.kind == CollectiveKind::SyncThreads);
            if lanes != 0 {
                for lane in crate::warp::bits(lanes) {
                    self.warps[warp].results[lane] = 0;
                }
                self.warps[warp].release(lanes);
                self.release(warp, Released { kind: CollectiveKind::SyncThreads, lanes });
            }
        }
    }

    fn returned(&mut self, at: usize, pool: &StackPool) -> Result<Event, LaunchError> {
        self.fibers[at].retire(pool);
        self.ready -= 1;
        self.live -= 1;
        let warp = at / 32;
        self.warps[warp].leave(at % 32).map_err(|e| self.broken(e, warp))?;
        self.try_open_barrier();
        Ok(Event::Returned)
    }

    /// Releases lanes that wait for company, once nobody else of their warp can come; then looks
    /// for a deadlock.
    fn settle(&mut self, warp: usize) -> Result<(), LaunchError> {
        if self.warps[warp].ready() == 0
            && let Some(released) = self.warps[warp].converge()
        {
            self.release(warp, released);
        }
        if self.ready == 0 && self.asleep == 0 && self.live > 0 {
            return Err(LaunchError::Deadlock(Report { waiting: self.waiting() }));
        }
        Ok(())
    }

    /// Where the lanes are that have not returned.
    pub(crate) fn waiting(&self) -> Vec<WaitingLanes> {
        let mut groups: Vec<WaitingLanes> = Vec::new();
        for (number, warp) in (0u32..).zip(&self.warps) {
            let first = groups.len();
            for lane in 0..32 {
                let Some(place) = warp.place(lane) else { continue };
                match groups[first..].iter_mut().find(|group| group.place == place) {
                    Some(group) => group.lanes |= 1 << lane,
                    None => groups.push(WaitingLanes {
                        block: self.index,
                        warp: number,
                        lanes: 1 << lane,
                        place,
                    }),
                }
            }
        }
        groups
    }

    /// Gives the stacks back.
    pub(crate) fn retire(&mut self, pool: &StackPool) {
        for fiber in &mut self.fibers {
            fiber.retire(pool);
        }
    }
}
