//! What a controller did, readable while it works.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a controller did since it was made.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        struct Shared {
            $($name: AtomicU64,)*
        }

        impl Shared {
            // Relaxed: figures that order nothing.
            fn load(&self) -> Counters {
                Counters { $($name: self.$name.load(Ordering::Relaxed),)* }
            }

            fn store(&self, now: &Counters) {
                $(self.$name.store(now.$name, Ordering::Relaxed);)*
            }
        }
    };
}

counters! {
    /// Admin commands fetched.
    admin_commands,
    /// I/O commands fetched.
    io_commands,
    /// I/O commands that ended with a completion of success.
    io_succeeded,
    /// I/O commands that ended with a completion of an error.
    io_failed,
    /// I/O commands that lay in a queue when it was deleted, and were never fetched.
    io_left,
    /// Completions written to I/O queues.
    completions,
    /// Submission doorbells seen to have moved.
    doorbells,
    /// Payload bytes moved from storage to host memory.
    bytes_read,
    /// Payload bytes moved from host memory to storage.
    bytes_written,
    /// Payload bytes that went through a bounce buffer, because host pages split a block.
    bytes_bounced,
    /// Requests made of the storage.
    storage_requests,
    /// Time that fetching commands from their queues took, in nanoseconds; 0 without a clock for it.
    fetch_ns,
    /// Runs of commands that were fetched together.
    fetch_runs,
    /// Errors that no command could carry: doorbells written wrongly, fatal states.
    stray_errors,
}

/// A handle on a controller's counters. Cheap to clone and to read.
#[derive(Clone, Debug, Default)]
pub struct SharedCounters(Arc<Shared>);

impl SharedCounters {
    /// The figures as of the controller's last step that did something.
    pub fn read(&self) -> Counters {
        self.0.load()
    }

    pub(crate) fn publish(&self, now: &Counters) {
        self.0.store(now);
    }
}
