//! What this machine is, as far as a measurement depends on it.

use std::fs;
use std::path::Path;

use crate::units;

/// Bytes of the last-level cache, or `None` where the system does not tell.
///
/// Source: Linux, Documentation/ABI/testing/sysfs-devices-system-cpu, `cache/index*/size`.
pub fn last_level_cache_bytes() -> Option<u64> {
    cache_bytes_in(Path::new("/sys/devices/system/cpu/cpu0/cache"))
}

fn cache_bytes_in(directory: &Path) -> Option<u64> {
    let mut best: Option<(u32, u64)> = None;
    for entry in fs::read_dir(directory).ok()?.flatten() {
        let read = |name: &str| fs::read_to_string(entry.path().join(name)).ok();
        let (Some(level), Some(size)) = (read("level"), read("size")) else { continue };
        let Ok(level) = level.trim().parse::<u32>() else { continue };
        let Ok(bytes) = units::parse_bytes(size.trim()) else { continue };
        if read("type").is_some_and(|kind| kind.trim() == "Instruction") {
            continue;
        }
        best = best.max(Some((level, bytes)));
    }
    best.map(|(_, bytes)| bytes)
}

/// Memory that processes can still get without others losing theirs. Source: proc(5), `MemAvailable`.
pub fn available_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Facts for the report: processor, CPUs, memory, kernel.
pub fn facts() -> Vec<(String, String)> {
    let file = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = file("/proc/cpuinfo");
    let field = |text: &str, name: &str| {
        text.lines()
            .find(|line| line.starts_with(name))
            .and_then(|line| line.split_once(':'))
            .map_or_else(|| "unknown".to_owned(), |(_, value)| value.trim().to_owned())
    };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let cache = last_level_cache_bytes().map_or_else(|| "unknown".to_owned(), units::bytes);
    vec![
        ("processor".to_owned(), field(&cpuinfo, "model name")),
        ("CPUs of this process".to_owned(), cpus.to_string()),
        ("last-level cache".to_owned(), cache),
        ("memory".to_owned(), field(&file("/proc/meminfo"), "MemTotal")),
        ("kernel".to_owned(), file("/proc/sys/kernel/osrelease").trim().to_owned()),
        ("sidecore".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_level_that_holds_data_counts() {
        let root = tempfile::tempdir().unwrap();
        for (i, (level, kind, size)) in
            [("1", "Data", "48K"), ("1", "Instruction", "64M"), ("3", "Unified", "32768K")]
                .iter()
                .enumerate()
        {
            let at = root.path().join(format!("index{i}"));
            fs::create_dir(&at).unwrap();
            fs::write(at.join("level"), format!("{level}\n")).unwrap();
            fs::write(at.join("type"), format!("{kind}\n")).unwrap();
            fs::write(at.join("size"), format!("{size}\n")).unwrap();
        }
        assert_eq!(cache_bytes_in(root.path()), Some(32 << 20));
        assert_eq!(cache_bytes_in(&root.path().join("none")), None);
    }
}
