//! What a launch says when it did not end well: which lanes wait, and where.

use std::fmt;

/// Where a lane was last seen.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum Place {
    /// In a collective, waiting for other lanes.
    Collective {
        /// Its function.
        function: &'static str,
        /// The participants that it named; 0 where it takes none.
        mask: u32,
        /// The caller's source file.
        file: String,
        /// The caller's line.
        line: u32,
    },
    /// In `pause`.
    Pause {
        /// What it says it waits for.
        site: String,
    },
    /// Running, or ready to.
    Running {
        /// What its last pause was for, if it paused since it last met other lanes.
        after: Option<String>,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Collective { function, mask: 0, file, line } => {
                write!(f, "{function} at {file}:{line}")
            }
            Self::Collective { function, mask, file, line } => {
                write!(f, "{function} with mask {mask:#010x} at {file}:{line}")
            }
            Self::Pause { site } => write!(f, "pause for {site}"),
            Self::Running { after: None } => f.write_str("running"),
            Self::Running { after: Some(site) } => write!(f, "running after a pause for {site}"),
        }
    }
}

/// Lanes of one warp that are at the same place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaitingLanes {
    /// Block in the grid.
    pub block: u32,
    /// Warp in the block.
    pub warp: u32,
    /// Lanes, by their bits.
    pub lanes: u32,
    /// Where they are.
    pub place: Place,
}

/// All lanes that had not returned, grouped by warp and place.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// The groups, by block and warp.
    pub waiting: Vec<WaitingLanes>,
}

/// Groups that `Display` lists before it only counts.
const GROUPS_SHOWN_MAX: usize = 16;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for group in self.waiting.iter().take(GROUPS_SHOWN_MAX) {
            let WaitingLanes { block, warp, lanes, place } = group;
            writeln!(f, "  block {block} warp {warp} lanes {}: {place}", Lanes(*lanes))?;
        }
        match self.waiting.len().checked_sub(GROUPS_SHOWN_MAX + 1) {
            Some(more) => writeln!(f, "  and {} more groups of lanes", more + 1),
            None => Ok(()),
        }
    }
}

/// Lanes as ranges: `0-3,7`.
struct Lanes(u32);

impl fmt::Display for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        let mut separator = "";
        while rest != 0 {
            let first = rest.trailing_zeros();
            let count = (rest >> first).trailing_ones();
            let last = first + count - 1;
            write!(f, "{separator}{first}")?;
            if count > 1 {
                write!(f, "-{last}")?;
            }
            separator = ",";
            rest = if last == 31 { 0 } else { rest & (u32::MAX << (last + 1)) };
        }
        Ok(())
    }
}

/// Why a launch did not end as it should.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// It was asked to end, or its time was over. Remedy: see where the lanes wait.
    #[error("ended before its lanes returned; they were:\n{0}")]
    Aborted(Report),
    /// All lanes of a block wait for each other. Remedy: make all lanes of a mask call.
    #[error("deadlock: no lane of the block can go on:\n{0}")]
    Deadlock(Report),
    /// A collective broke its contract. Remedy: fix the mask at the place named.
    #[error("block {block} warp {warp} lane {lane} at {file}:{line}: {why}")]
    Misuse {
        /// Block in the grid.
        block: u32,
        /// Warp in the block.
        warp: u32,
        /// Lane in the warp.
        lane: u32,
        /// The caller's source file.
        file: String,
        /// The caller's line.
        line: u32,
        /// What is wrong.
        why: String,
    },
    /// The simulator itself panicked; a broken invariant of ours.
    #[error("the simulator panicked: {0}")]
    Panicked(String),
    /// An impossible shape. Remedy: at least one block, 1 to 1,024 threads a block.
    #[error("cannot launch {blocks} blocks of {threads} threads")]
    Shape {
        /// Blocks asked for.
        blocks: u32,
        /// Threads a block asked for.
        threads: u32,
    },
    /// A shared object whose size differs from its first use, or an impossible one.
    #[error("block {block}: a shared object of {bytes} bytes cannot be had")]
    Shared {
        /// Block in the grid.
        block: u32,
        /// Size asked for.
        bytes: usize,
    },
    /// No memory for a lane's stack. Remedy: fewer resident lanes, or a higher `vm.max_map_count`.
    #[error("mapping the stack of a lane: {0}")]
    Stack(std::io::Error),
    /// No OS thread for the blocks. Remedy: fewer worker threads.
    #[error("starting a worker thread: {0}")]
    Thread(std::io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_shown_as_ranges() {
        assert_eq!(Lanes(u32::MAX).to_string(), "0-31");
        assert_eq!(Lanes(0b1000_1011).to_string(), "0-1,3,7");
        assert_eq!(Lanes(1 << 31).to_string(), "31");
    }
}
