//! The drive that the controller stands for, as times: rate, bandwidth and latency.
//!
//! A command's completion is due at
//!
//! ```text
//! due = max(its turn under the rate, the end of its payload under the bandwidth) + latency sample
//! ```
//!
//! Rate and bandwidth are exact rational paces: they never drift, whatever the step width. Latency
//! comes from a seeded generator, so that one seed and one order of commands give one set of times.
//! The model only ever delays: a storage that is slower than the model stays slower.
//!
//! Several controllers can stand for one drive: a [`Pacer`] that they share gives each command its turn
//! among those of all of them. They must then be stepped by one clock.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::random::Random;

const NS_PER_SECOND: u64 = 1_000_000_000;

/// How long a command takes beside waiting for its turn.
#[derive(Clone, Debug, PartialEq)]
pub enum Latency {
    /// Always the same, in nanoseconds.
    Constant(u64),
    /// Lognormal: half of all are below the median; `sigma` is the deviation of the logarithm.
    LogNormal {
        /// Median in nanoseconds.
        median_ns: u64,
        /// Standard deviation of the natural logarithm.
        sigma: f64,
    },
    /// Straight lines between points (percentile 0-100, nanoseconds), both ascending.
    Points(Vec<(f64, u64)>),
    /// Anything from the first to the second, in nanoseconds.
    Uniform(u64, u64),
}

impl Latency {
    /// Draws one latency in nanoseconds.
    fn sample(&self, random: &mut Random) -> u64 {
        match self {
            Self::Constant(ns) => *ns,
            Self::Uniform(low, high) => low + random.below((high - low).saturating_add(1)),
            Self::LogNormal { median_ns, sigma } => {
                let exponent = (sigma * random.normal()).clamp(-20.0, 20.0);
                to_ns(*median_ns as f64 * exponent.exp())
            }
            Self::Points(points) => interpolate(points, random.unit() * 100.0),
        }
    }
}

/// Nanoseconds from a float; saturates, and takes what is no number as 0.
#[expect(clippy::cast_possible_truncation, reason = "float casts saturate")]
fn to_ns(ns: f64) -> u64 {
    ns as u64
}

fn interpolate(points: &[(f64, u64)], percentile: f64) -> u64 {
    let Some(&(first, first_ns)) = points.first() else { return 0 };
    if percentile <= first {
        return first_ns;
    }
    for pair in points.windows(2) {
        let ((low, low_ns), (high, high_ns)) = (pair[0], pair[1]);
        if percentile <= high {
            let part = (percentile - low) / (high - low);
            return low_ns + to_ns((high_ns - low_ns) as f64 * part);
        }
    }
    points.last().map_or(0, |p| p.1)
}

/// What a drive can do. The default delays nothing.
///
/// As text: `iops=1000000,bandwidth=7000000000,latency=lognormal:80us:0.3,seed=7`; every part may be
/// missing. Latencies: `constant:80us`, `uniform:60us:100us`, `lognormal:MEDIAN:SIGMA`,
/// `points:50:80us:99:200us:100:1ms`. Times are in `ns`, `us`, `ms` or `s`.
#[derive(Clone, Debug, PartialEq)]
pub struct TimingModel {
    /// Most commands a second.
    pub iops: Option<u64>,
    /// Most payload bytes a second.
    pub bytes_per_second: Option<u64>,
    /// Time of one command.
    pub latency: Latency,
    /// Seed of the latencies.
    pub seed: u64,
}

impl Default for TimingModel {
    fn default() -> Self {
        Self { iops: None, bytes_per_second: None, latency: Latency::Constant(0), seed: 1 }
    }
}

impl TimingModel {
    /// Whether this model delays nothing at all.
    pub fn is_unlimited(&self) -> bool {
        self.iops.is_none()
            && self.bytes_per_second.is_none()
            && self.latency == Latency::Constant(0)
    }
}

/// A timing model that cannot be meant. Remedy: as the text says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("drive model {text:?}: {why}")]
pub struct TimingModelError {
    /// The part that was not understood.
    pub text: String,
    /// Why not.
    pub why: String,
}

fn refuse<T>(text: &str, why: impl Into<String>) -> Result<T, TimingModelError> {
    Err(TimingModelError { text: text.to_owned(), why: why.into() })
}

fn parse_rate(text: &str) -> Result<u64, TimingModelError> {
    match text.replace('_', "").parse::<f64>() {
        Ok(rate) if (1.0..=1e15).contains(&rate) => Ok(to_ns(rate)),
        _ => refuse(text, "expected a rate between 1 and 1e15 a second"),
    }
}

