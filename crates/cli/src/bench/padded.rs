//! Storage whose length is rounded up to whole blocks: what lies beyond its end reads as zeros.
//!
//! A drive has whole blocks, a file may have any length. Only reads may touch the block in which the
//! file ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use mem::Region;
use storage::{
    Completion, Counters, Geometry, Lent, Op, QueueOptions, Rejected, Storage, StorageError,
    StorageQueue, status,
};

/// A storage, rounded up.
pub struct Padded {
    inner: Arc<dyn Storage>,
    block_bytes: u32,
}

impl Padded {
    /// Rounds `inner` up to blocks of `block_bytes`.
    pub fn new(inner: Arc<dyn Storage>, block_bytes: u32) -> Self {
        Self { inner, block_bytes }
    }
}

impl Storage for Padded {
    fn geometry(&self) -> Geometry {
        let inner = self.inner.geometry();
        Geometry { bytes: inner.bytes.next_multiple_of(u64::from(self.block_bytes)), ..inner }
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn StorageQueue>, StorageError> {
        let inner = self.inner.open_queue(options)?;
        let bytes = self.inner.geometry().bytes;
        if bytes.is_multiple_of(u64::from(self.block_bytes)) {
            return Ok(inner);
        }
        Ok(Box::new(PaddedQueue { inner, bytes, cut: HashMap::new() }))
    }

    fn explain(&self) -> String {
        self.inner.explain()
    }
}

/// What is missing of a request that goes beyond the end.
struct Cut {
    memory: Region,
    /// First byte that the storage does not fill.
    offset: usize,
    bytes: u32,
}

struct PaddedQueue {
    inner: Box<dyn StorageQueue>,
    /// Length of the storage.
    bytes: u64,
    /// By token.
    cut: HashMap<u64, Cut>,
}

impl StorageQueue for PaddedQueue {
    fn try_submit(&mut self, request: Lent<'_>) -> Result<(), Rejected> {
        let end = request.offset.saturating_add(u64::from(request.bytes));
        if end <= self.bytes || request.op == Op::Flush {
            return self.inner.try_submit(request);
        }
        let there = self.bytes.saturating_sub(request.offset);
        let Some(there) = u32::try_from(there).ok().filter(|&n| n > 0 && request.op == Op::Read)
        else {
            return Err(Rejected::Invalid(status::LBA_OUT_OF_RANGE));
        };
        let whole = request.bytes;
        let token = request.token;
        let cut = Cut {
            memory: request.memory.clone(),
            offset: request.memory_offset + there as usize,
            bytes: whole - there,
        };
        self.inner.try_submit(Lent { bytes: there, ..request })?;
        self.cut.insert(token, cut);
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        let first = completions.len();
        self.inner.poll(completions);
        self.mend(&mut completions[first..]);
    }

    fn wait_for_completion(&mut self, limit: Duration) {
        self.inner.wait_for_completion(limit);
    }

    fn cancel(&mut self, token: u64) {
        self.inner.cancel(token);
    }

    fn quiesce(&mut self, completions: &mut Vec<Completion>) {
        let first = completions.len();
        self.inner.quiesce(completions);
        self.mend(&mut completions[first..]);
    }

    fn in_flight(&self) -> u32 {
        self.inner.in_flight()
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }
}

impl PaddedQueue {
    /// Adds the zeros beyond the end to those that were cut.
    fn mend(&mut self, completions: &mut [Completion]) {
        if self.cut.is_empty() {
            return;
        }
        for completion in completions {
            let Some(cut) = self.cut.remove(&completion.token) else { continue };
            if completion.status.is_success() {
                cut.memory.fill(cut.offset, cut.bytes as usize, 0);
                completion.bytes += cut.bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mem::MemoryKind;
    use storage::MemoryStorage;

    fn ask(queue: &mut dyn StorageQueue, request: Lent<'_>) -> Result<Completion, Rejected> {
        queue.try_submit(request)?;
        let mut found = Vec::new();
        while found.is_empty() {
            queue.poll(&mut found);
        }
        Ok(found[0])
    }

    #[test]
    fn the_last_block_ends_in_zeros() {
        let inner = MemoryStorage::new(1000).unwrap();
        inner.region().fill(0, 1000, 7);
        let padded = Padded::new(Arc::new(inner), 512);
        assert_eq!(padded.geometry().bytes, 1024);
        let options = QueueOptions { depth: 4, registered: Vec::new() };
        let mut queue = padded.open_queue(&options).unwrap();
        let memory = Region::map_anonymous(1024, MemoryKind::Host).unwrap();
        memory.fill(0, 1024, 0xee);
        let request = |op, offset| Lent {
            token: 1,
            op,
            offset,
            bytes: 512,
            memory: &memory,
            memory_offset: 512,
        };
        let done = ask(queue.as_mut(), request(Op::Read, 512)).unwrap();
        assert!(done.status.is_success());
        assert_eq!(done.bytes, 512);
        let mut found = [0; 512];
        memory.read_bytes(512, &mut found);
        assert_eq!((&found[..488], &found[488..]), (&[7; 488][..], &[0; 24][..]));
        assert!(ask(queue.as_mut(), request(Op::Read, 1024)).is_err(), "beyond the last block");
        assert!(ask(queue.as_mut(), request(Op::Write, 512)).is_err(), "a write beyond the end");
        assert!(ask(queue.as_mut(), request(Op::Write, 0)).is_ok());
    }
}
