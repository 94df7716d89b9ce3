//! The header of a safetensors file, read strictly: nothing is allocated for a claim that the file's length
//! does not bear out, and every byte of the data belongs to exactly one tensor.
//!
//! ```text
//! 8 bytes   n, little endian
//! n bytes   JSON: {"name": {"dtype": .., "shape": [..], "data_offsets": [begin, end]}, "__metadata__": {..}}
//! the rest  data; offsets count from here
//! ```
//!
//! Source: the format's description in the safetensors repository, version 0.8.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

/// Longest header that is read. Source: the reference implementation's `MAX_HEADER_SIZE`.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Most dimensions of a tensor; more than any framework takes.
const DIMENSIONS_MAX: usize = 64;

/// Types by the format's name, with the bits of an element.
const DTYPES: &[(&str, u64)] = &[
    ("BF16", 16),
    ("BOOL", 8),
    ("C64", 64),
    ("F16", 16),
    ("F32", 32),
    ("F4", 4),
    ("F6_E2M3", 6),
    ("F6_E3M2", 6),
    ("F64", 64),
    ("F8_E4M3", 8),
    ("F8_E4M3FNUZ", 8),
    ("F8_E5M2", 8),
    ("F8_E5M2FNUZ", 8),
    ("F8_E8M0", 8),
    ("I16", 16),
    ("I32", 32),
    ("I64", 64),
    ("I8", 8),
    ("U16", 16),
    ("U32", 32),
    ("U64", 64),
    ("U8", 8),
];

/// Why a header was refused.
#[derive(Debug)]
pub enum HeaderError {
    /// The system did not give the bytes.
    Io(std::io::Error),
    /// The bytes are not a header of this format.
    Format(String),
}

/// A tensor of the file.
#[derive(Debug)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its type, by the format's name.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<u64>,
    /// First byte, counted from the file's beginning.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// What a file holds.
#[derive(Debug)]
pub struct Header {
    /// Tensors in the order of their data.
    pub entries: Vec<Entry>,
    /// The free text, in the file's order.
    pub metadata: Vec<(String, String)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The JSON object, in order, with no key twice.
#[derive(Default)]
struct Object {
    tensors: Vec<(String, Described)>,
    metadata: Vec<(String, String)>,
}

/// A map of texts, in order, with no key twice.
struct Texts(Vec<(String, String)>);

struct TextsVisitor;

impl<'de> Visitor<'de> for TextsVisitor {
    type Value = Texts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object of texts")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Texts, A::Error> {
        let mut seen = std::collections::HashSet::new();
        let mut texts = Vec::new();
        while let Some((key, value)) = map.next_entry::<String, String>()? {
            if !seen.insert(key.clone()) {
                return Err(A::Error::custom(format!("the metadata has the key {key:?} twice")));
            }
            texts.push((key, value));
        }
        Ok(Texts(texts))
    }
}

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(TextsVisitor)
    }
}

struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Object;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
        let mut object = Object::default();
        let mut seen = std::collections::HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if !seen.insert(key.clone()) {
                return Err(A::Error::custom(format!("it has the key {key:?} twice")));
            }
            if key == "__metadata__" {
                object.metadata = map.next_value::<Texts>()?.0;
            } else {
                let described = map.next_value::<Described>()?;
                object.tensors.push((key, described));
            }
        }
        Ok(object)
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor)
    }
}

fn format(why: impl Into<String>) -> HeaderError {
    HeaderError::Format(why.into())
}

