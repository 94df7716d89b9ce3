//! Scripts parse or say why not; injectors inject exactly what was asked for, repeatably.

use super::*;
use crate::queue::Op;
use spec::Status;

fn script(text: &str) -> FaultScript {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn read(index: u64) -> IoShape {
    IoShape { op: Op::Read, offset: index * 4096, bytes: 4096 }
}

fn actions(text: &str, ios: u64, shape: impl Fn(u64) -> IoShape) -> Vec<(u64, Action)> {
    let injector = Injector::new(&script(text), 512);
    let found: Vec<_> =
        (0..ios).filter_map(|i| injector.decide(&shape(i)).map(|a| (i, a))).collect();
    assert_eq!(injector.injected_total(), found.len() as u64);
    found
}

#[test]
fn bad_scripts_say_what_is_wrong() {
    for (text, expected) in [
        ("flop", "no fault is called 'flop'"),
        ("lost:count=3", "'lost' has no key 'count'; it has n, every"),
        ("lost:ms=3", "no key 'ms'"),
        ("late:ms", "'ms' in 'late' is not KEY=VALUE"),
        ("late:ms=fast", "late:ms=fast: milliseconds"),
        ("late:n=-1", "late:n=-1: a whole number"),
        ("error:rate=1.5", "between 0 and 1"),
        ("error:rate=NaN", "between 0 and 1"),
        ("error:status=281", "such as 2/81"),
        ("error:status=8/81", "such as 2/81"),
        ("error:n=1,rate=0.5", "'n' and 'rate' cannot be given together"),
        ("error:n=1,n=2", "'n' and 'n'"),
        ("error:lba=1,offset=2", "'offset' and 'lba'"),
        ("torn:op=read", "torn:op=read: one of"),
        ("lost:every=0", "at least 1"),
        ("lost:n=99999999999999999999", "whole number"),
        ("lost:offset=20000000000G", "whole number"),
    ] {
        let error = text.parse::<FaultScript>().expect_err(text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn the_empty_script_injects_nothing() {
    assert!(script(" ; ").is_empty());
    assert!(actions("", 1000, read).is_empty());
}

#[test]
fn a_count_is_exact_and_spread() {
    let found = actions("flip:n=64", 10_000, read);
    assert_eq!(found.len(), 64);
    assert_eq!(found[0].0, 6, "the seventh");
    assert_eq!(found[63].0, 64 * 7 - 1);
    assert!(found.iter().all(|(_, a)| matches!(a, Action::Flip { byte, mask }
        if *byte < 4096 && mask.count_ones() == 1)));
    assert_eq!(actions("lost:n=5,every=100,after=50", 10_000, read)[0].0, 149);
    assert_eq!(actions("stuck", 100, read), [(0, Action::Stuck)]);
    assert_eq!(actions("lost:every=10", 100, read).len(), 10);
}

#[test]
fn counts_stay_exact_where_faults_meet() {
    let injector = Injector::new(&script("lost:n=10;duplicate:n=10;error:n=10,every=1"), 512);
    let hits = (0..200).filter(|i| injector.decide(&read(*i)).is_some()).count();
    assert_eq!(hits, 30);
    for kind in [FaultKind::Lost, FaultKind::Duplicate, FaultKind::Error] {
        assert_eq!(injector.injected(kind), 10, "{kind}");
    }
}

#[test]
fn a_place_is_a_byte_or_a_block() {
    let at = |text| actions(text, 100, read).iter().map(|(i, _)| *i).collect::<Vec<_>>();
    assert_eq!(at("error:offset=4095"), [0]);
    assert_eq!(at("error:offset=4K"), [1]);
    assert_eq!(at("error:lba=16"), [2], "blocks of 512 bytes");
    assert_eq!(at("error:lba=0xffffffffffffffff"), [0; 0]);
    let all = actions("error:offset=0,status=0/80", 10, |_| read(0));
    assert_eq!(all.len(), 10);
    assert_eq!(all[0].1, Action::Error(Status::new(0, 0x80)));
    assert_eq!(actions("error:offset=0,n=3", 10, |_| read(0)).len(), 3);
}

#[test]
fn operations_that_a_fault_cannot_happen_to_are_passed_over() {
    let mixed =
        |i: u64| IoShape { op: if i.is_multiple_of(2) { Op::Read } else { Op::Write }, ..read(i) };
    let torn = actions("torn:n=9,every=1", 100, mixed);
    assert_eq!(torn.len(), 9);
    for (i, action) in torn {
        assert_eq!(i % 2, 1);
        let Action::Torn { bytes, status } = action else { panic!("{action:?}") };
        assert!(bytes > 0 && bytes < 4096 && bytes % 512 == 0, "{bytes}");
        assert_eq!(status, Status::new(2, 0x80));
    }
    let flush = |_| IoShape { op: Op::Flush, offset: 0, bytes: 0 };
    assert!(actions("flip:rate=1", 10, flush).is_empty());
    assert_eq!(
        actions("late:op=flush,ms=3", 10, flush),
        [(0, Action::Late { delay_ns: 3_000_000 })]
    );
    assert_eq!(actions("error:op=write", 10, mixed)[0].1, Action::Error(Status::new(2, 0x80)));
}

#[test]
fn a_seed_repeats_and_another_differs() {
    let first = actions("flip:rate=0.1,seed=5", 5000, read);
    assert_eq!(first, actions("flip:rate=0.1,seed=5", 5000, read));
    assert_ne!(first, actions("flip:rate=0.1,seed=6", 5000, read));
    assert!((350..650).contains(&first.len()), "a tenth of 5000: {}", first.len());
}
