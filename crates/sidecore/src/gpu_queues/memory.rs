//! The memory of one queue pair: where each part lies, and how it is for a new epoch.
//!
//! ```text
//! device  state | owner | tail marks | head marks | command ids | completion words | PRP lists | SQ | CQ
//! host    alarm | report | complaints | SQ | CQ                    SQ and CQ: in one of the two
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;

use abi::queue::{
    CompletionWord, OwnerWord, QUEUE_MAGIC, QUEUE_SCAN, QUEUE_SECOND_READ, QUEUE_VERSION,
    QueuePairView, QueueState, marks_at,
};
use driver::{Device, LentMemory, Mapping};
use gpu::{Copy, DeviceMemory, Gpu};
use mem::Region;
use spec::{Command, Completion};

use super::options::{Placement, Polling, QueueOptions};
use crate::error::EngineError;

/// Bytes of a memory page, and of a PRP list.
const PAGE: usize = 4096;
/// Bytes of a line that nobody shares.
const LINE: usize = 128;

const ALARM_AT: usize = 0;
const REPORT_AT: usize = LINE;
const COMPLAINTS_AT: usize = 2 * LINE;
const OWNER_AT: usize = size_of::<QueueState>();

/// Where the parts of a pair lie.
#[derive(Clone, Copy, Debug)]
struct Layout {
    tail_marks: usize,
    head_marks: usize,
    cids: usize,
    completions: usize,
    lists: usize,
    sq: usize,
    cq: usize,
    device_bytes: usize,
    host_bytes: usize,
}

impl Layout {
    fn of(options: &QueueOptions) -> Self {
        let (depth, ids) = (options.depth as usize, options.command_ids as usize);
        let (mut device, mut host) = (OWNER_AT, COMPLAINTS_AT + (ids + 1) * 8);
        let mut take = |host_side: bool, bytes: usize, align: usize| {
            let end = if host_side { &mut host } else { &mut device };
            let at = end.next_multiple_of(align);
            *end = at + bytes;
            at
        };
        take(false, 8, LINE);
        let tail_marks = take(false, depth * 8, LINE);
        let head_marks = take(false, depth * 8, LINE);
        let cids = take(false, ids * 8, LINE);
        let completions = take(false, ids * 8, LINE);
        let lists = take(false, if options.prp_lists { ids * PAGE } else { 0 }, PAGE);
        let sq = take(options.sq == Placement::Host, depth * Command::BYTES, PAGE);
        let cq = take(options.cq == Placement::Host, depth * Completion::BYTES, PAGE);
        Self {
            tail_marks,
            head_marks,
            cids,
            completions,
            lists,
            sq,
            cq,
            device_bytes: device.next_multiple_of(PAGE),
            host_bytes: host.next_multiple_of(PAGE),
        }
    }
}

/// What else a view says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drive {
    pub nsid: u32,
    pub block_bytes: u32,
    pub transfer_bytes_max: u32,
}

/// The memory of one pair.
pub(super) struct PairMemory {
    pub options: QueueOptions,
    pub depth_log2: u32,
    gpu: Arc<dyn Gpu>,
    device: DeviceMemory,
    /// The device part, as the CPU stores to it.
    pub window: Region,
    pub host: Region,
    layout: Layout,
    device_mapping: Arc<Mapping>,
    host_mapping: Arc<Mapping>,
    /// Where copies from device memory arrive.
    scratch: Region,
}

/// What the host reads of a pair's state once lanes have left it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Positions {
    pub in_ticket: u64,
    pub tail: u64,
    pub sq_head: u64,
    pub cq_head: u64,
    pub head_lock: u64,
    pub inside: u64,
}

/// What lanes have counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LaneCounters {
    /// SQ doorbells that lanes rang.
    pub sq_doorbells: u64,
    /// CQ doorbells that lanes rang.
    pub cq_doorbells: u64,
    /// Completions that lanes drained.
    pub drained: u64,
    /// Second reads, as fences.
    pub fence_ios: u64,
    /// Completions that lanes drained although no command was in flight.
    pub strays: u64,
}

