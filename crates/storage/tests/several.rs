//! Striped and replicated storage: where bytes land, and what a member's failure does.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use mem::{MemoryKind, Region};
use sidecore_storage as storage;
use spec::Status;
use storage::{
    Completion, Faulty, MemoryStorage, Op, QueueOptions, Replicated, Request, Storage,
    StorageQueue, Striped, pattern,
};

const BYTES: usize = 1 << 20;
const STRIPE: u32 = 8192;

fn memory() -> MemoryStorage {
    MemoryStorage::new(BYTES).unwrap()
}

fn faulty(script: &str) -> (MemoryStorage, Arc<Faulty>) {
    let inner = memory();
    let script = script.parse().unwrap();
    (inner.clone(), Arc::new(Faulty::new(Arc::new(inner), &script, Arc::new(|| 0))))
}

struct User {
    queue: Box<dyn StorageQueue>,
    memory: Region,
}

impl User {
    fn new(storage: &dyn Storage) -> Self {
        let options = QueueOptions { depth: 64, registered: Vec::new() };
        let memory = Region::map_anonymous(BYTES, MemoryKind::Host).unwrap();
        Self { queue: storage.open_queue(&options).unwrap(), memory }
    }

    fn submit(&mut self, token: u64, op: Op, offset: u64, bytes: u32) {
        let memory = &self.memory;
        let request = Request { token, op, offset, bytes, memory, memory_offset: 0 };
        assert!(self.queue.try_submit(request).is_ok());
    }

    fn completions(&mut self) -> Vec<Completion> {
        let mut found = Vec::new();
        for _ in 0..100 {
            self.queue.poll(&mut found);
        }
        found
    }

    fn carry_out(&mut self, op: Op, offset: u64, bytes: u32) -> Completion {
        self.submit(7, op, offset, bytes);
        self.queue.wait_for_completion(Duration::from_secs(10));
        let found = self.completions();
        assert_eq!((found.len(), found[0].token), (1, 7));
        found[0]
    }
}

fn bytes_of(storage: &MemoryStorage, at: usize, bytes: usize) -> Vec<u8> {
    let mut found = vec![0; bytes];
    storage.region().read_bytes(at, &mut found);
    found
}

#[test]
fn stripes_go_round() {
    let members: Vec<MemoryStorage> = (0..3).map(|_| memory()).collect();
    let shared = members.iter().map(|m| Arc::new(m.clone()) as Arc<dyn Storage>).collect();
    let striped = Striped::new(shared, STRIPE).unwrap();
    let mut user = User::new(&striped);
    let stripe = STRIPE as usize;
    let all = stripe * 12;
    pattern::fill_region(&user.memory, 0, all, 0, 3);
    assert!(user.carry_out(Op::Write, 0, STRIPE * 12).status.is_success());
    for index in 0..12 {
        let member = &members[index % 3];
        let found = bytes_of(member, index / 3 * stripe, stripe);
        assert_eq!(pattern::check(&found, (index * stripe) as u64, 3), Ok(()), "stripe {index}");
    }
    assert_eq!(striped.geometry().bytes, 3 * BYTES as u64);
    // A part in the middle of stripes.
    let done = user.carry_out(Op::Read, 5000, 30_000);
    assert!(done.status.is_success() && done.bytes == 30_000);
    assert_eq!(pattern::check_region(&user.memory, 0, 30_000, 5000, 3), Ok(()));
}

#[test]
fn an_error_of_one_stripe_is_the_requests_error() {
    let (_, bad) = faulty("error:offset=8192,status=2/81");
    let striped = Striped::new(vec![Arc::new(memory()), bad], STRIPE).unwrap();
    let mut user = User::new(&striped);
    assert!(user.carry_out(Op::Write, 0, STRIPE * 3).status.is_success(), "other stripes");
    let done = user.carry_out(Op::Read, 0, STRIPE * 4);
    assert_eq!((done.status, done.bytes), (Status::UNRECOVERED_READ_ERROR, 0));
}

#[test]
fn a_read_that_one_replica_fails_comes_from_another() {
    let (first, bad) = faulty("error:rate=1,status=2/81,op=read");
    let good = memory();
    let replicas = Replicated::new(vec![bad.clone(), Arc::new(good.clone())]).unwrap();
    let mut user = User::new(&replicas);
    pattern::fill_region(&user.memory, 0, 65536, 0, 9);
    assert!(user.carry_out(Op::Write, 0, 65536).status.is_success());
    for member in [&first, &good] {
        assert_eq!(pattern::check(&bytes_of(member, 0, 65536), 0, 9), Ok(()), "on all members");
    }
    for round in 0..4 {
        user.memory.fill(0, 65536, 0xa5);
        let done = user.carry_out(Op::Read, 0, 65536);
        assert!(done.status.is_success(), "round {round}: {done:?}");
        assert_eq!(pattern::check_region(&user.memory, 0, 65536, 0, 9), Ok(()));
    }
    assert_eq!(bad.injector().injected_total(), 2, "reads begin on each member in turn");
    let all_bad = Replicated::new(vec![bad.clone(), bad]).unwrap();
    let done = User::new(&all_bad).carry_out(Op::Read, 0, 4096);
    assert_eq!(done.status, Status::UNRECOVERED_READ_ERROR);
}

#[test]
fn a_write_that_one_replica_fails_fails() {
    let (_, bad) = faulty("error:n=1,every=2,status=2/80,op=write");
    let replicas = Replicated::new(vec![Arc::new(memory()), bad]).unwrap();
    let mut user = User::new(&replicas);
    let ended: Vec<bool> =
        (0..4).map(|_| user.carry_out(Op::Write, 0, 4096).status.is_success()).collect();
    assert_eq!(ended.iter().filter(|well| !**well).count(), 1, "{ended:?}");
}

/// A member that completes twice or never: each request still ends once.
#[test]
fn doubled_and_lost_completions_of_a_member_end_each_request_once() {
    for script in ["duplicate:rate=1", "lost:n=5,every=3", "lost:n=2,every=3;duplicate:rate=0.5"] {
        let members: Vec<Arc<dyn Storage>> = vec![faulty(script).1, Arc::new(memory())];
        let striped = Striped::new(members.clone(), STRIPE).unwrap();
        let replicas = Replicated::new(members).unwrap();
        for storage in [&striped as &dyn Storage, &replicas] {
            let mut user = User::new(storage);
            for token in 0..32 {
                user.submit(token, Op::Write, token * 16_384, STRIPE * 2);
            }
            let mut found = user.completions();
            for token in 0..32 {
                user.queue.cancel(token);
            }
            found.extend(user.completions());
            let mut tokens: Vec<u64> = found.iter().map(|c| c.token).collect();
            tokens.sort_unstable();
            assert_eq!(tokens, (0..32).collect::<Vec<u64>>(), "{script}");
            assert_eq!(user.queue.in_flight(), 0);
        }
    }
}

#[test]
fn what_cannot_be_striped_is_refused() {
    let one = || vec![Arc::new(memory().with_block_bytes(4096)) as Arc<dyn Storage>];
    assert!(Striped::new(Vec::new(), 4096).is_err());
    assert!(Replicated::new(Vec::new()).is_err());
    assert!(Striped::new(one(), 0).is_err());
    assert!(Striped::new(one(), 6144).is_err(), "no whole number of blocks");
    assert!(Striped::new(one(), 1 << 30).is_err(), "larger than a request");
    let short = Arc::new(MemoryStorage::new(4096).unwrap());
    assert!(Striped::new(vec![short], 8192).is_err(), "no stripe fits");
}
