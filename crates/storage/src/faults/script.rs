//! The grammar of fault scripts, and errors that say what is wrong where.

use std::fmt;
use std::str::FromStr;

use spec::Status;

use crate::queue::Op;

/// What can be made to go wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum FaultKind {
    /// The completion comes twice.
    Duplicate,
    /// An error status, and nothing moved.
    Error,
    /// A bit of the payload is flipped.
    Flip,
    /// The completion comes late.
    Late,
    /// The completion never comes.
    Lost,
    /// Everything in flight is aborted.
    Reset,
    /// The queue stops.
    Stuck,
    /// Only a prefix of a write lands.
    Torn,
}

impl FaultKind {
    /// All kinds, in the order of [`FaultKind::index`].
    pub const ALL: [Self; 8] = [
        Self::Duplicate,
        Self::Error,
        Self::Flip,
        Self::Late,
        Self::Lost,
        Self::Reset,
        Self::Stuck,
        Self::Torn,
    ];

    /// The word for it in scripts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Duplicate => "duplicate",
            Self::Error => "error",
            Self::Flip => "flip",
            Self::Late => "late",
            Self::Lost => "lost",
            Self::Reset => "reset",
            Self::Stuck => "stuck",
            Self::Torn => "torn",
        }
    }

    /// Position in [`FaultKind::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Whether it can happen to this operation at all.
    pub(super) fn suits(self, op: Op) -> bool {
        match self {
            Self::Flip => matches!(op, Op::Read | Op::Write),
            Self::Torn => op == Op::Write,
            _ => true,
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a fault falls, in units of the storage.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Place {
    Anywhere,
    Block(u64),
    Byte(u64),
}

/// How often a fault falls among the I/Os that it suits.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Often {
    Always,
    Count { n: u64, every: u64 },
    Rate(f64),
}

/// One entry of a script.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fault {
    pub kind: FaultKind,
    pub place: Place,
    pub often: Often,
    pub after: u64,
    pub op: Option<Op>,
    pub status: Option<Status>,
    pub delay_ns: u64,
    pub seed: u64,
}

/// A parsed script. The empty script injects nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultScript {
    pub(super) faults: Vec<Fault>,
    text: String,
}

impl FaultScript {
    /// Whether nothing will be injected.
    pub fn is_empty(&self) -> bool {
        self.faults.is_empty()
    }

    /// The kinds that the script names.
    pub fn kinds(&self) -> impl Iterator<Item = FaultKind> + '_ {
        self.faults.iter().map(|f| f.kind)
    }
}

impl fmt::Display for FaultScript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What is wrong with a script.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FaultScriptError {
    /// No such kind. Remedy: one of those listed.
    #[error(
        "fault script: no fault is called '{0}'; there are duplicate, error, flip, late, lost, \
         reset, stuck and torn"
    )]
    UnknownKind(String),
    /// No such key, or not for this kind. Remedy: one of those listed.
    #[error("fault script: '{kind}' has no key '{key}'; it has {known}")]
    UnknownKey {
        /// The fault.
        kind: FaultKind,
        /// The word that is no key of it.
        key: String,
        /// The keys that it has.
        known: String,
    },
    /// A piece that is not `key=value`. Remedy: write it so.
    #[error("fault script: '{piece}' in '{kind}' is not KEY=VALUE")]
    NotKeyValue {
        /// The fault.
        kind: FaultKind,
        /// The piece.
        piece: String,
    },
    /// A value that cannot be read. Remedy: as the text says.
    #[error("fault script: {kind}:{key}={value}: {why}")]
    BadValue {
        /// The fault.
        kind: FaultKind,
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// What was expected.
        why: String,
    },
    /// Two keys that exclude each other, or one twice. Remedy: leave one out.
    #[error("fault script: {kind}: '{first}' and '{second}' cannot be given together")]
    Conflict {
        /// The fault.
        kind: FaultKind,
        /// One key.
        first: String,
        /// The other.
        second: String,
    },
}

impl FromStr for FaultScript {
    type Err = FaultScriptError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let entries = text.split(';').map(str::trim).filter(|e| !e.is_empty());
        let faults = entries.map(parse_fault).collect::<Result<_, _>>()?;
        Ok(Self { faults, text: text.trim().to_owned() })
    }
}

const TRIGGER_KEYS: [&str; 8] = ["n", "every", "rate", "offset", "lba", "after", "op", "seed"];

fn keys_of(kind: FaultKind) -> Vec<&'static str> {
    let mut keys = TRIGGER_KEYS.to_vec();
    match kind {
        FaultKind::Error | FaultKind::Torn => keys.push("status"),
        FaultKind::Late => keys.push("ms"),
        _ => {}
    }
    keys
}

/// The key-value pairs of one entry, each key known and given once.
struct Pairs<'a> {
    kind: FaultKind,
    pairs: Vec<(&'a str, &'a str)>,
}

