//! Decoded images.

use crate::Error;

/// Maximum width and height of a decoded image, in pixels.
pub(super) const MOST_SIDE: usize = 1 << 14;

/// An image with 8 bits per value, \[height, width, channels\].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Picture {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) channels: usize,
    pub(super) pixels: Vec<u8>,
}

/// A rectangle of an image, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) left: usize,
    pub(super) top: usize,
    pub(super) width: usize,
    pub(super) height: usize,
}

/// Returns the error of an invalid image called `name`.
pub(super) fn invalid(name: &str, reason: impl ToString) -> Error {
    Error::BadImage { name: name.to_owned(), reason: reason.to_string() }
}

impl Picture {
    pub(super) fn is_square(&self, size: usize) -> bool {
        self.width == size && self.height == size
    }

    /// Mirrors the image horizontally.
    pub(super) fn mirror(&mut self) {
        let channels = self.channels;
        for row in self.pixels.chunks_exact_mut(self.width * channels) {
            for column in 0..self.width / 2 {
                let (left, right) = row.split_at_mut((self.width - 1 - column) * channels);
                left[column * channels..][..channels].swap_with_slice(&mut right[..channels]);
            }
        }
    }

    /// Returns the square of side `size` whose top left pixel is (`left`, `top`) in the image with a black
    /// border of `padding` pixels.
    pub(super) fn padded_window(&self, size: usize, padding: usize, left: usize, top: usize) -> Self {
        let channels = self.channels;
        let mut pixels = vec![0; size * size * channels];
        for (y, row) in pixels.chunks_exact_mut(size * channels).enumerate() {
            let Some(from_y) = (top + y).checked_sub(padding).filter(|from| *from < self.height) else {
                continue;
            };
            let from = &self.pixels[from_y * self.width * channels..][..self.width * channels];
            // Columns of the image that the row shows: those at left - padding .. left - padding + size.
            let first = padding.saturating_sub(left).min(size);
            let begin = (left + first).saturating_sub(padding).min(self.width);
            let count = (self.width - begin).min(size - first);
            row[first * channels..][..count * channels]
                .copy_from_slice(&from[begin * channels..][..count * channels]);
        }
        Self { width: size, height: size, channels, pixels }
    }

    /// Converts the image to `channels` values per pixel: grey to colour, or colour to luminance.
    pub(super) fn with_channels(self, channels: usize) -> Self {
        let pixels = match (self.channels, channels) {
            (1, 3) => self.pixels.iter().flat_map(|grey| [*grey; 3]).collect(),
            (3, 1) => self.pixels.chunks_exact(3).map(luminance).collect(),
            _ => return self,
        };
        Self { channels, pixels, ..self }
    }
}

/// Returns the luminance by ITU-R BT.601, as Pillow computes it.
fn luminance(pixel: &[u8]) -> u8 {
    let weighted = |index: usize, weight: u32| u32::from(pixel[index]) * weight;
    ((weighted(0, 19_595) + weighted(1, 38_470) + weighted(2, 7_471) + 0x8000) >> 16) as u8
}
