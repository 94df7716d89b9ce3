//! The simulated GPU: the real device code, compiled by the host's C++ compiler, with fibers as lanes.
//!
//! A kernel is a C++ function over `include/sidecore/impl/arch.h`. Each lane of a launch is a fiber
//! with its own stack; 32 of them are a warp, warps are a block. What a lane waits for (a ballot, a
//! barrier, a pause) is a call that switches to another lane, so thousands of lanes block at once on
//! a handful of OS threads. A block stays on the OS thread that started it.
//!
//! | mode | lanes | CPU side | memory | time |
//! | --- | --- | --- | --- | --- |
//! | [`mod@bench`] | run until they wait | threads | the host's own | the real clock |
//! | `seeded` (feature) | go access by access | closures | `mem::model` | simulated |
//!
//! What goes wrong is an error that names block, warp, lanes and the place each waits at: a
//! collective whose mask lacks its caller or names a lane that has returned, a deadlock (all lanes of
//! a block wait in collectives), an abort or timeout.
//!
//! What it does not do: it has no caches, no registers and no idea of what a GPU's instruction costs;
//! its rates are its own. It cannot stop a lane that neither waits nor returns. A lane has 64 KiB of
//! stack with a guard page below; device code has no destructors to run, since a lane that is given
//! up is forgotten where it stands. Plain C++ accesses (not through the arch layer) to memory that
//! others use are invisible to the seeded mode.
//!
//! Packages that bring kernels compile them by `build/kernels.rs`, which says how; the headers'
//! directory reaches build scripts as `DEP_SIDECORE_SIMT_INCLUDE`.

pub mod bench;
mod block;
mod clock;
mod device;
mod fiber;
mod report;
#[cfg(feature = "seeded")]
pub mod seeded;
mod shared;
mod warp;

pub use device::Entry;
pub use report::{LaunchError, Place, Report, WaitingLanes};

/// Lanes in a warp.
pub const WARP_LANES: u32 = 32;
/// Threads a block may have; the same on every real GPU.
pub const BLOCK_THREADS_MAX: u32 = 1024;

/// How many lanes a launch has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Blocks in the grid.
    pub blocks: u32,
    /// Threads a block.
    pub threads_per_block: u32,
}

impl Shape {
    /// Checks that it can be launched.
    ///
    /// # Errors
    /// [`LaunchError::Shape`].
    pub fn check(self) -> Result<(), LaunchError> {
        let threads = self.threads_per_block;
        if self.blocks == 0 || threads == 0 || threads > BLOCK_THREADS_MAX {
            return Err(LaunchError::Shape { blocks: self.blocks, threads });
        }
        Ok(())
    }
}
