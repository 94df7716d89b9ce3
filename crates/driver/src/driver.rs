//! The handle on a controller.

use std::sync::Arc;
use std::time::Duration;

use crate::describe::{Controller, Namespace};
use crate::device::Device;
use crate::error::DriverError;
use crate::io_queue::IoQueue;
use crate::lent_queue::{LentMemory, LentQueue};
use crate::lifecycle::{self, Shared};

/// How a controller is driven.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DriverOptions {
    /// Bound of each admin command.
    pub admin_limit: Duration,
    /// How long the completion of a command may follow the Abort that succeeded.
    pub abort_grace: Duration,
    /// How long a queue waits, before it is deleted because of one command, for the others.
    pub drain_limit: Duration,
    /// How often a queue with requests in flight looks at the controller's status register.
    pub health_interval: Duration,
    /// Namespaces that are described; further ones are not looked at.
    pub namespaces_max: usize,
    /// I/O queue pairs to ask the drive for, at least 1.
    pub queues_max: u16,
    /// Upper bound of each wait in starting the controller, whatever it asks for itself.
    pub ready_limit_max: Duration,
}

impl Default for DriverOptions {
    fn default() -> Self {
        Self {
            admin_limit: Duration::from_secs(2),
            abort_grace: Duration::from_millis(100),
            drain_limit: Duration::from_secs(5),
            health_interval: Duration::from_millis(10),
            namespaces_max: 64,
            queues_max: 64,
            ready_limit_max: Duration::from_secs(30),
        }
    }
}

/// Where a controller stands.
#[derive(Clone, Debug)]
pub enum DriverState {
    /// It does not work and will not.
    Failed(Arc<DriverError>),
    /// It works.
    Ready,
    /// It is being started, for the first time or after a reset.
    Starting,
    /// It has been shut down.
    Stopped,
    /// It is being shut down.
    Stopping,
}

/// A controller; clones share it. It lives until the last clone and the last queue are gone.
#[derive(Clone)]
pub struct Driver {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Driver({:?})", self.state())
    }
}

impl Driver {
    /// Begins to start a controller; [`Driver::step`] does the rest.
    ///
    /// # Errors
    /// `Controller` where its capabilities do not suffice, `Memory` where there is none.
    pub fn new(device: Arc<dyn Device>, options: DriverOptions) -> Result<Self, DriverError> {
        if options.queues_max == 0 || options.queues_max == u16::MAX {
            let text = format!("{} I/O queues: 1 to 65534 can be asked for", options.queues_max);
            return Err(DriverError::Misuse(text));
        }
        Ok(Self { shared: lifecycle::start(device, options)? })
    }

    /// Moves the controller on. Short, never blocks.
    ///
    /// Queues step it too where they need it to move; without any, this is how a start, a shutdown
    /// and the deletion of dropped queues make progress.
    pub fn step(&self, now_ns: u64) -> DriverState {
        drop(self.shared.step(now_ns));
        self.state()
    }

    /// Where the controller stands.
    pub fn state(&self) -> DriverState {
        let lifecycle = self.shared.lock();
        match lifecycle.failure() {
            Some(_) if lifecycle.is_stopped() => DriverState::Stopped,
            Some(error) => DriverState::Failed(error),
            None if lifecycle.is_stopping() => DriverState::Stopping,
            None if lifecycle.is_ready() => DriverState::Ready,
            None => DriverState::Starting,
        }
    }

    /// The controller's own description, once it has been read.
    pub fn controller(&self) -> Option<Controller> {
        self.shared.lock().controller().cloned()
    }

    /// The active namespaces, once they have been read, in ascending order.
    pub fn namespaces(&self) -> Vec<Namespace> {
        self.shared.lock().namespaces().to_vec()
    }

    /// How often the controller has been reset because of what it did or did not do.
    pub fn resets(&self) -> u64 {
        self.shared.lock().resets()
    }

    /// The device that it drives.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.shared.device
    }

    /// Opens a queue for `depth` requests in flight. It is created by polling it.
    ///
    /// # Errors
    /// `Misuse` before the controller is ready, `Unsupported` beyond its depth, `Exhausted` where
    /// all queues are in use, `Memory`.
    pub fn open_queue(&self, depth: u32) -> Result<IoQueue, DriverError> {
        IoQueue::open(Arc::clone(&self.shared), depth)
    }

    /// Prepares a queue pair at the caller's memory, for others to use. It is absent until
    /// [`LentQueue::create`].
    ///
    /// # Errors
    /// `Misuse` before the controller is ready, `Unsupported` beyond its depth, `Exhausted` where
    /// all queues are in use.
    pub fn lend_queue(&self, memory: LentMemory) -> Result<LentQueue, DriverError> {
        LentQueue::new(Arc::clone(&self.shared), memory)
    }

    /// Begins to shut the controller down; requests in flight end with an error.
    pub fn shut_down(&self, now_ns: u64) {
        self.shared.lock().request_shutdown();
        drop(self.shared.step(now_ns));
    }
}
