//! Reproducible random numbers.

/// An xorshift64 generator.
pub struct Random(u64);

impl Random {
    /// Creates a generator from a seed.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns the next number, of 61 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 3
    }

    /// Returns a number below `end`, which must not be 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end
    }

    /// Returns a number up to 2 to the power of `bits`; its magnitude is uniform, so small numbers are as frequent as large ones.
    pub fn size(&mut self, bits: u64) -> u64 {
        let most = 1 << (self.below(bits) + 1);
        self.below(most) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_determines_the_sequence() {
        let (mut one, mut same, mut other) = (Random::new(7), Random::new(7), Random::new(8));
        let list = |random: &mut Random| (0..20).map(|_| random.size(25)).collect::<Vec<_>>();
        let first = list(&mut one);
        assert_eq!(first, list(&mut same));
        assert_ne!(first, list(&mut other));
        assert!(first.iter().all(|&size| (1..=1 << 25).contains(&size)));
    }
}
