//! Which CPUs are near the GPU, where a machine has several nodes.
//!
//! Worker threads run there, and make their pinned memory there by touching it first. On a machine with one
//! node there is nothing to choose.

use std::path::Path;

use rustix::thread::CpuSet;

/// What is known about nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Near {
    /// One node, or none that the system tells of.
    OneNode,
    /// These CPUs.
    Cpus(Vec<usize>),
    /// Several nodes, and why none is chosen.
    Unknown(String),
}

/// Looks for the CPUs near a PCI device, in the system's tree at `root` (`/sys`).
pub(crate) fn near(root: &Path, pci: Option<&str>) -> Near {
    let nodes = root.join("devices/system/node");
    let count = std::fs::read_dir(&nodes).map_or(0, |entries| {
        let names = entries.flatten().map(|entry| entry.file_name());
        let node = |name: &std::ffi::OsString| {
            let number = name.to_str().and_then(|name| name.strip_prefix("node"));
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        };
        names.filter(node).count()
    });
    if count < 2 {
        return Near::OneNode;
    }
    let Some(pci) = pci else {
        return Near::Unknown(format!("{count} nodes, and a GPU without a place on PCI"));
    };
    let place = root.join("bus/pci/devices").join(pci).join("numa_node");
    let read = std::fs::read_to_string(&place);
    let node = read.ok().and_then(|text| text.trim().parse::<i32>().ok());
    let Some(node) = node.filter(|node| *node >= 0) else {
        return Near::Unknown(format!("{count} nodes, and {} names none", place.display()));
    };
    let list = std::fs::read_to_string(nodes.join(format!("node{node}/cpulist")));
    match list.ok().map(|list| parse(&list)) {
        Some(cpus) if !cpus.is_empty() => Near::Cpus(cpus),
        _ => Near::Unknown(format!("node {node} has no list of CPUs")),
    }
}

/// Parses `0-3,8,10-11`.
fn parse(list: &str) -> Vec<usize> {
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    ranges.flatten().collect()
}

/// Keeps the calling thread on these CPUs, as far as its process may use them.
pub(crate) fn stay(cpus: &[usize]) {
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return };
    let mut set = CpuSet::new();
    for cpu in cpus.iter().copied().filter(|cpu| *cpu < CpuSet::MAX_CPU && allowed.is_set(*cpu)) {
        set.set(cpu);
    }
    if set.count() > 0 {
        // A refusal leaves the thread where it may run anyway.
        let _refused = rustix::thread::sched_setaffinity(None, &set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_of_a_gpu_is_found_in_a_recorded_tree() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let pci = "0000:17:00.0";
        let near = |pci| near(root.path(), pci);
        assert_eq!(near(Some(pci)), Near::OneNode);
        put("devices/system/node/node0/cpulist", "0-3\n");
        put("devices/system/node/possible", "0-1\n");
        assert_eq!(near(Some(pci)), Near::OneNode);
        put("devices/system/node/node1/cpulist", "4-6,9\n");
        assert!(matches!(near(Some(pci)), Near::Unknown(why) if why.contains("2 nodes")));
        assert!(matches!(near(None), Near::Unknown(_)));
        let place = format!("bus/pci/devices/{pci}/numa_node");
        put(&place, "-1\n");
        assert!(matches!(near(Some(pci)), Near::Unknown(_)));
        put(&place, "1\n");
        assert_eq!(near(Some(pci)), Near::Cpus(vec![4, 5, 6, 9]));
    }

    #[test]
    fn a_thread_stays_where_it_is_told_to() {
        std::thread::spawn(|| {
            let before = rustix::thread::sched_getaffinity(None).unwrap();
            let first = (0..CpuSet::MAX_CPU).find(|cpu| before.is_set(*cpu)).unwrap();
            stay(&[first, CpuSet::MAX_CPU + 5]);
            let after = rustix::thread::sched_getaffinity(None).unwrap();
            assert!(after.count() == 1 && after.is_set(first));
            stay(&[]);
            assert_eq!(rustix::thread::sched_getaffinity(None).unwrap().count(), 1);
        })
        .join()
        .unwrap();
    }
}
