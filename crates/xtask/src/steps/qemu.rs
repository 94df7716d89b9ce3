//! Bad commands, built byte by byte by a C program that includes nothing of sidecore: how the
//! software controller answers each, and how QEMU's NVMe controller does.
//!
//! The same program (`tests/qemu/`) runs twice: as a process beside the software controller, with
//! registers and memory in shared files, and as the only process of a guest that has QEMU's drive on
//! its PCI bus. The guest is Debian's kernel, unpacked from its package, under TCG; the program is
//! all of its initramfs. Each answer that differs must be in `tests/qemu/differences.toml` with the
//! section of the specification that explains it, and each entry there must be a difference.

use super::{Outcome, Skip};
use crate::process::{Run, which};
use crate::tree;
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const DIFFERENCES: &str = "tests/qemu/differences.toml";
const SOURCES: [&str; 3] = ["tests/qemu/host.c", "tests/qemu/reach.c", "tests/qemu/table.c"];
/// The package that depends on Debian's present kernel.
const KERNEL_PACKAGE: &str = "linux-image-amd64";
/// Bytes of the guest's drive: as many as the example `foreign` has.
const DRIVE_BYTES: u64 = 64 << 20;
/// Bad commands in the table, at least.
const COMMANDS_MIN: usize = 70;

/// What two controllers answer differently, and why that may be.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Difference {
    command: String,
    sidecore: String,
    qemu: String,
    section: String,
    why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Differences {
    difference: Vec<Difference>,
}

/// Answers by command.
type Table = BTreeMap<String, String>;

/// Makes both tables and compares them.
pub fn step() -> Result<Outcome> {
    let folder = tree::target().join("qemu");
    std::fs::create_dir_all(&folder).context("making target/qemu")?;
    let program = folder.join("table");
    let flags = "-std=gnu11 -O1 -Wall -Wextra -Werror -static -o";
    let gcc = Run::new("gcc").words(flags).arg(&program).args(SOURCES);
    gcc.log("qemu-gcc")?.run()?.expect_ok("gcc")?;
    let ours = parse(&beside_sidecore(&folder, &program)?).context("sidecore's table")?;
    let mut outcome = Outcome::default();
    let kernel = match kernel(&folder) {
        Ok(kernel) => kernel,
        Err(error) => {
            let reason = format!("no guest: {error:#}");
            outcome.skips.push(Skip { name: "guest".to_owned(), reason });
            return Ok(outcome);
        }
    };
    let theirs = parse(&in_a_guest(&folder, &program, &kernel)?).context("QEMU's table")?;
    outcome.check(ours.len() >= COMMANDS_MIN, || format!("only {} answers", ours.len()));
    let text = tree::read(DIFFERENCES)?;
    let explained: Differences = toml::from_str(&text).context(DIFFERENCES)?;
    compare(&ours, &theirs, &explained.difference, &mut outcome);
    let version =
        Run::new("qemu-system-x86_64").arg("--version").log("qemu-version")?.run()?.output;
    outcome.notes.extend(version.lines().next().map(str::to_owned));
    let different = explained.difference.len();
    outcome.notes.push(format!("{} answers, {different} of them explained", ours.len()));
    Ok(outcome)
}

/// Runs the program beside the software controller.
fn beside_sidecore(folder: &Path, program: &Path) -> Result<String> {
    let build = "build --package sidecore-ctrl --example foreign";
    Run::cargo().words(build).log("qemu-build")?.run()?.expect_ok("cargo build")?;
    let run = Run::new(tree::target().join("debug/examples/foreign")).arg(folder).arg(program);
    let finished = run.seconds(120).log("qemu-sidecore")?.run()?;
    finished.expect_ok("the C program beside the software controller")
}

