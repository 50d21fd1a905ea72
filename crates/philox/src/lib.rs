//! Counter-based random numbers: Philox 4x32-10.
//!
//! A generator whose state depends on the order of draws cannot give the same bits on any grid of ranks and
//! after any restart. The one idea: a random number is a pure function of *its purpose*. The key selects a
//! stream (a seed, a parameter's name); the counter selects a number in it (step, micro-batch, operator site,
//! element). There is no state to save, send or restore, and recomputation draws the same numbers again.
//!
//! ```
//! // The initial values of one parameter: four standard normal numbers for each counter.
//! let key = philox::key_of_name(1, "blocks.0.attention.qkv.weight");
//! let first = philox::normals(philox::philox4x32(key, [0, 0, 0, 0]));
//! let again = philox::normals(philox::philox4x32(key, [0, 0, 0, 0]));
//! assert_eq!(first, again);
//! assert_ne!(first, philox::normals(philox::philox4x32(key, [1, 0, 0, 0])));
//! ```
//!
//! Source of the algorithm: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, *Parallel random numbers: as
//! easy as 1, 2, 3*, SC 2011.

#![forbid(unsafe_code)]

/// The multipliers of a 4x32 round, from table 2 of the paper.
const MULTIPLIER: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// Increments of a key between rounds: the golden ratio and √3 − 1, as 32-bit fractions.
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: u32 = 10;

/// Returns four random words, by Philox 4x32 with ten rounds.
///
/// For a fixed `key` this is a bijection of the 128-bit counter, so no block of four words occurs twice in
/// one stream.
#[inline]
#[must_use]
pub const fn philox4x32(key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    let mut key = key;
    let mut state = round(key, counter);
    let mut done = 1;
    while done < ROUNDS {
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        state = round(key, state);
        done += 1;
    }
    state
}

#[inline]
const fn round(key: [u32; 2], c: [u32; 4]) -> [u32; 4] {
    let (high0, low0) = wide_product(MULTIPLIER[0], c[0]);
    let (high1, low1) = wide_product(MULTIPLIER[1], c[2]);
    [high1 ^ c[1] ^ key[0], low1, high0 ^ c[3] ^ key[1], low0]
}

/// Returns the 64-bit product of two words as (high, low).
#[inline]
const fn wide_product(a: u32, b: u32) -> (u32, u32) {
    let product = a as u64 * b as u64;
    ((product >> 32) as u32, product as u32)
}

/// Returns the key of the stream of `seed` itself: its low and its high word.
#[inline]
#[must_use]
pub const fn key_of_seed(seed: u64) -> [u32; 2] {
    [seed as u32, (seed >> 32) as u32]
}

/// Returns the key of the stream of `name` under `seed`.
///
/// Philox compresses the UTF-8 bytes, sixteen at a time (Davies–Meyer: the key is added to the output, so
/// that the chain cannot be inverted). The number of bytes comes last, so that zero padding cannot make two
/// names equal.
#[must_use]
pub fn key_of_name(seed: u64, name: &str) -> [u32; 2] {
    let mut key = key_of_seed(seed);
    for chunk in name.as_bytes().chunks(16) {
        let mut block = [0_u32; 4];
        for (index, byte) in chunk.iter().enumerate() {
            block[index / 4] |= u32::from(*byte) << (8 * (index % 4));
        }
        key = absorb(key, block);
    }
    let length = name.len() as u64;
    absorb(key, [length as u32, (length >> 32) as u32, u32::MAX, u32::MAX])
}

fn absorb(key: [u32; 2], block: [u32; 4]) -> [u32; 2] {
    let mixed = philox4x32(key, block);
    [mixed[0] ^ key[0], mixed[1] ^ key[1]]
}

