//! One row: rounds until the time is over, repeats, and the compare of every byte.

use std::sync::Arc;

use abi::bench::{BENCH_ALL_RIGHT, BENCH_EDGES_RIGHT, BenchIo};
use abi::ring::{OP_READ, OP_WRITE};
use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use storage::pattern::mix;

use crate::args::{Access, OpName, Verify};
use crate::bench::cpu;
use crate::bench::data::Data;
use crate::bench::gpu_load::{GpuLoad, LoadMeter};
use crate::bench::order::Order;
use crate::bench::round::{Bill, Description, Round, RoundOutcome, Runner};
use crate::bench::settings::{Point, Settings};
use crate::bench::summary::{Repeat, Summary};
use crate::interrupt;
use crate::printer::Progress;
use crate::report::Row;

/// Timed seconds that a round should take.
const ROUND_S: f64 = 0.08;
/// The same where kernels prepare and compare it.
const DEVICE_ROUND_S: f64 = 0.25;
/// I/Os of a round that compares nothing, at most.
const UNCHECKED_MAX: usize = 1 << 20;
/// A row with faults has at least so many I/Os, however short.
const FAULTY_IOS_MIN: u64 = 2048;
/// Bytes compared at once.
const COMPARE_BYTES: usize = 1 << 20;

/// How far a row has come: what is left of it while other rows have their turn.
pub struct Course {
    order: Order,
    seen: Vec<bool>,
    distinct: u64,
    planned: u64,
    rate: f64,
    summary: Summary,
    bill: Bill,
    cached_before: f64,
    description: Description,
    load: GpuLoad,
}

/// A row under way.
pub struct Measurement<'a> {
    settings: &'a Settings,
    point: &'a Point,
    data: &'a mut Data,
    course: Course,
}

impl<'a> Measurement<'a> {
    /// Prepares a row.
    ///
    /// # Errors
    /// The data is no whole number of I/Os.
    pub fn new(settings: &'a Settings, point: &'a Point, data: &'a mut Data) -> Result<Self> {
        let io = u64::from(point.io_bytes);
        ensure!(
            data.bytes().is_multiple_of(io),
            "reading {}: its {} bytes are not a multiple of --io-size {io}; use an I/O size that \
             divides it, or `sidecore load`, which takes any length",
            data.path().display(),
            data.bytes()
        );
        let blocks = data.bytes() / io;
        let random = settings.args.access == Access::Random;
        let course = Course {
            order: Order::new(blocks, random, settings.args.seed),
            seen: vec![false; usize::try_from(blocks).context("too many blocks")?],
            distinct: 0,
            planned: 0,
            rate: 0.0,
            summary: Summary::default(),
            bill: Bill::default(),
            cached_before: data.cached_share(),
            description: Description::default(),
            load: GpuLoad::default(),
        };
        Ok(Self { settings, point, data, course })
    }

    /// Goes on with a row, on the data that it has begun with.
    pub fn resume(
        settings: &'a Settings,
        point: &'a Point,
        data: &'a mut Data,
        course: Course,
    ) -> Self {
        Self { settings, point, data, course }
    }

    /// Leaves the row as it stands, for others to have their turn.
    pub fn pause(self) -> Course {
        self.course
    }

    /// The data.
    pub fn data(&self) -> &Data {
        self.data
    }

    /// Runs all repeats; ends early when asked to.
    ///
    /// # Errors
    /// The path broke, or a given file changed.
    pub fn run(
        mut self,
        runner: &mut dyn Runner,
        progress: &mut Progress,
        done: u64,
    ) -> Result<Row> {
        for repeat in 0..self.settings.args.repeats {
            self.turn(runner, progress, done + u64::from(repeat))?;
            if interrupt::asked() {
                break;
            }
        }
        Ok(self.finish())
    }

