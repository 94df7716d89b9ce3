//! The commands on the bulk engine: every byte, refusals, knees, and peers in turns.

mod common;

use std::process::Output;

use common::{Sandbox, pattern_file};
use serde_json::Value;
use sha2::{Digest, Sha256};

const BYTES: usize = (9 << 20) + 345;

fn json(output: &Output) -> Vec<Value> {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn sha256(data: &[u8]) -> String {
    Sha256::digest(data).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_file_is_loaded_and_saved_byte_by_byte() {
    let sandbox = Sandbox::new();
    let data = pattern_file(BYTES, 4);
    sandbox.write("data", &data);
    for options in ["--gpu simulated", "--host", "--gpu simulated --threads 1 --slot 64k"] {
        let loaded = &json(&sandbox.run(&format!("load data --json {options}")))[0];
        assert_eq!(loaded["sha256"], sha256(&data), "{options}");
        assert_eq!(loaded["bytes"], BYTES);
        let route = if options == "--host" { "host" } else { "staged" };
        assert_eq!(loaded["route"], route);
        assert_eq!(
            loaded["hot_bytes"].as_u64().unwrap() + loaded["cold_bytes"].as_u64().unwrap(),
            BYTES as u64
        );
    }
    let explained = sandbox.run("load data --gpu simulated --explain");
    let text = String::from_utf8_lossy(&explained.stdout).into_owned();
    assert!(text.contains("not direct: no drive here") && text.contains("by route"), "{text}");

    sandbox.write("target", b"old");
    let saved = &json(&sandbox.run("save data target --overwrite --json --gpu simulated"))[0];
    assert_eq!(saved["sha256_of_file"], sha256(&data));
    assert!(sandbox.read("target") == data);
    let names: Vec<_> =
        sandbox.listing().into_iter().filter(|name| !name.starts_with(".config")).collect();
    assert_eq!(names, ["data", "target"]);
}

#[test]
fn a_route_that_is_required_and_cannot_be_had_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.write("data", &pattern_file(BYTES, 1));
    for route in ["direct", "staged-direct", "window", "host"] {
        let line = format!("load data --gpu simulated --require {route}");
        let output = sandbox.run(&line);
        common::assert_refused(&line, &output, &[route, "staged", "required"]);
        assert!(output.stdout.is_empty());
    }
    sandbox.refuses("load data --require anything", &["anything", "staged-direct"]);
    sandbox.refuses("load data --route bounce", &["--route bounce", "--path"]);
    sandbox.refuses("save missing target", &["missing"]);
    sandbox.refuses("bench bulk --with ours:threads", &["threads", "key=value"]);
}

#[test]
fn numbers_of_the_engine_that_cannot_be_are_refused() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path().join("data"), vec![1; 10_000]).unwrap();
    for (options, word) in [
        ("--slot 1", "64 KiB"),
        ("--slot 1G", "64 MiB"),
        ("--slots 1", "64"),
        ("--threads 300", "256"),
    ] {
        let line = format!("load data --gpu simulated {options}");
        let output = sandbox.run(&line);
        common::assert_refused(&line, &output, &[word]);
    }
}

#[test]
fn what_opening_costs_is_told_thing_by_thing() {
    let sandbox = Sandbox::new();
    let rows = json(&sandbox.run("bench bulk --opening --gpu simulated --dir . --json"));
    let whats: Vec<_> = rows.iter().map(|row| row["what"].as_str().unwrap()).collect();
    for what in ["engine", "file", "buffer by its address"] {
        let row = &rows[whats.iter().position(|found| *found == what).unwrap()];
        let seconds = row["seconds"].as_f64().unwrap();
        assert!(seconds > 0.0 && seconds < 1.0, "{row}");
    }
    assert!(sandbox.listing().is_empty(), "{:?}", sandbox.listing());
}

#[test]
fn knees_are_measured_stored_and_found() {
    let sandbox = Sandbox::new();
    sandbox.write("data", &pattern_file(BYTES, 1));
    let config = sandbox.path().join("config");
    let run = |line: &str| {
        let mut command = sandbox.command(line);
        command.env("XDG_CONFIG_HOME", &config).output().unwrap()
    };
    let before = run("load data --json --gpu simulated");
    assert!(String::from_utf8_lossy(&before.stderr).contains("knees-missing"));
    let dry = &json(&run("tune . --gpu simulated --size 16M --repeats 1 --dry-run --json"))[0];
    assert!(dry["stored"].is_null() && !config.exists());
    assert!(dry["measured"].as_array().unwrap().len() > 20);
    let tuned = &json(&run("tune . --gpu simulated --size 16M --repeats 1 --json"))[0];
    assert!(tuned["knees"]["threads_cached"].as_u64().unwrap() >= 1);
    let after = run("load data --json --gpu simulated");
    assert!(!String::from_utf8_lossy(&after.stderr).contains("knees"));
    std::fs::write(config.join("sidecore/knees.json"), "{").unwrap();
    // Found out before the minutes of measuring.
    let refused = run("tune . --gpu simulated --size 16M");
    common::assert_refused("tune", &refused, &["knees.json", "remove the file", "--dry-run"]);
    assert!(refused.stdout.is_empty());
    let broken = run("load data --json --gpu simulated");
    assert!(String::from_utf8_lossy(&broken.stderr).contains("knees-unreadable"));
    json(&broken);
}

#[test]
fn peers_take_turns_and_are_checked() {
    let sandbox = Sandbox::new();
    let peers = "--with ours:threads=2 --with plain:threads=2 --with posix:threads=1 --with nobody";
    let common = "--gpu simulated --repeats 2 --dir . --json --python ./none";
    for (line, bytes) in [
        ("bench bulk --size 5000001", 5_000_001),
        ("bench bulk --work write --size 5M", 5 << 20),
        ("bench bulk --work files --count 300 --each 5000", 1_500_000),
        ("bench rows --size 8M --count 1000", 4_096_000),
    ] {
        let rows = json(&sandbox.run(&format!("{line} {peers} {common}")));
        assert_eq!(rows.len(), 4);
        for row in &rows[..3] {
            assert!(row["not_measured"].is_null(), "{row}");
            assert_eq!(row["bytes"], bytes, "{row}");
            assert_eq!(row["all_seconds"].as_array().unwrap().len(), 2);
        }
        assert!(rows[3]["not_measured"].as_str().unwrap().contains("./none"), "{}", rows[3]);
    }
    assert!(sandbox.listing().iter().all(|name| !name.starts_with("sidecore-bench")));
}
