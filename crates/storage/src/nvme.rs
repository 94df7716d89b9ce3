//! Storage on an NVMe namespace, through the user-space driver.
//!
//! A request becomes one command, or several where it is longer than the drive takes at once; it
//! ends when all of them have ended, with the first error among them. Payload goes straight to the
//! request's memory where the drive can reach it (what is named in `QueueOptions::registered`, or
//! was registered with the device before) and it begins at a multiple of 4; else it is bounced
//! through memory of the queue, which costs a copy.
//!
//! Every command has a time limit, by the driver's ladder of Abort, queue deletion and reset; one
//! that ends by it has status `ABORTED_BY_HOST`. A request that the caller cancelled and that the
//! drive did not finish ends as `ABORT_REQUESTED`, as on every other storage.
//!
//! Where even a reset of the controller fails, requests end as `HOST_PATHING_ERROR`. Only then may
//! the drive still write to their memory, until the queue is dropped and the device taken away.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use driver::{
    Buffer, Controller, Device, Driver, DriverError, DriverOptions, DriverState, Ended, IoQueue,
    Mapping, Namespace,
};
use mem::{MemoryKind, Region};
use spec::{BlockCount, Lba, Nsid, Status};

use crate::admit::{admit, status};
use crate::faulty::Clock;
use crate::queue::{
    Completion, Counters, Geometry, Lent, Op, QueueOptions, Rejected, Request, Storage,
    StorageError, StorageQueue,
};

/// Largest request: a few dozen commands on an ordinary drive.
const TRANSFER_BYTES_MAX: u32 = 16 << 20;
/// Larger bounce buffers are not kept.
const BOUNCE_KEPT_BYTES: usize = 1 << 20;
/// Bound of `quiesce`, in real time: beyond it the queue is abandoned.
const QUIESCE_LIMIT: Duration = Duration::from_secs(30);
/// How long opening a queue waits for a dropped one to be deleted.
const QUEUE_LIMIT: Duration = Duration::from_secs(2);

/// How a namespace is opened.
#[derive(Clone)]
pub struct NvmeOptions {
    /// Which namespace; the first active one where none is named.
    pub nsid: Option<Nsid>,
    /// How the controller is driven.
    pub driver: DriverOptions,
    /// Time limit of each command.
    pub command_limit: Duration,
    /// Bound of starting the controller.
    pub open_limit: Duration,
    /// The clock that limits are measured on.
    pub clock: Clock,
}

impl Default for NvmeOptions {
    fn default() -> Self {
        let start = Instant::now();
        let clock = move || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Self {
            nsid: None,
            driver: DriverOptions::default(),
            command_limit: Duration::from_secs(5),
            open_limit: Duration::from_secs(60),
            clock: Arc::new(clock),
        }
    }
}

/// Storage on a namespace of an NVMe controller.
pub struct NvmeStorage {
    driver: Driver,
    controller: Controller,
    namespace: Namespace,
    command_limit_ns: u64,
    clock: Clock,
}

impl NvmeStorage {
    /// Starts the controller behind `device`, waits until it is ready and opens a namespace.
    ///
    /// # Errors
    /// `Unsupported` where the controller does not start in time or lacks the namespace.
    pub fn wait_open(device: Arc<dyn Device>, options: &NvmeOptions) -> Result<Self, StorageError> {
        let driver = Driver::new(device, options.driver).map_err(refused)?;
        let until = Instant::now() + options.open_limit;
        while let DriverState::Starting = driver.step((options.clock)()) {
            if Instant::now() >= until {
                let why = format!("the controller is not ready after {:?}", options.open_limit);
                return Err(unsupported(why));
            }
            std::thread::yield_now();
        }
        Self::over(driver, options)
    }