    /// Runs one repeat, on a runner that need not be the one of the repeat before.
    ///
    /// # Errors
    /// The path broke, or a given file changed.
    pub fn turn(
        &mut self,
        runner: &mut dyn Runner,
        progress: &mut Progress,
        done: u64,
    ) -> Result<()> {
        let io = crate::units::bytes(u64::from(self.point.io_bytes));
        progress.show(done, &format!("{} {io}", self.point.path.name()));
        let before = runner.bill();
        let meter = LoadMeter::start(runner.describe().pci.as_deref());
        self.repeat(runner, &meter)?;
        self.course.bill.add_between(&before, &runner.bill());
        self.course.description = runner.describe();
        self.course.load = meter.end();
        Ok(())
    }

    /// The row of all repeats so far.
    pub fn finish(self) -> Row {
        let Course { summary, bill, description, load, .. } = &self.course;
        let mut row = summary.row(self.settings, self.point, description);
        row.charge(bill);
        row.note_load(load.clone());
        row.data_bytes = self.data.bytes();
        let possible = self.course.planned.min(self.course.seen.len() as u64).max(1);
        row.distinct_fraction = self.course.distinct as f64 / possible as f64;
        row.cached_before = self.course.cached_before;
        row.cached_after = self.data.cached_share();
        row
    }

    fn repeat(&mut self, runner: &mut dyn Runner, meter: &LoadMeter) -> Result<()> {
        let mut repeat = Repeat::new();
        let before = runner.bill();
        let limit = self.settings.args.ios.unwrap_or(u64::MAX);
        while (repeat.seconds < self.settings.duration.as_secs_f64()
            || (self.settings.args.faults.is_some() && self.course.planned < FAULTY_IOS_MIN))
            && repeat.ios < limit
            && !interrupt::asked()
        {
            let left_s = self.settings.duration.as_secs_f64() - repeat.seconds;
            let round = Arc::new(self.plan(runner, limit - repeat.ios, left_s)?);
            self.prepare(runner, &round)?;
            meter.timed(true);
            let outcome = runner.run(&round);
            meter.timed(false);
            let outcome = outcome?;
            self.course.rate = round.plan.len() as f64 / outcome.seconds.max(1e-9);
            repeat.add(&outcome);
            self.compare(runner, &round, &outcome)?;
            self.data.check_unchanged()?;
        }
        let after = runner.bill();
        repeat.cpu_path_s = after.cpu_path_s - before.cpu_path_s;
        repeat.cpu_all_s = after.cpu_timed_s() - before.cpu_timed_s();
        self.course.summary.add(&repeat);
        Ok(())
    }

    /// Draws the I/Os of a round: as many as take about [`ROUND_S`].
    fn plan(&mut self, runner: &mut dyn Runner, ios_left: u64, left_s: f64) -> Result<Round> {
        let io_bytes = self.point.io_bytes;
        let room = self.settings.destination_bytes(self.point) / io_bytes as usize;
        let recycled = room <= runner.in_flight_max() && self.settings.args.verify == Verify::None;
        let most = if recycled { UNCHECKED_MAX } else { room };
        let wanted = if self.course.rate > 0.0 {
            // Nothing to compare: one round may take all the time that is left.
            let round_s = match self.settings.args.verify {
                Verify::Device => DEVICE_ROUND_S,
                _ => ROUND_S,
            };
            let seconds = if recycled { left_s.max(round_s) } else { round_s };
            usize::try_from(crate::units::whole(self.course.rate * seconds)).unwrap_or(most)
        } else if self.settings.args.faults.is_some() {
            // Faults that are counted fall on the first I/Os: they shall all be there.
            most
        } else {
            runner.in_flight_max() * 4
        };
        let mut count = wanted.max(runner.in_flight_max()).clamp(1, most) as u64;
        count = count.min(ios_left);
        if self.settings.writes() {
            // No block twice in a round: what each byte must be afterwards stays certain.
            if self.course.order.left_in_pass() == 0 {
                count = count.min(self.course.seen.len() as u64);
            } else {
                count = count.min(self.course.order.left_in_pass());
            }
        }
        let mut plan = Vec::with_capacity(usize::try_from(count).context("a huge round")?);
        let mut edges = Vec::new();
        for _ in 0..count {
            let io = self.draw();
            if matches!(self.settings.args.verify, Verify::Edges | Verify::Full) {
                edges.push(self.data.expected_edges(io.source_offset, io_bytes)?);
            }
            plan.push(io);
        }
        let slots = if recycled { room } else { plan.len() };
        let on_device = self.settings.args.verify == Verify::Device;
        Ok(Round { plan, edges, on_device, asleep: false, io_bytes, slots, base: 0 })
    }

