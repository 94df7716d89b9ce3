//! The examples over queue pairs do what they say, and stay short enough to be read at once.

use std::process::Command;

#[test]
fn both_read_every_block_once() {
    // The last warp and the last lane's batch are not whole.
    let data: Vec<u8> =
        (0..613 * 4096u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    std::fs::write(&path, &data).unwrap();
    let words = data.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    let sum = words.fold(0, u64::wrapping_add);
    for program in [env!("CARGO_BIN_EXE_read_sync"), env!("CARGO_BIN_EXE_read_async")] {
        let output = Command::new(program).arg(&path).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(text, format!("613 blocks add up to {sum:#x}\n"), "{program}");
    }
}

#[test]
fn each_has_at_most_sixty_lines_with_its_kernel() {
    for (how, [host, kernel]) in [
        ("sync", [include_str!("../read_sync.rs"), include_str!("../read_sync.cu")]),
        ("async", [include_str!("../read_async.rs"), include_str!("../read_async.cu")]),
    ] {
        let lines = host.lines().count() + kernel.lines().count();
        assert!(lines <= 60, "{how}: {lines}");
    }
}