    /// Opens a namespace of a controller that is ready.
    ///
    /// # Errors
    /// `Unsupported` where it is not ready, or lacks the namespace.
    pub fn over(driver: Driver, options: &NvmeOptions) -> Result<Self, StorageError> {
        if let DriverState::Failed(error) = driver.state() {
            return Err(unsupported(error.to_string()));
        }
        let Some(controller) = driver.controller().filter(|_| is_ready(&driver)) else {
            return Err(unsupported("the controller is not ready".to_owned()));
        };
        let wanted = |namespace: &&Namespace| options.nsid.is_none_or(|id| id == namespace.nsid);
        let Some(namespace) = driver.namespaces().iter().find(wanted).copied() else {
            let name = options.nsid.map_or("any namespace".to_owned(), |nsid| nsid.to_string());
            return Err(unsupported(format!("{} does not have {name}", controller.model)));
        };
        let limit_ns = u64::try_from(options.command_limit.as_nanos()).unwrap_or(u64::MAX);
        let clock = Arc::clone(&options.clock);
        Ok(Self { driver, controller, namespace, command_limit_ns: limit_ns, clock })
    }

    /// The controller's driver.
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Shuts the controller down, as before power is taken away. Queues that are still open end
    /// what they have in flight with an error.
    ///
    /// # Errors
    /// `Unsupported` where it does not stop within `limit`.
    pub fn wait_shut_down(&self, limit: Duration) -> Result<(), StorageError> {
        let until = Instant::now() + limit;
        self.driver.shut_down((self.clock)());
        while let DriverState::Stopping = self.driver.step((self.clock)()) {
            if Instant::now() >= until {
                return Err(unsupported(format!("the controller did not stop within {limit:?}")));
            }
            std::thread::yield_now();
        }
        match self.driver.state() {
            DriverState::Failed(error) => Err(unsupported(error.to_string())),
            _ => Ok(()),
        }
    }

    /// Opens a driver queue; where all are in use, dropped ones get a moment to be deleted.
    fn wait_queue(&self, depth: u32) -> Result<IoQueue, DriverError> {
        let until = Instant::now() + QUEUE_LIMIT;
        loop {
            self.driver.step((self.clock)());
            match self.driver.open_queue(depth) {
                Err(DriverError::Exhausted { .. }) if Instant::now() < until => {
                    std::thread::yield_now();
                }
                opened => return opened,
            }
        }
    }
}

fn is_ready(driver: &Driver) -> bool {
    matches!(driver.state(), DriverState::Ready)
}

fn unsupported(why: String) -> StorageError {
    StorageError::Unsupported { what: "an NVMe namespace".to_owned(), why }
}

fn refused(error: DriverError) -> StorageError {
    match error {
        DriverError::Misuse(text) => StorageError::Misuse(text),
        other => unsupported(other.to_string()),
    }
}

impl Storage for NvmeStorage {
    fn geometry(&self) -> Geometry {
        Geometry {
            bytes: self.namespace.bytes(),
            block_bytes: self.namespace.block_bytes,
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            read_only: self.namespace.read_only,
        }
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn StorageQueue>, StorageError> {
        if options.depth == 0 {
            return Err(StorageError::Misuse("a queue of depth 0 can take no request".into()));
        }
        let commands = options.depth.min(self.controller.depth_max);
        let mut io = self.wait_queue(commands).map_err(refused)?;
        io.set_namespace(self.namespace.nsid).map_err(refused)?;
        let device = Arc::clone(self.driver.device());
        let registered: Result<Vec<Mapping>, _> =
            options.registered.iter().map(|region| device.map(region)).collect();
        let registered = registered.map_err(|error| unsupported(error.to_string()))?;
        let depth = options.depth as usize;
        Ok(Box::new(NvmeQueue {
            io: Some(io),
            device,
            clock: Arc::clone(&self.clock),
            command_limit_ns: self.command_limit_ns,
            geometry: self.geometry(),
            write_zeroes: self.controller.write_zeroes,
            depth,
            requests: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            unsent: VecDeque::new(),
            ended: Vec::with_capacity(depth),
            ready: Vec::new(),
            bounces: Vec::new(),
            counters: Counters::default(),
            reached: Vec::new(),
            registered,
        }))
    }

    fn explain(&self) -> String {
        format!(
            "NVMe: {} ({}), {}, blocks of {} bytes, by the user-space driver, polled",
            self.controller.model,
            self.controller.serial,
            self.namespace.nsid,
            self.namespace.block_bytes
        )
    }
}

/// A request on its way through the drive.
struct InFlight {
    request: Request<()>,
    /// Bytes to move, less than asked for where a read leaves the storage.
    bytes: u32,
    pieces: u32,
    pieces_left: u32,
    status: Status,
    cancelled: bool,
    /// Where the drive moves the payload; it keeps that memory.
    buffer: Option<Buffer>,
    /// Memory of the queue, where the request's own cannot be reached, and that.
    bounce: Option<Bounce>,
}

struct Bounce {
    mapping: Mapping,
    memory: Region,
}

/// One command's share of a request.
#[derive(Clone, Copy)]
struct Piece {
    index: usize,
    number: u32,
}

impl Piece {
    /// As the driver carries it.
    fn token(self) -> u64 {
        (self.index as u64) << 32 | u64::from(self.number)
    }

