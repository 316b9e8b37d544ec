//! Random numbers from a seed, for runs that can be repeated.

/// Random number generator (SplitMix64), with its state.
pub struct Dice(pub u64);

impl Dice {
    /// Returns a random number from 0 up to, but not including, `sides`.
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % sides as u64) as usize
    }
}
