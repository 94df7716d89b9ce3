//! Fences, named by what they order.
// UNSAFETY: one CPU instruction that Rust offers only as an unsafe intrinsic.
#![expect(unsafe_code, reason = "the sfence intrinsic")]

use std::sync::atomic::{Ordering, fence};

/// Orders all earlier stores of this core, write-combining ones too, before all later ones.
///
/// Needed by each core that stored payload, before the completion words; and after those words, so
/// that they leave the core. One `sfence` on x86-64. Source: Intel SDM volume 3, 12.3.1.
#[inline]
pub fn fence_payload() {
    #[cfg(feature = "model")]
    crate::model::fence_payload();
    #[cfg(target_arch = "x86_64")]
    // SAFETY: sfence is part of SSE, which every x86-64 processor has.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
    // An sfence is no compiler barrier for ordinary stores in Rust's model; this is.
    fence(Ordering::Release);
}

/// Orders earlier loads before all later accesses.
#[inline]
pub fn fence_acquire() {
    #[cfg(feature = "model")]
    crate::model::fence_acquire();
    fence(Ordering::Acquire);
}

/// Orders everything earlier before everything later, stores before loads too.
#[inline]
pub fn fence_full() {
    #[cfg(feature = "model")]
    crate::model::fence_full();
    fence(Ordering::SeqCst);
}
