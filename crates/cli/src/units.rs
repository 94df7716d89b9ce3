//! Sizes, durations and rates as people write and read them.

use std::time::Duration;

/// Parses `4096`, `4k`, `4KiB`, `1.5M`, `2GiB`; multiples of 1,024.
///
/// # Errors
/// A text that says what was expected.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        _ => return Err(format!("'{text}' is not a size: write 4096, 4k, 1.5M or 2G")),
    };
    let value = parse_number(number)
        .ok_or_else(|| format!("'{text}' is not a size: write 4096, 4k, 1.5M or 2G"))?;
    let bytes = value * factor as f64;
    if bytes.fract() != 0.0 || bytes > 9e15 {
        return Err(format!("'{text}' is not a whole number of bytes that a file can have"));
    }
    Ok(whole(bytes))
}

/// Parses `2`, `1.5s`, `250ms`, `80us`, `500ns`; a bare number is seconds.
///
/// # Errors
/// A text that says what was expected.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let factor = match unit {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        "ns" => 1e-9,
        "m" | "min" => 60.0,
        _ => return Err(format!("'{text}' is not a duration: write 2, 1.5s, 250ms or 80us")),
    };
    parse_number(number)
        .map(|value| value * factor)
        .filter(|&seconds| seconds < 1e6)
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("'{text}' is not a duration: write 2, 1.5s, 250ms or 80us"))
}

fn split(text: &str) -> (&str, &str) {
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    text.split_at(at)
}

fn parse_number(text: &str) -> Option<f64> {
    text.parse::<f64>().ok().filter(|v| v.is_finite() && *v >= 0.0)
}

/// A non-negative float of less than 2^63 as an integer, rounded down.
#[expect(clippy::cast_possible_truncation, reason = "callers keep it below 2^53")]
pub fn whole(value: f64) -> u64 {
    value.max(0.0) as u64
}

/// `4 KiB`, `1.5 MiB`.
pub fn bytes(value: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut scaled = value as f64;
    let mut unit = 0;
    while scaled >= 1024.0 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    format!("{} {}", short(scaled), UNITS[unit])
}

/// `1.84 GB/s` (powers of 1,000, as drives are rated).
pub fn rate(bytes_per_s: f64) -> String {
    scaled(bytes_per_s, &["B/s", "kB/s", "MB/s", "GB/s", "TB/s"])
}

/// `412 k`, `1.2 M`.
pub fn count(value: f64) -> String {
    scaled(value, &["", "k", "M", "G"]).trim_end().to_owned()
}

/// `4.1 us`, `12 ms`.
pub fn nanoseconds(value: f64) -> String {
    scaled(value, &["ns", "\u{b5}s", "ms", "s"])
}

fn scaled(value: f64, units: &[&str]) -> String {
    let mut scaled = value;
    let mut unit = 0;
    while scaled >= 999.5 && unit + 1 < units.len() {
        scaled /= 1000.0;
        unit += 1;
    }
    format!("{} {}", short(scaled), units[unit])
}

/// Three significant digits, without trailing zeros.
pub fn short(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// `1,048,576`.
pub fn thousands(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_are_read_as_people_write_them() {
        assert_eq!(parse_bytes("4k"), Ok(4096));
        assert_eq!(parse_bytes("1.5MiB"), Ok(3 << 19));
        assert_eq!(parse_bytes("512"), Ok(512));
        assert!(parse_bytes("1.0001").is_err());
        assert!(parse_bytes("-4k").is_err());
        assert!(parse_bytes("").is_err());
        assert!(parse_bytes("4x").is_err());
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("2"), Ok(Duration::from_secs(2)));
        assert!(parse_duration("soon").is_err());
    }

    #[test]
    fn numbers_are_shown_with_three_digits() {
        assert_eq!(bytes(4096), "4 KiB");
        assert_eq!(rate(1.842e9), "1.84 GB/s");
        assert_eq!(count(412_345.0), "412 k");
        assert_eq!(count(12.0), "12");
        assert_eq!(nanoseconds(4_120.0), "4.12 \u{b5}s");
        assert_eq!(thousands(1_048_576), "1,048,576");
    }
}