    fn of_token(token: u64) -> Option<Self> {
        let number = u32::try_from(token & u64::from(u32::MAX)).ok()?;
        Some(Self { index: usize::try_from(token >> 32).ok()?, number })
    }
}

struct NvmeQueue {
    /// Gone once `quiesce` had to abandon it.
    io: Option<IoQueue>,
    device: Arc<dyn Device>,
    clock: Clock,
    command_limit_ns: u64,
    geometry: Geometry,
    write_zeroes: bool,
    depth: usize,
    requests: Vec<Option<InFlight>>,
    free: Vec<usize>,
    unsent: VecDeque<Piece>,
    ended: Vec<Ended>,
    ready: Vec<Completion>,
    bounces: Vec<Mapping>,
    counters: Counters,
    /// Windows that requests may name.
    reached: Vec<Mapping>,
    registered: Vec<Mapping>,
}

impl NvmeQueue {
    /// Most bytes of one command.
    fn piece_bytes_max(&self, op: Op) -> u32 {
        let blocks = match (op, &self.io) {
            (Op::Read | Op::Write, Some(io)) => io.transfer_blocks_max(),
            _ => BlockCount::COMMAND_MAX,
        };
        blocks.0.saturating_mul(self.geometry.block_bytes)
    }

    /// Memory of the queue for a request whose own the drive cannot reach.
    fn bounce(&mut self, bytes: usize) -> Option<Mapping> {
        let fits = |mapping: &Mapping| mapping.region().len_bytes() >= bytes;
        if let Some(position) = self.bounces.iter().position(fits) {
            return Some(self.bounces.swap_remove(position));
        }
        let region = Region::map_anonymous(bytes.next_multiple_of(65536), MemoryKind::Host).ok()?;
        self.device.map(&region).ok()
    }

    /// Finds memory for the payload, the request's own or the queue's.
    fn prepare_memory(
        &mut self,
        request: &Lent<'_>,
        bytes: u32,
    ) -> Option<(Buffer, Option<Bounce>)> {
        let (bytes, offset, memory) = (bytes as usize, request.memory_offset, request.memory);
        let mut mapped = self.reached.iter().chain(&self.registered);
        let known = mapped.find_map(|mapping| Buffer::within(mapping, memory, offset, bytes));
        let buffer = known.or_else(|| Buffer::reach(self.device.as_ref(), memory, offset, bytes));
        if let Some(buffer) = buffer {
            return Some((buffer, None));
        }
        let bounce = self.bounce(bytes)?;
        if request.op == Op::Write {
            bounce.region().copy_from(0, request.memory, offset, bytes);
        }
        let buffer = Buffer::reach(self.device.as_ref(), bounce.region(), 0, bytes)?;
        Some((buffer, Some(Bounce { mapping: bounce, memory: memory.clone() })))
    }

    fn driver_request(&mut self, piece: Piece, now_ns: u64) -> Option<driver::Request> {
        let most = self.piece_bytes_max(self.requests[piece.index].as_ref()?.request.op);
        let in_flight = self.requests[piece.index].as_mut()?;
        let request = &in_flight.request;
        let begin = u64::from(piece.number) * u64::from(most);
        let bytes = u64::from(in_flight.bytes).saturating_sub(begin).min(u64::from(most));
        let block = u64::from(self.geometry.block_bytes);
        let within = usize::try_from(begin).ok()?;
        let op = match request.op {
            Op::Flush => driver::Op::Flush,
            Op::Read => driver::Op::Read,
            Op::Write => driver::Op::Write,
            Op::WriteZeroes => driver::Op::WriteZeroes,
        };
        let buffer = match &in_flight.buffer {
            Some(buffer) if in_flight.pieces > 1 => {
                buffer.slice(within, usize::try_from(bytes).ok()?)
            }
            _ => in_flight.buffer.take(),
        };
        Some(driver::Request {
            token: piece.token(),
            op,
            lba: Lba((request.offset + begin) / block),
            blocks: BlockCount(u32::try_from(bytes / block).ok()?),
            buffer,
            deadline_ns: now_ns.saturating_add(self.command_limit_ns),
        })
    }

