//! What one seed tries: drawn so that every fault meets synchronous and asynchronous lanes within
//! any 2 x `TROUBLES` seeds in a row, and all else at random.

use std::time::Duration;

use abi::ring::{OP_FLUSH, OP_READ, OP_WRITE};
use mem::model::Rng;
use sidecore::{Moment, ReadRoute, RingConfig, WriteRoute};

use sidecore_testkit::seeds::scattered;

use crate::plan::{Io, MANNER_ABANDON, MANNER_CANCEL, MANNER_LEAVE, MANNER_WAIT};

/// Lanes of one launch: two blocks of one warp.
pub const LANES: u32 = 64;
/// I/Os of a lane: 1,024 of all lanes together.
pub const IOS_A_LANE: u32 = 16;
pub const IOS: u32 = LANES * IOS_A_LANE;
pub const IO_BYTES: u32 = 64;
/// A request's own limit, and the ring's.
pub const LIMIT: Duration = Duration::from_millis(2);
pub const GRACE: Duration = Duration::from_micros(300);
/// When a side core counts as stalled.
pub const STALL: Duration = Duration::from_micros(300);

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// The host closes the ring under the lanes, and opens it again afterwards.
    Closed,
    /// Lanes leave early, give up and cancel, while storage is slow.
    Deserters,
    /// The host drains the ring under the lanes, and opens it again afterwards.
    Drained,
    Duplicate,
    Error,
    Flip,
    Late,
    Lost,
    Nothing,
    /// The side core panics at a moment.
    Panic(Moment),
    Reset,
    /// The side core makes a step only now and then.
    Slow,
    /// The side core stands still between two steps, and comes back later.
    Stall,
    Stuck,
    Torn,
}

const TROUBLES: [Trouble; 16] = [
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
    Trouble::Slow,
    Trouble::Stall,
    Trouble::Panic(Moment::BeforeFetch),
    Trouble::Panic(Moment::BeforePoll),
    Trouble::Panic(Moment::BeforeWords),
    Trouble::Panic(Moment::AfterWords),
];

/// All that a seed decides besides the interleaving.
#[derive(Clone, Debug)]
pub struct Case {
    pub seed: u64,
    pub trouble: Trouble,
    /// How many I/Os suffer, of those faults that are counted.
    pub count: u32,
    pub config: RingConfig,
    pub batch: u32,
    pub alone: bool,
    pub plan: Vec<Io>,
    /// Whether reads may be served out of the storage's memory: lanes that pull load it themselves.
    pub lends: bool,
    /// For side cores that panic or stall: after so many of their chances.
    pub after: u32,
}

impl Case {
    pub fn draw(seed: u64) -> Self {
        let kinds = TROUBLES.len() as u64;
        Self::with(seed, TROUBLES[usize::try_from(seed % kinds).expect("few kinds")])
    }

    /// As `draw`, but with a trouble of the caller's choice.
    pub fn with(seed: u64, trouble: Trouble) -> Self {
        let mut rng = Rng::new(seed ^ 0x5eed_ca5e);
        let kinds = TROUBLES.len() as u64;
        let asynchronous = seed / kinds % 2 == 1;
        let batch = if asynchronous { [2, 4][rng.below(2)] } else { 1 };
        let read_routes =
            [ReadRoute::Window, ReadRoute::Pull, ReadRoute::Bounce, ReadRoute::Direct];
        let read_route = read_routes[rng.below(4)];
        let write_route = [WriteRoute::Push, WriteRoute::Bounce][rng.below(2)];
        let starts = [0, (1 << 16) - 20, (1 << 32) - 20, 1 << 40];
        let turns = [0, 0xffff - 5, u32::MAX - 5, 0x7fff - 5];
        let config = RingConfig {
            depth: [2, 4, 8, 8, 64][rng.below(5)],
            records: LANES * batch,
            staging_stride: IO_BYTES,
            read_route,
            write_route,
            limit: LIMIT,
            grace: GRACE,
            storage_depth: match trouble {
                // As many may hang at once, and the others shall not wait behind them.
                Trouble::Late | Trouble::Lost => [32, 256][rng.below(2)],
                _ => [3, 16, 256][rng.below(3)],
            },
            start_ticket: starts[rng.below(4)],
            start_turn: turns[rng.below(4)],
        };
        let mut case = Self {
            seed,
            trouble,
            count: 4 + u32::try_from(rng.below(12)).expect("small"),
            config,
            batch,
            alone: rng.chance(64),
            plan: Vec::new(),
            // Behind a fault script nothing is lent.
            lends: (seed / 3).is_multiple_of(2),
            after: u32::try_from(rng.below(40)).expect("small"),
        };
        case.plan = case.draw_plan(&mut rng);
        case
    }

    /// Each I/O has bytes of its own in the buffer, and in the source at a scattered place.
    fn draw_plan(&self, rng: &mut Rng) -> Vec<Io> {
        let mut plan: Vec<Io> = (0..u64::from(IOS))
            .map(|index| Io {
                source_offset: scattered(index, IOS.into()) * u64::from(IO_BYTES),
                buffer_offset: index * u64::from(IO_BYTES),
                patience_ns: 0,
                bytes: IO_BYTES,
                opcode: self.draw_opcode(rng),
                manner: MANNER_WAIT,
                limit_ms: 0,
            })
            .collect();
        if self.trouble == Trouble::Deserters {
            self.draw_manners(rng, &mut plan);
        }
        plan
    }

    fn draw_opcode(&self, rng: &mut Rng) -> u32 {
        let write = if self.trouble == Trouble::Torn { 160 } else { 80 };
        let opcode = match () {
            () if rng.chance(write) => OP_WRITE,
            () if rng.chance(16) => OP_FLUSH,
            () => OP_READ,
        };
        u32::from(opcode)
    }

    fn draw_manners(&self, rng: &mut Rng, plan: &mut [Io]) {
        for io in plan {
            io.manner = match rng.below(32) {
                0 => MANNER_LEAVE,
                1 => MANNER_ABANDON,
                2..12 => MANNER_CANCEL,
                _ => MANNER_WAIT,
            };
            io.patience_ns = [0, 500, 5_000, 50_000, 1_000_000][rng.below(5)];
            io.limit_ms = u32::try_from(rng.below(2)).expect("small");
        }
    }

    /// Whether storage stores to the buffer itself.
    pub fn is_direct(&self) -> bool {
        self.config.read_route == ReadRoute::Direct
    }

    /// The script that storage misbehaves by.
    pub fn script(&self) -> String {
        let n = self.count;
        let every = 11;
        match self.trouble {
            Trouble::Deserters => {
                format!("late:rate=0.05,ms=1,seed={0};lost:rate=0.01,seed={0}", self.seed)
            }
            Trouble::Duplicate => format!("duplicate:n={n},every={every}"),
            Trouble::Error => format!("error:n={n},every={every},status=2/81"),
            Trouble::Flip => format!("flip:n={n},every={every},op=read"),
            Trouble::Late => format!("late:n={n},every={every},ms=50"),
            Trouble::Lost => format!("lost:n={n},every={every}"),
            Trouble::Reset => "reset:n=2,every=300".into(),
            Trouble::Stuck => "stuck:n=2,every=300".into(),
            Trouble::Torn => format!("torn:n={n},every={every},status=2/80"),
            _ => String::new(),
        }
    }
}
