//! Pages as another process sees them.

use std::fs;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{PAGE_BYTES, Page, Reader, StatsError, pages, reap};
use crate::{Event, Op, Role, Route};

#[test]
fn a_reader_sees_what_was_published_and_only_that() {
    let directory = tempfile::tempdir().unwrap();
    let page = Page::create_in(directory.path()).unwrap();
    let reader = Reader::open(page.path().unwrap()).unwrap();
    let mut a = page.writer().unwrap();
    let mut b = page.writer().unwrap();
    a.io(Route::Window, Op::Read, 4096, true);
    b.io(Route::Window, Op::Read, 512, false);
    b.count(Event::RequestByte, 32);
    b.cpu(Role::Path, 77);
    a.latency(Op::Read, 1000);
    assert_eq!(reader.snapshot().unwrap(), crate::Snapshot::default());
    a.publish();
    let first = reader.snapshot().unwrap();
    assert_eq!((first.ios(Route::Window, Op::Read), first.count(Event::RequestByte)), (1, 0));
    // Dropping publishes, and the place is taken over without losing its counts.
    drop(b);
    let mut c = page.writer().unwrap();
    c.io(Route::Window, Op::Read, 1, true);
    c.publish();
    let all = reader.snapshot().unwrap();
    assert_eq!(all.ios(Route::Window, Op::Read), 3);
    assert_eq!(all.bytes(Route::Window, Op::Read), 4096 + 512 + 1);
    assert_eq!(all.errors(Route::Window, Op::Read), 1);
    assert_eq!(all.ios(Route::Window, Op::Write), 0);
    assert_eq!(all.cpu_ns(Role::Path), 77);
    assert_eq!(all.latency(Op::Read).quantile_bound(1.0), Some(1024));
    assert_eq!(all.since(&first).ios(Route::Window, Op::Read), 2);
    assert_eq!(reader.pid(), std::process::id());
    assert!(reader.is_alive());
}

#[test]
fn counts_published_together_are_seen_together() {
    const PUBLISHED: u64 = 500;
    let page = Page::private().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut writer = page.writer().unwrap();
            for _ in 0..PUBLISHED {
                writer.io(Route::Pull, Op::Read, 4096, true);
                writer.count(Event::RequestByte, 32);
                writer.publish();
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        // Reads all the time, so that most publishings happen in the middle of a read.
        let mut seen = 0;
        while seen < PUBLISHED {
            let s = page.snapshot().unwrap();
            let ios = s.ios(Route::Pull, Op::Read);
            assert_eq!(s.bytes(Route::Pull, Op::Read), ios * 4096);
            assert_eq!(s.count(Event::RequestByte), ios * 32);
            assert!(ios >= seen, "counts never fall");
            seen = ios;
        }
    });
}

#[test]
fn shards_run_out_and_come_back() {
    let page = Page::private().unwrap();
    let writers: Vec<_> = (0..64).map(|_| page.writer().unwrap()).collect();
    assert!(matches!(page.writer(), Err(StatsError::Exhausted)));
    drop(writers);
    page.writer().unwrap();
}

#[test]
fn pages_of_the_dead_are_reaped_and_of_the_living_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let dead = directory.path().join(format!("sidecore-{}-0.stats", child.id()));
    fs::write(&dead, b"whatever").unwrap();
    let foreign = directory.path().join("sidecore-notes.stats");
    fs::write(&foreign, b"not ours").unwrap();
    let page = Page::create_in(directory.path()).unwrap();
    assert!(!dead.exists(), "reaped at start");
    assert!(foreign.exists());
    // The same pid, started at another time, is another process.
    let recycled = directory.path().join(format!("sidecore-{}-99.stats", std::process::id()));
    fs::copy(page.path().unwrap(), &recycled).unwrap();
    Reader::open(&recycled).unwrap().region.u64_at(super::AT_START).store(1, Ordering::Relaxed);
    assert_eq!(pages(directory.path()).len(), 2);
    assert_eq!(reap(directory.path()), 1);
    assert_eq!(pages(directory.path()), [page.path().unwrap()]);
    let path = page.path().unwrap().to_owned();
    drop(page);
    assert!(!path.exists());
}

#[test]
fn what_is_no_page_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sidecore-1-0.stats");
    for content in [vec![], vec![0xa5; 100], vec![0xa5; PAGE_BYTES]] {
        fs::write(&path, content).unwrap();
        assert!(matches!(Reader::open(&path), Err(StatsError::NotAPage(_))));
    }
    assert!(matches!(Reader::open(&directory.path().join("none")), Err(StatsError::Os { .. })));
}

#[test]
fn a_writer_that_stopped_half_way_is_an_error_not_a_hang() {
    let page = Page::private().unwrap();
    page.region.u64_at(super::HEADER_BYTES).store(3, Ordering::Relaxed);
    assert!(matches!(page.snapshot(), Err(StatsError::Torn)));
}

/// In a directory that all may write, anybody could have had a file of this user's emptied.
#[test]
fn a_link_in_the_place_of_a_page_leads_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let mine = folder.path().join("mine");
    std::fs::write(&mine, b"kept").unwrap();
    for n in 0..64 {
        let name = format!("sidecore-{}-{n}.stats", std::process::id());
        std::os::unix::fs::symlink(&mine, folder.path().join(&name)).unwrap();
    }
    let page = Page::create_in(folder.path()).unwrap();
    assert!(!page.path().unwrap().is_symlink());
    assert_eq!(std::fs::read(&mine).unwrap(), b"kept");
    // Nor is one read through a link.
    let link = folder.path().join("sidecore-1-1.stats");
    std::os::unix::fs::symlink(page.path().unwrap(), &link).unwrap();
    assert!(matches!(Reader::open(&link), Err(StatsError::Os { .. })));
    // What cannot be removed is left, and the next number taken.
    for n in 0..64 {
        let path = folder.path().join(format!("sidecore-{}-{n}.stats", std::process::id()));
        let _gone = std::fs::remove_file(&path);
        std::fs::create_dir(&path).unwrap();
    }
    assert!(Page::create_in(folder.path()).is_ok());
}
