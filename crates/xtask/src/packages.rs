//! The system packages that the tests need, by Debian's names.

use crate::process::{Run, which};
use anyhow::Result;

/// A package, and the program (or the file, by its whole path) by which its presence is seen.
struct Package {
    name: &'static str,
    program: &'static str,
    purpose: &'static str,
}

const PACKAGES: &[Package] = &[
    Package { name: "g++", program: "g++", purpose: "device code for the simulated GPU" },
    Package { name: "git", program: "git", purpose: "the list of files" },
    Package { name: "valgrind", program: "valgrind", purpose: "instruction counts" },
    Package { name: "chromium", program: "chromium", purpose: "rendering the report" },
    Package {
        name: "qemu-system-x86",
        program: "qemu-system-x86_64",
        purpose: "another NVMe controller, to compare with",
    },
    Package { name: "xfsprogs", program: "mkfs.xfs", purpose: "a file system for bulk transfers" },
    Package { name: "python3", program: "/usr/bin/python3", purpose: "the Python package, NVRTC" },
    Package {
        name: "python3-pip",
        program: "/usr/bin/pip3",
        purpose: "NVIDIA's compilers come as wheels",
    },
    Package {
        name: "python3-torch",
        program: "/usr/lib/python3/dist-packages/torch/__init__.py",
        purpose: "the other side of the Python package's files",
    },
    Package {
        name: "strace",
        program: "strace",
        purpose: "what the Python package asks the system",
    },
];

/// Returns the packages that are not there, as lines for a person.
pub fn missing() -> Vec<String> {
    PACKAGES
        .iter()
        .filter(|package| which(package.program).is_none())
        .map(|package| format!("{} (for {})", package.name, package.purpose))
        .collect()
}

/// Returns how many packages are asked for.
pub fn count() -> usize {
    PACKAGES.len()
}

/// Returns the command that installs what is missing.
pub fn remedy() -> String {
    let names: Vec<&str> = PACKAGES
        .iter()
        .filter(|package| which(package.program).is_none())
        .map(|package| package.name)
        .collect();
    format!("apt-get install --yes --no-install-recommends {}", names.join(" "))
}

/// Installs what is missing through apt-get.
pub fn install() -> Result<()> {
    if missing().is_empty() {
        return Ok(());
    }
    let line = remedy();
    Run::new("apt-get").words("update").log("apt-update")?.run()?.expect_ok("apt-get update")?;
    let words = line.strip_prefix("apt-get ").expect("the remedy is an apt-get command");
    Run::new("apt-get")
        .words(words)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .log("apt-install")?
        .run()?
        .expect_ok(&line)?;
    Ok(())
}
