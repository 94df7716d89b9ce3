//! A patient user of one queue: submits, waits within a bound, checks completions.

use std::time::{Duration, Instant};

use mem::{MemoryKind, Region};
use storage::{Completion, Op, QueueOptions, Rejected, Request, Storage, StorageQueue, pattern};

/// Longest that any one step may take.
const LIMIT: Duration = Duration::from_secs(30);
/// What memory holds before a read.
pub(super) const POISON: u8 = 0xa5;

/// A queue and the memory that it is used with.
pub struct User {
    /// The queue under test.
    pub queue: Box<dyn StorageQueue>,
    /// Memory for payload.
    pub memory: Region,
}

impl User {
    /// Opens a queue, with new memory that is not registered.
    ///
    /// # Panics
    /// Where the queue cannot be opened.
    pub fn new(storage: &dyn Storage, depth: u32, memory_bytes: usize) -> Self {
        let memory = Region::map_anonymous(memory_bytes, MemoryKind::Host).expect("memory");
        Self::with(storage, QueueOptions { depth, registered: Vec::new() }, memory)
    }

    pub(super) fn with(storage: &dyn Storage, options: QueueOptions, memory: Region) -> Self {
        let queue = storage.open_queue(&options).expect("a queue");
        Self { queue, memory }
    }

    pub(super) fn request(
        &self,
        token: u64,
        op: Op,
        offset: u64,
        bytes: usize,
        at: usize,
    ) -> Request {
        let bytes = u32::try_from(bytes).expect("a request's length");
        Request { token, op, offset, bytes, memory: self.memory.clone(), memory_offset: at }
    }

    /// Submits a request that must be taken.
    pub(super) fn submit(&mut self, request: Request) {
        if let Err(rejected) = self.queue.try_submit(request.lend()) {
            panic!("refused: {rejected:?}");
        }
    }

    /// The status with which a request is refused for good.
    pub(super) fn refused(&mut self, request: Request) -> spec::Status {
        match self.queue.try_submit(request.lend()) {
            Err(Rejected::Invalid(status)) => status,
            other => panic!("a request that cannot succeed was answered {other:?}"),
        }
    }

    /// Polls and waits until so many completions are there.
    pub(super) fn completions(&mut self, count: usize) -> Vec<Completion> {
        let begin = Instant::now();
        let mut found = Vec::new();
        loop {
            self.queue.poll(&mut found);
            if found.len() >= count {
                assert_eq!(found.len(), count, "more completions than requests");
                return found;
            }
            assert!(begin.elapsed() < LIMIT, "{} of {count} completions came", found.len());
            self.queue.wait_for_completion(Duration::from_millis(100));
        }
    }

    /// Carries one request out and gives the bytes that it moved; it must succeed.
    pub(super) fn moved(&mut self, request: Request) -> usize {
        let (token, op) = (request.token, request.op);
        self.submit(request);
        let completion = self.completions(1)[0];
        assert_eq!(completion.token, token);
        assert!(completion.status.is_success(), "{op:?}: {completion:?}");
        completion.bytes as usize
    }

    /// Writes the pattern of a generation to a range, in pieces, and checks that all was taken.
    pub(super) fn fill(&mut self, start: u64, bytes: usize, generation: u64) {
        let piece = self.memory.len_bytes();
        for at in (0..bytes).step_by(piece) {
            let (bytes, offset) = (piece.min(bytes - at), start + at as u64);
            pattern::fill_region(&self.memory, 0, bytes, offset, generation);
            let request = self.request(0, Op::Write, offset, bytes, 0);
            assert_eq!(self.moved(request), bytes, "bytes written at {offset}");
        }
    }

    /// Reads a range into poisoned memory and gives its bytes.
    pub(super) fn contents(&mut self, start: u64, bytes: usize) -> Vec<u8> {
        let mut all = vec![0; bytes];
        let piece = self.memory.len_bytes();
        for (i, target) in all.chunks_mut(piece).enumerate() {
            self.memory.fill(0, piece, POISON);
            let offset = start + (i * piece) as u64;
            let request = self.request(1, Op::Read, offset, target.len(), 0);
            assert_eq!(self.moved(request), target.len(), "bytes read at {offset}");
            self.memory.read_bytes(0, target);
        }
        all
    }

    /// Checks that a range holds the pattern of a generation.
    pub(super) fn verify(&mut self, start: u64, bytes: usize, generation: u64) {
        let contents = self.contents(start, bytes);
        if let Err(mismatch) = pattern::check(&contents, start, generation) {
            panic!("{start}..+{bytes}: {mismatch}");
        }
    }

    /// Checks that memory holds nothing but poison.
    pub(super) fn assert_untouched(&self, at: usize, bytes: usize) {
        let mut found = vec![0; bytes];
        self.memory.read_bytes(at, &mut found);
        let touched = found.iter().position(|b| *b != POISON);
        assert_eq!(touched, None, "memory at {at} was touched");
    }
}
