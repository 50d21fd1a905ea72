//! Dropout masks as functions of a key and an element index.

use device::NumberedWords;
use device::cuda::Launch;
use philox::{key_of_name, philox4x32};

/// Dropout mask of one site in one micro-batch, with the scale of kept elements.
///
/// The mask is a function of the seed, the site's name, the micro-batch's number over all steps, and the
/// element index. It is never stored: it is the same on every grid of ranks and when a segment is recomputed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mask {
    /// Philox key of the site.
    site: [u32; 2],
    /// Number of the micro-batch.
    number: u64,
    /// Philox key of the site and micro-batch. Replayed steps change it, so launches take it through
    /// [`Mask::add_to`] only.
    key: [u32; 2],
    /// Elements whose random word is below this are dropped.
    pub(in crate::ops) threshold: u32,
    /// Factor of elements that are kept.
    pub(in crate::ops) scale: f32,
    /// Number of the Philox draw for the first four elements of an array.
    pub(in crate::ops) first_draw: u64,
}

impl Mask {
    /// Returns the mask of the site `name` in micro-batch `number`. It drops elements with `probability`,
    /// below 1, and divides the others by 1 − `probability`.
    #[must_use]
    pub fn new(seed: u64, name: &str, number: u64, probability: f64) -> Self {
        const WORDS: f64 = 4_294_967_296.0;
        let site = key_of_name(seed, name);
        let threshold = (probability * WORDS) as u32;
        let scale = (1.0 / (1.0 - f64::from(threshold) / WORDS)) as f32;
        Mask { site, number, key: key_of(site, number), threshold, scale, first_draw: 0 }
    }

    /// Returns the mask of the slice of an array that starts at element `first`, a multiple of 4.
    #[must_use]
    pub fn from(self, first: usize) -> Self {
        Mask { first_draw: first as u64 / 4, ..self }
    }

    /// Returns the factors of elements 4 · `draw` to 4 · `draw` + 3 of an array.
    #[inline(always)]
    pub(in crate::ops) fn of_array(&self, draw: u64) -> [f32; 4] {
        let draw = self.first_draw + draw;
        self.factors([draw as u32, (draw >> 32) as u32, 0, 0])
    }

    /// Returns the factors of four attention weights of `line`, the index of a sequence and head. With
    /// queries q and q + 8 and keys k and k + 8, these are (q, k), (q, k + 8), (q + 8, k), (q + 8, k + 8), a
    /// square as one GPU thread holds it. `query` and `key` are the indices of the pairs of positions.
    #[inline(always)]
    pub(in crate::ops) fn of_weights(&self, line: u32, query: u32, key: u32) -> [f32; 4] {
        self.factors([query, key, line, 0])
    }

    pub(in crate::ops) fn add_to<'a>(&self, launch: Launch<'a>) -> Launch<'a> {
        let words = NumberedWords { number: self.number, key: self.site, function: key_of };
        launch.numbered(words).u32(self.threshold).f32(self.scale)
    }

    #[inline(always)]
    fn factors(&self, counter: [u32; 4]) -> [f32; 4] {
        philox4x32(self.key, counter).map(|word| if word < self.threshold { 0.0 } else { self.scale })
    }
}

/// Returns the Philox key of a site in micro-batch `number`, from the key of the site.
fn key_of(site: [u32; 2], number: u64) -> [u32; 2] {
    let [a, b, ..] = philox4x32(site, [number as u32, (number >> 32) as u32, 0, 0]);
    [a, b]
}
