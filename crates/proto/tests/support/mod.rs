//! A plain model of a drive and of what a queue pair must do with it.
//!
//! The model keeps queue memory as vectors, moves one entry at a time and knows nothing of how the
//! queue pair keeps its state. It panics where the pair differs from it.

use std::collections::{BTreeMap, VecDeque};

use sidecore_proto::{Completed, QueuePair, QueuePairShape};
use spec::{CommandId, Completion, QueueId, Status};

/// One thing that host or drive does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Host: reserve and commit.
    Submit,
    /// Host: reserve, then drop.
    Abandon,
    /// Host: ring the submission doorbell.
    RingSubmission,
    /// Drive: fetch one entry.
    Fetch,
    /// Drive: complete the n-th of the fetched commands.
    Complete(usize),
    /// Host: look at the next completion entry.
    Poll,
    /// Host: ring the completion doorbell.
    RingCompletion,
    /// Host: give up the n-th of the commands in flight.
    Retire(usize),
    /// Both: the queue is deleted and made again.
    Restart,
}

#[derive(Debug)]
struct Live {
    context: u64,
    retired: bool,
}

/// Pair and model side by side.
pub struct Model {
    shape: QueuePairShape,
    pair: QueuePair<u64>,
    next_context: u64,
    live: BTreeMap<u16, Live>,
    submission: Vec<Option<u16>>,
    committed: VecDeque<usize>,
    told: VecDeque<usize>,
    fetched: Vec<u16>,
    head: usize,
    completion: Vec<Completion>,
    completion_tail: usize,
    completion_phase: bool,
    unread: VecDeque<u16>,
    read_not_rung: usize,
    head_known: usize,
}

impl Model {
    /// A new pair against a new drive.
    pub fn new(shape: QueuePairShape) -> Self {
        let entries = |count: u32| usize::try_from(count).unwrap();
        Self {
            shape,
            pair: QueuePair::new(shape).unwrap(),
            next_context: 0,
            live: BTreeMap::new(),
            submission: vec![None; entries(shape.submission_entries)],
            committed: VecDeque::new(),
            told: VecDeque::new(),
            fetched: Vec::new(),
            head: 0,
            completion: vec![Completion::default(); entries(shape.completion_entries)],
            completion_tail: 0,
            completion_phase: true,
            unread: VecDeque::new(),
            read_not_rung: 0,
            head_known: 0,
        }
    }

    /// Moves both rings by `count` commands, one at a time, so that a test starts elsewhere.
    pub fn advance(&mut self, count: usize) {
        for _ in 0..count {
            for step in [
                Step::Submit,
                Step::RingSubmission,
                Step::Fetch,
                Step::Complete(0),
                Step::Poll,
                Step::RingCompletion,
            ] {
                self.step(step);
            }
        }
        assert!(self.live.is_empty(), "an honest round leaves nothing in flight");
    }

    /// Does one step on both sides and compares.
    pub fn step(&mut self, step: Step) {
        match step {
            Step::Submit => self.submit(),
            Step::Abandon => drop(self.pair.reserve()),
            Step::RingSubmission => self.ring_submission(),
            Step::Fetch => self.fetch(),
            Step::Complete(n) => self.complete(n),
            Step::Poll => self.poll(),
            Step::RingCompletion => self.ring_completion(),
            Step::Retire(n) => self.retire(n),
            Step::Restart => self.restart(),
        }
        assert_eq!(self.pair.in_flight(), self.live.len());
    }

    fn submit(&mut self) {
        // Entries from the head that the host knows to the tail, less one that stays empty.
        let used = (self.committed.len() + self.told.len()) + self.unknown_fetched();
        let room = self.live.len() < usize::try_from(self.shape.commands_max).unwrap()
            && used + 1 < self.submission.len();
        let reservation = self.pair.reserve();
        assert_eq!(reservation.is_some(), room, "room as the model sees it");
        let Some(reservation) = reservation else { return };
        let index = usize::from(reservation.index());
        assert_eq!(self.submission[index], None, "an entry not yet fetched is overwritten");
        let command = reservation.commit(self.next_context, u64::MAX);
        assert_ne!(command.0, u16::MAX);
        let live = Live { context: self.next_context, retired: false };
        assert!(self.live.insert(command.0, live).is_none(), "{command} is in flight already");
        self.submission[index] = Some(command.0);
        self.committed.push_back(index);
        self.next_context += 1;
    }

