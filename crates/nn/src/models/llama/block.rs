//! Options of the blocks of the family `llama`.

use tensor::ops::attention::Settings;
use tensor::ops::gate::{Clamp, Gate};

use super::mixers::SequenceMixer;
use super::sizes::{LlamaSizes, some};
use crate::layers::{LlamaBlockSizes, NormOptions};
use crate::width_scaling::WidthScaling;

impl LlamaSizes {
    /// Returns the sizes of the block of `layer`.
    pub(super) fn block(&self, layer: usize) -> LlamaBlockSizes {
        LlamaBlockSizes {
            width: self.width,
            branches: self.branches(layer),
            attention: Settings {
                heads: self.heads_of(layer),
                scale: self.scaling_by_width().attention_scale(some(self.attention_scale), self.head_width),
                soft_cap: some(self.attention_soft_cap),
                window: self.is_windowed(layer).then_some(self.window),
            },
            convolution: self.convolution(layer),
            attends: self.attends(layer),
            state_space: self.state_space(layer),
            delta: self.delta(layer),
            attention_gate: self.attention_gate,
            latents: self.latents(),
            feed_forward: self.feed_forward_of(layer),
            is_gated: self.gated,
            mixture: self.mixture(layer),
            gate: self.gate(),
            qkv_bias: self.qkv_bias,
            output_bias: self.output_bias,
            mlp_bias: self.mlp_bias,
            sinks: self.attention_sinks,
            qk_norm: self.qk_norm.then_some(self.qk_norm_span),
            qk_norm_last: self.qk_norm_last,
            norm_position: self.norm_position_in(layer),
            norms: self.norms(),
            is_parallel: self.parallel_branches,
            value_norm: self.value_norm,
            keys_as_values: self.uses_keys_as_values(layer),
            layer_embedding: self.layer_embedding_width,
            first_layer: 0,
            has_factor: self.layer_factors,
            residual_scale: self.residual_scale,
            mixer_scales: self.mixer_factors(),
            gate_scale: self.gate_scale,
            feed_forward_scale: self.feed_forward_scale,
            dropout: self.dropout,
            branch_dropout: self.branch_dropout,
        }
    }

    /// Returns whether `layer` has a mixer of tokens, and feed-forward layers.
    pub(super) fn branches(&self, layer: usize) -> [bool; 2] {
        let has_mixer = self.mixer(layer) != SequenceMixer::FeedForward;
        [has_mixer, !(has_mixer && self.single_branches)]
    }

    /// Returns the number of branches of all layers.
    pub(super) fn all_branches(&self) -> usize {
        (0..self.layers).flat_map(|layer| self.branches(layer)).filter(|has_branch| *has_branch).count()
    }

    /// Returns the options of all norms.
    pub(super) fn norms(&self) -> NormOptions {
        NormOptions {
            kind: self.norm_kind,
            has_weight: self.norm_weights,
            is_less_one: self.norms_less_one,
            epsilon: self.norm_epsilon as f32,
        }
    }

    /// Returns the scaling by width.
    pub(super) fn scaling_by_width(&self) -> WidthScaling {
        let heads = [self.head_width, self.base_head_width];
        WidthScaling::new([self.width, self.base_width], heads)
    }

    /// Returns the function of the feed-forward gate.
    fn gate(&self) -> Gate {
        let limit = some(self.gate_limit);
        let offset = self.gate_offset as f32;
        let is_bounded = limit.is_some() || offset != 0.0;
        let clamp = Clamp { limit: limit.unwrap_or(f32::INFINITY), offset };
        Gate { activation: self.activation, clamp: is_bounded.then_some(clamp) }
    }
}
