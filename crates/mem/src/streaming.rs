//! Copies into write-combining memory: whole lines, by stores that bypass the caches.
//!
//! Through a window ordinary stores work, but leave the core in parts as its few combining buffers are
//! reused; non-temporal stores of whole lines go out as one transaction each. They are weakly ordered:
//! `fence_payload` comes between them and whatever tells of them. An instruction with a lock in
//! between waits for all of them as well: whoever stores much does all of it at a stretch.
//!
//! What is copied next can be asked for meanwhile: blocks that lie anywhere in a large memory are in no
//! cache, and a core has few buffers for lines under way, which its loads that miss and these stores
//! share. So the next block is brought into the second-level cache: that holds such a buffer for less
//! long than a miss does (on a Xeon with an H200: 33 GB/s of four threads, else 31).
// UNSAFETY: vector instructions, by raw pointers.
#![expect(unsafe_code, reason = "non-temporal stores exist only as intrinsics")]

/// A line of the processor and of its combining buffers.
const LINE_BYTES: usize = 64;

/// Copies `bytes` bytes; the ranges do not overlap. Asks the caches for as many bytes at `ahead`,
/// which may be any address.
///
/// # Safety
/// * `from..from + bytes` can be read and `to..to + bytes` written.
/// * The two do not overlap.
pub unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize, ahead: Option<*const u8>) {
    let head = to.addr().wrapping_neg() % LINE_BYTES;
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
    // SAFETY: `to` is a multiple of a line now, and `body` whole lines are inside both ranges.
    unsafe { copy_lines(to, from, body, ahead.unwrap_or(from)) };
    let (to, from) = (to.wrapping_add(body), from.wrapping_add(body));
    // SAFETY: what is left of the caller's ranges.
    unsafe { std::ptr::copy_nonoverlapping(from, to, tail) };
}

/// Asks the second-level cache for bytes, which may be at any address.
pub fn ask_for(from: *const u8, bytes: usize) {
    for at in (0..bytes).step_by(LINE_BYTES) {
        ask_for_line(from.wrapping_add(at));
    }
}

/// Asks the second-level cache for one line, which may be at any address.
#[inline(always)]
pub fn ask_for_line(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a hint reads nothing; SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// Copies whole lines to an address that is a multiple of a line.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_lines(to: *mut u8, from: *const u8, bytes: usize, ahead: *const u8) {
    if std::arch::is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has the instructions; the ranges are the caller's.
        unsafe { x86::copy_512(to, from, bytes, ahead) };
    } else if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: as above.
        unsafe { x86::copy_256(to, from, bytes, ahead) };
    } else {
        // SAFETY: as above; SSE2 is part of x86-64.
        unsafe { x86::copy_128(to, from, bytes, ahead) };
    }
}

/// Copies whole lines where there are no such stores.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_lines(to: *mut u8, from: *const u8, bytes: usize, _ahead: *const u8) {
    // SAFETY: the caller's ranges.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::{
        __m128i, __m256i, __m512i, _MM_HINT_T1, _mm_loadu_si128, _mm_prefetch, _mm_stream_si128,
        _mm256_loadu_si256, _mm256_stream_si256, _mm512_loadu_si512, _mm512_stream_si512,
    };

    macro_rules! copy {
        ($name:ident, $vector:ty, $feature:literal, $load:ident, $store:ident) => {
            /// Copies whole lines by vectors.
            #[target_feature(enable = $feature)]
            pub unsafe fn $name(to: *mut u8, from: *const u8, bytes: usize, ahead: *const u8) {
                const VECTORS: usize = super::LINE_BYTES / size_of::<$vector>();
                let mut at = 0;
                while at < bytes {
                    // `at` is a multiple of a line below `bytes`, which is one, too.
                    let (to, from) = (to.wrapping_add(at), from.wrapping_add(at));
                    let (to, from) = (to.cast::<$vector>(), from.cast::<$vector>());
                    _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(at).cast());
                    for vector in 0..VECTORS {
                        // SAFETY: inside the caller's range; any alignment.
                        let bits = unsafe { $load(from.wrapping_add(vector)) };
                        // SAFETY: inside the caller's range, and aligned as its first line is.
                        unsafe { $store(to.wrapping_add(vector), bits) };
                    }
                    at += super::LINE_BYTES;
                }
            }
        };
    }
    copy!(copy_512, __m512i, "avx512f", _mm512_loadu_si512, _mm512_stream_si512);
    copy!(copy_256, __m256i, "avx2", _mm256_loadu_si256, _mm256_stream_si256);
    copy!(copy_128, __m128i, "sse2", _mm_loadu_si128, _mm_stream_si128);

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn each_width_copies_whole_lines() {
            let source: Vec<u8> =
                (0..1024_u32).map(|i| (i * 7 + i / 251).to_le_bytes()[0]).collect();
            let mut memory = vec![0_u8; 1024];
            let at = memory.as_ptr().addr().wrapping_neg() % 64;
            let kinds =
                [is_x86_feature_detected!("avx512f"), is_x86_feature_detected!("avx2"), true];
            for (kind, _) in kinds.into_iter().enumerate().filter(|(_, has)| *has) {
                memory.fill(0);
                let (to, from) =
                    (memory.as_mut_ptr().wrapping_add(at), source.as_ptr().wrapping_add(3));
                match kind {
                    // SAFETY: 768 bytes from a line on are inside both, and the processor has it.
                    0 => unsafe { copy_512(to, from, 768, source.as_ptr()) },
                    // SAFETY: as above.
                    1 => unsafe { copy_256(to, from, 768, source.as_ptr()) },
                    // SAFETY: as above.
                    _ => unsafe { copy_128(to, from, 768, source.as_ptr()) },
                }
                crate::fence_payload();
                assert_eq!(memory[at..at + 768], source[3..771]);
                assert!(memory[..at].iter().chain(&memory[at + 768..]).all(|byte| *byte == 0));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_length_at_any_place() {
        let source: Vec<u8> =
            (0..600_u32).map(|i| (i * 31 + i / 255 + 1).to_le_bytes()[0]).collect();
        for start in 0..70 {
            for bytes in [0, 1, 7, 63, 64, 65, 127, 128, 200, 257, 400] {
                let mut memory = vec![0xee_u8; 600];
                let to = memory.as_mut_ptr().wrapping_add(start);
                // SAFETY: `start + bytes` and `5 + bytes` are below 600, the length of both.
                unsafe { copy(to, source.as_ptr().wrapping_add(5), bytes, None) };
                crate::fence_payload();
                assert_eq!(memory[start..start + bytes], source[5..5 + bytes]);
                let rest = memory[..start].iter().chain(&memory[start + bytes..]);
                assert!(rest.copied().all(|byte| byte == 0xee), "{start} {bytes}");
            }
        }
    }
}