    /// Hands a piece to the driver; false where it has no room.
    fn send(&mut self, piece: Piece, now_ns: u64) -> bool {
        let (Some(request), Some(_)) = (self.driver_request(piece, now_ns), &self.io) else {
            self.end_piece(piece, Status::HOST_PATHING_ERROR);
            return true;
        };
        let Some(io) = &mut self.io else { return true };
        match io.try_submit(request) {
            Ok(()) => true,
            Err(driver::Rejected::QueueFull(back)) => {
                if let Some(in_flight) = self.requests[piece.index].as_mut()
                    && in_flight.pieces == 1
                {
                    in_flight.buffer = back.buffer;
                }
                false
            }
            Err(driver::Rejected::Invalid(..)) => {
                let failed = io.in_flight() == 0 && !io.is_open();
                let status =
                    if failed { Status::HOST_PATHING_ERROR } else { status::INTERNAL_ERROR };
                self.end_piece(piece, status);
                true
            }
        }
    }

    fn send_waiting(&mut self, now_ns: u64) {
        while let Some(piece) = self.unsent.pop_front() {
            if !self.send(piece, now_ns) {
                self.unsent.push_front(piece);
                break;
            }
        }
    }

    fn end_piece(&mut self, piece: Piece, status: Status) {
        let Some(in_flight) = self.requests.get_mut(piece.index).and_then(Option::as_mut) else {
            return;
        };
        if !status.is_success() && in_flight.status.is_success() {
            in_flight.status = status;
        }
        in_flight.pieces_left -= 1;
        if in_flight.pieces_left == 0
            && let Some(in_flight) = self.requests[piece.index].take()
        {
            self.free.push(piece.index);
            self.finish(in_flight);
        }
    }

    fn finish(&mut self, in_flight: InFlight) {
        let InFlight { request, bytes, mut status, cancelled, bounce, .. } = in_flight;
        let moved = if status.is_success() { bytes } else { 0 };
        if let (Op::Read, Some(bounce)) = (request.op, &bounce) {
            let from = bounce.mapping.region();
            bounce.memory.copy_from(request.memory_offset, from, 0, moved as usize);
        }
        if let Some(Bounce { mapping, .. }) = bounce
            && mapping.region().len_bytes() <= BOUNCE_KEPT_BYTES
        {
            self.bounces.push(mapping);
        }
        if cancelled && status.is(Status::ABORTED_BY_HOST) {
            status = status::ABORT_REQUESTED;
        }
        match request.op {
            Op::Read => self.counters.bytes_read += u64::from(moved),
            Op::Write => self.counters.bytes_written += u64::from(moved),
            Op::Flush | Op::WriteZeroes => {}
        }
        self.ready.push(Completion { token: request.token, status, bytes: moved, errno: 0 });
    }

    /// Moves everything on; what has ended is in `ready`.
    fn step(&mut self) {
        let now_ns = (self.clock)();
        self.send_waiting(now_ns);
        let Some(io) = &mut self.io else { return };
        // An impossible answer is counted by the driver, which recovers from it by itself.
        let _reported = io.poll(now_ns, &mut self.ended);
        if self.ended.is_empty() {
            return;
        }
        let mut ended = std::mem::take(&mut self.ended);
        for one in ended.drain(..) {
            if let Some(piece) = Piece::of_token(one.token) {
                self.end_piece(piece, one.status);
            }
        }
        self.ended = ended;
    }

    fn cancel_request(&mut self, index: usize) {
        let Some(in_flight) = &mut self.requests[index] else { return };
        in_flight.cancelled = true;
        let pieces = in_flight.pieces;
        let (mine, others) = self.unsent.drain(..).partition(|piece| piece.index == index);
        self.unsent = others;
        let mine: VecDeque<Piece> = mine;
        for number in 0..pieces {
            let piece = Piece { index, number };
            if let Some(io) = &mut self.io {
                io.cancel(piece.token());
            }
        }
        for piece in mine {
            self.end_piece(piece, status::ABORT_REQUESTED);
        }
    }

