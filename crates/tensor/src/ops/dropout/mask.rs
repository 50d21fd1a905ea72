//! Dropout masks as functions of a key and an element index.

use device::cuda::Launch;

use crate::ops::site_words::SiteWords;

/// Dropout mask of one site in one micro-batch, with the scale of kept elements.
///
/// The mask is a function of the seed, the site's name, the micro-batch's number over all steps, and the
/// element index. It is never stored: it is the same on every grid of ranks and when a segment is recomputed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mask {
    words: SiteWords,
    /// Elements whose random word is below this are dropped.
    pub(in crate::ops) threshold: u32,
    /// Factor of elements that are kept.
    pub(in crate::ops) scale: f32,
}

impl Mask {
    /// Returns the mask of the site `name` in micro-batch `number`. It drops elements with `probability`,
    /// below 1, and divides the others by 1 − `probability`.
    #[must_use]
    pub fn new(seed: u64, name: &str, number: u64, probability: f64) -> Self {
        const WORDS: f64 = 4_294_967_296.0;
        let threshold = (probability * WORDS) as u32;
        let scale = (1.0 / (1.0 - f64::from(threshold) / WORDS)) as f32;
        Mask { words: SiteWords::new(seed, name, number), threshold, scale }
    }

    /// Returns the mask of the slice of an array that starts at element `first`, a multiple of 4.
    #[must_use]
    pub fn from(self, first: usize) -> Self {
        Mask { words: self.words.from(first), ..self }
    }

    /// Draw of an array's first four elements.
    pub(in crate::ops) fn first_draw(&self) -> u64 {
        self.words.first_draw
    }

    /// Returns the factors of elements 4 · `draw` to 4 · `draw` + 3 of an array.
    #[inline(always)]
    pub(in crate::ops) fn of_array(&self, draw: u64) -> [f32; 4] {
        self.factors(self.words.of_array(draw))
    }

    /// Returns the factors of four attention weights of `line`, the index of a sequence and head. With
    /// queries q and q + 8 and keys k and k + 8, these are (q, k), (q, k + 8), (q + 8, k), (q + 8, k + 8), a
    /// square as one GPU thread holds it. `query` and `key` are the indices of the pairs of positions.
    #[inline(always)]
    pub(in crate::ops) fn of_weights(&self, line: u32, query: u32, key: u32) -> [f32; 4] {
        self.factors(self.words.at([query, key, line, 0]))
    }

    pub(in crate::ops) fn add_to<'a>(&self, launch: Launch<'a>) -> Launch<'a> {
        self.words.add_to(launch).u32(self.threshold).f32(self.scale)
    }

    #[inline(always)]
    fn factors(&self, words: [u32; 4]) -> [f32; 4] {
        words.map(|word| if word < self.threshold { 0.0 } else { self.scale })
    }
}
