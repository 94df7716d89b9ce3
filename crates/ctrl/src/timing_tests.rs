//! The model gives the rates and the distributions that it promises.

use super::*;

fn timing(text: &str) -> Timing {
    Timing::new(&text.parse().expect("a good model"), None)
}

fn percentile(sorted: &[u64], percent: usize) -> u64 {
    sorted[(sorted.len() - 1) * percent / 100]
}

fn latencies(text: &str) -> Vec<u64> {
    let mut model = timing(text);
    let mut all: Vec<u64> = (0..20_000).map(|_| model.due_ns(1_000, 4096) - 1_000).collect();
    all.sort_unstable();
    all
}

#[test]
fn a_rate_that_divides_nothing_evenly_never_drifts() {
    let mut model = timing("iops=3");
    for n in 0..3_000u64 {
        assert_eq!(model.due_ns(0, 0), n * NS_PER_SECOND / 3, "command {n}");
    }
}

/// Two controllers with one pacer have the rate of one drive together, whoever asks.
#[test]
fn controllers_that_share_a_pacer_share_its_rate() {
    let model = "iops=1000,latency=5us".parse().expect("a good model");
    let pacer = Pacer::new(&model);
    let mut pair = [Timing::new(&model, Some(&pacer)), Timing::new(&model, Some(&pacer))];
    for n in 0..100_usize {
        let due_ns = pair[n * n % 3 % 2].due_ns(0, 4096);
        assert_eq!(due_ns, n as u64 * 1_000_000 + 5_000, "command {n}");
    }
}

/// The same where a controller takes turns for all the commands that it has fetched.
#[test]
fn turns_taken_together_are_as_those_taken_one_by_one() {
    let model = "iops=3000".parse().expect("a good model");
    let pacer = Pacer::new(&model);
    let mut pair = [Timing::new(&model, Some(&pacer)), Timing::new(&model, Some(&pacer))];
    let mut turns = 0;
    for (one, several) in [(0, 4), (1, 1), (0, 1), (1, 64), (1, 3)] {
        pair[one].expect(several);
        for _ in 0..several {
            let due_ns = pair[one].due_ns(7, 4096);
            assert_eq!(due_ns, 7 + turns * NS_PER_SECOND / 3000, "turn {turns}");
            turns += 1;
        }
    }
    // Who expects more than come keeps their turns, which do not come earlier than their commands.
    pair[0].expect(3);
    let first = pair[0].due_ns(NS_PER_SECOND, 0);
    assert_eq!(pair[1].due_ns(NS_PER_SECOND, 0), first + 1_000_000);
    assert_eq!(pair[0].due_ns(2 * NS_PER_SECOND, 0), 2 * NS_PER_SECOND);
}

#[test]
fn an_idle_drive_saves_nothing_up() {
    let mut model = timing("iops=1000");
    model.due_ns(0, 0);
    assert_eq!(model.due_ns(NS_PER_SECOND, 0), NS_PER_SECOND);
    assert_eq!(model.due_ns(NS_PER_SECOND, 0), NS_PER_SECOND + 1_000_000);
}

#[test]
fn bandwidth_charges_bytes_and_rate_charges_commands_and_the_later_wins() {
    let mut model = timing("iops=1000,bandwidth=4096000");
    assert_eq!(model.due_ns(0, 4096), 1_000_000, "one ms of transfer");
    assert_eq!(model.due_ns(0, 40_960), 11_000_000, "ten more");
    assert_eq!(model.due_ns(0, 0), 11_000_000, "no payload of its own, behind the others");
    let mut model = timing("iops=1000,bandwidth=1e12");
    model.due_ns(0, 4096);
    assert_eq!(model.due_ns(0, 4096), 1_000_000, "the rate is the narrower one");
}

#[test]
fn constant_and_uniform_and_points() {
    assert_eq!(latencies("latency=80us"), vec![80_000; 20_000]);
    let uniform = latencies("latency=uniform:60us:100us");
    assert!(uniform[0] >= 60_000 && uniform[19_999] <= 100_000);
    assert!(percentile(&uniform, 50).abs_diff(80_000) < 1_000);
    let points = latencies("latency=points:50:80us:99:200us:100:1ms");
    assert_eq!(points[0], 80_000);
    assert!(percentile(&points, 50).abs_diff(80_000) < 3_000);
    assert!(percentile(&points, 99).abs_diff(200_000) < 30_000);
    assert!(points[19_999] > 500_000 && points[19_999] <= 1_000_000);
}

#[test]
fn lognormal_has_its_median_and_its_sigma() {
    let all = latencies("latency=lognormal:80us:0.5");
    assert!(percentile(&all, 50).abs_diff(80_000) < 1_600, "{}", percentile(&all, 50));
    // One sigma up is the 84th percentile: 80 us * e^0.5.
    assert!(percentile(&all, 84).abs_diff(131_500) < 4_000, "{}", percentile(&all, 84));
}

#[test]
fn a_seed_gives_one_run_and_another_seed_another() {
    let run = |text: &str| {
        let mut model = timing(text);
        (0..100).map(|_| model.due_ns(0, 0)).collect::<Vec<_>>()
    };
    let first = run("latency=lognormal:80us:0.5,seed=7");
    assert_eq!(first, run("latency=lognormal:80us:0.5,seed=7"));
    assert_ne!(first, run("latency=lognormal:80us:0.5,seed=8"));
}

#[test]
fn bad_models_are_refused_with_the_part_named() {
    for bad in [
        "iops=0",
        "iops=-3",
        "iops=nan",
        "bandwidth=",
        "latency=80",
        "latency=99999s",
        "latency=uniform:9us:1us",
        "latency=lognormal:80us:99",
        "latency=points:50",
        "latency=points:50:9us:40:10us",
        "latency=points:50:9us:60:8us",
        "latency=gamma:1us:2",
        "seed=x",
        "speed=3",
        "latency=\u{e9}",
    ] {
        let error = bad.parse::<TimingModel>().expect_err(bad);
        assert!(bad.contains(&error.text), "{error} names a part of {bad}");
    }
}
