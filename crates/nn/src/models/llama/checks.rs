//! Checks of options of layers that exclude each other.

use keys::{KeyValues, RawValues, Section};

use super::sizes::LlamaSizes;
use crate::layers::{NormKind, NormPosition};

impl LlamaSizes {
    /// Rejects heads of layers without a window that are inconsistent.
    pub(super) fn check_full_heads(&self, raw: &RawValues) -> keys::Result<()> {
        let Self { heads, full_key_value_heads, full_head_width, head_width, .. } = *self;
        let refused = |keys: &[&str], reason: String| Err(raw.conflict(keys, reason));
        if !heads.is_multiple_of(full_key_value_heads) {
            let reason = format!(
                "model.full_key_value_heads = {full_key_value_heads} does not divide model.heads = {heads}"
            );
            return refused(&[Self::full_key_value_heads, Self::heads], reason);
        }
        if !full_head_width.is_multiple_of(2) {
            let reason = format!(
                "model.full_head_width = {full_head_width} is odd; rotary embeddings need an even one"
            );
            return refused(&[Self::full_head_width], reason);
        }
        if self.rope_share > 1.0 {
            let reason = format!("model.rope_share = {} is more than 1", self.rope_share);
            return refused(&[Self::rope_share], reason);
        }
        let others = [
            (Self::latent_width, self.latent_width > 0),
            (Self::rope_width, self.rope_width > 0),
            (Self::value_width, self.value_width != head_width),
            (Self::base_width, self.base_width > 0),
            (Self::attention_gate, self.attention_gate),
        ];
        let is_special = self.has_full_heads() || self.value_norm || self.rope_share != 1.0;
        if let Some((key, _)) = others.into_iter().find(|(_, is_set)| is_special && *is_set) {
            let values = self.shown([Self::full_head_width, key]);
            let reason = format!(
                "{} excludes other heads, rotations and values of layers without a window ({})",
                values[1], values[0]
            );
            return refused(&[key, Self::full_head_width], reason);
        }
        Ok(())
    }

    /// Rejects options of norms and branches that exclude each other.
    pub(super) fn check_options(&self, raw: &RawValues) -> keys::Result<()> {
        let is_elsewhere = self.norm_position != NormPosition::Before;
        let is_after = (0..self.layers).any(|layer| self.norm_position_in(layer) != NormPosition::Before);
        let is_bounded = self.gate_limit > 0.0 || self.gate_offset > 0.0;
        let is_layer = self.norm_kind == NormKind::Layer;
        let excluded = [
            (Self::parallel_branches, self.parallel_branches, Self::norm_position, is_elsewhere),
            (Self::parallel_branches, self.parallel_branches, Self::linear_norm_position, is_after),
            (Self::single_branches, self.single_branches, Self::norm_position, is_elsewhere),
            (Self::single_branches, self.single_branches, Self::linear_norm_position, is_after),
            (Self::single_branches, self.single_branches, Self::parallel_branches, self.parallel_branches),
            (Self::single_branches, self.single_branches, Self::shared_layers, self.shared_layers > 0),
            (Self::gated, !self.gated, Self::gate_limit, is_bounded),
            (Self::expert_latent_width, self.expert_latent_width > 0, Self::mlp_bias, self.mlp_bias),
            (Self::norm_weights, !self.norm_weights, Self::norms_less_one, self.norms_less_one),
            (Self::norm_kind, is_layer, Self::norms_less_one, self.norms_less_one),
        ];
        let conflict = excluded.into_iter().find(|(_, is_set, _, other)| *is_set && *other);
        conflict.map_or(Ok(()), |(key, _, other, _)| {
            let values = self.shown([key, other]);
            Err(raw.conflict(&[key, other], format!("{} and {} exclude each other", values[0], values[1])))
        })
    }

    /// Formats keys with their values.
    pub(super) fn shown(&self, keys: [&'static str; 2]) -> [String; 2] {
        let values = Self::keys().into_iter().zip(self.values());
        let texts: Vec<_> = values.map(|(key, value)| (key.path, value.to_string())).collect();
        keys.map(|path| match texts.iter().find(|(name, _)| *name == path) {
            Some((name, value)) => format!("{name} = {value}"),
            None => path.to_owned(),
        })
    }
}
