//! The mixer of tokens in each layer.

use keys::RawValues;

use tensor::ops::gated_delta_rule::{DeltaHeads, DeltaSettings};

use super::sizes::LlamaSizes;
use crate::layers::{GatedDeltaSizes, QkNormSpan};

/// Number added to the square of the norms of queries and keys in linear attention.
const UNIT_EPSILON: f32 = 1e-6;

system::names! {
    /// Layer of a block in which tokens interact, by its name in `layer_types`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum SequenceMixer {
        /// Attention without a window.
        Full = "full_attention",
        /// Attention with a window.
        Sliding = "sliding_attention",
        /// The gated delta rule: a state per head instead of keys and values.
        LinearAttention = "linear_attention",
        /// A short causal convolution between two gates.
        Convolution = "convolution",
    }
}

impl SequenceMixer {
    /// Returns the mixer called `name`.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mixer| mixer.name() == name)
    }
}

impl LlamaSizes {
    /// Returns the mixer of `layer`.
    pub(super) fn mixer(&self, layer: usize) -> SequenceMixer {
        let types = &self.layer_types;
        let listed = types.get(layer % types.len().max(1)).and_then(|name| SequenceMixer::from_name(name));
        match (listed, self.window) {
            (None | Some(SequenceMixer::Sliding), 1..) => SequenceMixer::Sliding,
            (None | Some(SequenceMixer::Sliding), 0) => SequenceMixer::Full,
            (Some(mixer), _) => mixer,
        }
    }

    /// Returns the linear attention of `layer`, if it has one.
    pub(super) fn delta(&self, layer: usize) -> Option<GatedDeltaSizes> {
        let settings = DeltaSettings { heads: self.linear_heads(), by_channel: false, epsilon: UNIT_EPSILON };
        let sizes = GatedDeltaSizes {
            settings,
            taps: self.linear_convolution_width,
            layout: self.linear_layout,
            negative_eigenvalues: self.linear_negative_eigenvalues,
            epsilon: self.norm_epsilon as f32,
        };
        (self.mixer(layer) == SequenceMixer::LinearAttention).then_some(sizes)
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

    /// Returns whether `layer` has attention.
    pub(super) fn attends(&self, layer: usize) -> bool {
        matches!(self.mixer(layer), SequenceMixer::Full | SequenceMixer::Sliding)
    }

    /// Rejects inconsistent heads of linear attention, and gates of attention that are not built.
    fn check_linear(&self, raw: &RawValues) -> keys::Result<()> {
        let [keys, values] = [self.linear_key_heads, self.linear_value_heads];
        if self.has_mixer(SequenceMixer::LinearAttention) && !values.is_multiple_of(keys) {
            let reason = format!(
                "model.linear_key_heads = {keys} does not divide model.linear_value_heads = {values}"
            );
            return Err(raw.conflict(&[Self::linear_key_heads, Self::linear_value_heads], reason));
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

    /// Returns whether any layer has `mixer`.
    pub(super) fn has_mixer(&self, mixer: SequenceMixer) -> bool {
        (0..self.layers).any(|layer| self.mixer(layer) == mixer)
    }

    /// Rejects unknown layer types, and windowed layers without a window.
    pub(super) fn check_mixers(&self, raw: &RawValues) -> keys::Result<()> {
        let types = &self.layer_types;
        if let Some(other) = types.iter().find(|name| SequenceMixer::from_name(name).is_none()) {
            let known = SequenceMixer::ALL.map(|mixer| format!("\"{}\"", mixer.name())).join(", ");
            let reason = format!("model.layer_types has \"{other}\", which is none of {known}");
            return Err(raw.conflict(&[Self::layer_types], reason));
        }
        let sliding = SequenceMixer::Sliding.name();
        if self.window == 0 && types.iter().any(|name| name == sliding) {
            let reason = format!("model.layer_types has \"{sliding}\", and model.window = 0");
            return Err(raw.conflict(&[Self::layer_types, Self::window], reason));
        }
        self.check_linear(raw)?;
        let unbuilt = [SequenceMixer::Convolution];
        match unbuilt.into_iter().find(|mixer| self.has_mixer(*mixer)) {
            None => Ok(()),
            Some(other) => {
                let reason = format!("layers of type \"{}\" are not built", other.name());
                Err(raw.conflict(&[Self::layer_types], reason))
            }
        }
    }
}