fn parse_ns(text: &str) -> Result<u64, TimingModelError> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = match &text[digits.len()..] {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return refuse(text, "expected a time such as 80us (ns, us, ms or s)"),
    };
    match digits.parse::<f64>() {
        Ok(value) if (0.0..=6e10).contains(&(value * scale)) => Ok(to_ns(value * scale)),
        _ => refuse(text, "expected a time between 0 and 60 s"),
    }
}

fn parse_number(text: &str, max: f64) -> Result<f64, TimingModelError> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=max).contains(&value) => Ok(value),
        _ => refuse(text, format!("expected a number between 0 and {max}")),
    }
}

fn parse_points(parts: &[&str], text: &str) -> Result<Latency, TimingModelError> {
    if parts.is_empty() || !parts.len().is_multiple_of(2) {
        return refuse(text, "expected pairs of percentile and time");
    }
    let mut points: Vec<(f64, u64)> = Vec::new();
    for pair in parts.chunks_exact(2) {
        let point = (parse_number(pair[0], 100.0)?, parse_ns(pair[1])?);
        if points.last().is_some_and(|last| last.0 >= point.0 || last.1 > point.1) {
            return refuse(text, "percentiles and times must ascend");
        }
        points.push(point);
    }
    Ok(Latency::Points(points))
}

impl FromStr for Latency {
    type Err = TimingModelError;

    fn from_str(text: &str) -> Result<Self, TimingModelError> {
        let parts: Vec<&str> = text.split(':').collect();
        match parts.as_slice() {
            ["constant", time] => Ok(Self::Constant(parse_ns(time)?)),
            ["uniform", low, high] => {
                let (low, high) = (parse_ns(low)?, parse_ns(high)?);
                if low > high {
                    return refuse(text, "the first time is above the second");
                }
                Ok(Self::Uniform(low, high))
            }
            ["lognormal", median, sigma] => Ok(Self::LogNormal {
                median_ns: parse_ns(median)?,
                sigma: parse_number(sigma, 4.0)?,
            }),
            ["points", points @ ..] => parse_points(points, text),
            [time] => Ok(Self::Constant(parse_ns(time)?)),
            _ => refuse(text, "expected constant, uniform, lognormal or points"),
        }
    }
}

impl FromStr for TimingModel {
    type Err = TimingModelError;

    fn from_str(text: &str) -> Result<Self, TimingModelError> {
        let mut model = Self::default();
        for part in text.split(',').filter(|p| !p.is_empty()) {
            match part.split_once('=') {
                Some(("iops", rate)) => model.iops = Some(parse_rate(rate)?),
                Some(("bandwidth", rate)) => model.bytes_per_second = Some(parse_rate(rate)?),
                Some(("latency", latency)) => model.latency = latency.parse()?,
                Some(("seed", seed)) => match seed.parse() {
                    Ok(seed) => model.seed = seed,
                    Err(_) => return refuse(part, "expected a whole number"),
                },
                _ => return refuse(part, "expected iops=, bandwidth=, latency= or seed="),
            }
        }
        Ok(model)
    }
}

impl fmt::Display for TimingModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.iops {
            Some(rate) => write!(f, "{rate} commands/s")?,
            None => write!(f, "unlimited commands/s")?,
        }
        if let Some(rate) = self.bytes_per_second {
            write!(f, ", {rate} bytes/s")?;
        }
        let us = |ns: u64| ns as f64 / 1e3;
        match &self.latency {
            Latency::Constant(ns) => write!(f, ", {} us", us(*ns)),
            Latency::LogNormal { median_ns, sigma } => {
                write!(f, ", lognormal {} us (sigma {sigma})", us(*median_ns))
            }
            Latency::Points(points) => write!(f, ", latency by {} points", points.len()),
            Latency::Uniform(low, high) => write!(f, ", {}-{} us", us(*low), us(*high)),
        }
    }
}

/// Units at an exact rate: `at` is when the next unit may start, plus `fraction / rate` ns.
#[derive(Clone, Debug)]
struct Pace {
    rate: u64,
    at_ns: u64,
    fraction: u64,
}

impl Pace {
    fn new(rate: u64) -> Self {
        Self { rate: rate.max(1), at_ns: 0, fraction: 0 }
    }

    /// Takes `units` from now on, and returns when they start and when they end.
    fn take(&mut self, now_ns: u64, units: u64) -> (u64, u64) {
        if self.at_ns < now_ns {
            (self.at_ns, self.fraction) = (now_ns, 0);
        }
        let start = self.at_ns;
        let wide = u128::from(units) * u128::from(NS_PER_SECOND) + u128::from(self.fraction);
        let whole = u64::try_from(wide / u128::from(self.rate)).unwrap_or(u64::MAX);
        self.at_ns = start.saturating_add(whole);
        self.fraction = u64::try_from(wide % u128::from(self.rate)).expect("below the rate");
        (start, self.at_ns)
    }
}

