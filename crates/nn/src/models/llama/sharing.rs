//! Layers that use keys and values of earlier layers.

use keys::RawValues;

use super::sizes::LlamaSizes;
use crate::layers::{KeyValueRole, QkNormSpan};

impl LlamaSizes {
    /// Returns whether `layer` uses keys and values of an earlier layer.
    pub(super) fn reads_shared(&self, layer: usize) -> bool {
        layer >= self.layers - self.shared_layers.min(self.layers)
    }

    /// Returns the layer whose keys and values `layer` uses; `None` if it has its own.
    fn source_of(&self, layer: usize) -> Option<usize> {
        let own = self.layers - self.shared_layers.min(self.layers);
        let is_alike = |other: &usize| self.is_windowed(*other) == self.is_windowed(layer);
        (0..own).rev().find(is_alike).filter(|_| self.reads_shared(layer))
    }

    /// Returns the role of `layer` among layers that share keys and values; `None` if it shares none.
    pub(super) fn key_value_role(&self, layer: usize) -> Option<KeyValueRole> {
        let readers =
            |source: usize| (0..self.layers).filter(move |reader| self.source_of(*reader) == Some(source));
        match self.source_of(layer) {
            Some(source) => {
                Some(KeyValueRole::Reader { is_last: readers(source).next_back() == Some(layer) })
            }
            None => readers(layer).next().map(|_| KeyValueRole::Source),
        }
    }

    /// Returns the hidden width of the feed-forward layers of `layer`.
    pub(super) fn feed_forward_of(&self, layer: usize) -> usize {
        if self.reads_shared(layer) { self.shared_layers_feed_forward } else { self.feed_forward }
    }

    /// Rejects layers that share the keys and values of no earlier layer, and options that sharing excludes.
    pub(super) fn check_sharing(&self, raw: &RawValues) -> keys::Result<()> {
        let shared = self.shared_layers;
        if shared == 0 {
            return Ok(());
        }
        let orphan =
            (0..self.layers).find(|layer| self.reads_shared(*layer) && self.source_of(*layer).is_none());
        if let Some(layer) = orphan {
            let reason = format!(
                "model.shared_layers = {shared}: no layer before them is of the type of layer {layer}"
            );
            return Err(raw.conflict(&[Self::shared_layers, Self::layers], reason));
        }
        let excluded = [
            (Self::layer_types, self.has_recurrence()),
            (Self::latent_width, self.latent_width > 0),
            (Self::attention_gate, self.attention_gate),
            (Self::qk_norm_last, self.qk_norm_last),
            (Self::qk_norm_span, self.qk_norm && self.qk_norm_span == QkNormSpan::All),
        ];
        let other = excluded.into_iter().find(|(_, is_set)| *is_set);
        other.map_or(Ok(()), |(key, _)| {
            let reason = format!("model.shared_layers = {shared} is not built together with {key}");
            Err(raw.conflict(&[Self::shared_layers, key], reason))
        })
    }
}
