//! Compare and Dataset Management: what they have that other I/O commands have not.
//!
//! Compare reads into a bounce buffer and then looks at the host's memory; it is a read to timing,
//! faults and counters. Deallocated blocks read as zeros (DLFEAT), so Dataset Management writes
//! zeros where it is asked to deallocate. Its other attributes are hints and do nothing, and so is,
//! by the specification, deallocation itself: of a command that would need more than
//! [`DEALLOCATE_REQUESTS_MAX`] storage requests the rest keeps its content. Fault scripts do not
//! know the command.
//!
//! Source: NVM Command Set 1.0c, 3.2.1 and 3.2.3.

use spec::io::{DatasetManagement, DatasetRange, Opcode};
use spec::{Command, Nsid, Status};
use storage::Op;
use zerocopy::FromBytes;

use crate::controller::Controller;
use crate::io::Transfer;

/// Most storage requests that one Dataset Management command makes.
const DEALLOCATE_REQUESTS_MAX: u64 = 4096;

impl Controller {
    /// Takes a command that the ordinary checks refused with `status`: one of the two, or none.
    #[cold]
    pub(crate) fn begin_rare(
        &mut self,
        queue: u16,
        command: &Command,
        status: Status,
        now_ns: u64,
    ) {
        let plain = command.flags & (Command::FLAGS_FUSE | Command::FLAGS_PSDT) == 0;
        let outcome = match command.opcode {
            Opcode::COMPARE | Opcode::DATASET_MANAGEMENT if !plain => Err(Status::INVALID_FIELD),
            Opcode::COMPARE => self.check_range(Op::Read, command).map(|transfer| {
                let transfer = Transfer { compares: true, ..transfer };
                self.begin_uncommon(queue, command, transfer, now_ns);
            }),
            Opcode::DATASET_MANAGEMENT => self.manage_dataset(queue, command, now_ns),
            _ => Err(status),
        };
        if let Err(mut status) = outcome {
            // Source: NVMe Base 2.0c, 3.3.3.1, NSID: where a command cannot mean all namespaces, the
            // broadcast value is an invalid field.
            if status.is(Status::INVALID_NAMESPACE) && command.namespace() == Nsid::BROADCAST {
                status = Status::INVALID_FIELD;
            }
            self.refuse_claimed(queue, command.cid, status);
        }
    }

    fn manage_dataset(&mut self, queue: u16, command: &Command, now_ns: u64) -> Result<(), Status> {
        let namespace = self.namespace(command.namespace())?;
        let (blocks, shift) = (namespace.blocks, namespace.block_shift);
        let (read_only, bytes_max) = (namespace.read_only, namespace.request_bytes_max);
        let manage = DatasetManagement::decode(command);
        let ranges = self.fetch_ranges(command, manage.ranges)?;
        let fits = |r: &DatasetRange| {
            r.lba.checked_add(u64::from(r.blocks)).is_some_and(|end| end <= blocks)
        };
        if !ranges.iter().all(fits) {
            return Err(Status::LBA_OUT_OF_RANGE);
        }
        if manage.deallocate && read_only {
            return Err(Status::NAMESPACE_WRITE_PROTECTED);
        }
        let mut transfer = Transfer {
            op: Op::WriteZeroes,
            namespace: command.nsid as usize - 1,
            offset: 0,
            bytes: 0,
            flush_after: false,
            compares: false,
        };
        let index = self.claim(queue, command.cid, &transfer, now_ns);
        let mut bytes_left = DEALLOCATE_REQUESTS_MAX * u64::from(bytes_max);
        for range in ranges.iter().filter(|_| manage.deallocate) {
            transfer.offset = range.lba << shift;
            transfer.bytes = (u64::from(range.blocks) << shift).min(bytes_left);
            // What is left stays a whole number of requests, and so of blocks.
            let requests = transfer.bytes.div_ceil(u64::from(bytes_max));
            bytes_left -= requests * u64::from(bytes_max);
            self.submit_zeroes(index, &transfer);
        }
        self.settle_if_ended(index, now_ns);
        Ok(())
    }

    /// Copies the list of ranges out of the host's memory.
    fn fetch_ranges(&self, command: &Command, count: u16) -> Result<Vec<DatasetRange>, Status> {
        let bytes = usize::from(count) * DatasetRange::BYTES;
        let mut pieces = Vec::new();
        self.dma.translate(command.prp1, command.prp2, bytes as u64, &mut pieces)?;
        let mut list = vec![0; bytes];
        let mut rest = list.as_mut_slice();
        for piece in &pieces {
            let (now, later) = rest.split_at_mut(rest.len().min(piece.bytes as usize));
            piece.region.read_bytes(piece.offset, now);
            rest = later;
        }
        let range = |bytes| DatasetRange::read_from_bytes(bytes).expect("a chunk is a range");
        Ok(list.chunks_exact(DatasetRange::BYTES).map(range).collect())
    }
}
