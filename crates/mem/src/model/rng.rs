//! A small generator of pseudo-random numbers: fast, and the same on every machine.

/// SplitMix64. Equal seeds give equal sequences. Source: Steele, Lea, Flood, OOPSLA 2014.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Starts a sequence.
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x51de_c04e_0000_0001)
    }

    /// The next 64 bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `end`, which is not 0.
    #[inline]
    pub fn below(&mut self, end: usize) -> usize {
        let wide = u128::from(self.bits()) * end as u128;
        usize::try_from(wide >> 64).expect("below `end`, which is a usize")
    }

    /// True `of_256` times in 256.
    #[inline]
    pub fn chance(&mut self, of_256: u32) -> bool {
        self.bits() >> 56 < u64::from(of_256)
    }
}
