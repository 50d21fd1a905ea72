//! Attention heads of the layers of the family `llama`.

use tensor::ops::attention::Heads;

use super::sizes::LlamaSizes;
use crate::layers::CachedHeads;

impl LlamaSizes {
    /// Returns the heads of layers with a window, or of all layers if they do not differ.
    pub(super) fn attention_heads(&self) -> Heads {
        let value_width = self.value_width;
        Heads { value_width, ..Heads::grouped(self.heads, self.key_value_heads, self.head_width) }
    }

    /// Returns the heads of `layer`.
    pub(super) fn heads_of(&self, layer: usize) -> Heads {
        let heads = self.attention_heads();
        if self.is_windowed(layer) {
            return heads;
        }
        let width = self.full_head_width;
        let value_width = if width == self.head_width { self.value_width } else { width };
        Heads { value_width, ..Heads::grouped(heads.query, self.full_key_value_heads, width) }
    }

    /// Returns the heads as stored in the cache of `layer`.
    pub(super) fn cached_in(&self, layer: usize) -> CachedHeads {
        if self.has_full_heads() { self.heads_of(layer).into() } else { self.cached() }
    }

    /// Returns whether `layer` has no projection of values.
    pub(super) fn uses_keys_as_values(&self, layer: usize) -> bool {
        self.keys_as_values && !self.is_windowed(layer)
    }

    /// Returns whether layers without a window have other heads or projections than layers with one.
    pub(super) fn has_full_heads(&self) -> bool {
        let differs = [self.full_head_width, self.full_key_value_heads];
        self.keys_as_values || differs != [self.head_width, self.key_value_heads]
    }
}
