//! Latents of attention: sizes from the keys, and checks of incompatible options.

use keys::RawValues;

use super::sizes::LlamaSizes;
use crate::layers::{CachedHeads, CachedValues, Heads, LatentSizes};

impl LlamaSizes {
    /// Returns the latents' sizes; `None` without latents.
    pub(super) fn latents(&self) -> Option<LatentSizes> {
        (self.latent_width > 0).then(|| LatentSizes {
            keys_values: self.latent_width,
            queries: self.query_latent_width,
            rotated: self.rotated(),
            interleaved: self.rope_interleaved,
            has_bias: self.qkv_bias,
            epsilon: self.latent_epsilon as f32,
        })
    }

    /// Returns the heads as stored in caches: keys and values, or latents with the rotated columns of keys.
    pub(super) fn cached(&self) -> CachedHeads {
        let heads = self.attention_heads();
        match self.latents() {
            None => heads.into(),
            Some(LatentSizes { keys_values, rotated, .. }) => {
                let width = rotated + keys_values;
                let heads = Heads { value_width: keys_values, ..Heads::grouped(heads.query, 1, width) };
                CachedHeads { heads, values: CachedValues::LastOfKeys }
            }
        }
    }

    /// Rejects options incompatible with latents, and options that require them.
    pub(super) fn check_latents(&self, raw: &RawValues) -> keys::Result<()> {
        let latents = self.latent_width;
        let refused =
            |key: &'static str, reason: String| Err(raw.conflict(&[Self::latent_width, key], reason));
        if latents == 0 {
            let queries = self.query_latent_width;
            return match queries {
                0 => Ok(()),
                queries => refused(
                    Self::query_latent_width,
                    format!("model.query_latent_width = {queries} needs model.latent_width, which is 0"),
                ),
            };
        }
        let columns = self.rope_width;
        let head = self.head_width;
        if columns == 0 || columns >= head {
            let reason = format!(
                "model.latent_width = {latents} needs columns of heads that rotate and others that do not, and \
                 model.rope_width = {columns} is not between 0 and model.head_width = {head}"
            );
            return refused(Self::rope_width, reason);
        }
        let heads = self.heads;
        let key_value_heads = self.key_value_heads;
        if heads != key_value_heads {
            let reason = format!(
                "model.latent_width = {latents} has keys and values for every head, and model.key_value_heads = \
                 {key_value_heads} is not model.heads = {heads}"
            );
            return refused(Self::key_value_heads, reason);
        }
        let [growth, reversed] = [self.query_growth > 0.0, self.rope_reversed];
        let others =
            [(Self::qk_norm, self.qk_norm), (Self::query_growth, growth), (Self::rope_reversed, reversed)];
        if let Some((key, _)) = others.into_iter().find(|(_, is_set)| *is_set) {
            let [shown, _] = self.shown([key, Self::latent_width]);
            return refused(
                key,
                format!("{shown} is not built for latents (model.latent_width = {latents})"),
            );
        }
        Ok(())
    }
}
