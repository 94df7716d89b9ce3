//! Copies out of write-combining memory: whole lines, by loads that fetch a line at once.
//!
//! Through a window an ordinary load is one uncached access, about a microsecond each. A streaming load
//! fetches its whole line into a buffer, and several of them are under way together. Such a buffer is
//! not kept coherent: a line that was loaded before may be seen as it was then, so a full fence comes
//! before each run of loads.
//!
//! Source: Intel 64 and IA-32 SDM, volume 1, 12.10.3 (streaming load hint instruction).
// UNSAFETY: vector instructions, by raw pointers.
#![expect(unsafe_code, reason = "streaming loads exist only as intrinsics")]

/// A line of the processor and of its streaming-load buffers.
const LINE_BYTES: usize = 64;

/// Copies `bytes` bytes; the ranges do not overlap.
///
/// # Safety
/// * `from..from + bytes` can be read and `to..to + bytes` written.
/// * The two do not overlap.
pub unsafe fn load(to: *mut u8, from: *const u8, bytes: usize) {
    let head = from.addr().wrapping_neg() % LINE_BYTES;
    if bytes < head + LINE_BYTES {
        // SAFETY: the caller's ranges.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
        return;
    }
    let body = (bytes - head) / LINE_BYTES * LINE_BYTES;
    let tail = bytes - head - body;
    // SAFETY: `head` is at most `bytes`, so all of it is inside the caller's ranges.
    unsafe { std::ptr::copy_nonoverlapping(from, to, head) };
    let (to, from) = (to.wrapping_add(head), from.wrapping_add(head));
    // SAFETY: `from` is a multiple of a line now, and `body` whole lines are inside both ranges.
    unsafe { load_lines(to, from, body) };
    let (to, from) = (to.wrapping_add(body), from.wrapping_add(body));
    // SAFETY: what is left of the caller's ranges.
    unsafe { std::ptr::copy_nonoverlapping(from, to, tail) };
}

/// Copies whole lines from an address that is a multiple of a line.
#[cfg(target_arch = "x86_64")]
unsafe fn load_lines(to: *mut u8, from: *const u8, bytes: usize) {
    if std::arch::is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has the instructions; the ranges are the caller's.
        unsafe { x86::load_512(to, from, bytes) };
    } else if std::arch::is_x86_feature_detected!("sse4.1") {
        // SAFETY: as above.
        unsafe { x86::load_128(to, from, bytes) };
    } else {
        // SAFETY: the caller's ranges.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
    }
}

/// Copies whole lines where there are no such loads.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn load_lines(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller's ranges.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::{
        __m128i, __m512i, _mm_mfence, _mm_storeu_si128, _mm_stream_load_si128, _mm512_storeu_si512,
        _mm512_stream_load_si512,
    };

    macro_rules! load {
        ($name:ident, $vector:ty, $feature:literal, $load:ident, $store:ident) => {
            /// Copies whole lines by vectors, all of them loaded after the call has begun.
            #[target_feature(enable = $feature)]
            pub unsafe fn $name(to: *mut u8, from: *const u8, bytes: usize) {
                const BYTES: usize = size_of::<$vector>();
                // No line is seen as an earlier call has seen it.
                _mm_mfence();
                let mut at = 0;
                while at < bytes {
                    // `at` is below `bytes`, and a vector divides a line.
                    let (to, from) = (to.wrapping_add(at), from.wrapping_add(at));
                    // SAFETY: inside the caller's range, and aligned as its first line is.
                    let vector = unsafe { $load(from.cast::<$vector>()) };
                    // SAFETY: inside the caller's range; any alignment.
                    unsafe { $store(to.cast::<$vector>(), vector) };
                    at += BYTES;
                }
            }
        };
    }
    load!(load_512, __m512i, "avx512f", _mm512_stream_load_si512, _mm512_storeu_si512);
    load!(load_128, __m128i, "sse4.1", _mm_stream_load_si128, _mm_storeu_si128);

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn each_width_copies_whole_lines() {
            let source: Vec<u8> =
                (0..1024_u32).map(|i| (i * 7 + i / 251).to_le_bytes()[0]).collect();
            let at = source.as_ptr().addr().wrapping_neg() % 64;
            let kinds = [is_x86_feature_detected!("avx512f"), is_x86_feature_detected!("sse4.1")];
            for (kind, _) in kinds.into_iter().enumerate().filter(|(_, has)| *has) {
                let mut memory = vec![0_u8; 1024];
                let (to, from) =
                    (memory.as_mut_ptr().wrapping_add(3), source.as_ptr().wrapping_add(at));
                match kind {
                    // SAFETY: 768 bytes from a line on are inside both, and the processor has it.
                    0 => unsafe { load_512(to, from, 768) },
                    // SAFETY: as above.
                    _ => unsafe { load_128(to, from, 768) },
                }
                assert_eq!(memory[3..771], source[at..at + 768]);
                assert!(memory[..3].iter().chain(&memory[771..]).all(|byte| *byte == 0));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_length_from_any_place() {
        let source: Vec<u8> =
            (0..600_u32).map(|i| (i * 31 + i / 255 + 1).to_le_bytes()[0]).collect();
        for start in 0..70 {
            for bytes in [0, 1, 7, 63, 64, 65, 127, 128, 200, 257, 400] {
                let mut memory = vec![0xee_u8; 600];
                // SAFETY: `start + bytes` and `5 + bytes` are below 600, the length of both.
                unsafe {
                    load(
                        memory.as_mut_ptr().wrapping_add(5),
                        source.as_ptr().wrapping_add(start),
                        bytes,
                    );
                }
                assert_eq!(memory[5..5 + bytes], source[start..start + bytes]);
                let rest = memory[..5].iter().chain(&memory[5 + bytes..]);
                assert!(rest.copied().all(|byte| byte == 0xee), "{start} {bytes}");
            }
        }
    }
}
