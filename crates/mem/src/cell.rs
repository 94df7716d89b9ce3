//! One aligned word of foreign memory, accessed atomically.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::region::Region;

macro_rules! shared {
    ($name:ident, $atomic:ty, $word:ty, $doc:literal) => {
        #[doc = $doc]
        #[derive(Clone, Copy)]
        pub struct $name<'a> {
            word: &'a $atomic,
            region: PhantomData<&'a Region>,
        }

        impl<'a> $name<'a> {
            pub(crate) fn new(word: &'a $atomic) -> Self {
                Self { word, region: PhantomData }
            }
            /// Loads the word.
            #[inline]
            pub fn load(self, order: Ordering) -> $word {
                self.word.load(order)
            }
            /// Stores the word in one access.
            #[inline]
            pub fn store(self, value: $word, order: Ordering) {
                self.word.store(value, order);
            }
            /// Adds and returns the value before. Not for a window: no locked instruction there.
            #[inline]
            pub fn fetch_add(self, value: $word, order: Ordering) -> $word {
                self.word.fetch_add(value, order)
            }
            /// Compares and swaps; the error is the value found. Not for a window.
            ///
            /// # Errors
            /// The value found, where it was not `current`.
            #[inline]
            pub fn compare_exchange(
                self,
                current: $word,
                new: $word,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$word, $word> {
                self.word.compare_exchange(current, new, success, failure)
            }
        }
    };
}

shared!(SharedU32, AtomicU32, u32, "Four aligned bytes of foreign memory.");
shared!(SharedU64, AtomicU64, u64, "Eight aligned bytes of foreign memory.");
