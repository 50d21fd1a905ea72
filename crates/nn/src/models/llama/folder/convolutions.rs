//! Settings of LFM2: short convolutions, and the width of the feed-forward layers.

use serde_json::{Value as Json, json};
use system::quoted::shortened;

use super::family::{FolderOption, Keys, Settings};
use crate::hugging_face::FolderConfig;
use crate::models::llama::mixers::{FULL, SequenceMixer};
use crate::models::llama::sizes::LlamaSizes;

/// Name of a layer with a short convolution in a folder.
const CONVOLUTION: &str = "conv";

/// Layers with short convolutions, and LFM2's own names for the epsilon of norms and the tied head.
pub(super) const CONVOLUTIONS: FolderOption = FolderOption {
    names: &["layer_types", "full_attn_idxs", "conv_L_cache", "conv_bias"],
    read: |config, _| {
        let mut keys: Keys = vec![
            (LlamaSizes::layer_types, types(config)?.as_slice().into()),
            (LlamaSizes::convolution_width, config.optional_count("conv_L_cache")?.unwrap_or(3).into()),
            (LlamaSizes::convolution_bias, config.flag("conv_bias")?.unwrap_or(false).into()),
        ];
        if let Some(epsilon) = config.number("norm_eps")? {
            keys.push((LlamaSizes::norm_epsilon, epsilon.into()));
        }
        if let Some(tied) = config.flag("tie_embedding")? {
            keys.push((LlamaSizes::tied, tied.into()));
        }
        Ok(keys)
    },
    write: |sizes| -> Settings {
        let types: Vec<_> = (0..sizes.layers)
            .map(|layer| match sizes.mixer(layer) {
                SequenceMixer::Convolution => CONVOLUTION,
                mixer => mixer.name(),
            })
            .collect();
        vec![
            ("conv_L_cache", json!(sizes.convolution_width)),
            ("conv_bias", json!(sizes.convolution_bias)),
            ("layer_types", json!(types)),
            ("norm_eps", json!(sizes.norm_epsilon)),
        ]
    },
};

/// Returns the types of the layers: the listed types, or convolutions except in the listed attention layers.
fn types(config: &FolderConfig) -> Result<Vec<String>, String> {
    let convolution = SequenceMixer::Convolution.name();
    let Some(types) = config.texts("layer_types")? else {
        let layers = config.count("num_hidden_layers")?;
        let attention = config.counts("full_attn_idxs")?.unwrap_or_else(|| (0..layers).collect());
        let name = |layer| if attention.contains(&layer) { FULL } else { convolution };
        return Ok((0..layers).map(|layer| name(layer).to_owned()).collect());
    };
    let translated = |name: &str| match name {
        FULL => Ok(FULL.to_owned()),
        CONVOLUTION => Ok(convolution.to_owned()),
        other => Err(format!(
            "layer_types has \"{}\", which is not supported; supported: \"{CONVOLUTION}\" and \"{FULL}\"",
            shortened(other)
        )),
    };
    types.into_iter().map(translated).collect()
}

/// Width of the feed-forward layers: two thirds of the stated width, times a factor, rounded up.
pub(super) const ADJUSTED_WIDTH: FolderOption = FolderOption {
    names: &["block_auto_adjust_ff_dim", "block_ffn_dim_multiplier", "block_multiple_of"],
    read: |config, _| {
        let width = config.count("intermediate_size")?;
        if !config.flag("block_auto_adjust_ff_dim")?.unwrap_or(true) {
            return Ok(Keys::new());
        }
        let width = 2 * width / 3;
        let factor = match config.has("block_ffn_dim_multiplier") {
            true => config.number("block_ffn_dim_multiplier")?,
            false => Some(1.0),
        };
        let multiple = config.optional_count("block_multiple_of")?.unwrap_or(256).max(1);
        // Without a factor the width is not rounded.
        let width =
            factor.map_or(width, |factor| ((factor * width as f64) as usize).next_multiple_of(multiple));
        Ok(vec![(LlamaSizes::feed_forward, width.into())])
    },
    write: |_| vec![("block_auto_adjust_ff_dim", Json::Bool(false))],
};
