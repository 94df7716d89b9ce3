//! One aligned word of foreign memory, accessed atomically.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::region::Region;

/// The model deals in 64 bits; what it returns for a narrower word fits it.
#[cfg(feature = "model")]
macro_rules! narrow {
    ($value:expr => $word:ty) => {
        <$word>::try_from($value).expect("the model returns no more bits than were asked for")
    };
}

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
                #[cfg(feature = "model")]
                if let Some(value) = crate::model::load(self.address(), size_of::<$word>(), order) {
                    return narrow!(value => $word);
                }
                self.word.load(order)
            }
            /// Stores the word in one access.
            #[inline]
            pub fn store(self, value: $word, order: Ordering) {
                #[cfg(feature = "model")]
                if crate::model::store(self.address(), size_of::<$word>(), value.into(), order) {
                    return;
                }
                self.word.store(value, order);
            }
            /// Adds and returns the value before. Not for a window: no locked instruction there.
            #[inline]
            pub fn fetch_add(self, value: $word, order: Ordering) -> $word {
                #[cfg(feature = "model")]
                if let Some(old) = self.update(order, |old| Some(old.wrapping_add(value))) {
                    return old;
                }
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
                #[cfg(feature = "model")]
                if let Some(old) = self.update(success, |old| (old == current).then_some(new)) {
                    return if old == current { Ok(old) } else { Err(old) };
                }
                self.word.compare_exchange(current, new, success, failure)
            }

            #[cfg(feature = "model")]
            fn address(self) -> usize {
                self.word.as_ptr().addr()
            }

            #[cfg(feature = "model")]
            fn update(
                self,
                order: Ordering,
                change: impl FnOnce($word) -> Option<$word>,
            ) -> Option<$word> {
                let change = |old| change(narrow!(old => $word)).map(u64::from);
                crate::model::update(self.address(), size_of::<$word>(), order, change)
                    .map(|old| narrow!(old => $word))
            }
        }
    };
}

shared!(SharedU32, AtomicU32, u32, "Four aligned bytes of foreign memory.");
shared!(SharedU64, AtomicU64, u64, "Eight aligned bytes of foreign memory.");

/// Rows of `N` aligned words of foreign memory that lie side by side.
#[derive(Clone, Copy)]
pub struct SharedRows<'a, const N: usize> {
    rows: &'a [[AtomicU64; N]],
}

impl<'a, const N: usize> SharedRows<'a, N> {
    #[inline]
    pub(crate) fn new(rows: &'a [[AtomicU64; N]]) -> Self {
        Self { rows }
    }

    /// The words of a row.
    ///
    /// # Panics
    /// Where there are not so many rows.
    #[inline]
    pub fn at(self, index: usize) -> [SharedU64<'a>; N] {
        self.rows[index].each_ref().map(SharedU64::new)
    }

    /// The words of each of `count` rows.
    ///
    /// # Panics
    /// Where there are not so many rows.
    #[inline]
    pub fn range(self, first: usize, count: usize) -> impl Iterator<Item = [SharedU64<'a>; N]> {
        self.rows[first..][..count].iter().map(|row| row.each_ref().map(SharedU64::new))
    }
}

/// Aligned words of foreign memory that lie side by side.
#[derive(Clone, Copy)]
pub struct SharedWords<'a> {
    words: &'a [AtomicU64],
}

impl<'a> SharedWords<'a> {
    #[inline]
    pub(crate) fn new(words: &'a [AtomicU64]) -> Self {
        Self { words }
    }

    /// The word at a position.
    ///
    /// # Panics
    /// Where there are not so many.
    #[inline]
    pub fn at(self, index: usize) -> SharedU64<'a> {
        SharedU64::new(&self.words[index])
    }
}
