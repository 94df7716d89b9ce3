//! The bench mode: what collectives return, who waits for whom, and what is said when it goes wrong.
// UNSAFETY: the kernels are C++ functions.
#![expect(unsafe_code, reason = "calls C++ kernels through their entry points")]

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mem::{MemoryKind, Region};
use sidecore_simt as simt;

use simt::bench::{Device, Launch, Options};
use simt::{Entry, LaunchError, Place, Shape};

mod kernels {
    use std::ffi::c_void;

    #[link(name = "sidecore_simt_test_kernels", kind = "static")]
    unsafe extern "C" {
        pub fn collectives(args: *const c_void);
        pub fn early_exit(args: *const c_void);
        pub fn reduce(args: *const c_void);
        pub fn blocked(args: *const c_void);
        pub fn convergence(args: *const c_void);
        pub fn pauses(args: *const c_void);
        pub fn mask_without_caller(args: *const c_void);
        pub fn mask_with_returned_lane(args: *const c_void);
        pub fn shuffle_outside(args: *const c_void);
        pub fn deadlock(args: *const c_void);
    }
}

type Kernel = unsafe extern "C" fn(*const std::ffi::c_void);

const LIMIT: Duration = Duration::from_secs(60);

struct Bed {
    memory: Region,
    device: Device,
}

impl Bed {
    /// Room for `words` results, and the gate behind them.
    fn new(words: usize, options: Options) -> Self {
        let memory = Region::map_anonymous(words * 8 + 8, MemoryKind::Host).unwrap();
        Self { memory, device: Device::new(options) }
    }

    fn gate(&self) -> usize {
        self.memory.len_bytes() - 8
    }

    fn start(&self, kernel: Kernel, shape: Shape, count: u64) -> Launch {
        let out = self.memory.address();
        let gate = out + self.gate() as u64;
        let arguments = [out, gate, count].map(u64::to_ne_bytes).concat();
        self.device.launch(Entry(kernel), shape, &arguments).unwrap()
    }

    fn run(&self, kernel: Kernel, shape: Shape, count: u64) -> Result<(), LaunchError> {
        self.start(kernel, shape, count).wait(LIMIT).expect("ends within the limit")
    }

    fn word(&self, index: usize) -> u64 {
        self.memory.u64_at(index * 8).load(Ordering::Acquire)
    }
}

fn shape(blocks: u32, threads_per_block: u32) -> Shape {
    Shape { blocks, threads_per_block }
}

#[test]
fn collectives_return_what_cuda_returns() {
    for threads in [1, 2] {
        let bed = Bed::new(512, Options { threads, ..Options::default() });
        bed.run(kernels::collectives, shape(4, 128), 0).unwrap();
        for thread in 0..512 {
            assert_eq!(bed.word(thread), 4, "thread {thread}");
        }
    }
}

#[test]
fn lanes_may_leave_before_the_others() {
    let bed = Bed::new(64, Options::default());
    bed.run(kernels::early_exit, shape(2, 32), 0).unwrap();
    for thread in 0..64 {
        assert_eq!(bed.word(thread), thread as u64 % 32 + 1, "thread {thread}");
    }
}

#[test]
fn a_block_reduces_through_shared_memory() {
    let bed = Bed::new(3 * 1000, Options { threads: 2, resident_lanes: 1000 });
    bed.run(kernels::reduce, shape(3, 1000), 0).unwrap();
    let n = 997u64;
    for block in 0..3 {
        let sum = n * (n + 1) / 2 + n * block as u64;
        assert_eq!(bed.word(block * 1000), sum);
        assert_eq!(bed.word(block * 1000 + 996), sum);
    }
}

