//! Normal forms of options of the family `llama`, in which models that compute the same are equal.

use super::sizes::{LlamaSizes, RopeScaling, some};
use crate::layers::QkNormSpan;

impl LlamaSizes {
    /// Returns an equivalent model whose width scaling is contained in its score factors.
    pub(super) fn in_scales(&self) -> Self {
        let scaling = self.scaling_by_width();
        let scale = scaling.attention_scale(some(self.attention_scale), self.head_width);
        let attention_scale = match scaling.is_none() {
            true => self.attention_scale,
            false => scale.map_or(self.attention_scale, f64::from),
        };
        let logit_scale = self.logit_scale * scaling.scores();
        LlamaSizes { attention_scale, logit_scale, base_width: 0, base_head_width: 0, ..self.clone() }
    }

    /// Returns the same model with each option in one normal form: lists have an entry per layer, and keys
    /// without effect have their defaults.
    pub(super) fn canonical(&self) -> Self {
        let mut sizes = self.in_scales();
        let windowed = (0..self.layers).any(|layer| self.is_windowed(layer));
        sizes.window = if windowed { self.window } else { 0 };
        sizes.layer_types = (0..self.layers).map(|layer| self.mixer(layer).name().to_owned()).collect();
        sizes.rope_layers = (0..self.layers).map(|layer| usize::from(self.rotates(layer))).collect();
        sizes.rope_width = self.rotated();
        self.spell_experts(&mut sizes);
        self.spell_mixers(&mut sizes);
        if sizes.attention_scale == 0.0 {
            sizes.attention_scale = 1.0 / (self.head_width as f64).sqrt();
        }
        if windowed && (0..self.layers).all(|layer| self.is_windowed(layer)) {
            (sizes.full_head_width, sizes.full_key_value_heads) = (self.head_width, self.key_value_heads);
            (sizes.keys_as_values, sizes.rope_share) = (false, 1.0);
        }
        if !windowed || !self.windows_differ() {
            (sizes.window_rope_theta, sizes.window_rope_scaled) = (self.rope_theta, true);
        }
        if !self.qk_norm {
            (sizes.qk_norm_span, sizes.qk_norm_last) = (QkNormSpan::Head, false);
        }
        if matches!(self.rope_scaling, RopeScaling::None | RopeScaling::Linear) {
            (sizes.rope_low_turns, sizes.rope_high_turns) = (1.0, 4.0);
            if self.query_growth == 0.0 {
                sizes.rope_original_context = 8192;
            }
        }
        if self.shared_layers == 0 {
            sizes.shared_layers_feed_forward = self.feed_forward;
        }
        if self.latent_width == 0 {
            sizes.latent_epsilon = self.norm_epsilon;
        }
        if self.rope_scaling == RopeScaling::None {
            sizes.rope_factor = 8.0;
        }
        sizes
    }
}