/// State of a command id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CidState {
    /// One of the `CID_` constants, epoch, and uses.
    pub cid: u64,
    pub completion: u64,
}

macro_rules! state_field {
    ($name:ident) => {
        core::mem::offset_of!(QueueState, $name)
    };
}

/// The memory of a whole set, allocated at once: a real GPU's driver takes long for each allocation.
pub(super) struct SetMemory {
    gpu: Arc<dyn Gpu>,
    options: QueueOptions,
    layout: Layout,
    device: DeviceMemory,
    host: Region,
    scratch: Region,
    scratch_bytes: usize,
}

impl SetMemory {
    pub fn new(
        gpu: &Arc<dyn Gpu>,
        count: u32,
        options: &QueueOptions,
    ) -> Result<Self, EngineError> {
        let layout = Layout::of(options);
        let words = (2 * options.command_ids).max(options.depth) as usize;
        let scratch_bytes = (OWNER_AT + 8 * words).next_multiple_of(LINE);
        let all = |bytes: usize| bytes as u64 * u64::from(count);
        let device = gpu.allocate_device(all(layout.device_bytes))?;
        if device.window.is_none() {
            return Err(EngineError::Unsupported {
                what: "queue pairs for lanes",
                why: gpu
                    .describe()
                    .no_window
                    .unwrap_or_else(|| "this GPU offers no CPU mapping of its memory".into()),
            });
        }
        Ok(Self {
            host: gpu.allocate_host(all(layout.host_bytes))?,
            scratch: gpu.allocate_host(all(scratch_bytes))?,
            gpu: Arc::clone(gpu),
            options: options.clone(),
            layout,
            device,
            scratch_bytes,
        })
    }
}

impl PairMemory {
    /// The part of pair `number`, reachable for its drive.
    pub fn new(set: &SetMemory, number: u32, device: &dyn Device) -> Result<Self, EngineError> {
        let layout = set.layout;
        let part = |region: &Region, bytes: usize| {
            let part = region.slice(number as usize * bytes, bytes);
            part.map_err(|error| EngineError::Misuse(error.to_string()))
        };
        let at = u64::from(number) * layout.device_bytes as u64;
        let memory = set.device.slice(at, layout.device_bytes as u64)?;
        let window = memory.window.clone().expect("the set's memory has one");
        let host = part(&set.host, layout.host_bytes)?;
        let scratch = part(&set.scratch, set.scratch_bytes)?;
        let options = &set.options;
        let device_mapping = Arc::new(map(device, &window)?);
        let host_mapping = Arc::new(map(device, &host)?);
        Ok(Self {
            options: options.clone(),
            depth_log2: options.depth.trailing_zeros(),
            gpu: Arc::clone(&set.gpu),
            device: memory,
            window,
            host,
            layout,
            device_mapping,
            host_mapping,
            scratch,
        })
    }

    fn side(&self, placement: Placement) -> (&Region, &Mapping, u64) {
        match placement {
            Placement::Device => (&self.window, &self.device_mapping, self.device.address),
            Placement::Host => (&self.host, &self.host_mapping, self.host.address()),
        }
    }

    pub fn lent(&self) -> LentMemory {
        let (_, sq, _) = self.side(self.options.sq);
        let (_, cq, _) = self.side(self.options.cq);
        LentMemory {
            mappings: vec![Arc::clone(&self.device_mapping), Arc::clone(&self.host_mapping)],
            submission: sq.address() + self.layout.sq as u64,
            completion: cq.address() + self.layout.cq as u64,
            entries: self.options.depth,
        }
    }

    /// The completion entries: their region, and where they begin in it.
    pub fn cq(&self) -> (&Region, usize) {
        (self.side(self.options.cq).0, self.layout.cq)
    }

