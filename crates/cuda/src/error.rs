//! What can go wrong with CUDA, by who can mend it.

/// What can go wrong.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// A library, a device or a capability is not there, or too old. Remedy: as the text says.
    #[error("{what}: {why}; {remedy}")]
    Unavailable {
        /// What is missing.
        what: String,
        /// How that is known.
        why: String,
        /// What to do.
        remedy: String,
    },
    /// A call of the driver failed.
    #[error("{call}: {name} ({code})")]
    Call {
        /// The function.
        call: &'static str,
        /// The driver's number.
        code: i32,
        /// The driver's name for it.
        name: String,
    },
    /// Device code does not compile. Remedy: as the compiler says.
    #[error("compiling {program}: {log}")]
    Compile {
        /// Which source.
        program: String,
        /// What the compiler said.
        log: String,
    },
    /// The caller broke the contract. Remedy: fix the call.
    #[error("{0}")]
    Misuse(String),
}

impl CudaError {
    /// Something that is not there.
    pub(crate) fn unavailable(
        what: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::Unavailable { what: what.into(), why: why.into(), remedy: remedy.into() }
    }
}
