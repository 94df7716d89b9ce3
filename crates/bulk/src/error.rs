//! What can go wrong in bulk, by who can mend it.

use std::io;

use crate::route::Route;

/// What can go wrong. The text says what failed, on what, why, and what to do.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BulkError {
    /// The transfer was cancelled before its end; some bytes may have arrived.
    #[error("the transfer was cancelled")]
    Cancelled,
    /// The engine was dropped. Remedy: keep one clone until all transfers have ended.
    #[error("the bulk engine was closed while this transfer waited")]
    Closed,
    /// The process was forked after the engine was opened: its threads and its GPU stayed in the parent.
    #[error(
        "this bulk engine belongs to the process {parent} that was forked; open one in the child \
         (and with CUDA, start the child by spawn, not by fork)"
    )]
    Forked {
        /// The process that opened the engine.
        parent: u32,
    },
    /// The GPU refused. Remedy: as the text says.
    #[error("{doing}: {why}")]
    Gpu {
        /// What was tried.
        doing: String,
        /// The GPU's reason.
        why: String,
    },
    /// The caller broke the contract. Remedy: fix the call.
    #[error("{0}")]
    Misuse(String),
    /// The operating system refused.
    #[error("{operation} {target}: {}", io::Error::from_raw_os_error(*.errno))]
    Os {
        /// What was tried, as a verb.
        operation: &'static str,
        /// On what, with the offset.
        target: String,
        /// Its number for the reason.
        errno: i32,
    },
    /// A route was demanded, and the request would take another one. Nothing was moved.
    #[error("route {wanted} is required, and {what} would take route {found}: {why}")]
    RouteRefused {
        /// The demanded one.
        wanted: Route,
        /// The one that it would take.
        found: Route,
        /// The request.
        what: String,
        /// Why not the demanded one.
        why: String,
    },
    /// The file ended inside what must be there whole.
    #[error(
        "{target} ended at byte {end} while it was read up to byte {wanted}; was it truncated?"
    )]
    Truncated {
        /// The file.
        target: String,
        /// Where it ended.
        end: u64,
        /// How far it was to be read.
        wanted: u64,
    },
    /// This machine or this file cannot do it.
    #[error("{what}: {why}")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// Why it cannot be had.
        why: String,
    },
}

impl BulkError {
    pub(crate) fn os(
        operation: &'static str,
        target: impl Into<String>,
        error: &io::Error,
    ) -> Self {
        /// Source: `EIO` of Linux, for errors that never were the system's.
        const EIO: i32 = 5;
        let errno = error.raw_os_error().unwrap_or(EIO);
        Self::Os { operation, target: target.into(), errno }
    }

    /// A GPU's refusal; misuse stays misuse.
    pub(crate) fn gpu(doing: impl Into<String>, error: &gpu::GpuError) -> Self {
        match error {
            gpu::GpuError::Misuse(why) => Self::Misuse(why.clone()),
            error => Self::Gpu { doing: doing.into(), why: error.to_string() },
        }
    }

    /// A word that stays the same for all texts, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::Closed => "closed",
            Self::Forked { .. } => "forked",
            Self::Gpu { .. } => "gpu",
            Self::Misuse(_) => "misuse",
            Self::Os { .. } => "os",
            Self::RouteRefused { .. } => "route_refused",
            Self::Truncated { .. } => "truncated",
            Self::Unsupported { .. } => "unsupported",
        }
    }

    /// The system's number, where the system refused.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Os { errno, .. } => Some(*errno),
            _ => None,
        }
    }
}
