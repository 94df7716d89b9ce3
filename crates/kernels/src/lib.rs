//! Kernels that sidecore brings along: the benchmark's, and those that probe a ring in the tests.
//!
//! Sources lie beside `src`, in a folder `kernels`; `build.rs` compiles them for the simulated GPU.
//! What each takes and returns is in `abi::bench`: arguments by value, results in device memory.
// UNSAFETY: kernels are C++ functions; naming them is a foreign declaration.
#![expect(unsafe_code, reason = "foreign declarations of the kernels' entry points")]

use gpu::Kernel;
use simt::Entry;

macro_rules! kernels {
    ($($(#[$doc:meta])* $constant:ident = $function:ident;)*) => {
        mod entry {
            unsafe extern "C" {
                $(pub fn $function(arguments: *const std::ffi::c_void);)*
            }
        }
        $($(#[$doc])*
        pub const $constant: Kernel =
            Kernel { name: stringify!($function), simulated: Entry(entry::$function) };)*
    };
}

kernels! {
    /// Reads in batches over a `bam` queue pair; takes `abi::bench::QueueProbeArgs`, as all `BAM_`
    /// and `COPILOT_` kernels.
    BAM_BATCH = sidecore_bam_batch;
    /// Gives up waits, and waits again.
    BAM_GIVE_UP = sidecore_bam_give_up;
    /// Reads and checks; lanes leave early, commands in flight behind them.
    BAM_READ = sidecore_bam_read;
    /// Writes, flushes, reads back and checks.
    BAM_WRITE = sidecore_bam_write;
    /// Does planned I/Os over `bam` queue pairs; takes `abi::bench::QueueBenchArgs`.
    BENCH_BAM = sidecore_bench_bam;
    /// Does planned I/Os over `copilot` queue pairs; takes `abi::bench::QueueBenchArgs`.
    BENCH_COPILOT = sidecore_bench_copilot;
    /// Does planned I/Os over rings; takes `abi::bench::BenchArgs`.
    BENCH_RING = sidecore_bench_ring;
    /// As `BAM_BATCH`, over a `copilot` queue pair.
    COPILOT_BATCH = sidecore_copilot_batch;
    /// As `BAM_GIVE_UP`.
    COPILOT_GIVE_UP = sidecore_copilot_give_up;
    /// As `BAM_READ`.
    COPILOT_READ = sidecore_copilot_read;
    /// As `BAM_WRITE`.
    COPILOT_WRITE = sidecore_copilot_write;
    /// Publishes one read a lane and leaves; takes `abi::bench::ProbeArgs`, as all `PROBE_`.
    PROBE_ABANDON = sidecore_probe_abandon;
    /// Reads and checks, each lane by itself.
    PROBE_ALONE = sidecore_probe_alone;
    /// Gives up waits, finds records busy, cancels.
    PROBE_GIVE_UP = sidecore_probe_give_up;
    /// Reads and checks; lanes leave early.
    PROBE_READ = sidecore_probe_read;
    /// Writes, flushes, reads back and checks.
    PROBE_WRITE = sidecore_probe_write;
    /// Does planned I/Os over queue pairs and judges them, by `bam`; its arguments are those of the
    /// seeded tests of queue pairs.
    QUEUE_TRIAL_BAM = sidecore_queue_trial_bam;
    /// The same by `copilot`.
    QUEUE_TRIAL_COPILOT = sidecore_queue_trial_copilot;
    /// Does planned I/Os in planned manners and judges them; its arguments are those of the engine's
    /// seeded tests.
    TRIAL = sidecore_trial;
}
