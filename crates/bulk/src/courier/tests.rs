//! The courier over queues that say what they were asked for.

use std::sync::Arc;

use gpu::GpuError;
use mem::MemoryKind;

use super::*;

/// What the queues were asked for, and what they answer.
#[derive(Default)]
struct Engine {
    batches: Mutex<Vec<Vec<u64>>>,
    marks: AtomicU64,
    reached: AtomicU64,
    refuses_marks: AtomicBool,
    is_broken: AtomicBool,
}

struct Queue(Arc<Engine>);

const BAD: u64 = 666;
const WORST: u64 = 667;

fn refused() -> GpuError {
    GpuError::Unavailable("refused".to_owned())
}

impl CopyQueue for Queue {
    fn start_to_device(&mut self, span: Span<'_>) -> Result<(), GpuError> {
        self.start_all_to_device(&[span])
    }

    fn start_all_to_device(&mut self, spans: &[Span<'_>]) -> Result<(), GpuError> {
        assert!(spans.iter().all(|span| span.device != WORST), "panics on purpose");
        if spans.iter().any(|span| span.device == BAD) {
            return Err(refused());
        }
        lock(&self.0.batches).push(spans.iter().map(|span| span.device).collect());
        Ok(())
    }

    fn start_to_host(&mut self, _: Span<'_>) -> Result<(), GpuError> {
        unreachable!("to the device only")
    }

    fn mark(&mut self) -> Result<u64, GpuError> {
        if self.0.refuses_marks.load(Ordering::Relaxed) {
            return Err(refused());
        }
        Ok(self.0.marks.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn is_done(&mut self, mark: u64) -> Result<bool, GpuError> {
        Ok(self.0.reached.load(Ordering::Relaxed) >= mark)
    }

    fn stream(&self) -> u64 {
        0
    }

    fn wait(&mut self, _: u64) -> Result<(), GpuError> {
        if self.0.is_broken.load(Ordering::Relaxed) { Err(refused()) } else { Ok(()) }
    }
}

fn courier() -> (Courier, Arc<Engine>) {
    let engine = Arc::new(Engine::default());
    (Courier::over(vec![Box::new(Queue(Arc::clone(&engine)))]), engine)
}

fn post(courier: &Courier, devices: &[u64]) -> (u64, u64) {
    let host = Region::map_anonymous(4096, MemoryKind::Host).unwrap();
    let parcel = |device: &u64| Parcel { host: host.clone(), at: 0, device: *device, bytes: 8 };
    courier.post(devices.iter().map(parcel))
}

#[test]
fn what_comes_while_batches_are_on_their_way_goes_as_one() {
    let (courier, engine) = courier();
    let numbers = [&[1][..], &[2, 3], &[4], &[5, 6], &[7]].map(|d| post(&courier, d));
    assert_eq!(numbers, [(1, 1), (2, 3), (4, 4), (5, 6), (7, 7)]);
    assert_eq!(*lock(&engine.batches), [vec![1], vec![2, 3]]);
    assert!(!courier.is_done(numbers[0]).unwrap());
    engine.reached.store(1, Ordering::Relaxed);
    assert!(courier.is_done(numbers[0]).unwrap() && !courier.is_done(numbers[1]).unwrap());
    assert_eq!(*lock(&engine.batches), [vec![1], vec![2, 3], vec![4, 5, 6, 7]]);
    engine.reached.store(3, Ordering::Relaxed);
    courier.wait(7);
    assert!(numbers.into_iter().all(|numbers| courier.is_done(numbers).unwrap()));
}

#[test]
fn a_batch_is_full_with_some_bytes() {
    let (courier, engine) = courier();
    let host = Region::map_anonymous(4096, MemoryKind::Host).unwrap();
    let parcel = |device| Parcel { host: host.clone(), at: 0, device, bytes: BYTES_MAX / 2 + 1 };
    let (_, last) = courier.post((1..=5).map(parcel));
    assert_eq!(*lock(&engine.batches), [vec![1, 2], vec![3, 4]]);
    engine.reached.store(2, Ordering::Relaxed);
    courier.pump();
    assert_eq!(lock(&engine.batches)[2], [5]);
    assert!(!courier.is_done((5, last)).unwrap());
}

#[test]
fn a_copy_that_is_refused_fails_alone() {
    let (courier, engine) = courier();
    let first = [post(&courier, &[1]), post(&courier, &[2])];
    let (good, bad, other) =
        (post(&courier, &[3, 4]), post(&courier, &[5, BAD]), post(&courier, &[6]));
    engine.reached.store(99, Ordering::Relaxed);
    courier.wait(other.1);
    assert!(first.into_iter().chain([good, other]).all(|n| courier.is_done(n).unwrap()));
    assert!(matches!(courier.is_done(bad), Err(BulkError::Gpu { .. })));
    assert_eq!(lock(&engine.batches)[2..], [vec![3], vec![4], vec![5], vec![6]]);
}

/// What breaks a mark has mostly broken what is on its way too.
#[test]
fn copies_on_their_way_when_the_gpu_breaks_have_failed_too() {
    let (courier, engine) = courier();
    let flying = post(&courier, &[1, 2]);
    engine.refuses_marks.store(true, Ordering::Relaxed);
    engine.is_broken.store(true, Ordering::Relaxed);
    let next = post(&courier, &[3]);
    courier.wait(next.1);
    assert!(courier.is_done(next).is_err());
    assert!(courier.is_done(flying).is_err());
}

#[test]
fn no_failure_is_forgotten_before_it_is_asked_for() {
    let (courier, engine) = courier();
    engine.reached.store(u64::MAX, Ordering::Relaxed);
    let runs = FAILED_MAX as u64 + 100;
    let numbers: Vec<_> =
        (0..runs).map(|_| [post(&courier, &[BAD]), post(&courier, &[1])]).collect();
    courier.wait(numbers[numbers.len() - 1][1].1);
    assert!(numbers.iter().all(|[bad, _]| courier.is_done(*bad).is_err()));
    assert!(numbers.iter().rev().take(100).all(|[_, good]| courier.is_done(*good).unwrap()));
    assert!(lock(&courier.wheel).failed.len() <= FAILED_MAX);
}

#[test]
fn nobody_waits_for_ever_for_marks_that_are_refused_or_for_one_who_panicked() {
    let (courier, engine) = courier();
    engine.refuses_marks.store(true, Ordering::Relaxed);
    let numbers = post(&courier, &[1]);
    courier.wait(numbers.1);
    assert!(courier.is_done(numbers).is_err());
    engine.refuses_marks.store(false, Ordering::Relaxed);

    let posted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        post(&courier, &[WORST]);
    }));
    assert!(posted.is_err());
    let broken = (numbers.1 + 1, numbers.1 + 1);
    courier.wait(broken.1);
    assert!(matches!(courier.is_done(broken), Err(BulkError::Misuse(_))));
    engine.reached.store(99, Ordering::Relaxed);
    let good = post(&courier, &[8]);
    courier.wait(good.1);
    assert!(courier.is_done(good).unwrap());
}
