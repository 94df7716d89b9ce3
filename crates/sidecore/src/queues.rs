//! The storage queues of one ring: one a source, opened by the thread that serves.

use std::collections::VecDeque;

use abi::ring::Id;
use mem::Region;
use storage::{Counters, Geometry, QueueOptions, StorageQueue};

use crate::counters::RingCounters;
use crate::registry::{BufferEntry, Place, Rights, SourceEntry, Tables};
use crate::ring::{ReadRoute, RingShared};

/// A buffer that storage stores to itself: its id and window.
pub(crate) type Reached = Option<(u32, Region)>;

/// The window of a buffer that storage stores to itself.
#[inline]
pub(crate) fn reaches(reached: &[Reached], buffer: Id) -> Option<&Region> {
    let (id, window) = reached.get(buffer.index() as usize)?.as_ref()?;
    (*id == buffer.bits()).then_some(window)
}

/// One source's queue.
pub(crate) struct SourceQueue {
    pub id: Id,
    pub queue: Box<dyn StorageQueue>,
    /// Memory that reads are served out of, without asking the queue.
    pub lent: Option<Region>,
    /// Buffers that it stores to itself, by their index.
    pub reached: Vec<Reached>,
    /// Reads so served.
    pub lent_reads: u64,
    /// Requests that storage has and has not ended.
    pub in_flight: u32,
    /// When it last ended a request of its own accord, or was quiesced.
    pub heard_ns: u64,
    /// Whether it seems to have stopped altogether.
    pub silent: bool,
    /// Tokens of requests that found the queue full, oldest first.
    pub backlog: VecDeque<u64>,
}

impl SourceQueue {
    /// The memory that has all of a read's bytes, and where.
    #[inline]
    pub fn lends(&self, offset: u64, length: u32) -> Option<(&Region, usize)> {
        let lent = self.lent.as_ref()?;
        let at = usize::try_from(offset).ok()?;
        lent.check(at, length as usize).ok().map(|()| (lent, at))
    }

    /// Lets storage store to all buffers that it can; whether it reaches all of them.
    fn follow_buffers(&mut self, buffers: &[Place<BufferEntry>]) -> bool {
        let mut all = true;
        self.reached.resize(buffers.len().max(self.reached.len()), None);
        for (index, reached) in self.reached.iter_mut().enumerate() {
            let live = match buffers.get(index) {
                Some(Place::Live(buffer)) => buffer.memory.window.as_ref().map(|w| (buffer.id, w)),
                _ => None,
            };
            let id = live.map(|(id, _)| id.bits());
            if reached.as_ref().map(|(id, _)| *id) == id {
                continue;
            }
            if let Some((_, gone)) = reached.take() {
                self.queue.forget(&gone);
            }
            if let Some((id, window)) = live {
                let reaches = self.queue.reach(window);
                *reached = reaches.then(|| (id.bits(), window.clone()));
                all &= reaches;
            }
        }
        all
    }

    fn counters(&self) -> Counters {
        let counters = self.queue.counters();
        Counters { ios_at_device: counters.ios_at_device + self.lent_reads, ..counters }
    }
}

/// Where a source's table index leads, and all that the checks of a request need of the source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lead {
    /// The source's id, or more bits than an id has where the index leads nowhere.
    id: u32,
    pub rights: Rights,
    pub geometry: Geometry,
    /// Position of its queue.
    pub queue: u16,
}

impl Lead {
    const NOWHERE: Self = Self {
        id: u32::MAX,
        rights: Rights::READ,
        geometry: Geometry { bytes: 0, block_bytes: 1, transfer_bytes_max: 0, read_only: true },
        queue: 0,
    };
}

/// All queues of one ring.
#[derive(Default)]
pub(crate) struct Queues {
    pub list: Vec<SourceQueue>,
    /// Whether any source lends memory.
    pub lending: bool,
    leads: Vec<Lead>,
    /// Sources that could not be opened, each with its errno, or 0.
    failed: Vec<(Id, i32)>,
    /// Version of the tables that this follows.
    pub version: u64,
    /// What closed queues had done.
    closed: Counters,
}

fn add(sum: &mut Counters, more: &Counters) {
    sum.ios_at_device += more.ios_at_device;
    sum.syscalls += more.syscalls;
    sum.bytes_read += more.bytes_read;
    sum.bytes_written += more.bytes_written;
    sum.doorbells += more.doorbells;
    sum.completions_polled += more.completions_polled;
}

