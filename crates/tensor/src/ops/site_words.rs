//! Random words of a site in a model, as functions of a key and an element index.

use device::NumberedWords;
use device::cuda::Launch;
use philox::{key_of_name, philox4x32};

/// The random words of one site in one micro-batch.
///
/// A word is a function of the seed, the site's name, the micro-batch's number over all steps, and a counter
/// such as the element index. It is the same on every grid of ranks and when a segment is recomputed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SiteWords {
    /// Philox key of the site.
    site: [u32; 2],
    /// Number of the micro-batch.
    number: u64,
    /// Philox key of the site and micro-batch. Replayed steps change it, so launches take it through
    /// [`SiteWords::add_to`] only.
    key: [u32; 2],
    /// Number of the Philox draw for the first four elements of an array.
    pub(super) first_draw: u64,
}

impl SiteWords {
    /// Returns the words of the site `name` in micro-batch `number`.
    pub(super) fn new(seed: u64, name: &str, number: u64) -> Self {
        let site = key_of_name(seed, name);
        SiteWords { site, number, key: key_of(site, number), first_draw: 0 }
    }

    /// Returns the words of the slice of an array that starts at element `first`, a multiple of 4.
    pub(super) fn from(self, first: usize) -> Self {
        SiteWords { first_draw: first as u64 / 4, ..self }
    }

    /// Returns the words of elements 4 · `draw` to 4 · `draw` + 3 of an array.
    #[inline(always)]
    pub(super) fn of_array(&self, draw: u64) -> [u32; 4] {
        let draw = self.first_draw + draw;
        self.at([draw as u32, (draw >> 32) as u32, 0, 0])
    }

    #[inline(always)]
    pub(super) fn at(&self, counter: [u32; 4]) -> [u32; 4] {
        philox4x32(self.key, counter)
    }

    /// Adds the two words of the key to the arguments of a launch.
    pub(super) fn add_to<'a>(&self, launch: Launch<'a>) -> Launch<'a> {
        launch.numbered(NumberedWords { number: self.number, key: self.site, function: key_of })
    }
}

/// Philox key of a site, which has a key itself, in micro-batch `number`.
fn key_of(site: [u32; 2], number: u64) -> [u32; 2] {
    let [a, b, ..] = philox4x32(site, [number as u32, (number >> 32) as u32, 0, 0]);
    [a, b]
}