/// Returns a uniform number in [0, 1): the upper 24 bits of `word`, each of the 2²⁴ values exact in f32.
#[inline]
#[must_use]
pub const fn uniform(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// Returns two independent standard normal numbers from two words, by the Box–Muller transform.
///
/// The transform is computed in f64 with `libm`, because its functions are the same code on every machine,
/// unlike the standard library's. Results are rounded once to f32. Their magnitude is at most √(2·ln 2³²) ≈
/// 6.66.
#[must_use]
pub fn normal_pair(a: u32, b: u32) -> [f32; 2] {
    const UNIT: f64 = 1.0 / 4_294_967_296.0;
    // The argument lies in (0, 1], so the logarithm is finite.
    let radius = (-2.0 * libm::log((f64::from(a) + 1.0) * UNIT)).sqrt();
    let (sine, cosine) = libm::sincos(std::f64::consts::TAU * (f64::from(b) * UNIT));
    [(radius * cosine) as f32, (radius * sine) as f32]
}

/// Returns four independent standard normal numbers from one Philox block.
#[must_use]
pub fn normals(words: [u32; 4]) -> [f32; 4] {
    let [a, b] = normal_pair(words[0], words[1]);
    let [c, d] = normal_pair(words[2], words[3]);
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_answers_of_the_random123_distribution() {
        let table = [
            ([0; 2], [0; 4], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 2], [u32::MAX; 4], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0xa409_3822, 0x299f_31d0],
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (key, counter, expected) in table {
            assert_eq!(philox4x32(key, counter), expected, "key {key:x?}, counter {counter:x?}");
        }
    }

    #[test]
    fn uniform_covers_the_half_open_unit_interval() {
        assert_eq!(uniform(0), 0.0);
        assert_eq!(uniform(0x8000_0000), 0.5);
        assert_eq!(uniform(u32::MAX), 1.0 - f32::EPSILON / 2.0);
    }

    #[test]
    fn normal_numbers_have_the_moments_of_a_normal_distribution() {
        let key = key_of_name(7, "moments");
        let draws: Vec<f64> = (0..50_000_u32)
            .flat_map(|block| normals(philox4x32(key, [block, 0, 0, 0])))
            .map(f64::from)
            .collect();
        let moment = |power: i32| draws.iter().map(|x| x.powi(power)).sum::<f64>() / draws.len() as f64;
        // Five standard errors of each moment's estimate over 200,000 draws.
        for (power, expected, tolerance) in
            [(1, 0.0, 0.012), (2, 1.0, 0.016), (3, 0.0, 0.044), (4, 3.0, 0.11)]
        {
            assert!((moment(power) - expected).abs() < tolerance, "moment {power}: {}", moment(power));
        }
    }

    #[test]
    fn numbers_of_a_pair_are_uncorrelated() {
        let key = key_of_seed(3);
        let sum: f64 = (0..100_000_u32)
            .map(|block| {
                let words = philox4x32(key, [block, 0, 0, 0]);
                let [a, b] = normal_pair(words[0], words[1]);
                f64::from(a) * f64::from(b)
            })
            .sum();
        assert!((sum / 100_000.0).abs() < 0.016, "{sum}");
    }

    #[test]
    fn extreme_words_give_finite_numbers() {
        for a in [0, 1, u32::MAX] {
            for b in [0, 1, 0x4000_0000, 0x8000_0000, u32::MAX] {
                assert!(normal_pair(a, b).iter().all(|x| x.is_finite() && x.abs() < 6.67), "{a} {b}");
            }
        }
    }

    /// Keys are pinned because initial weights depend on them. The expected values come from a separate
    /// implementation in Python.
    #[test]
    fn keys_of_names_are_pinned_and_differ() {
        let names = ["", "a", "a\0", "b", "weight", "blocks.0.mlp.fc.weight", "blocks.1.mlp.fc.weight"];
        let mut keys: Vec<_> = names.iter().map(|name| key_of_name(1, name)).collect();
        keys.push(key_of_name(2, "weight"));
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), names.len() + 1);
        assert_eq!(key_of_seed(0x0123_4567_89ab_cdef), [0x89ab_cdef, 0x0123_4567]);
        assert_eq!(key_of_name(1, "weight"), PINNED_KEY);
        assert_eq!(normals(philox4x32([0; 2], [0; 4])).map(f32::to_bits), PINNED_NORMALS);
    }

    const PINNED_KEY: [u32; 2] = [0xcd21_41de, 0x8ee0_7a6b];
    const PINNED_NORMALS: [u32; 4] = [0x3f7d_bb33, 0xbf6c_b6b0, 0xbf1e_1b9f, 0xbef6_d1b2];

    proptest! {
        #[test]
        fn the_counter_is_permuted(key: [u32; 2], a: [u32; 4], b: [u32; 4]) {
            prop_assume!(a != b);
            prop_assert_ne!(philox4x32(key, a), philox4x32(key, b));
        }

        #[test]
        fn names_that_differ_have_different_keys(seed: u64, a in ".{0,40}", b in ".{0,40}") {
            prop_assume!(a != b);
            prop_assert_ne!(key_of_name(seed, &a), key_of_name(seed, &b));
        }
    }
}
