//! The one table of paths: who submits, who completes, which way the payload goes.
//!
//! The command line, the documentation and the statistics all read [`PATHS`]; a path that is not in
//! it does not exist. Routes are named as they appear in every report.

/// Which way the payload goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Route {
    /// Storage, pinned host memory, then the GPU's copy engine.
    Bounce,
    /// The drive reads and writes device memory itself.
    Direct,
    /// Reads: GPU lanes load from pinned host memory.
    Pull,
    /// Writes: GPU lanes store into pinned host memory, then publish.
    Push,
    /// Reads: a CPU core stores through its mapping of device memory.
    Window,
}

impl Route {
    /// Every route, in the order of reports.
    pub const ALL: [Self; 5] = [Self::Bounce, Self::Direct, Self::Pull, Self::Push, Self::Window];

    /// Its name in options and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bounce => "bounce",
            Self::Direct => "direct",
            Self::Pull => "pull",
            Self::Push => "push",
            Self::Window => "window",
        }
    }

    /// How it works, in one line.
    pub const fn how(self) -> &'static str {
        match self {
            Self::Bounce => "storage -> pinned host memory -> copy engine",
            Self::Direct => "the drive reads and writes VRAM itself (PCIe peer-to-peer)",
            Self::Pull => "reads: GPU threads load from pinned host memory",
            Self::Push => "writes: GPU threads store into pinned host memory, then publish",
            Self::Window => "reads: a CPU core stores into VRAM through a CPU mapping of it",
        }
    }

    /// Finds a route by its name.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|route| route.name() == name)
    }
}

/// One way of doing I/O: a row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// Its name in options and reports.
    pub name: &'static str,
    /// Who submits, and how.
    pub submits: &'static str,
    /// Who sees the completion, and how.
    pub completes: &'static str,
    /// Routes that reads can take, the default first.
    pub read_routes: &'static [Route],
    /// Routes that writes can take, the default first.
    pub write_routes: &'static [Route],
    /// What is read and written.
    pub abstraction: &'static str,
    /// Which system it is after.
    pub after: &'static str,
    /// Whether GPU lanes submit.
    pub gpu_submits: bool,
}

/// Every path, in the order of reports.
pub const PATHS: &[Path] = &[
    Path {
        name: "posix",
        submits: "CPU, pread/pwrite",
        completes: "CPU",
        read_routes: &[Route::Bounce],
        write_routes: &[Route::Bounce],
        abstraction: "file",
        after: "conventional",
        gpu_submits: false,
    },
    Path {
        name: "uring",
        submits: "CPU, io_uring",
        completes: "CPU",
        read_routes: &[Route::Bounce, Route::Window],
        write_routes: &[Route::Bounce],
        abstraction: "file",
        after: "conventional, async",
        gpu_submits: false,
    },
    Path {
        name: "nvme",
        submits: "CPU, user-space driver",
        completes: "CPU",
        read_routes: &[Route::Bounce, Route::Direct],
        write_routes: &[Route::Bounce, Route::Direct],
        abstraction: "block",
        after: "SPDK",
        gpu_submits: false,
    },
    Path {
        name: "bam",
        submits: "GPU writes SQ, rings doorbell",
        completes: "GPU polls CQ",
        read_routes: &[Route::Direct],
        write_routes: &[Route::Direct],
        abstraction: "block",
        after: "BaM",
        gpu_submits: true,
    },
    Path {
        name: "copilot",
        submits: "GPU writes SQ, rings doorbell",
        completes: "CPU polls CQ, writes one word into VRAM",
        read_routes: &[Route::Direct],
        write_routes: &[Route::Direct],
        abstraction: "block",
        after: "CoPilotIO",
        gpu_submits: true,
    },
    Path {
        name: "ring",
        submits: "GPU writes a request; a side core does all else",
        completes: "side core writes one word into VRAM",
        read_routes: &[Route::Window, Route::Direct, Route::Pull, Route::Bounce],
        write_routes: &[Route::Push, Route::Bounce],
        abstraction: "file, array, object",
        after: "ours",
        gpu_submits: true,
    },
];

/// Finds a path by its name.
pub fn find(name: &str) -> Option<&'static Path> {
    PATHS.iter().find(|path| path.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_unique() {
        for (index, path) in PATHS.iter().enumerate() {
            let first = PATHS.iter().position(|other| other.name == path.name);
            assert_eq!(first, Some(index), "{} is there twice", path.name);
            assert_eq!(find(path.name), Some(path));
            assert!(!path.read_routes.contains(&Route::Push), "push is for writes");
            assert!(!path.write_routes.contains(&Route::Window), "loads through it are too slow");
            assert!(!path.write_routes.contains(&Route::Pull), "pull is for reads");
        }
        for route in Route::ALL {
            assert_eq!(Route::find(route.name()), Some(route));
        }
        assert_eq!(find("warp-drive"), None);
    }
}
