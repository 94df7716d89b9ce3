//! Self-describing data: every byte follows from its address and its block's generation.
//!
//! Data is made of 16-byte *units*; a unit at byte address `a` (a multiple of 16) under generation
//! `g` is two little-endian 64-bit words. All arithmetic is modulo 2^64:
//!
//! ```text
//! if a % 4096 == 0:   lo = a                           hi = g
//! otherwise:          lo = mix(a + g * STEP)           hi = rotate_left(lo, 29) + a
//!
//! mix(x):  x ^= x >> 33;  x *= 0xff51afd7ed558ccd;
//!          x ^= x >> 33;  x *= 0xc4ceb9fe1a85ec53;
//!          x ^= x >> 33;  return x
//! STEP = 0x9e3779b97f4a7c15
//! ```
//!
//! So each 4 KiB block begins with its own address and generation in clear, and any byte can be
//! checked alone: byte `x` is byte `x % 16` of the unit at `x - x % 16`. Device code computes the
//! same from this definition; `vectors` in the tests below are the values to agree on.
//!
//! The address is that of the byte in the storage, not in memory. Data of another address, of
//! another generation, zeros and any flipped bit all fail the check.

use mem::Region;

/// Bytes in a block: each starts with its address and generation in clear.
pub const BLOCK_BYTES: usize = 4096;

/// Bytes in a unit, the smallest piece that is computed at once.
pub const UNIT_BYTES: usize = 16;

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes 64 bits so that each depends on all. Constants of MurmurHash3's 64-bit finalizer.
#[inline]
pub const fn mix(value: u64) -> u64 {
    let x = (value ^ (value >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

/// The two words of the unit that holds the byte at `address`.
#[inline]
pub const fn unit_words(address: u64, generation: u64) -> (u64, u64) {
    let a = address & !15;
    if a.is_multiple_of(BLOCK_BYTES as u64) {
        return (a, generation);
    }
    let lo = mix(a.wrapping_add(generation.wrapping_mul(STEP)));
    (lo, lo.rotate_left(29).wrapping_add(a))
}

/// The sixteen bytes of the unit that holds the byte at `address`.
#[inline]
pub fn unit(address: u64, generation: u64) -> [u8; UNIT_BYTES] {
    let (lo, hi) = unit_words(address, generation);
    (u128::from(lo) | (u128::from(hi) << 64)).to_le_bytes()
}

/// Where data differs from the pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{bytes} bytes differ, the first at {address}: {found:#04x} instead of {expected:#04x} \
     (generation {generation})"
)]
pub struct Mismatch {
    /// Address of the first byte that differs.
    pub address: u64,
    /// What it should be.
    pub expected: u8,
    /// What it is.
    pub found: u8,
    /// How many bytes differ in the range that was checked.
    pub bytes: u64,
    /// The generation that was expected.
    pub generation: u64,
}

/// Fills `target` with the pattern of `address..`, at any alignment.
pub fn fill(target: &mut [u8], address: u64, generation: u64) {
    let (head, rest) = target.split_at_mut(head_bytes(address, target.len()));
    let within = low_bits(address);
    head.copy_from_slice(&unit(address, generation)[within..][..head.len()]);
    let mut at = address.wrapping_add(head.len() as u64);
    let mut units = rest.chunks_exact_mut(UNIT_BYTES);
    for piece in &mut units {
        piece.copy_from_slice(&unit(at, generation));
        at = at.wrapping_add(UNIT_BYTES as u64);
    }
    let tail = units.into_remainder();
    tail.copy_from_slice(&unit(at, generation)[..tail.len()]);
}

/// Checks every byte of `data` against the pattern of `address..`, at any alignment.
///
/// # Errors
/// [`Mismatch`]: the first wrong byte, and how many there are.
pub fn check(data: &[u8], address: u64, generation: u64) -> Result<(), Mismatch> {
    let mut expected = [0; BLOCK_BYTES];
    let mut first: Option<Mismatch> = None;
    let mut at = address;
    for piece in data.chunks(BLOCK_BYTES) {
        let expected = &mut expected[..piece.len()];
        fill(expected, at, generation);
        if piece != expected {
            compare(piece, expected, at, generation, &mut first);
        }
        at = at.wrapping_add(piece.len() as u64);
    }
    first.map_or(Ok(()), Err)
}

/// Fills part of a region with the pattern of `address..`.
///
/// # Panics
/// Where the range is outside the region.
pub fn fill_region(memory: &Region, offset: usize, bytes: usize, address: u64, generation: u64) {
    let mut block = [0; BLOCK_BYTES];
    for start in (0..bytes).step_by(BLOCK_BYTES) {
        let piece = &mut block[..BLOCK_BYTES.min(bytes - start)];
        fill(piece, address.wrapping_add(start as u64), generation);
        memory.write_bytes(offset + start, piece);
    }
}

/// Checks every byte of part of a region against the pattern of `address..`.
///
/// # Errors
/// [`Mismatch`], as [`check`].
///
/// # Panics
/// Where the range is outside the region.
pub fn check_region(
    memory: &Region,
    offset: usize,
    bytes: usize,
    address: u64,
    generation: u64,
) -> Result<(), Mismatch> {
    let mut block = [0; BLOCK_BYTES];
    let mut first: Option<Mismatch> = None;
    for start in (0..bytes).step_by(BLOCK_BYTES) {
        let piece = &mut block[..BLOCK_BYTES.min(bytes - start)];
        memory.read_bytes(offset + start, piece);
        if let Err(found) = check(piece, address.wrapping_add(start as u64), generation) {
            merge(&mut first, found);
        }
    }
    first.map_or(Ok(()), Err)
}

/// Checks the first and the last sixteen bytes of an I/O that landed in a region: cheap enough for
/// every I/O of a timed phase, and enough to see a wrong, missing or foreign answer.
///
/// # Errors
/// [`Mismatch`], as [`check`].
///
/// # Panics
/// Where the range is outside the region.
pub fn check_ends(
    memory: &Region,
    offset: usize,
    bytes: usize,
    address: u64,
    generation: u64,
) -> Result<(), Mismatch> {
    let edge = bytes.min(UNIT_BYTES);
    let last = bytes - edge;
    check_region(memory, offset, edge, address, generation)?;
    check_region(memory, offset + last, edge, address.wrapping_add(last as u64), generation)
}

fn low_bits(address: u64) -> usize {
    usize::from(address.to_le_bytes()[0] & 15)
}

/// Bytes up to the next unit boundary, at most `len`.
fn head_bytes(address: u64, len: usize) -> usize {
    ((UNIT_BYTES - low_bits(address)) % UNIT_BYTES).min(len)
}

#[cold]
fn compare(
    found: &[u8],
    expected: &[u8],
    address: u64,
    generation: u64,
    first: &mut Option<Mismatch>,
) {
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        if found != expected {
            let address = address.wrapping_add(i as u64);
            merge(first, Mismatch { address, expected, found, bytes: 1, generation });
        }
    }
}

