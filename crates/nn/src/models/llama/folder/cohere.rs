//! The family of Cohere 2: layer norms, branches side by side, and windows that alone rotate.

use serde_json::json;

use super::family::{
    Absent, FolderFamily, FolderOption, LAYER_NORM_EPSILON, LLAMA, Settings, USUAL, is_not_last,
};
use super::options::{ATTENTION_BIAS, FLAT_ROPE, LAYER_TYPES, PADDING, rotating_windows, window_and_types};
use crate::layers::NormKind;
use crate::models::llama::sizes::LlamaSizes;

/// Cohere 2.
pub(super) const COHERE_2: FolderFamily = FolderFamily {
    model_type: "cohere2",
    architecture: "Cohere2ForCausalLM",
    absent: Absent {
        epsilon: 1e-5,
        tied: true,
        window: Some(4096),
        windowed: |layer, period| is_not_last(layer, period.unwrap_or(4)),
        padding: Some(0),
        ..LLAMA
    },
    fixed: |_| {
        Ok(vec![(LlamaSizes::parallel_branches, true.into()), (LlamaSizes::rope_interleaved, true.into())])
    },
    options: &[PADDING, ROTATED_WINDOWS, LAYER_NORMS, SCORE_SCALE, ATTENTION_BIAS, FLAT_ROPE],
    ..USUAL
};

/// Layer norms instead of RMS norms.
const LAYER_NORMS: FolderOption = FolderOption {
    names: &[LAYER_NORM_EPSILON],
    read: |_, _| Ok(vec![(LlamaSizes::norm_kind, NormKind::Layer.name().into())]),
    write: |_| Settings::new(),
};

/// A factor of the scores of tokens.
const SCORE_SCALE: FolderOption = FolderOption {
    names: &["logit_scale"],
    read: |config, _| {
        Ok(vec![(LlamaSizes::logit_scale, config.number("logit_scale")?.unwrap_or(0.0625).into())])
    },
    write: |sizes| vec![("logit_scale", json!(sizes.logit_scale))],
};

/// An attention window in some layers; only these layers rotate queries and keys.
const ROTATED_WINDOWS: FolderOption = FolderOption {
    names: LAYER_TYPES.names,
    read: |config, family| match window_and_types(config, family)? {
        Some((window, types)) => rotating_windows(window, types),
        None => Ok(vec![(LlamaSizes::rope_layers, [0_usize].as_slice().into())]),
    },
    write: LAYER_TYPES.write,
};
