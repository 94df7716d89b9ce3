//! The examples over queue pairs do what they say, and stay short enough to be read at once.

use std::process::Command;

#[test]
fn both_read_every_block_once() {
    let data: Vec<u8> =
        (0..613 * 4096u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    std::fs::write(&path, &data).unwrap();
    let words = data.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    let sum = words.fold(0, u64::wrapping_add);
    for how in ["sync", "async"] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_read_drive")).arg(how).arg(&path).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{how}: {}", String::from_utf8_lossy(&output.stderr));
        let want = format!("613 blocks add up to {sum:#x}; the CPU saw 613 completions");
        assert!(text.starts_with(&want), "{how}: {text}");
    }
}

#[test]
fn their_kernels_have_at_most_sixty_lines() {
    for kernel in [include_str!("../read_sync.cu"), include_str!("../read_async.cu")] {
        assert!(kernel.lines().count() <= 60);
    }
}
