//! Mixup: samples that blend two images and their classes (Zhang and others, 2018).

use philox::{normal_pair, uniform};

use super::augment::Draws;

/// Denominator of blend weights: the weight of a sample's own image is a multiple of `1 / SHARES`.
pub const SHARES: u32 = 1 << 16;

/// First block of random words used for a sample's share; earlier blocks are used for its crop.
const FIRST_BLOCK: u32 = 1 << 16;
/// Maximum attempts of the rejection method. Each succeeds with a probability above 0.95.
const ATTEMPTS: u32 = 64;

/// Returns the number of the sample with which `sample` is blended. Pairs do not depend on micro-batches.
pub(super) fn partner(sample: u64) -> u64 {
    sample ^ 1
}

/// Draws the weight of the sample's own image from Beta(`alpha`, `alpha`), in parts of [`SHARES`].
pub(super) fn share(alpha: f64, draws: Draws) -> u32 {
    let [own, other] = [0, ATTEMPTS].map(|block| log_gamma(alpha, draws, FIRST_BLOCK + block));
    // g₁ / (g₁ + g₂) from the logarithms, which are finite for every alpha.
    let share = 1.0 / (1.0 + libm::exp(other - own));
    (share * f64::from(SHARES)).round() as u32
}

/// Draws the logarithm of a Gamma(`alpha`, 1) variate. Source: G. Marsaglia, W. Tsang, *A simple method for
/// generating gamma variables*, 2000, for alpha + 1, times a uniform number to the power 1/alpha.
fn log_gamma(alpha: f64, draws: Draws, first: u32) -> f64 {
    let d = alpha + 1.0 - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    let open = |word: u32| f64::from(uniform(word)) + 0.5 / 16_777_216.0;
    for block in first..first + ATTEMPTS {
        let [a, b, accept, boost] = draws.words(block);
        let x = f64::from(normal_pair(a, b)[0]);
        let cube = (1.0 + c * x).powi(3);
        if cube <= 0.0 {
            continue;
        }
        if libm::log(open(accept)) < 0.5 * x * x + d - d * cube + d * libm::log(cube) {
            return libm::log(d * cube) + libm::log(open(boost)) / alpha;
        }
    }
    libm::log(d)
}

/// Replaces `own` by its blend with `other`, each value rounded to nearest.
pub(super) fn mix(own: &mut [u8], other: &[u8], share: u32) {
    for (own, other) in own.iter_mut().zip(other) {
        let mixed = u32::from(*own) * share + u32::from(*other) * (SHARES - share);
        *own = ((mixed + SHARES / 2) / SHARES) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_have_the_moments_of_the_beta_distribution() {
        for alpha in [0.01, 0.2, 1.0, 4.0] {
            let share = |sample| f64::from(share(alpha, Draws { key: [1, 2], sample })) / f64::from(SHARES);
            let shares: Vec<f64> = (0..20_000).map(share).collect();
            let mean = shares.iter().sum::<f64>() / shares.len() as f64;
            let squares = shares.iter().map(|share| (share - 0.5).powi(2)).sum::<f64>();
            let variance = squares / shares.len() as f64;
            let expected = 0.25 / (2.0 * alpha + 1.0);
            assert!((mean - 0.5).abs() < 0.02, "alpha {alpha}: mean {mean}");
            assert!((variance - expected).abs() < 0.01, "alpha {alpha}: {variance}, not {expected}");
        }
    }

    #[test]
    fn mixtures_are_rounded_to_the_nearest() {
        let mut own = [0, 255, 10, 200];
        mix(&mut own, &[255, 0, 11, 100], SHARES / 4);
        assert_eq!(own, [191, 64, 11, 125]);
        mix(&mut own, &[9; 4], SHARES);
        assert_eq!(own, [191, 64, 11, 125]);
        mix(&mut own, &[9; 4], 0);
        assert_eq!(own, [9; 4]);
    }
}