/// Finds the guest's kernel: unpacks it once.
fn kernel(folder: &Path) -> Result<PathBuf> {
    ensure!(which("qemu-system-x86_64").is_some(), "qemu-system-x86_64 is not installed");
    let kernel = folder.join("vmlinuz");
    if kernel.is_file() {
        return Ok(kernel);
    }
    let depends =
        || Run::new("apt-cache").arg("depends").arg(KERNEL_PACKAGE).log("qemu-apt")?.run();
    if package_of(&depends()?.output).is_none() {
        Run::new("apt-get").arg("update").log("apt-update")?.run()?.expect_ok("apt-get update")?;
    }
    let listed = depends()?.output;
    let package = package_of(&listed).with_context(|| format!("no kernel package in: {listed}"))?;
    let download = Run::new("apt-get").arg("download").arg(package).folder(folder);
    download.log("qemu-apt")?.run()?.expect_ok("apt-get download")?;
    let unpack = format!(
        "set -e; dpkg-deb --fsys-tarfile {package}_*.deb | tar --extract --to-stdout \
         --wildcards './boot/vmlinuz-*' > vmlinuz.part; test -s vmlinuz.part; \
         mv vmlinuz.part vmlinuz; rm {package}_*.deb"
    );
    let unpack = Run::new("bash").arg("-c").arg(unpack).folder(folder);
    unpack.log("qemu-unpack")?.run()?.expect_ok("unpacking the kernel")?;
    Ok(kernel)
}

/// The kernel's own package, in what `apt-cache depends` says.
fn package_of(depends: &str) -> Option<&str> {
    depends.lines().find_map(|line| {
        let package = line.trim().strip_prefix("Depends:")?.trim();
        let plain = package.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.+".contains(&b));
        (package.starts_with("linux-image-") && plain).then_some(package)
    })
}

/// Runs the program as the only process of a guest.
fn in_a_guest(folder: &Path, program: &Path, kernel: &Path) -> Result<String> {
    let at = |name: &str| folder.join(name);
    let init = std::fs::read(program).context("reading the program")?;
    std::fs::write(at("initramfs.cpio"), archive("init", &init)?).context("the initramfs")?;
    let drive = std::fs::File::create(at("drive.img")).context("the drive's file")?;
    drive.set_len(DRIVE_BYTES).context("the drive's length")?;
    let machine = "-accel tcg -cpu max -machine q35 -nodefaults -display none -no-reboot -smp 1 \
                   -m 512M -append";
    let devices = "-initrd initramfs.cpio -serial file:console.log -serial file:answers.txt \
                   -drive if=none,id=drive,format=raw,file=drive.img \
                   -device nvme,serial=GUEST0001,drive=drive";
    let qemu = Run::new("qemu-system-x86_64").words(machine).arg("console=ttyS0 quiet panic=-1");
    let qemu = qemu.words(devices).arg("-kernel").arg(kernel).folder(folder);
    let finished = qemu.seconds(300).log("qemu-guest")?.run()?;
    let console = std::fs::read_to_string(at("console.log")).unwrap_or_default();
    ensure!(finished.ok, "QEMU {}: {}\n{console}", finished.how(), finished.output);
    let answers = std::fs::read(at("answers.txt")).context("the guest's answers")?;
    let answers = String::from_utf8_lossy(&answers).replace('\r', "");
    ensure!(answers.ends_with("done\n"), "the guest ended early:\n{answers}\n{console}");
    Ok(answers)
}

/// A cpio archive (format `newc`) of one executable file.
fn archive(name: &str, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut archive = Vec::new();
    for (name, mode, bytes) in [(name, 0o100_755, bytes), ("TRAILER!!!", 0, &[][..])] {
        let length = u32::try_from(bytes.len()).context("a file of 4 GiB")?;
        let name_length = u32::try_from(name.len() + 1).context("a long name")?;
        // Inode, mode, owner, group, links, time, length, four device numbers, name, checksum.
        let fields = [1, mode, 0, 0, 1, 0, length, 0, 0, 0, 0, name_length, 0];
        archive.extend_from_slice(b"070701");
        archive.extend(fields.iter().flat_map(|field| format!("{field:08x}").into_bytes()));
        archive.extend_from_slice(name.as_bytes());
        archive.push(0);
        archive.resize(archive.len().next_multiple_of(4), 0);
        archive.extend_from_slice(bytes);
        archive.resize(archive.len().next_multiple_of(4), 0);
    }
    Ok(archive)
}

