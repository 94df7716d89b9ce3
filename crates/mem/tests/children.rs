//! What a forked child gets of a region, by the kernel's books of this process.

use sidecore_mem::Region;

/// The flags that the kernel has for the mapping of an address.
fn flags(address: u64) -> Vec<String> {
    let books = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    for line in books.lines() {
        if let Some((range, _)) = line.split_once(' ')
            && let Some((first, last)) = range.split_once('-')
            && let (Ok(first), Ok(last)) =
                (u64::from_str_radix(first, 16), u64::from_str_radix(last, 16))
        {
            inside = (first..last).contains(&address);
        }
        if inside && let Some(flags) = line.strip_prefix("VmFlags:") {
            return flags.split_whitespace().map(str::to_owned).collect();
        }
    }
    panic!("no mapping at {address:#x}");
}

#[test]
fn pages_that_a_device_works_with_stay_out_of_children() {
    let kept = Region::map_private(4 << 20).unwrap();
    let other = Region::map_private(4 << 20).unwrap();
    kept.keep_from_children();
    // `dc`: do not copy on fork.
    assert!(flags(kept.address()).iter().any(|flag| flag == "dc"));
    assert!(!flags(other.address()).iter().any(|flag| flag == "dc"));
    // A part that is no whole pages changes nothing.
    let part = other.slice(8, 4096).unwrap();
    part.keep_from_children();
    assert!(!flags(other.address()).iter().any(|flag| flag == "dc"));
}
