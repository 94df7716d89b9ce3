//! Kernels that do not end, as seen from outside.

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use abi::queue::{QUEUE_CLOSED, QueueState};
use gpu::{Gpu, GpuError, Launch, SimulatedGpu, SimulatedOptions};
use selftest::queue_bed::{Config, QueueBed};
use selftest::{Case, End, Standing, finish, run};

fn simulated() -> Arc<dyn Gpu> {
    Arc::new(SimulatedGpu::new(SimulatedOptions { threads: 1, ..SimulatedOptions::default() }))
}

/// A kernel that ends once it is told to, if at all.
struct Kernel<'a>(&'a AtomicBool);

impl Launch for Kernel<'_> {
    fn wait(&mut self, _limit: Duration) -> Option<Result<(), GpuError>> {
        self.0.load(Ordering::Relaxed).then_some(Ok(()))
    }
    fn abort(&mut self) {}
    fn simulation_cpu_seconds(&self) -> f64 {
        0.0
    }
}

#[test]
fn a_kernel_that_never_ends_is_told_of_and_nothing_is_given_back() {
    let case = Case {
        name: "never",
        run: |gpu| {
            struct Kept;
            impl Drop for Kept {
                fn drop(&mut self) {
                    panic!("given back under a kernel");
                }
            }
            let _kept = Kept;
            let never = AtomicBool::new(false);
            finish(gpu, &mut Kernel(&never), "never", || "its place".to_owned(), || {});
        },
    };
    let End::Stuck(why) = run(&case, &simulated()) else { panic!("it ended") };
    for part in ["never hangs", "its place", "did not end by a close either"] {
        assert!(why.contains(part), "{part}: {why}");
    }
}

#[test]
fn a_kernel_that_ends_by_a_close_fails_with_what_stood_where() {
    let case = Case {
        name: "closed",
        run: |gpu| {
            let bed = QueueBed::on(gpu, Config::bam(2));
            let (view, closed) = (bed.view(), AtomicBool::new(false));
            let standing = Standing { view: &view, device: &bed.device, cq: (&bed.cq, 0) };
            let close = || {
                standing.close();
                let state = bed.state(offset_of!(QueueState, state));
                assert_eq!(state, u64::from(QUEUE_CLOSED) | 1 << 32);
                closed.store(true, Ordering::Relaxed);
            };
            finish(gpu, &mut Kernel(&closed), "closed", || standing.tell(), close);
        },
    };
    let End::Failed(why) = run(&case, &simulated()) else { panic!("no failure") };
    for part in ["cq_head", "head_lock 0x0", "CQ 0x8: new false, taken false", "0 ids taken"] {
        assert!(why.contains(part), "{part}: {why}");
    }
    assert!(why.ends_with("it ended by a close"), "{why}");
}

#[test]
fn a_case_passes_or_fails_with_its_words() {
    let gpu = simulated();
    assert_eq!(run(&Case { name: "good", run: |_| () }, &gpu), End::Passed);
    let bad = Case { name: "bad", run: |_| panic!("its words") };
    assert_eq!(run(&bad, &gpu), End::Failed("its words".to_owned()));
}
