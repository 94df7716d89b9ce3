//! What side cores did: kept by the one that does it, published for whoever asks.
//!
//! A side core counts in plain words and stores them here now and then, at the latest in the first
//! step in which it found nothing to do.

use std::sync::atomic::{AtomicU64, Ordering};

use stats::{Event, Op, Route, Writer};

use crate::ring::{ReadRoute, RingConfig, WriteRoute};

macro_rules! counters {
    ($(#[$outer:meta])* $name:ident / $shared:ident { $($(#[$doc:meta])* $field:ident,)* }) => {
        $(#[$outer])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $name {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl $name {
            /// Every counter by name, for reports.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field),)*]
            }
            /// Adds another's counts.
            pub fn add(&mut self, other: &Self) {
                $(self.$field += other.$field;)*
            }
            /// What was counted since `before`.
            #[must_use]
            pub fn since(&self, before: &Self) -> Self {
                Self { $($field: self.$field - before.$field,)* }
            }
        }

        #[derive(Default)]
        pub(crate) struct $shared {
            $($field: AtomicU64,)*
        }

        impl $shared {
            pub fn publish(&self, counts: &$name) {
                $(self.$field.store(counts.$field, Ordering::Relaxed);)*
            }
            pub fn read(&self) -> $name {
                $name { $($field: self.$field.load(Ordering::Relaxed),)* }
            }
        }
    };
}

pub(crate) use counters;

/// Adds what a ring did since `before` to a shared page.
pub(crate) fn report(writer: &mut Writer, ring: &RingConfig, since: &RingCounters) {
    let read_route = match ring.read_route {
        ReadRoute::Bounce => Route::Bounce,
        ReadRoute::Pull => Route::Pull,
        // What the drive did not reach went through the window.
        ReadRoute::Direct if since.direct_bytes > 0 => Route::Direct,
        ReadRoute::Direct | ReadRoute::Window => Route::Window,
    };
    let write_route = match ring.write_route {
        WriteRoute::Bounce => Route::Bounce,
        WriteRoute::Push => Route::Push,
    };
    let beside = if read_route == Route::Direct { since.window_bytes } else { 0 };
    let bytes = since.read_bytes - beside;
    writer.ios(read_route, Op::Read, since.reads, bytes, since.reads_failed);
    writer.ios(Route::Window, Op::Read, 0, beside, 0);
    writer.ios(write_route, Op::Write, since.writes, since.write_bytes, since.writes_failed);
    writer.ios(Route::Host, Op::Flush, since.others, 0, since.others_failed);
    writer.count(Event::RequestByte, since.request_bytes);
    writer.count(Event::RequestFetched, since.requests);
    writer.count(Event::RequestRefused, since.refused);
    writer.count(Event::SideCoreLost, since.side_core_lost);
    writer.count(Event::IoAtDevice, since.ios_at_device);
    writer.count(Event::Syscall, since.syscalls);
    writer.count(Event::DoorbellByCpu, since.cpu_doorbells);
    writer.count(Event::CompletionPolledByCpu, since.completions_polled);
}

counters! {
    /// What was done for one ring.
    RingCounters / SharedRingCounters {
        /// Requests copied out of the ring.
        requests,
        /// Bytes of requests that crossed to the host.
        request_bytes,
        /// Completion words written into device memory.
        completions,
        /// Requests that ended in success.
        succeeded,
        /// Requests that ended with a status other than success.
        failed,
        /// Requests refused by a check, among those that failed.
        refused,
        /// Requests whose own limit passed.
        timed_out,
        /// Requests that ended as cancelled.
        cancelled,
        /// Requests ended because their side core was lost.
        side_core_lost,
        /// Entries that name no record that could be answered.
        unanswerable,
        /// Completions from storage that belong to no request in flight.
        stray_completions,
        /// Times a storage queue had to be quiesced because it stayed silent.
        storage_quiesced,
        /// Reads that ended.
        reads,
        /// Reads that ended with a status other than success.
        reads_failed,
        /// Payload bytes of reads.
        read_bytes,
        /// Writes that ended.
        writes,
        /// Writes that ended with a status other than success.
        writes_failed,
        /// Payload bytes of writes.
        write_bytes,
        /// Flushes that ended, and requests of no known kind.
        others,
        /// Those of them that ended with a status other than success.
        others_failed,
        /// Payload bytes that a drive stored into device memory.
        direct_bytes,
        /// Payload bytes through the window.
        window_bytes,
        /// Payload bytes left in staging for GPU lanes to load.
        pull_bytes,
        /// Payload bytes that GPU lanes had stored into staging.
        push_bytes,
        /// Payload bytes through the copy engine.
        bounce_bytes,
        /// Times `fetched` was published.
        fetched_published,
        /// Times the ring was restarted.
        restarts,
        /// Requests completed at the lowest layer that storage controls.
        ios_at_device,
        /// System calls made by storage.
        syscalls,
        /// Doorbells rung by storage.
        cpu_doorbells,
        /// Completions that storage found by polling.
        completions_polled,
    }
}

counters! {
    /// What one side core did.
    SideCoreCounters / SharedCoreCounters {
        /// CPU time of its thread, in nanoseconds.
        cpu_ns,
        /// Steps made.
        steps,
        /// Steps that found something to do.
        busy_steps,
        /// Times it slept.
        sleeps,
    }
}