    fn draw(&mut self) -> BenchIo {
        let block = self.course.order.next_block();
        let at = usize::try_from(block).expect("blocks were counted in `new`");
        self.course.distinct += u64::from(!self.course.seen[at]);
        self.course.seen[at] = true;
        self.course.planned += 1;
        let reads = match self.settings.args.op {
            OpName::Read => true,
            OpName::Write => false,
            OpName::Mix => {
                let draw = mix(self.settings.args.seed ^ mix(self.course.planned)) % 100;
                draw < u64::from(self.settings.args.read_percent)
            }
        };
        let opcode = u32::from(if reads { OP_READ } else { OP_WRITE });
        let source_offset = block * u64::from(self.point.io_bytes);
        let mut generation = 0;
        if self.settings.args.verify == Verify::Device {
            generation = self.data.generation(source_offset) + u32::from(!reads);
        }
        BenchIo { source_offset, opcode, generation }
    }

    /// Poisons what reads will fill, and puts there what writes will take.
    fn prepare(&mut self, runner: &mut dyn Runner, round: &Round) -> Result<()> {
        if round.on_device {
            return Ok(());
        }
        let io = round.io_bytes as usize;
        if self.settings.args.op != OpName::Write && self.settings.args.verify != Verify::None {
            runner.destination().poison(round.slots * io)?;
        }
        if !self.settings.writes() {
            return Ok(());
        }
        let mut payload = vec![0; io];
        for (index, planned) in round.plan.iter().enumerate() {
            if planned.opcode == u32::from(OP_WRITE) {
                self.data.next_generation(planned.source_offset, &mut payload);
                runner.destination().write(round.place(index), &payload)?;
            }
        }
        Ok(())
    }

    /// Compares every byte of every I/O where it went.
    fn compare(
        &mut self,
        runner: &mut dyn Runner,
        round: &Round,
        outcome: &RoundOutcome,
    ) -> Result<()> {
        if round.on_device {
            return self.count_right(round, outcome);
        }
        let io = round.io_bytes as usize;
        let group = (COMPARE_BYTES / io).max(1);
        let mut found = vec![0; group * io];
        let mut expected = vec![0; io];
        let full = self.settings.args.verify == Verify::Full;
        for first in (0..round.plan.len()).step_by(group) {
            let last = (first + group).min(round.plan.len());
            if full && self.settings.args.op != OpName::Write {
                runner.destination().read(round.place(first), &mut found[..(last - first) * io])?;
            }
            for index in first..last {
                let planned = &round.plan[index];
                let result = &outcome.results[index];
                let place = (index - first) * io;
                if planned.opcode == u32::from(OP_WRITE) {
                    self.compare_write(planned.source_offset, result.status, &mut expected)?;
                    continue;
                }
                if result.status != abi::status::SUCCESS {
                    continue;
                }
                let edges = result.flags & BENCH_EDGES_RIGHT != 0;
                self.course.summary.edges_right += u64::from(edges);
                if full {
                    self.data.expected(planned.source_offset, &mut expected)?;
                    self.course.summary.verified +=
                        u64::from(found[place..place + io] == expected[..]);
                }
            }
        }
        Ok(())
    }

    /// Counts what kernels found right, and reads back what lanes wrote.
    fn count_right(&mut self, round: &Round, outcome: &RoundOutcome) -> Result<()> {
        let mut written = Vec::new();
        for (planned, result) in round.plan.iter().zip(&outcome.results) {
            let good = result.status == abi::status::SUCCESS;
            if planned.opcode != u32::from(OP_WRITE) {
                let right = good && result.flags & BENCH_ALL_RIGHT != 0;
                self.course.summary.edges_right += u64::from(right);
                self.course.summary.verified += u64::from(right);
            } else if good {
                self.data.note_written(planned.source_offset, u64::from(round.io_bytes));
                written.push(planned.source_offset);
            } else {
                self.data.repair(planned.source_offset, round.io_bytes)?;
            }
        }
        let right = self.data.count_right(&written, round.io_bytes)?;
        self.course.summary.edges_right += right;
        self.course.summary.verified += right;
        Ok(())
    }

