//! The one source of chance of a run. Equal seeds give equal throws; nothing else may decide anything.

use std::ops::RangeInclusive;
use std::time::Duration;

/// SplitMix64: small, quick, and good enough to spread faults.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn of(seed: u64) -> Dice {
        let mut dice = Dice(seed ^ 0x57A1_9057_0B0C_A57E);
        dice.next();
        dice
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// Less than `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The bias of a remainder does not matter here.
        self.next() % bound
    }

    pub fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        range.start() + self.below(range.end() - range.start() + 1)
    }

    /// True in so many of a thousand cases.
    pub fn permille(&mut self, chance: u32) -> bool {
        chance > 0 && self.below(1000) < u64::from(chance)
    }

    pub fn percent(&mut self, chance: u32) -> bool {
        self.permille(chance * 10)
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    pub fn millis(&mut self, range: RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.within(range))
    }

    /// Mostly short, now and then near the end of the range: how delays are in the field.
    pub fn delay(&mut self, range: RangeInclusive<u64>) -> Duration {
        let most = if self.percent(80) { range.start() + (range.end() - range.start()) / 8 } else { *range.end() };
        self.millis(*range.start()..=most)
    }
}
