//! Kernels that sidecore brings along: the benchmark's, and those that probe a ring in the tests.
//!
//! Sources lie beside `src`, in a folder `kernels`; `build.rs` compiles them for the simulated GPU.
//! What each takes and returns is in `abi::bench`: arguments by value, results in device memory.
// UNSAFETY: kernels are C++ functions; naming them is a foreign declaration.
#![expect(unsafe_code, reason = "foreign declarations of the kernels' entry points")]

use gpu::{Header, Kernel, Program};
use simt::Entry;

/// The device headers, as device code includes them (`sidecore/ring.h` and what it needs).
pub const HEADERS: &[Header] = include!(concat!(env!("OUT_DIR"), "/headers.rs"));

macro_rules! program {
    ($file:literal) => {
        &Program {
            name: $file,
            text: include_str!(concat!("../kernels/", $file)),
            headers: HEADERS,
        }
    };
}

const BENCH: &Program = program!("bench_ring.cu");
const BENCH_DATA: &Program = program!("bench_data.cu");
const CLOCKS: &Program = program!("clock.cu");
const BENCH_BY_AGENT: &Program = program!("bench_ring_agent.cu");
const QUEUE_BAM: &Program = program!("bench_bam.cu");
const QUEUE_COPILOT: &Program = program!("bench_copilot.cu");
const QUEUE_BY_AGENT: &Program = program!("bench_copilot_agent.cu");
const QUEUE_PROBE: &Program = program!("queue_probe.cu");
const COMPUTING: &Program = program!("fma.cu");
const COPIES: &Program = program!("copy.cu");
const LITMUS: &Program = program!("litmus.cu");
const PROBE: &Program = program!("probe.cu");
const QUEUE_TRIALS: &Program = program!("queue_trial.cu");
const TRIALS: &Program = program!("trial.cu");

macro_rules! kernels {
    ($($(#[$doc:meta])* $constant:ident = $function:ident in $program:ident;)*) => {
        mod entry {
            unsafe extern "C" {
                $(pub fn $function(arguments: *const std::ffi::c_void);)*
            }
        }
        $($(#[$doc])*
        pub const $constant: Kernel =
            Kernel {
                name: stringify!($function),
                simulated: Entry(entry::$function),
                source: Some($program),
            };)*
    };
}

kernels! {
    /// Stores behind the end of its memory, for memory checkers to find; takes the arguments of litmus
    /// kernels.
    BAD_STORE = sidecore_bad_store in LITMUS;
    /// Reads in batches over a `bam` queue pair; takes `abi::bench::QueueProbeArgs`, as all `BAM_`
    /// and `COPILOT_` kernels.
    BAM_BATCH = sidecore_bam_batch in QUEUE_PROBE;
    /// Gives up waits, and waits again.
    BAM_GIVE_UP = sidecore_bam_give_up in QUEUE_PROBE;
    /// Reads and checks; lanes leave early, commands in flight behind them.
    BAM_READ = sidecore_bam_read in QUEUE_PROBE;
    /// The first block reads, its lanes waiting for their ends one after the other; the other blocks ask
    /// whoever drains for more. Blocks of one warp at most; results are zero before.
    BAM_TURNS = sidecore_bam_turns in QUEUE_PROBE;
    /// Writes, flushes, reads back and checks.
    BAM_WRITE = sidecore_bam_write in QUEUE_PROBE;
    /// Does planned I/Os over `bam` queue pairs; takes `abi::bench::QueueBenchArgs`.
    BENCH_BAM = sidecore_bench_bam in QUEUE_BAM;
    /// Does planned I/Os over `copilot` queue pairs; takes `abi::bench::QueueBenchArgs`.
    BENCH_COPILOT = sidecore_bench_copilot in QUEUE_COPILOT;
    /// Compares every byte that planned reads brought with the data's pattern, and notes in its result
    /// where all are right; takes five words: plan, results, buffer, I/Os, bytes an I/O.
    BENCH_CHECK = sidecore_bench_check in BENCH_DATA;
    /// Puts the pattern where planned writes take it, and poison where reads bring it; takes the same.
    BENCH_PREPARE = sidecore_bench_prepare in BENCH_DATA;
    /// As `BENCH_COPILOT`, with the last warp of each block waiting for the others; batch 1 only.
    BENCH_COPILOT_AGENT = sidecore_bench_copilot_agent in QUEUE_BY_AGENT;
    /// Does planned I/Os over rings; takes `abi::bench::BenchArgs`.
    BENCH_RING = sidecore_bench_ring in BENCH;
    /// As `BENCH_RING`, with the last warp of each block waiting for the others; batch 1 only.
    BENCH_RING_AGENT = sidecore_bench_ring_agent in BENCH_BY_AGENT;
    /// As `BAM_BATCH`, over a `copilot` queue pair.
    COPILOT_BATCH = sidecore_copilot_batch in QUEUE_PROBE;
    /// As `BAM_GIVE_UP`.
    COPILOT_GIVE_UP = sidecore_copilot_give_up in QUEUE_PROBE;
    /// As `BAM_READ`.
    COPILOT_READ = sidecore_copilot_read in QUEUE_PROBE;
    /// As `BAM_WRITE`.
    COPILOT_WRITE = sidecore_copilot_write in QUEUE_PROBE;
    /// Finds how finely the GPU's clock ticks; takes two words: where the smallest step goes, in ns,
    /// and how many readings.
    CLOCK = sidecore_clock in CLOCKS;
    /// Copies memory; takes three words: to, from, bytes (a multiple of 16).
    COPY = sidecore_copy in COPIES;
    /// Only computes, in two independent chains a thread; takes `abi::bench::FmaArgs`.
    FMA_2 = sidecore_fma_2 in COMPUTING;
    /// The same in four chains.
    FMA_4 = sidecore_fma_4 in COMPUTING;
    /// Changes words beside those that the CPU changes; its arguments are those of the self-test.
    LITMUS_BESIDE = sidecore_litmus_beside in LITMUS;
    /// Looks at what the CPU stores in order.
    LITMUS_RECEIVE = sidecore_litmus_receive in LITMUS;
    /// Stores in order what the CPU looks at.
    LITMUS_SEND = sidecore_litmus_send in LITMUS;
    /// Publishes one read a lane and leaves; takes `abi::bench::ProbeArgs`, as all `PROBE_`.
    PROBE_ABANDON = sidecore_probe_abandon in PROBE;
    /// Reads and looks at nothing before the end, each lane by itself; a lane uses `rounds * bytes`
    /// of the buffer.
    PROBE_AGAIN = sidecore_probe_again in PROBE;
    /// Reads and checks, each lane by itself.
    PROBE_ALONE = sidecore_probe_alone in PROBE;
    /// Gives up waits, finds records busy, cancels.
    PROBE_GIVE_UP = sidecore_probe_give_up in PROBE;
    /// Reads and checks; lanes leave early.
    PROBE_READ = sidecore_probe_read in PROBE;
    /// Writes, flushes, reads back and checks.
    PROBE_WRITE = sidecore_probe_write in PROBE;
    /// Does planned I/Os over queue pairs and judges them, by `bam`; its arguments are those of the
    /// seeded tests of queue pairs.
    QUEUE_TRIAL_BAM = sidecore_queue_trial_bam in QUEUE_TRIALS;
    /// The same by `copilot`.
    QUEUE_TRIAL_COPILOT = sidecore_queue_trial_copilot in QUEUE_TRIALS;
    /// Does planned I/Os in planned manners and judges them; its arguments are those of the engine's
    /// seeded tests.
    TRIAL = sidecore_trial in TRIALS;
}
