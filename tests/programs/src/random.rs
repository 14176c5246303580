//! Random numbers that a seed makes again.

/// xorshift64
pub struct Random(u64);

impl Random {
    /// From a seed.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next one, of 61 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 3
    }

    /// One below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end
    }

    /// One up to two to the power of `bits`, small ones as often as large ones.
    pub fn size(&mut self, bits: u64) -> u64 {
        let most = 1 << (self.below(bits) + 1);
        self.below(most) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_says_all() {
        let (mut one, mut same, mut other) = (Random::new(7), Random::new(7), Random::new(8));
        let list = |random: &mut Random| (0..20).map(|_| random.size(25)).collect::<Vec<_>>();
        let first = list(&mut one);
        assert_eq!(first, list(&mut same));
        assert_ne!(first, list(&mut other));
        assert!(first.iter().all(|&size| (1..=1 << 25).contains(&size)));
    }
}
