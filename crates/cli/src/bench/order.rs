//! In which order blocks are visited: each once before any twice.

use storage::pattern::mix;

/// Visits the blocks `0..blocks` in passes; a random pass is a seeded permutation.
#[derive(Clone, Debug)]
pub struct Order {
    blocks: u64,
    random: bool,
    seed: u64,
    pass: u64,
    next: u64,
}

impl Order {
    /// Starts at the first pass. `blocks` is at least 1.
    pub fn new(blocks: u64, random: bool, seed: u64) -> Self {
        assert!(blocks > 0, "there is at least one block");
        Self { blocks, random, seed, pass: 0, next: 0 }
    }

    /// Blocks that this pass has not visited.
    pub fn left_in_pass(&self) -> u64 {
        self.blocks - self.next
    }

    /// The next block.
    pub fn next_block(&mut self) -> u64 {
        if self.next == self.blocks {
            self.next = 0;
            self.pass += 1;
        }
        let index = self.next;
        self.next += 1;
        if self.random { self.permute(index) } else { index }
    }

    /// Four Feistel rounds over the next even number of bits, walked until the value is a block.
    fn permute(&self, index: u64) -> u64 {
        let half = (u64::BITS - self.blocks.saturating_sub(1).leading_zeros()).div_ceil(2).max(1);
        let mask = (1u64 << half) - 1;
        let key = mix(self.seed ^ mix(self.pass + 1));
        let mut value = index;
        loop {
            let (mut left, mut right) = (value >> half, value & mask);
            for round in 0..4 {
                (left, right) = (right, left ^ (mix(right ^ key.wrapping_add(round)) & mask));
            }
            value = left << half | right;
            if value < self.blocks {
                return value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_once_a_pass_and_passes_differ() {
        for blocks in [1, 2, 3, 7, 64, 1000, 4097] {
            let mut order = Order::new(blocks, true, 9);
            let mut passes = Vec::new();
            for _ in 0..2 {
                let pass: Vec<u64> = (0..blocks).map(|_| order.next_block()).collect();
                let mut sorted = pass.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..blocks).collect::<Vec<_>>());
                passes.push(pass);
            }
            assert!(blocks < 64 || passes[0] != passes[1], "passes of {blocks} differ");
        }
    }

    #[test]
    fn the_seed_decides() {
        let first = |seed| {
            let mut order = Order::new(1 << 20, true, seed);
            (0..8).map(|_| order.next_block()).collect::<Vec<_>>()
        };
        assert_eq!(first(1), first(1));
        assert_ne!(first(1), first(2));
    }
}
