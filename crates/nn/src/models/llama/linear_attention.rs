//! Linear attention of the family `llama`: sizes from the keys, and checks of them.

use keys::RawValues;
use tensor::ops::gated_delta_rule::{DeltaHeads, DeltaSettings};

use super::mixers::SequenceMixer;
use super::sizes::LlamaSizes;
use crate::layers::{DeltaLayout, GatedDeltaSizes, NormPosition, QkNormSpan};

/// Number added to the square of the norms of queries and keys.
const UNIT_EPSILON: f32 = 1e-6;

impl LlamaSizes {
    /// Returns the linear attention of `layer`, if it has one.
    pub(super) fn delta(&self, layer: usize) -> Option<GatedDeltaSizes> {
        let heads = self.linear_heads();
        let by_channel = self.linear_channel_decays;
        let settings = DeltaSettings { heads, by_channel, epsilon: UNIT_EPSILON };
        let sizes = GatedDeltaSizes {
            settings,
            taps: self.linear_convolution_width,
            layout: self.linear_layout,
            gate_rank: self.linear_gate_rank,
            gate: self.linear_gate,
            negative_eigenvalues: self.linear_negative_eigenvalues,
            epsilon: self.linear_epsilon as f32,
        };
        (self.mixer(layer) == SequenceMixer::LinearAttention).then_some(sizes)
    }

    /// Returns the positions of the norms of `layer`.
    pub(super) fn norm_position_in(&self, layer: usize) -> NormPosition {
        match self.mixer(layer) {
            SequenceMixer::LinearAttention => self.linear_norm_position,
            _ => self.norm_position,
        }
    }

    /// Returns the heads of linear attention.
    pub(super) fn linear_heads(&self) -> DeltaHeads {
        DeltaHeads {
            key: self.linear_key_heads,
            value: self.linear_value_heads,
            width: self.linear_key_width,
            value_width: self.linear_value_width,
        }
    }

    /// Rejects inconsistent heads of linear attention, and gates of attention that are not built.
    pub(super) fn check_linear(&self, raw: &RawValues) -> keys::Result<()> {
        let [keys, values] = [self.linear_key_heads, self.linear_value_heads];
        if self.has_mixer(SequenceMixer::LinearAttention) && !values.is_multiple_of(keys) {
            let reason = format!(
                "model.linear_key_heads = {keys} does not divide model.linear_value_heads = {values}"
            );
            return Err(raw.conflict(&[Self::linear_key_heads, Self::linear_value_heads], reason));
        }
        let is_grouped = self.linear_layout == DeltaLayout::Grouped;
        let separate = [
            (Self::linear_channel_decays, self.linear_channel_decays),
            (Self::linear_gate_rank, self.linear_gate_rank > 0),
        ];
        if let Some((key, _)) = separate.into_iter().find(|(_, is_set)| is_grouped && *is_set) {
            let [shown, layout] = self.shown([key, Self::linear_layout]);
            let reason = format!("{shown} is not built with {layout}");
            return Err(raw.conflict(&[key, Self::linear_layout], reason));
        }
        let options = [
            (Self::latent_width, self.latent_width > 0),
            (Self::qk_norm_span, self.qk_norm && self.qk_norm_span == QkNormSpan::All),
            (Self::value_width, self.value_width != self.head_width),
        ];
        let other = options.into_iter().find(|(_, is_set)| self.attention_gate && *is_set);
        let Some((key, _)) = other else { return Ok(()) };
        let reason = format!("model.attention_gate = true is not built with this {key}");
        Err(raw.conflict(&[Self::attention_gate, key], reason))
    }
}
