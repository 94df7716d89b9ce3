//! Queue pairs that somebody else uses: made, used, aborted, deleted, followed through resets.

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mem::{MemoryKind, Region};
use sidecore_driver::{AbortAnswer, Device, LentMemory, LentQueue, LentState, Mapping};
use spec::io::{BlockRange, Opcode};
use spec::{BlockCount, Command, CommandId, Completion, Lba, Nsid, Status};
use support::{Rig, Setup};

const ENTRIES: u32 = 16;

/// The user of a pair, by hand.
struct User {
    queue: LentQueue,
    memory: Arc<Mapping>,
    tail: u32,
}

impl User {
    fn new(rig: &Rig) -> Self {
        // Completions lie in the second page.
        let region = Region::map_anonymous(8192, MemoryKind::Window).unwrap();
        let memory = Arc::new(rig.device.map(&region).unwrap());
        let lent = LentMemory {
            mappings: vec![Arc::clone(&memory)],
            submission: memory.address(),
            completion: memory.address() + 4096,
            entries: ENTRIES,
        };
        Self { queue: rig.driver.lend_queue(lent).unwrap(), memory, tail: 0 }
    }

    fn read(&mut self, rig: &Rig, id: u16, lba: u64) {
        let command = BlockRange::new(Lba(lba), BlockCount(1)).encode(Opcode::READ, Nsid(1));
        let command = command.with_prps(rig.payload.address(), 0).with_command_id(CommandId(id));
        let at = self.tail as usize * Command::BYTES;
        for (n, word) in command.to_words().into_iter().enumerate() {
            self.memory.region().u64_at(at + 8 * n).store(word, Ordering::Relaxed);
        }
        self.tail = (self.tail + 1) % ENTRIES;
        rig.device.ring(self.queue.submission_doorbell(), self.tail);
    }

    fn completion(&self, index: usize) -> Completion {
        let word = |at| self.memory.region().u64_at(4096 + at).load(Ordering::Acquire);
        Completion::from_words([word(16 * index), word(16 * index + 8)])
    }

    fn run(&mut self, rig: &mut Rig, mut done: impl FnMut(&LentState) -> bool) {
        for _ in 0..100_000 {
            let state = self.queue.poll(rig.now_ns);
            if done(&state) {
                return;
            }
            rig.tick();
        }
        panic!("{:?}, {:?}", self.queue, rig.driver.state());
    }

    fn open(&mut self, rig: &mut Rig) {
        self.memory.region().fill(0, 8192, 0);
        self.tail = 0;
        self.queue.create();
        self.run(rig, |state| matches!(state, LentState::Open));
    }
}

fn ended_well(user: &User, index: usize, id: u16) -> bool {
    let entry = user.completion(index);
    entry.phase() && entry.cid == id && entry.status().is_success()
}

#[test]
fn a_lent_pair_is_used_deleted_and_made_again() {
    let mut rig = Rig::new(&Setup::default());
    let mut user = User::new(&rig);
    assert!(matches!(user.queue.state(), LentState::Absent));
    for round in 0..3u16 {
        user.open(&mut rig);
        user.read(&rig, 7 + round, 3);
        rig.tick();
        rig.tick();
        assert!(ended_well(&user, 0, 7 + round), "round {round}: {:?}", user.completion(0));
        user.queue.delete();
        user.run(&mut rig, |state| matches!(state, LentState::Absent));
    }
    assert_eq!(rig.driver.resets(), 0);
}

#[test]
fn a_command_that_waits_is_aborted_and_one_that_is_lost_is_not() {
    let mut rig = Rig::new(&Setup {
        faults: "late:n=1,every=1,ms=5000;lost:n=1,every=1",
        ..Setup::default()
    });
    let mut user = User::new(&rig);
    user.open(&mut rig);
    for (id, wanted) in [(1, AbortAnswer::Aborted), (2, AbortAnswer::NotAborted)] {
        user.read(&rig, id, 0);
        rig.tick();
        let ticket = user.queue.try_abort(rig.now_ns, CommandId(id)).expect("room for an Abort");
        let mut answer = None;
        for _ in 0..100 {
            answer = user.queue.take_abort(rig.now_ns, &ticket);
            if answer.is_some() {
                break;
            }
            rig.tick();
        }
        assert_eq!(answer, Some(wanted), "command {id}");
    }
    let entry = user.completion(0);
    assert!(entry.phase() && entry.status().is(Status::ABORT_REQUESTED), "{entry:?}");
    assert!(!user.completion(1).phase(), "the second one was lost");
}

#[test]
fn a_reset_makes_a_lent_pair_absent_and_it_comes_back() {
    let mut rig = Rig::new(&Setup::default());
    let mut user = User::new(&rig);
    user.open(&mut rig);
    user.queue.reset(rig.now_ns);
    assert!(matches!(user.queue.state(), LentState::Changing));
    user.run(&mut rig, |state| matches!(state, LentState::Absent));
    user.open(&mut rig);
    user.read(&rig, 1, 5);
    rig.tick();
    rig.tick();
    assert!(ended_well(&user, 0, 1));
    assert_eq!(rig.driver.resets(), 1);
}

#[test]
fn a_controller_that_fails_is_reset_under_a_lent_pair() {
    let mut rig = Rig::new(&Setup { faults: "reset:n=1,every=1", ..Setup::default() });
    let mut user = User::new(&rig);
    user.open(&mut rig);
    user.read(&rig, 1, 0);
    user.run(&mut rig, |state| matches!(state, LentState::Absent));
    assert_eq!(rig.driver.resets(), 1);
    user.open(&mut rig);
}

#[test]
fn a_dropped_pair_gives_its_identifier_back() {
    let mut rig = Rig::new(&Setup::default());
    for _ in 0..6 {
        let mut user = User::new(&rig);
        user.open(&mut rig);
        drop(user);
        for _ in 0..20 {
            rig.driver.step(rig.now_ns);
            rig.tick();
        }
    }
    drop(User::new(&rig));
}
