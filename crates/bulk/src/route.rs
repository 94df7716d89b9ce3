//! Which way payload goes, and why it did not go a better one.

use serde::Serialize;

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// File to memory.
    Read,
    /// Memory to file.
    Write,
}

impl Op {
    /// Its word.
    pub const fn name(self) -> &'static str {
        ["read", "write"][self as usize]
    }
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident: $($(#[$each:meta])* $variant:ident = $word:literal,)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
        pub enum $name { $($(#[$each])* $variant,)* }

        impl $name {
            /// All of them; the position is the index in tables.
            pub const ALL: [Self; [$($word),*].len()] = [$(Self::$variant),*];

            /// Its word in options, counters and output.
            pub const fn name(self) -> &'static str {
                [$($word),*][self as usize]
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let found = Self::ALL.into_iter().find(|one| one.name() == text);
                found.ok_or_else(|| {
                    let all = Self::ALL.map(Self::name).join(", ");
                    format!("'{text}' is none of {all}")
                })
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }
    };
}

words! {
    /// Which way payload goes.
    Route:
    /// The drive's own DMA into device memory (what GPUDirect Storage does). No machine without
    /// peer-to-peer DMA has it.
    Direct = "direct",
    /// The page cache to host memory, or back.
    HostCached = "host",
    /// Around the page cache to host memory, or back.
    HostDirect = "host-direct",
    /// The page cache, pinned host memory, the copy engine; or back.
    Staged = "staged",
    /// Around the page cache, pinned host memory, the copy engine; or back.
    StagedDirect = "staged-direct",
    /// The page cache, and the CPU's own stores through its mapping of device memory. Reads only.
    Window = "window",
}

words! {
    /// Why something did not go the way that was wanted, or that is best.
    Cause:
    /// Direct I/O was refused when it was tried: through the page cache.
    DirectRefused = "direct-refused",
    /// The ends of a direct write are not aligned: they go through the page cache.
    Edges = "unaligned-edges",
    /// Host memory is not aligned as direct I/O wants it: through a slot instead.
    HostUnaligned = "host-unaligned",
    /// No file with measured knees, or one of another machine: defaults.
    KneesMissing = "knees-missing",
    /// The file with measured knees is not readable: defaults.
    KneesUnreadable = "knees-unreadable",
    /// The file system has no direct I/O: through the page cache.
    NoDirect = "no-direct",
    /// Which node of the machine the GPU is near is not known: threads run anywhere.
    NoNuma = "no-numa",
    /// The device memory has no window: by pinned memory.
    NoWindow = "no-window",
    /// Pinned memory was refused: ordinary memory, which the driver copies once more.
    PinnedRefused = "pinned-refused",
    /// The pool is too small for all threads or slots: fewer of them.
    PoolSmall = "pool-small",
    /// Which pages are cached is not to be known: through the page cache.
    ResidencyUnknown = "residency-unknown",
    /// io_uring is refused: one call after the other.
    RingRefused = "ring-refused",
    /// Streams cannot wait for words: a host function waits.
    StreamWords = "stream-words",
    /// A thread could not be started: fewer of them.
    ThreadRefused = "thread-refused",
}
