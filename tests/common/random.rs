//! Repeatable random inputs, and the duration of fuzzers.

use std::time::{Duration, Instant};

/// Environment variable with the seconds that each fuzzer and fault driver runs, instead of a few rounds.
const VARIABLE: &str = "PLIMSOLL_LONG_TESTS";

/// A generator of repeatable random numbers (SplitMix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`, which must be at least 1.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    pub(crate) fn one<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    /// Returns true once in `count` calls on average.
    pub(crate) fn once_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    /// Returns `bytes` with a few of them flipped, cut, repeated, or replaced by one of `pieces`.
    pub(crate) fn damaged(&mut self, bytes: &[u8], pieces: &[&[u8]]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len());
            let end = (at + 1 + self.below(40)).min(bytes.len());
            match self.below(5) {
                0 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
                1 => bytes.truncate(at),
                2 => drop(bytes.drain(at..end)),
                3 => {
                    let again = bytes[at..end].to_vec();
                    bytes.splice(at..at, again);
                }
                _ => {
                    let end = (at + self.below(12)).min(bytes.len());
                    bytes.splice(at..end, self.one(pieces).iter().copied());
                }
            }
        }
        bytes
    }
}

/// Duration of a fuzzer: a few rounds, or the number of seconds in [`VARIABLE`].
pub(crate) struct Budget(Option<Instant>);

impl Budget {
    pub(crate) fn of_fuzzer() -> Self {
        let seconds = std::env::var(VARIABLE).ok().map(|seconds| seconds.parse().unwrap());
        Budget(seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds)))
    }

    /// Returns whether another round follows after `done` rounds; a short run has three.
    pub(crate) fn allows(&self, done: usize) -> bool {
        self.within(done, 3)
    }

    /// Like [`Budget::allows`], with `short` rounds in a short run.
    pub(crate) fn within(&self, done: usize, short: usize) -> bool {
        self.0.map_or(done < short, |end| Instant::now() < end)
    }
}
