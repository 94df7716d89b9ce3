//! The system packages that the tests need, by Debian's names.

use crate::process::{Run, which};
use anyhow::Result;

/// A package, and the program by which its presence is seen.
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
    Package { name: "python3", program: "python3", purpose: "NVRTC is called from Python" },
    Package { name: "python3-pip", program: "pip3", purpose: "NVIDIA's compilers come as wheels" },
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
