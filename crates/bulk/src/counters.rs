//! What the engine has done and what it holds.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use crate::log::Log;
use crate::route::{Cause, Op, Route};

const ROUTES: usize = Route::ALL.len();
const CAUSES: usize = Cause::ALL.len();

/// What went one way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct RouteCount {
    /// Payload bytes from files.
    pub bytes_read: u64,
    /// Payload bytes to files.
    pub bytes_written: u64,
    /// Chunks, or parts of chunks.
    pub ios: u64,
}

/// Counters at one moment.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Counters {
    /// By the index of the route in [`Route::ALL`].
    pub routes: [RouteCount; ROUTES],
    /// By the index of the cause in [`Cause::ALL`].
    pub fallbacks: [u64; CAUSES],
    /// Requests that were accepted.
    pub requests: u64,
    /// Bytes read whose pages were in the page cache when it was looked at.
    pub hot_bytes: u64,
    /// Bytes read whose pages were not.
    pub cold_bytes: u64,
    /// Bytes of pinned memory held now.
    pub pinned_bytes: u64,
    /// Most bytes of pinned memory that were held.
    pub pinned_bytes_max: u64,
    /// Transfers that have not ended.
    pub in_flight: u64,
    /// Most transfers that had not ended at once.
    pub in_flight_max: u64,
    /// Threads that were started.
    pub threads: u64,
    /// Copies that were given to the copy engine.
    pub copies: u64,
}

impl Counters {
    /// What went one way.
    pub fn route(&self, route: Route) -> RouteCount {
        self.routes[route as usize]
    }

    /// How often a cause struck.
    pub fn fallbacks(&self, cause: Cause) -> u64 {
        self.fallbacks[cause as usize]
    }
}

#[derive(Default)]
pub(crate) struct Shared {
    routes: [[AtomicU64; 3]; ROUTES],
    fallbacks: [AtomicU64; CAUSES],
    pub requests: AtomicU64,
    pub hot_bytes: AtomicU64,
    pub cold_bytes: AtomicU64,
    pinned: [AtomicU64; 2],
    in_flight: [AtomicU64; 2],
    pub threads: AtomicU64,
    pub copies: AtomicU64,
    log: Log,
}

/// Adds to a level and keeps its highest.
fn raise(level: &[AtomicU64; 2], by: u64) {
    let now = level[0].fetch_add(by, Ordering::Relaxed) + by;
    level[1].fetch_max(now, Ordering::Relaxed);
}

impl Shared {
    pub fn new(log: Log) -> Self {
        Self { log, ..Self::default() }
    }

    pub fn moved(&self, route: Route, op: Op, bytes: u64) {
        let row = &self.routes[route as usize];
        row[op as usize].fetch_add(bytes, Ordering::Relaxed);
        row[2].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a fallback; the first one of a cause is logged.
    pub fn fell_back(&self, cause: Cause, why: impl FnOnce() -> String) {
        if self.fallbacks[cause as usize].fetch_add(1, Ordering::Relaxed) == 0 {
            self.log.line(&format!("{cause}: {} (said once; counted always)", why()));
        }
    }

    pub fn pinned(&self, bytes: u64) {
        raise(&self.pinned, bytes);
    }

    pub fn unpinned(&self, bytes: u64) {
        self.pinned[0].fetch_sub(bytes, Ordering::Relaxed);
    }

    /// A transfer of so many requests has begun.
    pub fn started(&self, requests: u64) {
        self.requests.fetch_add(requests, Ordering::Relaxed);
        raise(&self.in_flight, 1);
    }

    pub fn ended(&self) {
        self.in_flight[0].fetch_sub(1, Ordering::Relaxed);
    }

    pub fn read(&self) -> Counters {
        let get = |value: &AtomicU64| value.load(Ordering::Relaxed);
        Counters {
            routes: std::array::from_fn(|route| {
                let [read, written, ios] = &self.routes[route];
                RouteCount { bytes_read: get(read), bytes_written: get(written), ios: get(ios) }
            }),
            fallbacks: std::array::from_fn(|cause| get(&self.fallbacks[cause])),
            requests: get(&self.requests),
            hot_bytes: get(&self.hot_bytes),
            cold_bytes: get(&self.cold_bytes),
            pinned_bytes: get(&self.pinned[0]),
            pinned_bytes_max: get(&self.pinned[1]),
            in_flight: get(&self.in_flight[0]),
            in_flight_max: get(&self.in_flight[1]),
            threads: get(&self.threads),
            copies: get(&self.copies),
        }
    }
}
