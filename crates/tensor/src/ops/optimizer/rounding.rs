//! Stochastic rounding of bf16 states: a value becomes one of its two neighbours with probabilities that keep
//! its mean, so that updates smaller than half a unit are not lost.

use device::bf16;
use philox::{key_of_name, philox4x32};

use super::piece::MOST_STATES;
use crate::ops::norm;

/// Random numbers for rounding one parameter's states. They depend on the parameter's name, the element's
/// index in the whole parameter, and the number of the update. So they are the same on every grid and after a
/// restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    /// First word of the Philox key.
    pub(super) id: u32,
    /// Index of the first element in the whole parameter, in units of [`norm::CHUNK`].
    pub(super) first_chunk: u32,
}

/// Second word of the Philox key, as in `kernels/optimizer.cu`.
const KEY: u32 = 0x7374_6174;

impl Stream {
    /// Returns the stream of the parameter `name` under `seed`. `first` is the index of the first element in
    /// the whole parameter: 0, or the start of a shard, a multiple of [`norm::CHUNK`].
    #[must_use]
    pub fn new(seed: u64, name: &str, first: usize) -> Self {
        let [id, _] = key_of_name(seed, name);
        Stream { id, first_chunk: (first / norm::CHUNK) as u32 }
    }

    /// Returns the stream for the elements from `elements` on, a multiple of [`norm::CHUNK`].
    #[must_use]
    pub fn skipping(self, elements: usize) -> Self {
        debug_assert!(elements.is_multiple_of(norm::CHUNK));
        Stream { first_chunk: self.first_chunk + (elements / norm::CHUNK) as u32, ..self }
    }

    /// Rounds `values` of state `state` into `rounded`. `start`, a multiple of 4, is the index of the first
    /// value in the item.
    pub(super) fn round(self, values: &[f32], rounded: &mut [bf16], start: usize, state: usize, update: u32) {
        debug_assert!(start.is_multiple_of(4) && state < MOST_STATES);
        let first = self.first_chunk as usize * norm::CHUNK + start;
        for (group, (values, rounded)) in values.chunks(4).zip(rounded.chunks_mut(4)).enumerate() {
            let block = (first / 4 + group) as u64;
            let counter = [block as u32, (block >> 32) as u32, update, state as u32];
            let words = philox4x32([self.id, KEY], counter);
            for ((rounded, value), word) in rounded.iter_mut().zip(values).zip(words) {
                *rounded = stochastic(*value, word);
            }
        }
    }
}

/// Rounds away from 0 with a probability equal to the fraction that is cut off; `word` is uniformly random.
fn stochastic(value: f32, word: u32) -> bf16 {
    if !value.is_finite() {
        return bf16::from_f32(value);
    }
    bf16::from_bits((value.to_bits().wrapping_add(word & 0xffff) >> 16) as u16)
}