    pub fn view(&self, drive: Drive, doorbells: [u64; 2]) -> QueuePairView {
        let at = |offset: usize| self.device.address + offset as u64;
        let host = |offset: usize| self.host.address() + offset as u64;
        let (sq, cq) = (self.side(self.options.sq).2, self.side(self.options.cq).2);
        let (options, layout) = (&self.options, &self.layout);
        let lanes = options.polling == Polling::Gpu;
        let lists = |address: u64| if options.prp_lists { address } else { 0 };
        let (scan, second) = (u32::from(lanes), u32::from(options.second_read));
        QueuePairView {
            magic: QUEUE_MAGIC,
            version: QUEUE_VERSION,
            bytes: u32::try_from(size_of::<QueuePairView>()).expect("a few dozen bytes"),
            depth_log2: self.depth_log2,
            sq: sq + layout.sq as u64,
            cq: cq + layout.cq as u64,
            sq_doorbell: doorbells[0],
            cq_doorbell: doorbells[1],
            state: at(0),
            tail_marks: at(layout.tail_marks),
            head_marks: at(layout.head_marks),
            cids: at(layout.cids),
            completions: at(layout.completions),
            owner: at(Self::owner_at()),
            report: if options.copoll().is_some() { host(REPORT_AT) } else { 0 },
            complaints: host(COMPLAINTS_AT),
            alarm: host(ALARM_AT),
            prp_lists: lists(at(layout.lists)),
            prp_lists_bus: lists(self.device_mapping.address() + layout.lists as u64),
            cid_log2: options.command_ids.trailing_zeros(),
            nsid: drive.nsid,
            block_bytes_log2: drive.block_bytes.trailing_zeros(),
            page_bytes_log2: PAGE.trailing_zeros(),
            transfer_bytes_max: drive.transfer_bytes_max,
            limit_ms: u32::try_from(options.limit.as_millis()).expect("at most 65 s"),
            flags: (scan * QUEUE_SCAN) | (second * QUEUE_SECOND_READ),
            report_period: options.copoll().map_or(0, |copoll| (copoll.high / 8).max(1)),
        }
    }

    fn owner_at() -> usize {
        OWNER_AT.next_multiple_of(LINE)
    }

    pub fn store_owner(&self, word: OwnerWord) {
        self.window.u64_at(Self::owner_at()).store(word.word, Ordering::Relaxed);
    }

    /// What lanes said last about a queue that is theirs.
    #[inline]
    pub fn report(&self) -> OwnerWord {
        // Pairs with the lane's fence before it: what it drained before is drained.
        OwnerWord { word: self.host.u64_at(REPORT_AT).load(Ordering::Acquire) }
    }

    pub fn store_state(&self, mode: u32, epoch: u32) {
        let word = u64::from(mode) | u64::from(epoch) << 32;
        self.window.u64_at(state_field!(state)).store(word, Ordering::Relaxed);
    }

    #[inline]
    pub fn store_sq_head(&self, sq_head: u64) {
        self.window.u64_at(state_field!(sq_head)).store(sq_head, Ordering::Relaxed);
    }

    #[inline]
    pub fn store_completion(&self, id: usize, word: CompletionWord) {
        let at = self.layout.completions + 8 * id;
        self.window.u64_at(at).store(word.word, Ordering::Relaxed);
    }

    pub fn alarm(&self) -> u64 {
        // Pairs with the lane's fence between its complaint and the alarm.
        self.host.u64_at(ALARM_AT).load(Ordering::Acquire)
    }

    /// The complaint about a command id, or, at the number of command ids, about no room.
    pub fn complaint(&self, id: usize) -> u64 {
        self.host.u64_at(COMPLAINTS_AT + 8 * id).load(Ordering::Relaxed)
    }