#[test]
fn thousands_of_lanes_block_at_once_on_two_threads() {
    let lanes = 64 * 128;
    let bed = Bed::new(2, Options { threads: 2, resident_lanes: lanes });
    let mut launch = bed.start(kernels::blocked, shape(64, 128), 0);
    let began = Instant::now();
    while bed.word(0) < lanes as u64 {
        assert!(began.elapsed() < LIMIT, "only {} lanes started", bed.word(0));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(bed.word(1), 0, "all lanes are blocked at once");
    assert!(launch.wait(Duration::ZERO).is_none());
    bed.memory.u64_at(bed.gate()).store(1, Ordering::Release);
    launch.wait(LIMIT).expect("ends").unwrap();
    assert_eq!(bed.word(1), lanes as u64);
    assert!(launch.cpu_seconds() > 0.0);
}

#[test]
fn blocks_beyond_the_resident_limit_wait_their_turn() {
    let bed = Bed::new(2, Options { threads: 2, resident_lanes: 256 });
    let mut launch = bed.start(kernels::blocked, shape(16, 64), 0);
    std::thread::sleep(Duration::from_millis(50));
    assert!(bed.word(0) <= 256, "{} lanes are resident", bed.word(0));
    bed.memory.u64_at(bed.gate()).store(1, Ordering::Release);
    launch.wait(LIMIT).expect("ends").unwrap();
    assert_eq!(bed.word(1), 16 * 64);
}

#[test]
fn lanes_that_are_here_come_in_company() {
    let bed = Bed::new(64, Options::default());
    bed.run(kernels::convergence, shape(1, 64), 0).unwrap();
    assert!((0..64).all(|thread| bed.word(thread) == 1));
}

#[test]
fn a_pause_is_no_shorter_than_asked() {
    let bed = Bed::new(32, Options::default());
    bed.run(kernels::pauses, shape(1, 32), 3_000_000).unwrap();
    for thread in 0..32 {
        assert!(bed.word(thread) >= 3_000_000, "{} ns", bed.word(thread));
    }
}

#[test]
fn broken_masks_are_named_with_lane_and_place() {
    let bed = Bed::new(32, Options::default());
    let cases: [(Kernel, &str); 3] = [
        (kernels::mask_without_caller, "lacks the caller"),
        (kernels::mask_with_returned_lane, "returned"),
        (kernels::shuffle_outside, "shuffle from lane 32"),
    ];
    for (kernel, expected) in cases {
        match bed.run(kernel, shape(1, 32), 0) {
            Err(LaunchError::Misuse { block: 0, warp: 0, file, line, why, .. }) => {
                assert!(why.contains(expected), "{why}");
                assert!(file.ends_with("lanes.cu") && line > 0, "{file}:{line}");
            }
            other => panic!("expected a misuse, got {other:?}"),
        }
    }
}

#[test]
fn a_deadlock_is_reported_with_lanes_and_places() {
    let bed = Bed::new(32, Options::default());
    let Err(LaunchError::Deadlock(report)) = bed.run(kernels::deadlock, shape(1, 32), 0) else {
        panic!("expected a deadlock");
    };
    assert_eq!(report.waiting.len(), 2, "{report}");
    assert_eq!(report.waiting[0].lanes, 0xffff);
    let Place::Collective { function: "ballot", mask: u32::MAX, file, .. } =
        &report.waiting[0].place
    else {
        panic!("{report}");
    };
    assert!(file.ends_with("lanes.cu"));
    assert!(report.to_string().contains("lanes 16-31: sync_threads at"), "{report}");
}

#[test]
fn an_abort_ends_a_launch_and_says_where_it_was() {
    let bed = Bed::new(2, Options { threads: 2, ..Options::default() });
    let mut launch = bed.start(kernels::blocked, shape(8, 64), 0);
    assert!(launch.wait(Duration::from_millis(20)).is_none());
    let began = Instant::now();
    launch.abort();
    let Some(Err(LaunchError::Aborted(report))) = launch.wait(LIMIT) else {
        panic!("expected an abort");
    };
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(report.waiting.len(), 16, "{report}");
    assert!(report.to_string().contains("pause for the gate"), "{report}");
}

#[test]
fn impossible_shapes_are_refused() {
    let bed = Bed::new(2, Options::default());
    for bad in [shape(0, 32), shape(1, 0), shape(1, 1025)] {
        let launch = bed.device.launch(Entry(kernels::blocked), bad, &[]);
        assert!(matches!(launch, Err(LaunchError::Shape { .. })));
    }
}
