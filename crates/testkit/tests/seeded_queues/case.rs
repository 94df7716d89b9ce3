//! What one seed tries: drawn so that each trouble meets each protocol with synchronous and
//! asynchronous lanes within any `CELLS` seeds in a row, and all else at random.

use std::time::Duration;

use abi::ring::{OP_FLUSH, OP_READ, OP_WRITE};
use mem::model::Rng;
use sidecore::gpu_queues::{CopollOptions, Placement, Polling, QueueOptions};

use sidecore_testkit::seeds::scattered;

use crate::plan::{Io, MANNER_ABANDON, MANNER_LOOK, MANNER_WAIT};

/// Lanes of one launch: two blocks of one warp.
pub const LANES: u32 = 64;
/// I/Os of a lane: 1,024 of all lanes together.
pub const IOS_A_LANE: u32 = 16;
pub const IOS: u32 = LANES * IOS_A_LANE;
pub const IO_BYTES: u32 = 512;
pub const LIMIT: Duration = Duration::from_millis(2);
pub const GRACE: Duration = Duration::from_micros(200);

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// Lanes leave with commands in flight.
    Deserters,
    Duplicate,
    Error,
    Flip,
    Late,
    Lost,
    Nothing,
    Reset,
    Stuck,
    Torn,
}

const TROUBLES: [Trouble; 10] = [
    Trouble::Nothing,
    Trouble::Error,
    Trouble::Late,
    Trouble::Lost,
    Trouble::Duplicate,
    Trouble::Flip,
    Trouble::Stuck,
    Trouble::Reset,
    Trouble::Torn,
    Trouble::Deserters,
];

/// Troubles, protocols, synchronous and asynchronous lanes.
pub const CELLS: u64 = TROUBLES.len() as u64 * 4;

/// All that a seed decides besides the interleaving.
#[derive(Clone, Debug)]
pub struct Case {
    pub seed: u64,
    pub trouble: Trouble,
    /// How many I/Os suffer, of those faults that are counted.
    pub count: u32,
    pub options: QueueOptions,
    pub pairs: u32,
    pub batch: u32,
    pub alone: bool,
    pub self_reset: bool,
    pub plan: Vec<Io>,
}

impl Case {
    pub fn draw(seed: u64) -> Self {
        let kinds = TROUBLES.len() as u64;
        let trouble = TROUBLES[usize::try_from(seed % kinds).expect("few kinds")];
        let bam = (seed / kinds).is_multiple_of(2);
        let polling = if bam { Polling::Gpu } else { Polling::Cpu };
        Self::of(seed, trouble, polling, seed / kinds / 2 % 2 == 1)
    }

    /// Queues that change hands all the time, under no trouble.
    pub fn draw_copoll(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0xc0_9011);
        let high = [2, 4, 8][rng.below(3)];
        let window = Duration::from_micros([3, 10, 30][rng.below(3)]);
        let dwell = Duration::from_micros([0, 20, 60][rng.below(3)]);
        let copoll = CopollOptions { high, low: high - 1, window, dwell };
        Self::of(seed, Trouble::Nothing, Polling::Adaptive(copoll), seed % 2 == 1)
    }

    pub fn of(seed: u64, trouble: Trouble, polling: Polling, asynchronous: bool) -> Self {
        let mut rng = Rng::new(seed ^ 0x5eed_9a12);
        let batch = if asynchronous { [2, 4][rng.below(2)] } else { 1 };
        let place = |host: bool| if host { Placement::Host } else { Placement::Device };
        let starts = [0, (1 << 16) - 128, (1 << 32) - 128, u64::MAX - 128];
        let bam = polling == Polling::Gpu;
        let options = QueueOptions {
            depth: [4, 8, 16, 64][rng.below(4)],
            // In flight, and as many again that have ended or were left.
            command_ids: 64 * batch.max(2) * 2,
            sq: place(rng.chance(32)),
            cq: place(if bam { rng.chance(64) } else { rng.chance(224) }),
            polling,
            // It would repair a flipped block. A look ahead: the draws that follow stay as they are.
            second_read: bam && trouble != Trouble::Flip && rng.clone().chance(96),
            limit: LIMIT,
            grace: GRACE,
            prp_lists: false,
            start: starts[rng.below(4)],
        };
        let mut case = Self {
            seed,
            trouble,
            count: 2 + u32::try_from(rng.below(8)).expect("small"),
            options,
            pairs: 1 + u32::try_from(rng.below(2)).expect("small"),
            batch,
            alone: rng.chance(64),
            self_reset: rng.chance(128),
            plan: Vec::new(),
        };
        case.plan = case.draw_plan(&mut rng);
        case
    }

    /// Each I/O has bytes of its own in the buffer, and in the namespace at a scattered place.
    fn draw_plan(&self, rng: &mut Rng) -> Vec<Io> {
        let deserters = self.trouble == Trouble::Deserters;
        (0..u64::from(IOS))
            .map(|index| Io {
                offset: scattered(index, IOS.into()) * u64::from(IO_BYTES),
                buffer_offset: index * u64::from(IO_BYTES),
                patience_ns: [0, 500, 5_000, 50_000][rng.below(4)],
                bytes: IO_BYTES,
                opcode: self.draw_opcode(rng),
                manner: match rng.below(24) {
                    0 if deserters => MANNER_ABANDON,
                    1..6 if deserters => MANNER_LOOK,
                    _ => MANNER_WAIT,
                },
                reserved: 0,
            })
            .collect()
    }

    fn draw_opcode(&self, rng: &mut Rng) -> u32 {
        let write = if self.trouble == Trouble::Torn { 128 } else { 48 };
        let opcode = match () {
            () if rng.chance(write) => OP_WRITE,
            () if rng.chance(12) => OP_FLUSH,
            () => OP_READ,
        };
        u32::from(opcode)
    }

    /// The script that the drive misbehaves by.
    pub fn script(&self) -> String {
        let n = self.count;
        let every = 13;
        match self.trouble {
            Trouble::Deserters => {
                format!("late:rate=0.02,ms=1,seed={0};lost:rate=0.004,seed={0}", self.seed)
            }
            Trouble::Duplicate => format!("duplicate:n={n},every={every}"),
            Trouble::Error => format!("error:n={n},every={every},status=2/81"),
            Trouble::Flip => format!("flip:n={n},every={every},op=read"),
            Trouble::Late => format!("late:n={n},every={every},ms=50"),
            Trouble::Lost => format!("lost:n={n},every={every}"),
            Trouble::Reset => "reset:n=2,every=300".into(),
            Trouble::Stuck => "stuck:n=2,every=300".into(),
            Trouble::Torn => format!("torn:n={n},every={every},status=2/80"),
            Trouble::Nothing => String::new(),
        }
    }
}
