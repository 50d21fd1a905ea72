//! Layers that use keys and values of earlier layers.

use keys::RawValues;

use super::sizes::LlamaSizes;
use crate::layers::{CarriedColumns, CarriedKeyValues, KeyValueRole, QkNormSpan, SharedKeyValues};
use crate::model::Stage;
use crate::shards::Shards;

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

    /// Returns the columns that `stage` receives and sends beside the residual stream. `shared` are the keys
    /// and values of layers without a window, and of layers with one.
    pub(super) fn carried(
        &self,
        stage: &Stage,
        shared: &[SharedKeyValues; 2],
        shards: Shards,
    ) -> CarriedColumns {
        let crossing = |cut: usize| {
            let both = [false, true].into_iter().zip(shared);
            both.filter_map(|(is_windowed, values)| {
                let columns = self.columns_across(cut, is_windowed)?;
                let is_half = !(self.qk_norm || self.value_norm);
                Some(CarriedKeyValues { values: values.clone(), columns, is_half })
            })
            .collect()
        };
        CarriedColumns {
            width: self.width,
            embedding: self.layer_embedding_width,
            layers: [stage.layers.len(), self.layers - stage.layers.end],
            arriving: crossing(stage.layers.start),
            leaving: crossing(stage.layers.end),
            shards,
        }
    }

    /// Returns the number of columns of the keys and values that a layer before `cut` computes, and layers
    /// of the same type from `cut` on use; `None` if there are none.
    fn columns_across(&self, cut: usize, is_windowed: bool) -> Option<usize> {
        let mut readers = (cut..self.layers).filter(|layer| self.is_windowed(*layer) == is_windowed);
        let source = readers.find_map(|reader| self.source_of(reader)).filter(|source| *source < cut)?;
        let [_, keys, values] = self.heads_of(source).groups_of_columns();
        Some(keys + values)
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
