//! The example does what it says, and stays short enough to be read at once.

use std::process::Command;

#[test]
fn it_adds_up_every_byte_of_a_file() {
    // More than all lanes take at once, and a last block that is not whole.
    let data: Vec<u8> =
        (0..3_000_017u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    std::fs::write(&path, &data).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_byte_sum")).arg(&path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let sum: u64 = data.iter().map(|byte| u64::from(*byte)).sum();
    assert!(text.starts_with(&format!("{} bytes add up to {sum} ", data.len())), "{text}");
}

#[test]
fn its_kernel_has_at_most_sixty_lines() {
    let kernel = include_str!("../byte_sum.cu");
    assert!(kernel.lines().count() <= 60);
}

/// The line in the README, as it stands there.
#[test]
fn the_line_in_the_readme_runs_it() {
    const LINE: &str = "cargo run --release -p sidecore-examples --bin byte_sum -- README.md";
    assert!(include_str!("../../README.md").contains(&format!("\n{LINE}\n")));
    // This test's own profile: what it would build otherwise is there already.
    let words = LINE.split(' ').skip(1).filter(|word| *word != "--release");
    let mut command = Command::new(env!("CARGO"));
    command.args(words).current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(String::from_utf8_lossy(&output.stdout).contains(" bytes add up to "));
}
