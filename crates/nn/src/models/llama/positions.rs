//! Positions of the family `llama`: which layers and columns rotate.

use super::sizes::LlamaSizes;
use crate::layers::QkNormSpan;

impl LlamaSizes {
    /// Returns whether `layer` rotates queries and keys.
    pub(super) fn rotates(&self, layer: usize) -> bool {
        let layers = &self.rope_layers;
        layers.is_empty() || layers[layer % layers.len()] == 1
    }

    /// Returns the number of rotated columns per head.
    pub(super) fn rotated(&self) -> usize {
        if self.rope_width == 0 { self.head_width } else { self.rope_width }
    }

    /// Returns the number of rotated columns per head of layers with a window, or without one.
    pub(super) fn rotated_in(&self, is_windowed: bool) -> usize {
        match (is_windowed, self.rope_width) {
            (false, 0) => self.full_head_width,
            _ => self.rotated(),
        }
    }

    /// Returns the number of pairs of columns that rotate in layers with a window, or without one.
    pub(super) fn pairs(&self, is_windowed: bool) -> usize {
        let half = self.rotated_in(is_windowed) / 2;
        if is_windowed { half } else { (half as f64 * self.rope_share) as usize }
    }

    /// Returns whether per-head norms in `layer` need a table that rotates nothing.
    pub(super) fn needs_still_table(&self, layer: usize) -> bool {
        let of_heads = self.qk_norm && self.qk_norm_span == QkNormSpan::Head;
        let rotated = self.rotated_in(self.is_windowed(layer));
        let is_joint = self.rotates(layer) && rotated == self.heads_of(layer).width;
        of_heads && (!is_joint || self.rotates_neighbours() || self.qk_norm_last)
    }

    /// Returns whether the columns that rotate together are neighbours, not half a head apart. Latents have
    /// these apart.
    pub(super) fn rotates_neighbours(&self) -> bool {
        self.rope_interleaved && self.latent_width == 0
    }

    /// Returns the factor of queries at `position`.
    pub(super) fn query_factor(&self, position: usize) -> f32 {
        let contexts = (position / self.rope_original_context) as f64;
        (1.0 + self.query_growth * libm::log(1.0 + contexts)) as f32
    }
}