    /// Copies part of the device memory to the scratch region.
    fn fetch(&self, at: usize, bytes: usize, to: usize) -> Result<(), EngineError> {
        let copy = Copy {
            host: &self.scratch,
            host_offset: to,
            device: &self.device,
            device_offset: at as u64,
            bytes,
        };
        Ok(self.gpu.copy_to_host(copy)?)
    }

    fn word(&self, at: usize) -> u64 {
        self.scratch.u64_at(at).load(Ordering::Relaxed)
    }

    /// Reads where lanes stand. Not for the serving path.
    pub fn positions(&self) -> Result<Positions, EngineError> {
        self.fetch(0, OWNER_AT, 0)?;
        Ok(Positions {
            in_ticket: self.word(state_field!(in_ticket)),
            tail: self.word(state_field!(tail)),
            sq_head: self.word(state_field!(sq_head)),
            cq_head: self.word(state_field!(cq_head)),
            head_lock: self.word(state_field!(head_lock)),
            inside: self.word(state_field!(inside)),
        })
    }

    /// Reads what lanes have counted.
    pub fn lane_counters(&self) -> Result<LaneCounters, EngineError> {
        self.fetch(0, OWNER_AT, 0)?;
        Ok(LaneCounters {
            sq_doorbells: self.word(state_field!(sq_doorbells)),
            cq_doorbells: self.word(state_field!(cq_doorbells)),
            drained: self.word(state_field!(drained)),
            fence_ios: self.word(state_field!(fence_ios)),
            strays: self.word(state_field!(strays)),
        })
    }

    /// Reads one command id's state.
    pub fn cid(&self, id: usize) -> Result<CidState, EngineError> {
        self.fetch(self.layout.completions + 8 * id, 8, 8)?;
        self.fetch(self.layout.cids + 8 * id, 8, 0)?;
        Ok(CidState { cid: self.word(0), completion: self.word(8) })
    }

    /// Reads all command ids' states.
    pub fn cids(&self) -> Result<Vec<CidState>, EngineError> {
        let ids = self.options.command_ids as usize;
        self.fetch(self.layout.completions, 8 * ids, 8 * ids)?;
        self.fetch(self.layout.cids, 8 * ids, 0)?;
        let state = |id| CidState { cid: self.word(8 * id), completion: self.word(8 * (ids + id)) };
        Ok((0..ids).map(state).collect())
    }

    /// Reads, by slot of the CQ, the last position whose entry a lane took for itself.
    pub fn head_marks(&self) -> Result<Box<[u64]>, EngineError> {
        let slots = self.options.depth as usize;
        self.fetch(self.layout.head_marks, 8 * slots, 0)?;
        Ok((0..slots).map(|slot| self.word(8 * slot)).collect())
    }

    /// Makes everything as a new epoch needs it, but for the state word: no lane is inside, and the
    /// drive does not know the queues. Counters, command ids and their words stay.
    pub fn renew(&self, start: u64) {
        let (cq, at) = self.cq();
        for word in 0..self.options.depth as usize * 2 {
            cq.u64_at(at + 8 * word).store(0, Ordering::Relaxed);
        }
        let store = |at: usize, value| self.window.u64_at(at).store(value, Ordering::Relaxed);
        for slot in 0..self.options.depth {
            let mark = marks_at(start, self.depth_log2, u64::from(slot));
            store(self.layout.tail_marks + 8 * slot as usize, mark);
            store(self.layout.head_marks + 8 * slot as usize, mark);
        }
        for at in [
            state_field!(in_ticket),
            state_field!(tail),
            state_field!(sq_head),
            state_field!(cq_head),
        ] {
            store(at, start);
        }
        // Not the locks, nor `inside`: they are 0 by themselves, but for lanes that only look whether
        // they may enter, and whose addition must not be lost.
    }
}

fn map(device: &dyn Device, region: &Region) -> Result<Mapping, EngineError> {
    device.map(region).map_err(|error| EngineError::Unsupported {
        what: "letting the drive reach memory",
        why: error.to_string(),
    })
}