fn merge(first: &mut Option<Mismatch>, found: Mismatch) {
    match first {
        Some(known) => known.bytes += found.bytes,
        None => *first = Some(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mem::MemoryKind;

    #[test]
    fn vectors() {
        assert_eq!(unit_words(0, 0), (0, 0));
        assert_eq!(unit_words(8192, 7), (8192, 7));
        assert_eq!(unit_words(4099, 7), (4096, 7));
        assert_eq!(unit_words(16, 0).0, mix(16));
        assert_eq!(mix(1), 0xb456_bcfc_34c2_cb2c);
        assert_eq!(unit_words(4112, 1), (0xafc0_45e9_fd78_3ce8, 0x3faf_079d_15f8_18cd));
    }

    #[test]
    fn any_alignment_agrees_with_the_whole() {
        let mut whole = vec![0; 3 * BLOCK_BYTES];
        fill(&mut whole, 4096, 3);
        for start in [0, 1, 15, 16, 17, 4080, 4095, 4097] {
            for len in [0, 1, 7, 15, 16, 17, 33, 4096, 5000] {
                let mut part = vec![0xee; len];
                fill(&mut part, 4096 + start as u64, 3);
                assert_eq!(part, whole[start..start + len], "start {start} len {len}");
                assert_eq!(check(&part, 4096 + start as u64, 3), Ok(()));
            }
        }
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let mut data = vec![0; 100];
        fill(&mut data, 4090, 9);
        for i in 0..data.len() {
            for bit in 0..8 {
                data[i] ^= 1 << bit;
                let found = check(&data, 4090, 9).expect_err("a flipped bit");
                assert_eq!((found.address, found.bytes), (4090 + i as u64, 1));
                data[i] ^= 1 << bit;
            }
        }
    }

    #[test]
    fn foreign_data_is_found_by_its_ends() {
        let memory = Region::map_anonymous(3 * BLOCK_BYTES, MemoryKind::Host).unwrap();
        fill_region(&memory, 5, 8192, 40960, 2);
        assert_eq!(check_region(&memory, 5, 8192, 40960, 2), Ok(()));
        assert_eq!(check_ends(&memory, 5, 8192, 40960, 2), Ok(()));
        assert!(check_ends(&memory, 5, 8192, 45056, 2).is_err(), "another address");
        assert!(check_ends(&memory, 5, 8192, 40960, 3).is_err(), "another generation");
        memory.fill(5 + 8191, 1, 0);
        memory.fill(5 + 4000, 2, 0);
        assert!(check_ends(&memory, 5, 8192, 40960, 2).is_err(), "the last byte");
        let found = check_region(&memory, 5, 8192, 40960, 2).expect_err("three bytes");
        assert_eq!((found.address, found.bytes), (40960 + 4000, 3));
    }
}