    /// The drive does not let go within all bounds: the driver keeps what it may still reach.
    fn abandon(&mut self) {
        self.io = None;
        self.unsent.clear();
        for index in 0..self.depth {
            if let Some(mut in_flight) = self.requests[index].take() {
                in_flight.status = Status::HOST_PATHING_ERROR;
                self.free.push(index);
                self.finish(in_flight);
            }
        }
    }
}

impl StorageQueue for NvmeQueue {
    fn try_submit(&mut self, request: Lent<'_>) -> Result<(), Rejected> {
        let Some(&index) = self.free.last() else { return Err(Rejected::QueueFull) };
        let bytes = match admit(&self.geometry, &request) {
            Ok(bytes) => bytes,
            Err(status) => return Err(Rejected::Invalid(status)),
        };
        if request.op == Op::WriteZeroes && !self.write_zeroes {
            return Err(Rejected::Invalid(Status::INVALID_OPCODE));
        }
        let pieces = match request.op {
            Op::Flush => 1,
            op => bytes.div_ceil(self.piece_bytes_max(op)),
        };
        if pieces == 0 {
            let (token, status) = (request.token, Status::SUCCESS);
            self.ready.push(Completion { token, status, bytes: 0, errno: 0 });
            return Ok(());
        }
        let (mut buffer, mut bounce) = (None, None);
        if matches!(request.op, Op::Read | Op::Write) {
            let Some(prepared) = self.prepare_memory(&request, bytes) else {
                return Err(Rejected::Invalid(status::INTERNAL_ERROR));
            };
            (buffer, bounce) = (Some(prepared.0), prepared.1);
        }
        self.free.pop();
        let (pieces_left, status, cancelled) = (pieces, Status::SUCCESS, false);
        self.requests[index] = Some(InFlight {
            request: request.with_memory(()),
            bytes,
            pieces,
            pieces_left,
            status,
            cancelled,
            buffer,
            bounce,
        });
        self.unsent.extend((0..pieces).map(|number| Piece { index, number }));
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.step();
        completions.append(&mut self.ready);
    }

    fn wait_for_completion(&mut self, limit: Duration) {
        let until = Instant::now() + limit;
        let mut turns = 0u32;
        while self.ready.is_empty() && Instant::now() < until {
            self.step();
            turns += 1;
            if turns > 64 {
                std::thread::yield_now();
            }
            if turns > 4096 {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }

    fn cancel(&mut self, token: u64) {
        let wanted = |one: &Option<InFlight>| {
            one.as_ref().is_some_and(|in_flight| in_flight.request.token == token)
        };
        if let Some(index) = self.requests.iter().position(wanted) {
            self.cancel_request(index);
        }
    }

    fn quiesce(&mut self, completions: &mut Vec<Completion>) {
        for index in 0..self.depth {
            self.cancel_request(index);
        }
        let until = Instant::now() + QUIESCE_LIMIT;
        while self.free.len() < self.depth {
            if Instant::now() >= until {
                self.abandon();
            }
            self.step();
            std::thread::yield_now();
        }
        completions.append(&mut self.ready);
    }

    fn reach(&mut self, window: &Region) -> bool {
        let mapping = self.device.map(window);
        let reached = mapping.is_ok();
        self.reached.extend(mapping);
        reached
    }

    fn forget(&mut self, window: &Region) {
        let at = self.reached.iter().position(|mapping| mapping.region().is_same(window));
        if let Some(at) = at {
            self.reached.swap_remove(at);
        }
    }

    fn in_flight(&self) -> u32 {
        let count = self.depth - self.free.len() + self.ready.len();
        u32::try_from(count).expect("little more than the depth")
    }

    fn counters(&self) -> Counters {
        let io = self.io.as_ref().map(IoQueue::counters).unwrap_or_default();
        Counters {
            ios_at_device: io.commands,
            doorbells: io.doorbells,
            completions_polled: io.completions_polled,
            ..self.counters
        }
    }
}
