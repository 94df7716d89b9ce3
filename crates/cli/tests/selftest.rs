//! `sidecore selftest` as a program: repeats.

mod common;

use common::Sandbox;
use serde_json::Value;

/// Rows of the case that refuses a view of another version, on the simulated GPU.
fn rows(options: &str) -> Vec<Value> {
    let case = "a_view_of_another_version_is_refused";
    let line = format!("selftest --gpu simulated --json {case} {options}");
    let output = Sandbox::new().run(&line);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_case_runs_as_often_as_asked_but_begins_nothing_when_its_time_is_over() {
    for (options, runs) in [
        ("", 1),
        ("--repeat 3", 3),
        ("--repeat 3 --within 1000s", 3),
        ("--repeat 1000000 --within 1us", 1),
    ] {
        let rows = rows(options);
        assert_eq!(rows.len(), 1, "{options:?}");
        assert_eq!(rows[0]["passed"], true, "{options:?}");
        assert_eq!(rows[0]["runs"], runs, "{options:?}");
    }
}