impl Queues {
    /// No queue yet, after others that had done this much.
    pub fn resume(counts: &RingCounters) -> Self {
        let closed = Counters {
            ios_at_device: counts.ios_at_device,
            syscalls: counts.syscalls,
            doorbells: counts.cpu_doorbells,
            completions_polled: counts.completions_polled,
            ..Counters::default()
        };
        Self { closed, ..Self::default() }
    }

    /// Where the requests of a source go, unless it is not open.
    #[inline]
    pub fn lead(&self, source: Id) -> Option<&Lead> {
        self.leads.get(source.index() as usize).filter(|lead| lead.id == source.bits())
    }

    /// The errno (or 0) with which a source could not be opened.
    pub fn failure(&self, source: Id) -> Option<i32> {
        self.failed.iter().find(|(id, _)| *id == source).map(|(_, errno)| *errno)
    }

    /// Positions of queues whose source is no longer registered.
    pub fn orphans(&self, tables: &Tables) -> Vec<usize> {
        let gone =
            |(at, queue): (usize, &SourceQueue)| tables.source(queue.id).is_err().then_some(at);
        self.list.iter().enumerate().filter_map(gone).collect()
    }

    /// Closes queues without a source (nothing of theirs is in flight) and opens missing ones.
    ///
    /// Calls back with each move of a queue from one position to another.
    pub fn follow(&mut self, ring: &RingShared, tables: &Tables, mut moved: impl FnMut(u16, u16)) {
        for at in self.orphans(tables).into_iter().rev() {
            add(&mut self.closed, &self.list[at].counters());
            self.list.swap_remove(at);
            if at < self.list.len() {
                moved(position(self.list.len()), position(at));
            }
        }
        self.leads.clear();
        self.failed.clear();
        for place in &tables.sources {
            let Place::Live(source) = place else {
                self.leads.push(Lead::NOWHERE);
                continue;
            };
            let open = self.list.iter().position(|queue| queue.id == source.id);
            let opened = match open {
                Some(at) => Ok(position(at)),
                None => self.open(ring, source),
            };
            let SourceEntry { id, rights, geometry, .. } = *source;
            self.leads.push(match opened {
                Ok(queue) => Lead { id: id.bits(), rights, geometry, queue },
                Err(errno) => {
                    self.failed.push((id, errno));
                    Lead::NOWHERE
                }
            });
        }
        if ring.config.read_route == ReadRoute::Direct {
            for queue in &mut self.list {
                if !queue.follow_buffers(&tables.buffers) {
                    let text = "route direct: its drive does not reach a buffer, which is served";
                    ring.complain(format!(
                        "source {:#x}: {text} through the window",
                        queue.id.bits()
                    ));
                }
            }
        }
        self.lending = self.list.iter().any(|queue| queue.lent.is_some());
        self.version = tables.version;
    }

    /// Opens a source's queue: its position, or the errno (or 0) that kept it from being opened.
    fn open(&mut self, ring: &RingShared, source: &SourceEntry) -> Result<u16, i32> {
        let depth = ring.config.storage_depth.min(ring.config.records);
        let lends = match ring.config.read_route {
            ReadRoute::Direct | ReadRoute::Window => true,
            ReadRoute::Pull => source.reached,
            ReadRoute::Bounce => false,
        };
        let options = QueueOptions { depth, registered: vec![ring.staging.clone()] };
        match source.storage.open_queue(&options) {
            Ok(queue) => {
                let backlog = VecDeque::with_capacity(ring.config.records as usize);
                self.list.push(SourceQueue {
                    id: source.id,
                    queue,
                    lent: lends.then(|| source.storage.lent()).flatten(),
                    reached: Vec::new(),
                    lent_reads: 0,
                    in_flight: 0,
                    heard_ns: 0,
                    silent: false,
                    backlog,
                });
                Ok(position(self.list.len() - 1))
            }
            Err(error) => {
                ring.complain(format!("{}: {error}", source.storage.explain()));
                let errno = match &error {
                    storage::StorageError::Os { source, .. } => source.raw_os_error(),
                    _ => None,
                };
                Err(errno.unwrap_or(0))
            }
        }
    }

    /// What all queues have done.
    pub fn counters(&self) -> Counters {
        let mut sum = self.closed;
        for queue in &self.list {
            add(&mut sum, &queue.counters());
        }
        sum
    }
}

fn position(at: usize) -> u16 {
    u16::try_from(at).expect("there are at most 4,096 sources")
}
