//! What can go wrong in the engine: one table with stable codes, which every edge uses.
//!
//! A request's own end is not an error here: it is a status in its completion record
//! (`abi::status`). These are the errors of setting up and tearing down.
//!
//! | code | variant | exit code of the command line |
//! | --- | --- | --- |
//! | 1 | `Misuse` | 2 |
//! | 2 | `Unsupported` | 3 |
//! | 3 | `Exhausted` | 4 |
//! | 4 | `Os` | 5 |
//! | 5 | `Gpu` | 6 |
//! | 6 | `Storage` | 7 |
//! | 7 | `TimedOut` | 8 |
//! | 8 | `Drive` | 9 |

/// What can go wrong in the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The caller broke the contract. Remedy: fix the call; the text says what about it.
    #[error("{0}")]
    Misuse(String),
    /// This machine, GPU or storage cannot do what was asked. Remedy: as the text says.
    #[error("{what}: {why}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
        /// Why it cannot be had, and what to do.
        why: String,
    },
    /// A limit was reached. Remedy: release some, or raise the limit.
    #[error("no more {resource}: the limit is {limit}")]
    Exhausted {
        /// What ran out.
        resource: &'static str,
        /// How much of it there is.
        limit: u64,
    },
    /// The operating system refused. Remedy: see the source error and the named target.
    #[error("{operation} {target}: {source}")]
    Os {
        /// What was tried, as a verb.
        operation: &'static str,
        /// What it was tried on.
        target: String,
        /// The system's own error.
        source: std::io::Error,
    },
    /// The GPU refused. Remedy: as its own text says.
    #[error(transparent)]
    Gpu(#[from] gpu::GpuError),
    /// The storage refused. Remedy: as its own text says.
    #[error(transparent)]
    Storage(#[from] storage::StorageError),
    /// The drive, or its driver, refused. Remedy: as its own text says.
    #[error(transparent)]
    Drive(#[from] driver::DriverError),
    /// Something did not happen in time. Remedy: a longer limit, or quiesce the ring.
    #[error("{what} did not end within {limit_ms} ms")]
    TimedOut {
        /// What was waited for.
        what: &'static str,
        /// How long.
        limit_ms: u64,
    },
}

impl EngineError {
    /// The stable code of this kind of error.
    pub const fn code(&self) -> u16 {
        match self {
            Self::Misuse(_) => 1,
            Self::Unsupported { .. } => 2,
            Self::Exhausted { .. } => 3,
            Self::Os { .. } => 4,
            Self::Gpu(_) => 5,
            Self::Storage(_) => 6,
            Self::TimedOut { .. } => 7,
            Self::Drive(_) => 8,
        }
    }

    /// The exit code that a command line ends with.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Misuse(_) => 2,
            Self::Unsupported { .. } => 3,
            Self::Exhausted { .. } => 4,
            Self::Os { .. } => 5,
            Self::Gpu(_) => 6,
            Self::Storage(_) => 7,
            Self::TimedOut { .. } => 8,
            Self::Drive(_) => 9,
        }
    }
}
