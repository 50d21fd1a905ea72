//! The load of a step: how its calls on tensor cores slow each other at the power limit.

use serde::{Deserialize, Serialize};

/// `[load]`: how much longer calls on tensor cores take in steps that use them more, because a GPU at its
/// power limit lowers its clock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// FLOP/s on tensor cores in the steps in which matmuls and attention take their described times.
    pub flops: f64,
    /// Logarithm of the ratio of these calls' times in a step with 1e15 FLOP/s more.
    pub slower: f64,
}

impl Load {
    /// The load of a new description. The dependence was measured on H200s (`benches/notes/predictions.md`).
    pub const TYPICAL: Load = Load { flops: 250e12, slower: 0.33 };

    /// Returns the ratio of the times of calls on tensor cores in a step with `flops` FLOP/s to the described
    /// times.
    #[must_use]
    pub fn ratio(&self, flops: f64) -> f64 {
        (self.slower * (flops - self.flops) / 1e15).exp()
    }

    /// Returns the ratio of [`Load::ratio`] for a step whose calls on tensor cores take `seconds` by their
    /// described times and have `flops` FLOPs, and whose other calls take `others`.
    #[must_use]
    pub fn settled(&self, flops: f64, seconds: f64, others: f64) -> f64 {
        if flops <= 0.0 {
            return 1.0;
        }
        // A slower clock means fewer FLOP/s, so few rounds suffice.
        (0..SETTLING).fold(1.0, |ratio, _| self.ratio(flops / (others + ratio * seconds)))
    }

    /// Iterates over all values, which must be above 0.
    pub(crate) fn all(&self) -> impl Iterator<Item = f64> {
        [self.flops, self.slower].into_iter()
    }
}

/// Rounds in which the speed and the load of a step settle.
const SETTLING: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_with_more_flops_are_slower() {
        let load = Load::TYPICAL;
        assert_eq!((load.ratio(load.flops), load.settled(0.0, 1.0, 1.0)), (1.0, 1.0));
        // A step of 500 TFLOP/s at described times has fewer at the lower clock that follows.
        let ratio = load.settled(500e12, 0.8, 0.2);
        assert!(1.05 < ratio && ratio < load.ratio(500e12), "{ratio}");
        let settled = load.ratio(500e12 / (0.2 + ratio * 0.8));
        assert!((ratio / settled - 1.0).abs() < 1e-6, "{ratio} {settled}");
        assert!(load.settled(100e12, 0.8, 0.2) < 1.0);
    }
}