/// Reads a table, which ends with `done`. Lines of Identify count like commands.
fn parse(text: &str) -> Result<Table> {
    let mut table = Table::new();
    let mut lines = text.lines();
    for line in lines.by_ref().take_while(|line| *line != "done") {
        let (name, answer) = match line.strip_prefix("identify ") {
            Some(rest) => rest.split_once(' ').map(|(name, value)| (format!("={name}"), value)),
            None => line.split_once(' ').map(|(name, answer)| (name.to_owned(), answer)),
        }
        .with_context(|| format!("not a line of the table: {line}"))?;
        if table.insert(name, answer.to_owned()).is_some() {
            bail!("twice in the table: {line}");
        }
    }
    ensure!(
        text.ends_with("done\n") && lines.next().is_none(),
        "does not end with `done`:\n{text}"
    );
    Ok(table)
}

/// Holds both tables against each other and against the explanations.
fn compare(ours: &Table, theirs: &Table, explained: &[Difference], outcome: &mut Outcome) {
    let names = |table: &Table| table.keys().cloned().collect::<Vec<_>>();
    outcome.check(names(ours) == names(theirs), || "the tables have different commands".to_owned());
    for (command, answer) in ours {
        let Some(other) = theirs.get(command) else { continue };
        let explanation = explained.iter().find(|d| d.command == *command);
        let held = match explanation {
            None => answer == other,
            Some(d) => d.sidecore == *answer && d.qemu == *other && answer != other,
        };
        outcome.check(held, || {
            let known = explanation.map_or("has no explanation", |_| "is explained otherwise");
            format!("{command}: sidecore {answer}, QEMU {other}; this {known} in {DIFFERENCES}")
        });
    }
    for Difference { command, section, why, .. } in explained {
        let cites = ["Base ", "NVM ", "PCIe "].iter().any(|book| section.starts_with(book));
        outcome.check(ours.contains_key(command) && cites && !why.is_empty(), || {
            format!("{DIFFERENCES}: {command} is no command of the table, or names no section")
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differences(sidecore: &str) -> Vec<Difference> {
        let text = |text: &str| text.to_owned();
        let (section, why) = (text("Base 4.1.1"), text("may be checked"));
        let (sidecore, qemu) = (text(sidecore), text("0/00 - -"));
        vec![Difference { command: text("read:odd"), sidecore, qemu, section, why }]
    }

    fn failures(ours: &str, theirs: &str, explained: &[Difference]) -> usize {
        let mut outcome = Outcome::default();
        let (ours, theirs) = (parse(ours).unwrap(), parse(theirs).unwrap());
        compare(&ours, &theirs, explained, &mut outcome);
        outcome.failures.len()
    }

    #[test]
    fn what_differs_must_be_explained_and_what_is_explained_must_differ() {
        let ours = "identify sqes 66\nread:odd 0/13 dnr -\ndone\n";
        let theirs = "identify sqes 66\nread:odd 0/00 - -\ndone\n";
        assert_eq!(failures(ours, theirs, &differences("0/13 dnr -")), 0);
        assert_eq!(failures(ours, theirs, &[]), 1, "no explanation");
        assert_eq!(failures(ours, theirs, &differences("0/02 dnr -")), 1, "another answer");
        assert_eq!(failures(theirs, theirs, &differences("0/13 dnr -")), 1, "no difference");
        assert_eq!(failures(ours, "identify sqes 66\ndone\n", &differences("0/13 dnr -")), 1);
        assert!(parse("read:odd 0/13 dnr -\n").is_err(), "cut off");
        assert!(parse("a 1\na 2\ndone\n").is_err(), "twice");
    }

    #[test]
    fn the_kernel_package_is_found_and_nothing_else() {
        let text = "linux-image-amd64\n  Depends: linux-image-6.1.0-9-amd64\n";
        assert_eq!(package_of(text), Some("linux-image-6.1.0-9-amd64"));
        assert_eq!(package_of("  Depends: linux-image-$(rm)\n"), None);
        assert_eq!(package_of("  Depends: <linux-image>\n"), None);
    }
}
