//! Assigns each sequence of a mixture to a source.

use crate::Error;
use crate::permutation::Permutation;
use philox::key_of_name;

/// Number of consecutive sequences in which every source has exactly its share.
const BLOCK: u64 = 1 << 16;

/// A mixture of sources by weight, as a pure function of the seed and a sequence's number.
///
/// In every block of 65,536 sequences, each source provides its share, rounded by the largest remainder. A
/// keyed permutation determines the order within each block. So over a longer range, a source's share equals
/// its weight to within 1/65,536 and the random variation of one block. Sources that are read in order
/// alternate evenly instead.
#[derive(Clone, Debug)]
pub struct Mixture {
    key: [u32; 2],
    /// Prefix sums of each source's sequences per block; the last entry is the total.
    borders: Vec<u64>,
}

impl Mixture {
    /// Returns a mixture of sources with these weights.
    ///
    /// # Errors
    /// [`Error::BadWeights`] if a weight is not finite, not above 0, or so small that its source never
    /// occurs.
    pub fn new(seed: u64, weights: &[f64]) -> Result<Self, Error> {
        let shares = shares(weights, BLOCK);
        let is_good = weights.iter().all(|weight| weight.is_finite() && *weight > 0.0);
        if weights.is_empty() || !is_good || shares.contains(&0) {
            return Err(Error::BadWeights { weights: weights.to_vec() });
        }
        let sums = shares.iter().scan(0, |sum, share| {
            *sum += share;
            Some(*sum)
        });
        Ok(Self { key: key_of_name(seed, "data.mixture"), borders: [0].into_iter().chain(sums).collect() })
    }

    /// Returns the source of sequence `sequence`, and the sequence's number within that source.
    #[must_use]
    pub fn locate(&self, sequence: u128) -> (usize, u128) {
        if self.borders.len() == 2 {
            return (0, sequence);
        }
        let block = sequence / u128::from(BLOCK);
        let within = (sequence % u128::from(BLOCK)) as u64;
        let slot = Permutation::new(BLOCK, self.key, block as u64).at(within);
        let source = self.borders.partition_point(|border| *border <= slot) - 1;
        let first = self.borders[source];
        let share = self.borders[source + 1] - self.borders[source];
        (source, block * u128::from(share) + u128::from(slot - first))
    }

    /// Like [`Mixture::locate`], for sources that are read in order: the numbers within each source increase,
    /// and its sequences are spread evenly, independently of the seed.
    #[must_use]
    pub fn place_in_order(&self, sequence: u128) -> (usize, u128) {
        // Each source takes its share of what the earlier sources left.
        let mut number = sequence;
        let mut total = u128::from(BLOCK);
        let shares = self.borders.windows(2).map(|pair| u128::from(pair[1] - pair[0]));
        for (source, share) in shares.enumerate() {
            let before = number * share / total;
            if (number + 1) * share / total > before {
                return (source, before);
            }
            (number, total) = (number - before, total - share);
        }
        // The last source takes the rest.
        (self.borders.len().saturating_sub(2), number)
    }
}

/// Divides `total` by weights into whole numbers. Largest remainders are rounded up; of equal ones, the
/// first.
pub(crate) fn shares(weights: &[f64], total: u64) -> Vec<u64> {
    let sum: f64 = weights.iter().sum();
    let exact: Vec<f64> = weights.iter().map(|weight| weight / sum * total as f64).collect();
    let mut shares: Vec<u64> = exact.iter().map(|share| *share as u64).collect();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    let remainder = |index: usize| exact[index] - exact[index].floor();
    order.sort_by(|a, b| remainder(*b).total_cmp(&remainder(*a)).then(a.cmp(b)));
    let missing = total.saturating_sub(shares.iter().sum());
    for index in order.into_iter().cycle().take(usize::try_from(missing).unwrap_or(0)) {
        shares[index] += 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_sequence_of_a_source_occurs_once_and_shares_match_the_weights() {
        let mixture = Mixture::new(1, &[0.7, 0.2, 0.1]).unwrap();
        check_positions(|sequence| mixture.locate(sequence), false);
        check_positions(|sequence| mixture.place_in_order(sequence), true);
    }

    fn check_positions(locate: impl Fn(u128) -> (usize, u128), is_in_order: bool) {
        let positions: Vec<_> = (0..2 * u128::from(BLOCK)).map(locate).collect();
        assert_eq!(positions.iter().collect::<HashSet<_>>().len(), positions.len());
        for (source, weight) in [0.7, 0.2, 0.1].into_iter().enumerate() {
            let of: Vec<u128> =
                positions.iter().filter(|position| position.0 == source).map(|position| position.1).collect();
            assert_eq!(*of.iter().max().unwrap() + 1, of.len() as u128, "without a gap");
            assert_eq!(of.is_sorted(), is_in_order);
            assert!((of.len() as f64 / positions.len() as f64 - weight).abs() < 1e-4);
        }
        // A short range is mixed too.
        let early = positions[..1000].iter().filter(|position| position.0 == 0).count();
        assert!((650..750).contains(&early), "{early}");
    }

    #[test]
    fn seeds_give_other_orders_and_a_single_source_is_unchanged() {
        let positions =
            |seed| (0..100).map(|n| Mixture::new(seed, &[1.0, 1.0]).unwrap().locate(n)).collect::<Vec<_>>();
        assert_ne!(positions(1), positions(2));
        assert_eq!(Mixture::new(1, &[3.0]).unwrap().locate(1 << 80), (0, 1 << 80));
        assert_eq!(shares(&[1.0, 1.0, 1.0], 8), [3, 3, 2]);
        for weights in [vec![], vec![1.0, 0.0], vec![1.0, f64::NAN], vec![1.0, 1e-9]] {
            assert!(Mixture::new(1, &weights).is_err(), "{weights:?}");
        }
    }
}
