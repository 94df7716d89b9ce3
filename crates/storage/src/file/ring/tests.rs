//! What follows the end of one transfer: cases that a healthy file system does not show.

use mem::{MemoryKind, Region};
use rustix::io::Errno;

use super::*;

fn target() -> Target {
    let file = super::super::tests::on_disk(0);
    Target::open(file.path(), &super::super::FileOptions::default()).unwrap()
}

fn active(op: Op, asked: u32, route: Route) -> Active {
    Active {
        token: 0,
        op,
        asked,
        done: 0,
        route,
        retries: 0,
        zeroing: 0,
        cancelled: false,
        answered: false,
    }
}

fn transfer(kind: Kind, bytes: u32, route: Route) -> Transfer {
    let memory = Region::map_anonymous(16384, MemoryKind::Host).unwrap();
    Transfer { file: file_of(route), kind, offset: 8192, bytes, memory, memory_offset: 4096 }
}

fn again(next: Next) -> Transfer {
    match next {
        Next::Again(transfer) => transfer,
        Next::Done(errno) => panic!("ended with {errno}"),
    }
}

fn done(next: Next) -> i32 {
    match next {
        Next::Again(transfer) => panic!("goes on with {transfer:?}"),
        Next::Done(errno) => errno,
    }
}

#[test]
fn a_short_transfer_goes_on_where_it_ended() {
    let target = target();
    for (op, kind) in [(Op::Read, Kind::Read), (Op::Write, Kind::Write)] {
        let mut active = active(op, 8192, Route::Direct);
        let first = transfer(kind, 8192, Route::Direct);
        let rest = again(advance(&mut active, 100, first, &target));
        assert_eq!((rest.offset, rest.bytes, rest.memory_offset), (8292, 8092, 4196));
        assert_eq!(rest.file, file_of(Route::Buffered), "no longer aligned");
        let rest = again(advance(&mut active, 92, rest, &target));
        assert_eq!((rest.offset, rest.bytes, rest.memory_offset), (8384, 8000, 4288));
        assert_eq!(done(advance(&mut active, 0, rest, &target)), 0, "the end of the file");
        assert_eq!(active.done, 192);
    }
}

#[test]
fn what_a_signal_interrupts_is_tried_again_within_a_bound() {
    let mut active = active(Op::Read, 4096, Route::Buffered);
    let mut next = transfer(Kind::Read, 4096, Route::Buffered);
    for _ in 0..RETRIES_MAX {
        next = again(retry(&mut active, Errno::INTR.raw_os_error(), next));
    }
    let errno = Errno::INTR.raw_os_error();
    assert_eq!(done(retry(&mut active, errno, next)), errno);
}

#[test]
fn a_refused_direct_transfer_is_done_buffered_once() {
    let mut active = active(Op::Read, 4096, Route::Direct);
    let refused = Errno::INVAL.raw_os_error();
    let first = transfer(Kind::Read, 4096, Route::Direct);
    let next = again(retry(&mut active, refused, first));
    assert_eq!((next.file, next.bytes), (file_of(Route::Buffered), 4096));
    assert_eq!(done(retry(&mut active, refused, next)), refused);
    let broken = Errno::IO.raw_os_error();
    let mut active = self::active(Op::Read, 4096, Route::Direct);
    let first = transfer(Kind::Read, 4096, Route::Direct);
    assert_eq!(done(retry(&mut active, broken, first)), broken, "a broken medium is not hidden");
}

#[test]
fn zeros_are_written_where_nothing_else_makes_them() {
    let refused = Errno::OPNOTSUPP.raw_os_error();
    let zeros_bytes = u32::try_from(ZEROS_BYTES).unwrap();
    let mut active = active(Op::WriteZeroes, zeros_bytes + 5, Route::Buffered);
    let mut next = transfer(zeroing(0).unwrap(), zeros_bytes + 5, Route::Buffered);
    while next.kind != Kind::Write {
        next = again(retry(&mut active, refused, next));
    }
    assert_eq!((next.offset, next.bytes), (8192, zeros_bytes));
    let rest = again(advance(&mut active, zeros_bytes, next, &target()));
    assert_eq!((rest.offset, rest.bytes), (8192 + u64::from(zeros_bytes), 5));
    assert!(rest.memory.check(rest.memory_offset, 5).is_ok());
    assert_eq!(done(advance(&mut active, 5, rest, &target())), 0);
    assert_eq!(active.done, zeros_bytes + 5);
}