    fn compare_write(&mut self, offset: u64, status: u16, expected: &mut [u8]) -> Result<()> {
        let bytes = self.point.io_bytes;
        if status != abi::status::SUCCESS {
            return self.data.repair(offset, bytes);
        }
        self.data.note_written(offset, u64::from(bytes));
        if self.settings.args.verify == Verify::None {
            return Ok(());
        }
        let found = self.data.read_back(offset, bytes)?;
        self.data.expected(offset, expected)?;
        let edges = found[..16] == expected[..16]
            && found[found.len() - 16..] == expected[expected.len() - 16..];
        self.course.summary.edges_right += u64::from(edges);
        if found == expected {
            self.course.summary.verified += u64::from(self.settings.args.verify == Verify::Full);
        } else {
            self.data.repair(offset, bytes)?;
        }
        Ok(())
    }
}

impl Row {
    /// Enters what was done, and the CPU seconds of it.
    fn charge(&mut self, bill: &Bill) {
        self.ios_at_device = bill.ios_at_device;
        self.syscalls = bill.syscalls;
        self.doorbells_gpu = bill.doorbells_gpu;
        self.doorbells_cpu = bill.doorbells_cpu;
        self.completions_polled_gpu = bill.completions_polled_gpu;
        self.completions_polled_cpu = bill.completions_polled_cpu;
        let request_bytes = bill.request_bytes;
        self.request_bytes_per_io = request_bytes as f64 / self.ios.max(1) as f64;
        self.bytes_host = bill.bytes_host;
        self.bytes_bounce = bill.bytes_bounce;
        self.bytes_direct = bill.bytes_direct;
        self.bytes_pull = bill.bytes_pull;
        self.bytes_push = bill.bytes_push;
        self.bytes_window = bill.bytes_window;
        self.cpu_path_s = bill.cpu_path_s;
        self.cpu_device_s = bill.cpu_device_s;
        self.cpu_gpu_s = bill.cpu_gpu_s;
        self.fence_ios = bill.fence_ios;
        self.commands_at_controller = bill.commands_at_controller;
        self.faults_injected = bill.faults_injected;
        self.polls = bill.polls;
        let fetched = self.commands_at_controller.max(1) as f64;
        self.fetch_ns_per_command = bill.fetch_ns as f64 / fetched;
        let runs = bill.fetch_runs;
        self.commands_per_fetch = self.commands_at_controller as f64 / runs.max(1) as f64;
        let in_flight_s = bill.in_flight_ns as f64 * 1e-9;
        self.in_flight_mean = in_flight_s / self.seconds.max(1e-9);
        let ns_per_io = 1e9 / self.ios.max(1) as f64;
        self.cpu_path_ns_per_io = self.cpu_path_s * ns_per_io;
        self.cpu_all_ns_per_io = bill.cpu_timed_s() * ns_per_io;
    }

    fn note_load(&mut self, load: GpuLoad) {
        self.gpu_busy_percent = load.busy_percent;
        self.pcie_to_gpu_bytes_per_s = load.to_gpu_bytes_per_s;
        self.pcie_from_gpu_bytes_per_s = load.from_gpu_bytes_per_s;
        self.nvml = load.how;
    }

    /// Splits the CPU seconds of the row: what no part explains is set-up.
    pub fn close_bill(&mut self, all_cpu_s: f64) {
        let known = self.cpu_path_s + self.cpu_device_s + self.cpu_gpu_s;
        self.cpu_setup_s = (all_cpu_s - known).max(0.0);
        self.cpu_s = known + self.cpu_setup_s;
    }
}

/// An empty histogram of latencies: 1 ns to 10 minutes, three digits.
pub fn latency_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("the bounds are in order")
}

/// CPU seconds of the process since `before`.
pub fn cpu_since(before: f64) -> f64 {
    cpu::process_seconds() - before
}