/// Rate and bandwidth as commands take their turns.
#[derive(Debug)]
struct Paces {
    commands: Option<Pace>,
    bytes: Option<Pace>,
}

impl Paces {
    fn new(model: &TimingModel) -> Self {
        Self { commands: model.iops.map(Pace::new), bytes: model.bytes_per_second.map(Pace::new) }
    }

    /// When a command's turn has come and its payload has passed.
    #[inline]
    fn take(&mut self, now_ns: u64, payload_bytes: u64) -> u64 {
        let turn = self.commands.as_mut().map_or(now_ns, |pace| pace.take(now_ns, 1).0);
        let moved = self.bytes.as_mut().map_or(now_ns, |pace| pace.take(now_ns, payload_bytes).1);
        turn.max(moved)
    }
}

/// The rate and the bandwidth of one drive that several controllers make up. Clones share it.
#[derive(Clone, Debug)]
pub struct Pacer(Arc<Mutex<Paces>>);

impl Pacer {
    /// Of a model's rate and bandwidth.
    pub fn new(model: &TimingModel) -> Self {
        Self(Arc::new(Mutex::new(Paces::new(model))))
    }
}

#[derive(Debug)]
enum Turns {
    Own(Paces),
    /// With the turns that were taken ahead.
    Shared(Pacer, Ahead),
}

/// Turns of a shared pacer that were taken together, for commands that are there: a lock for each would
/// make many controllers wait for each other, and for all they have stored to a device's memory.
#[derive(Debug)]
struct Ahead {
    pace: Pace,
    left: u32,
    /// Commands that are about to take turns.
    expected: u32,
}

impl Ahead {
    /// As [`Paces::take`], of the turns at hand or of new ones.
    fn take(&mut self, shared: &Mutex<Paces>, now_ns: u64, payload_bytes: u64) -> u64 {
        if self.left == 0 {
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let several = self.expected.max(1);
            let by_bytes = shared.bytes.is_some();
            match &mut shared.commands {
                Some(pace) if several > 1 && !by_bytes => {
                    self.pace = pace.clone();
                    self.left = several;
                    pace.take(now_ns, several.into());
                }
                _ => return shared.take(now_ns, payload_bytes),
            }
        }
        self.left -= 1;
        self.expected = self.expected.saturating_sub(1);
        self.pace.take(now_ns, 1).0
    }
}

/// A [`TimingModel`] at work.
#[derive(Debug)]
pub(crate) struct Timing {
    latency: Latency,
    turns: Turns,
    random: Random,
    unlimited: bool,
}

impl Timing {
    pub(crate) fn new(model: &TimingModel, pacer: Option<&Pacer>) -> Self {
        let turns = match pacer {
            // Latency alone is nobody's but the command's own.
            Some(pacer) if model.iops.is_some() || model.bytes_per_second.is_some() => {
                let ahead = Ahead { pace: Pace::new(1), left: 0, expected: 0 };
                Turns::Shared(pacer.clone(), ahead)
            }
            _ => Turns::Own(Paces::new(model)),
        };
        Self {
            latency: model.latency.clone(),
            turns,
            random: Random::new(model.seed),
            unlimited: model.is_unlimited(),
        }
    }

    /// Says that so many commands were fetched and are about to ask for their time.
    #[inline]
    pub(crate) fn expect(&mut self, commands: u32) {
        if let Turns::Shared(_, ahead) = &mut self.turns {
            ahead.expected = commands;
        }
    }

    /// When a command fetched now, with this much payload, may be seen to end.
    #[inline]
    pub(crate) fn due_ns(&mut self, now_ns: u64, payload_bytes: u64) -> u64 {
        if self.unlimited { now_ns } else { self.modelled_due_ns(now_ns, payload_bytes) }
    }

    #[inline(never)]
    fn modelled_due_ns(&mut self, now_ns: u64, payload_bytes: u64) -> u64 {
        let turn = match &mut self.turns {
            Turns::Own(paces) => paces.take(now_ns, payload_bytes),
            Turns::Shared(Pacer(paces), ahead) => ahead.take(paces, now_ns, payload_bytes),
        };
        turn.saturating_add(self.latency.sample(&mut self.random))
    }
}

#[cfg(test)]
#[path = "timing_tests.rs"]
mod tests;
