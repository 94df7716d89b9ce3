//! Commands in flight: a fixed table, and the heap of those that wait for their time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use mem::Region;
use spec::Status;
use storage::Op;
use storage::faults::Action;

use crate::dma::Piece;

/// Where a command stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// No command here.
    Free,
    /// A fault holds it for ever: only its queue's end ends it.
    Held,
    /// The storage works on it.
    Storage,
    /// Done; its completion is not due yet.
    Waiting,
}

/// What only unusual commands need.
#[derive(Debug, Default)]
pub(crate) struct Detour {
    /// Where the storage reads and writes, where the host's pages cannot be used as they are.
    pub(crate) bounce: Option<Region>,
    /// The host's pages.
    pub(crate) pieces: Vec<Piece>,
    /// What was read is compared with the host's pages, not moved there.
    pub(crate) compares: bool,
}

/// One I/O command from fetch to completion.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) state: State,
    /// Tells this use of the entry from earlier ones.
    generation: u32,
    pub(crate) queue: u16,
    pub(crate) command: u16,
    pub(crate) op: Op,
    pub(crate) namespace: usize,
    /// Storage requests made, also the next one's number.
    pub(crate) requests: u32,
    /// Storage requests not ended yet.
    pub(crate) requests_left: u32,
    pub(crate) bytes_expected: u64,
    pub(crate) bytes_moved: u64,
    pub(crate) status: Status,
    pub(crate) due_ns: u64,
    pub(crate) fault: Option<Action>,
    /// Force unit access: a flush follows the write.
    pub(crate) flush_after: bool,
    /// The Abort command that waits for this command's end.
    pub(crate) abort: Option<u16>,
    pub(crate) detour: Option<Box<Detour>>,
}

impl Flight {
    fn free() -> Self {
        Self {
            state: State::Free,
            generation: 0,
            queue: 0,
            command: 0,
            op: Op::Flush,
            namespace: 0,
            requests: 0,
            requests_left: 0,
            bytes_expected: 0,
            bytes_moved: 0,
            status: Status::SUCCESS,
            due_ns: 0,
            fault: None,
            flush_after: false,
            abort: None,
            detour: None,
        }
    }

    /// Whether the command did all that it should, and nothing but its completion is left.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.status.is_success()
            && self.fault.is_none()
            && self.detour.is_none()
            && self.abort.is_none()
            && !self.flush_after
            && (self.bytes_moved == self.bytes_expected || self.op == Op::Flush)
    }

    /// Records an error, unless one came before.
    pub(crate) fn fail(&mut self, status: Status) {
        if self.status.is_success() {
            self.status = status;
        }
    }
}

/// A moment, an order among equals, and which use of which entry.
type Alarm = (u64, u64, u32, u32);

/// All commands in flight.
#[derive(Debug)]
pub(crate) struct Flights {
    entries: Vec<Flight>,
    free: Vec<u32>,
    alarms: BinaryHeap<Reverse<Alarm>>,
    alarms_set: u64,
}

impl Flights {
    pub(crate) fn new(commands_max: u32) -> Self {
        Self {
            entries: (0..commands_max).map(|_| Flight::free()).collect(),
            free: (0..commands_max).rev().collect(),
            alarms: BinaryHeap::with_capacity(commands_max as usize),
            alarms_set: 0,
        }
    }

    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether no command is here, except those that a fault holds.
    pub(crate) fn is_idle(&self) -> bool {
        self.free.len() == self.entries.len()
            || self.entries.iter().all(|f| matches!(f.state, State::Free | State::Held))
    }

    /// Takes an entry; everything in it but the generation is as for a fresh command.
    ///
    /// # Panics
    /// Where there is no room: look first.
    #[inline]
    pub(crate) fn claim(&mut self) -> (u32, &mut Flight) {
        let index = self.free.pop().expect("room was looked for before the fetch");
        let flight = &mut self.entries[index as usize];
        flight.state = State::Storage;
        flight.requests = 0;
        flight.requests_left = 0;
        flight.bytes_moved = 0;
        flight.status = Status::SUCCESS;
        flight.fault = None;
        flight.abort = None;
        (index, flight)
    }

    /// Gives an entry back.
    #[inline]
    pub(crate) fn release(&mut self, index: u32) {
        let flight = &mut self.entries[index as usize];
        debug_assert_ne!(flight.state, State::Free, "released once");
        flight.state = State::Free;
        flight.generation = flight.generation.wrapping_add(1);
        flight.detour = None;
        self.free.push(index);
    }

    /// Gives all entries back.
    pub(crate) fn release_all(&mut self) {
        self.alarms.clear();
        for index in self.indices() {
            if self.get(index).state != State::Free {
                self.release(index);
            }
        }
    }

    pub(crate) fn indices(&self) -> std::ops::Range<u32> {
        0..u32::try_from(self.entries.len()).expect("made from a u32")
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> &Flight {
        &self.entries[index as usize]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> &mut Flight {
        &mut self.entries[index as usize]
    }

    /// The command of this queue and identifier.
    pub(crate) fn find(&self, queue: u16, command: u16) -> Option<u32> {
        self.indices().find(|index| {
            let flight = self.get(*index);
            flight.state != State::Free && flight.queue == queue && flight.command == command
        })
    }

    /// Lets a command wait for its time.
    pub(crate) fn set_alarm(&mut self, index: u32) {
        let flight = &mut self.entries[index as usize];
        flight.state = State::Waiting;
        self.alarms_set += 1;
        self.alarms.push(Reverse((flight.due_ns, self.alarms_set, index, flight.generation)));
    }

    /// A command whose time has come.
    pub(crate) fn take_due(&mut self, now_ns: u64) -> Option<u32> {
        loop {
            let Reverse((due_ns, _, index, generation)) = *self.alarms.peek()?;
            let flight = self.get(index);
            let live = flight.state == State::Waiting && flight.generation == generation;
            if live && due_ns > now_ns {
                return None;
            }
            self.alarms.pop();
            if live {
                return Some(index);
            }
        }
    }

    /// When the next command is due.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        self.alarms.peek().map(|alarm| alarm.0.0)
    }
}