impl<'a> Pairs<'a> {
    fn parse(kind: FaultKind, text: &'a str) -> Result<Self, FaultScriptError> {
        let known = keys_of(kind);
        let mut pairs: Vec<(&str, &str)> = Vec::new();
        for piece in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let Some((key, value)) = piece.split_once('=') else {
                return Err(FaultScriptError::NotKeyValue { kind, piece: piece.into() });
            };
            let (key, value) = (key.trim(), value.trim());
            if !known.contains(&key) {
                let known = known.join(", ");
                return Err(FaultScriptError::UnknownKey { kind, key: key.into(), known });
            }
            if pairs.iter().any(|(k, _)| *k == key) {
                let (first, second) = (key.to_owned(), key.to_owned());
                return Err(FaultScriptError::Conflict { kind, first, second });
            }
            pairs.push((key, value));
        }
        Ok(Self { kind, pairs })
    }

    fn value(&self, key: &str) -> Option<&'a str> {
        self.pairs.iter().find(|(k, _)| *k == key).map(|(_, v)| *v)
    }

    fn bad(&self, key: &str, value: &str, why: &str) -> FaultScriptError {
        let (key, value, why) = (key.into(), value.into(), why.into());
        FaultScriptError::BadValue { kind: self.kind, key, value, why }
    }

    /// The pieces that a value must satisfy: `read` gives None where it does not.
    fn typed<T>(
        &self,
        key: &str,
        why: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, FaultScriptError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.bad(key, value, why))
    }

    fn number(&self, key: &str) -> Result<Option<u64>, FaultScriptError> {
        self.typed(key, "a whole number is needed (0x... for hex; K, M, G for 2^10, ...)", |v| {
            parse_number(v)
        })
    }

    fn exclude(&self, first: &str, second: &str) -> Result<(), FaultScriptError> {
        if self.value(first).is_none() || self.value(second).is_none() {
            return Ok(());
        }
        let (first, second) = (first.into(), second.into());
        Err(FaultScriptError::Conflict { kind: self.kind, first, second })
    }
}

fn parse_number(text: &str) -> Option<u64> {
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return u64::from_str_radix(hex, 16).ok();
    }
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' | b'k' => (&text[..text.len() - 1], 10),
        b'M' | b'm' => (&text[..text.len() - 1], 20),
        b'G' | b'g' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn parse_status(text: &str) -> Option<Status> {
    let (code_type, code) = text.split_once('/')?;
    let hex = |t: &str| u8::from_str_radix(t.trim_start_matches("0x"), 16).ok();
    let code_type = hex(code_type).filter(|t| *t <= 7)?;
    Some(Status::new(code_type, hex(code)?))
}

fn parse_op(text: &str) -> Option<Op> {
    match text {
        "read" => Some(Op::Read),
        "write" => Some(Op::Write),
        "flush" => Some(Op::Flush),
        "zeroes" => Some(Op::WriteZeroes),
        _ => None,
    }
}

fn parse_fault(entry: &str) -> Result<Fault, FaultScriptError> {
    let (name, rest) = entry.split_once(':').unwrap_or((entry, ""));
    let name = name.trim();
    let kind = FaultKind::ALL
        .into_iter()
        .find(|k| k.name() == name)
        .ok_or_else(|| FaultScriptError::UnknownKind(name.to_owned()))?;
    let pairs = Pairs::parse(kind, rest)?;
    pairs.exclude("n", "rate")?;
    pairs.exclude("every", "rate")?;
    pairs.exclude("offset", "lba")?;
    let place = match (pairs.number("offset")?, pairs.number("lba")?) {
        (Some(byte), _) => Place::Byte(byte),
        (None, Some(block)) => Place::Block(block),
        (None, None) => Place::Anywhere,
    };
    let why = "one of read, write, flush, zeroes that the fault can happen to";
    let op = pairs.typed("op", why, |v| parse_op(v).filter(|op| kind.suits(*op)))?;
    let why = "code type 0..7 and code in hex are needed, such as 2/81";
    let status = pairs.typed("status", why, parse_status)?;
    let delay = pairs.typed("ms", "milliseconds are needed, such as 10", |v| {
        v.parse::<u64>().ok()?.checked_mul(1_000_000)
    })?;
    Ok(Fault {
        kind,
        place,
        often: parse_often(&pairs, place)?,
        after: pairs.number("after")?.unwrap_or(0),
        op,
        status,
        delay_ns: delay.unwrap_or(10_000_000),
        seed: pairs.number("seed")?.unwrap_or(1),
    })
}

fn parse_often(pairs: &Pairs<'_>, place: Place) -> Result<Often, FaultScriptError> {
    let rate = pairs.typed("rate", "a probability between 0 and 1 is needed", |v| {
        v.parse::<f64>().ok().filter(|p| (0.0..=1.0).contains(p))
    })?;
    if let Some(rate) = rate {
        return Ok(Often::Rate(rate));
    }
    let given = pairs.number("n")?;
    let every = pairs.typed("every", "a whole number of at least 1 is needed", |v| {
        parse_number(v).filter(|n| *n >= 1)
    })?;
    if given.is_none() && every.is_none() && place != Place::Anywhere {
        return Ok(Often::Always);
    }
    // Without a count the first eligible I/O is meant; with one, it is spread.
    let spread = if given.is_none() || place != Place::Anywhere { 1 } else { 7 };
    let n = match (given, every) {
        (Some(n), _) => n,
        (None, Some(_)) => u64::MAX,
        (None, None) => 1,
    };
    Ok(Often::Count { n, every: every.unwrap_or(spread) })
}
