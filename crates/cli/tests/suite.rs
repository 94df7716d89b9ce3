//! Suites of rows, verification by kernels, and few lanes, on the simulated GPU.

mod common;

use common::Sandbox;
use serde_json::Value;

fn rows(text: &[u8]) -> Vec<Value> {
    let text = String::from_utf8_lossy(text);
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn a_suite_measures_its_rows_in_turn_over_one_file() {
    let sandbox = Sandbox::new();
    let lanes =
        "--path ring --io-size 4k --sms 1 --warps 1 --side-cores 1 --verify device --ios 500";
    let text = format!(
        "# the rows\nclock window --only gpu-clock --size 1M\n\
         pull {lanes} --drive memory --route pull\n\
         push {lanes} --drive mapped --op write\n\
         later {lanes} --drive memory --route window\n"
    );
    sandbox.write("rows", text.as_bytes());
    let line = "bench suite rows --gpu simulated --size 2M --repeats 2 --duration 50ms --dir .";
    let output = sandbox.run(line);
    assert!(output.status.success(), "{output:?}");
    let rows = rows(&output.stdout);
    let names: Vec<(&str, u64)> = rows
        .iter()
        .map(|row| (row["row"].as_str().unwrap(), row["repeat"].as_u64().unwrap()))
        .collect();
    let once = ["clock", "pull", "push", "later"];
    let expected: Vec<(&str, u64)> =
        (0..2).flat_map(|repeat| once.map(|name| (name, repeat))).collect();
    assert_eq!(names, expected);
    for row in rows.iter().filter(|row| row["row"] != "clock") {
        assert_eq!(row["ios_verified"], row["ios"], "{row}");
        assert_eq!(row["verify"], "device");
    }
    assert!(rows[0]["step_ns"].as_u64().unwrap() > 0);
    assert_eq!(sandbox.listing(), ["rows"], "the data file is gone");
    let none = sandbox.run(&format!("{line} --limit 0s"));
    let said = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(none.stdout.is_empty() && said.contains("not measured") && said.contains("later 1"));
    sandbox.refuses(&format!("{line} --only nothing"), &["no row is wanted"]);
    sandbox.write("rows", b"bad --path ring --nonsense\n");
    sandbox.refuses(line, &["line 1", "--nonsense"]);
}

/// The data is compared by a kernel, which must see what the CPU would.
#[test]
fn kernels_find_each_flipped_byte() {
    let sandbox = Sandbox::new();
    let line = "bench --json --gpu simulated --path ring --io-size 4k --size 4M --ios 1000 \
                --repeats 1 --sms 1 --warps 1 --side-cores 1 --verify device --faults flip:n=9";
    let output = sandbox.run(line);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let row = &rows(&output.stdout)[0];
    assert_eq!((&row["errors"], &row["faults_injected"]), (&0.into(), &9.into()));
    let (ios, right) = (row["ios"].as_u64().unwrap(), row["ios_verified"].as_u64().unwrap());
    assert_eq!(ios - right, 9);
    sandbox.refuses(
        "bench --gpu simulated --path posix --verify device",
        &["--verify device", "posix"],
    );
}

#[test]
fn one_lane_asks_alone() {
    let sandbox = Sandbox::new();
    let line = "bench --json --gpu simulated --path ring --io-size 4k --size 4M --ios 200 \
                --repeats 1 --sms 1 --lanes 1 --side-cores 1 --verify device";
    let output = sandbox.run(line);
    assert!(output.status.success(), "{output:?}");
    let row = &rows(&output.stdout)[0];
    assert_eq!((&row["lanes"], &row["ios_unverified"]), (&1.into(), &0.into()));
    assert!(row["in_flight_mean"].as_f64().unwrap() <= 1.01, "{row}");
}