    /// Entries fetched of which no completion has told the host yet.
    fn unknown_fetched(&self) -> usize {
        (self.head + self.submission.len() - self.head_known) % self.submission.len()
    }

    fn ring_submission(&mut self) {
        let tail = self.pair.take_submission_doorbell();
        assert_eq!(tail.is_some(), !self.committed.is_empty());
        if let (Some(tail), Some(last)) = (tail, self.committed.back()) {
            assert_eq!(usize::from(tail), (last + 1) % self.submission.len());
        }
        self.told.append(&mut self.committed);
        assert_eq!(self.pair.take_submission_doorbell(), None);
    }

    fn fetch(&mut self) {
        let Some(index) = self.told.pop_front() else { return };
        assert_eq!(index, self.head, "entries are fetched in order");
        self.fetched.push(self.submission[index].take().unwrap());
        self.head = (self.head + 1) % self.submission.len();
    }

    fn complete(&mut self, n: usize) {
        if self.fetched.is_empty() {
            return;
        }
        let outstanding = self.unread.len() + self.read_not_rung;
        if outstanding + 1 >= self.completion.len() {
            return;
        }
        let cid = self.fetched.remove(n % self.fetched.len());
        let status = Status::from_bits(cid & 0x7fff);
        self.completion[self.completion_tail] = Completion {
            dw0: u32::from(cid) ^ 0xa5a5_0000,
            sqhd: u16::try_from(self.head).unwrap(),
            sqid: self.shape.queue.0,
            cid,
            status_phase: Completion::join(status, self.completion_phase),
            ..Default::default()
        };
        self.completion_tail = (self.completion_tail + 1) % self.completion.len();
        self.completion_phase ^= self.completion_tail == 0;
        self.unread.push_back(cid);
    }

    fn poll(&mut self) {
        let entry = self.completion[usize::from(self.pair.completion_index())];
        let answer = self.pair.complete(&entry);
        let Some(cid) = self.unread.pop_front() else {
            assert_eq!(answer, None, "nothing new lies there");
            return;
        };
        let Live { context, retired } = self.live.remove(&cid).unwrap();
        let command = CommandId(cid);
        let expected = if retired {
            Completed::Drained { command, context }
        } else {
            let status = Status::from_bits(cid & 0x7fff);
            Completed::Ended { command, context, status, result: u32::from(cid) ^ 0xa5a5_0000 }
        };
        assert_eq!(answer, Some(Ok(expected)));
        self.head_known = usize::from(entry.sqhd);
        self.read_not_rung += 1;
    }

    fn ring_completion(&mut self) {
        let head = self.pair.take_completion_doorbell();
        // A full turn between two rings would look like none; the rings are too small for it,
        // since one entry always stays empty.
        assert_eq!(head.is_some(), self.read_not_rung != 0);
        self.read_not_rung = 0;
        if let Some(head) = head {
            let behind = self.unread.len();
            let entries = self.completion.len();
            assert_eq!(usize::from(head), (self.completion_tail + entries - behind) % entries);
        }
    }

    fn retire(&mut self, n: usize) {
        let mut waiting = self.live.iter_mut().filter(|(_, live)| !live.retired);
        let Some((cid, live)) = waiting.nth(n) else { return };
        live.retired = true;
        assert!(self.pair.is_in_flight(CommandId(*cid)));
        assert!(self.pair.retire(CommandId(*cid)));
        assert!(!self.pair.retire(CommandId(*cid)), "a command is given up once");
    }

    fn restart(&mut self) {
        let mut lost: Vec<_> = self.pair.restart();
        lost.sort_by_key(|lost| lost.command);
        assert_eq!(lost.len(), self.live.len());
        for (lost, (cid, live)) in lost.iter().zip(&self.live) {
            assert_eq!(lost.command.0, *cid);
            assert_eq!((lost.retired, lost.context), (live.retired, live.context));
        }
        let (pair, context) = (std::mem::replace(&mut self.pair, dummy()), self.next_context);
        *self = Self { pair, next_context: context, ..Self::new(self.shape) };
    }
}

fn dummy() -> QueuePair<u64> {
    QueuePair::new(QueuePairShape::for_commands(QueueId(0), 1)).unwrap()
}