/// Reads and checks the header of an open file.
///
/// # Errors
/// [`HeaderError`], with the reason.
///
/// # Cost
/// Two reads; memory for the header alone.
pub fn read(file: &File) -> Result<Header, HeaderError> {
    let facts = file.metadata().map_err(HeaderError::Io)?;
    if !facts.is_file() {
        return Err(format("it is not a regular file"));
    }
    let file_bytes = facts.len();
    if file_bytes < 8 {
        return Err(format(format!("it has {file_bytes} bytes, fewer than the 8 of a length")));
    }
    let mut word = [0; 8];
    file.read_exact_at(&mut word, 0).map_err(HeaderError::Io)?;
    let bytes = u64::from_le_bytes(word);
    if bytes > file_bytes - 8 {
        return Err(format(format!(
            "its first 8 bytes tell of a header of {bytes} bytes, but only {} follow: it is \
             truncated or no safetensors file",
            file_bytes - 8
        )));
    }
    if bytes > HEADER_BYTES_MAX {
        return Err(format(format!(
            "its header of {bytes} bytes is longer than the {HEADER_BYTES_MAX} that the format \
             allows"
        )));
    }
    let len = usize::try_from(bytes).map_err(|e| format(e.to_string()))?;
    let mut text = vec![0; len];
    file.read_exact_at(&mut text, 8).map_err(HeaderError::Io)?;
    parse(&text, file_bytes)
}

/// Checks a header's text against the length of its file.
fn parse(text: &[u8], file_bytes: u64) -> Result<Header, HeaderError> {
    let text = std::str::from_utf8(text)
        .map_err(|e| format(format!("its header is not UTF-8 at byte {}", e.valid_up_to())))?;
    if !text.starts_with('{') {
        return Err(format("its header does not begin with '{'"));
    }
    let object: Object =
        serde_json::from_str(text).map_err(|e| format(format!("its header: {e}")))?;
    let data_offset = 8 + text.len() as u64;
    let data_bytes = file_bytes - data_offset;
    let mut tensors = object.tensors;
    tensors.sort_by_key(|(_, described)| described.data_offsets);
    let mut entries = Vec::with_capacity(tensors.len());
    let mut end = 0;
    for (name, described) in tensors {
        let entry = check(name, described, end, data_bytes)?;
        end += entry.bytes;
        entries.push(Entry { offset: data_offset + entry.offset, ..entry });
    }
    if end != data_bytes {
        return Err(format(format!(
            "its tensors take {end} bytes, but {data_bytes} follow the header"
        )));
    }
    Ok(Header { entries, metadata: object.metadata })
}

/// Checks one tensor that must begin where the one before it ended.
fn check(name: String, tensor: Described, end: u64, data: u64) -> Result<Entry, HeaderError> {
    let (begin, stop) = tensor.data_offsets;
    let wrong = |why: String| format(format!("tensor {name:?}: {why}"));
    if begin > stop || stop > data {
        return Err(wrong(format!("bytes {begin}..{stop} do not lie inside {data} bytes of data")));
    }
    if begin < end {
        return Err(wrong(format!("it begins at byte {begin}, inside the one that ends at {end}")));
    }
    if begin > end {
        return Err(wrong(format!("bytes {end}..{begin} before it belong to no tensor")));
    }
    if tensor.shape.len() > DIMENSIONS_MAX {
        return Err(wrong(format!("{} dimensions", tensor.shape.len())));
    }
    let Some((_, bits)) = DTYPES.iter().find(|(known, _)| *known == tensor.dtype) else {
        return Err(wrong(format!("its type {:?} is not known", tensor.dtype)));
    };
    let elements = tensor.shape.iter().try_fold(1_u64, |product, n| product.checked_mul(*n));
    let total = elements.and_then(|elements| elements.checked_mul(*bits));
    let bytes = match total {
        Some(total) if total.is_multiple_of(8) => total / 8,
        Some(total) => return Err(wrong(format!("{total} bits are no whole bytes"))),
        None => return Err(wrong(format!("shape {:?} overflows", tensor.shape))),
    };
    // Frameworks multiply the other lengths of an empty tensor all the same.
    let lengths = tensor.shape.iter().filter(|n| **n > 0);
    let product = lengths.into_iter().try_fold(*bits, |product, n| product.checked_mul(*n));
    if product.is_none_or(|product| i64::try_from(product).is_err()) {
        return Err(wrong(format!("shape {:?} overflows", tensor.shape)));
    }
    if bytes != stop - begin {
        return Err(wrong(format!(
            "{} of shape {:?} takes {bytes} bytes, its range has {}",
            tensor.dtype,
            tensor.shape,
            stop - begin
        )));
    }
    Ok(Entry { name, dtype: tensor.dtype, shape: tensor.shape, offset: begin, bytes })
}
