//! Folders of OLMo Hybrid: linear attention, with norms before it, in most layers, and attention with norms
//! after it in the others.

use serde_json::{Value as Json, json};

use super::family::{Absent, FolderFamily, FolderOption, LLAMA, USUAL};
use super::linear_attention::{self, CONVOLUTIONS};
use super::options::{ATTENTION_BIAS, PADDING};
use super::rope::{self, dialects};
use crate::hugging_face::{FolderConfig, FolderTensor};
use crate::models::llama::mixers::{FULL, SequenceMixer};
use crate::models::llama::sizes::LlamaSizes;

/// Epsilon of the norm of linear attention's results; it does not depend on the configured epsilon.
const EPSILON: f64 = 1e-5;

/// OLMo Hybrid.
pub(super) const OLMO_HYBRID: FolderFamily = FolderFamily {
    model_type: "olmo_hybrid",
    architecture: "OlmoHybridForCausalLM",
    absent: Absent { padding: Some(100_277), ..LLAMA },
    fixed: |_| {
        Ok(vec![
            (LlamaSizes::qk_norm, true.into()),
            (LlamaSizes::qk_norm_span, "all".into()),
            (LlamaSizes::norm_position, "after".into()),
            (LlamaSizes::linear_norm_position, "before".into()),
            (LlamaSizes::linear_epsilon, EPSILON.into()),
        ])
    },
    options: &[PADDING, RATES_UP_TO_2, ATTENTION_BIAS, OPTIONAL_ROPE],
    released: Some(released),
    rewritten: Some(rewritten),
    ..USUAL
};

/// Linear attention in most layers, whose rates are up to 2 by default, and attention in the others.
const RATES_UP_TO_2: FolderOption = FolderOption {
    names: &[
        "layer_types",
        "linear_conv_kernel_dim",
        "linear_key_head_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_value_head_dim",
        "linear_allow_neg_eigval",
        "linear_use_gate",
    ],
    read: |config, _| {
        config.only("linear_use_gate", true)?;
        let heads = config.count("num_attention_heads")?;
        let count = |name: &str, absent| Ok::<_, String>(config.optional_count(name)?.unwrap_or(absent));
        let keys = count("linear_num_key_heads", heads)?;
        let width = count("linear_key_head_dim", 3 * config.count("hidden_size")? / (4 * keys))?;
        Ok(vec![
            (LlamaSizes::layer_types, types(config)?.as_slice().into()),
            (LlamaSizes::linear_key_heads, keys.into()),
            (LlamaSizes::linear_value_heads, count("linear_num_value_heads", heads)?.into()),
            (LlamaSizes::linear_key_width, width.into()),
            (LlamaSizes::linear_value_width, count("linear_value_head_dim", 2 * width)?.into()),
            (LlamaSizes::linear_convolution_width, count("linear_conv_kernel_dim", 4)?.into()),
            (
                LlamaSizes::linear_negative_eigenvalues,
                config.flag("linear_allow_neg_eigval")?.unwrap_or(true).into(),
            ),
        ])
    },
    write: |sizes| {
        let mut settings = linear_attention::write(sizes);
        settings.push(("linear_allow_neg_eigval", json!(sizes.linear_negative_eigenvalues)));
        settings
    },
};

/// Returns the types of the layers. By default each fourth layer has attention, and else the last one.
fn types(config: &FolderConfig) -> Result<Vec<String>, String> {
    let mut types = linear_attention::types(config)?;
    if !types.iter().any(|name| name == FULL)
        && !config.has("layer_types")
        && let Some(last) = types.last_mut()
    {
        FULL.clone_into(last);
    }
    let linear = SequenceMixer::LinearAttention.name();
    match [FULL, linear].into_iter().find(|name| !types.iter().any(|other| other == name)) {
        Some(name) => Err(format!("layer_types has no \"{name}\", which OLMo Hybrid needs")),
        None => Ok(types),
    }
}

/// Rotary frequencies of whole heads; no layer rotates if their base is null.
const OPTIONAL_ROPE: FolderOption = FolderOption {
    names: rope::FLAT_NAMES,
    read: |config, family| match dialects::flat(config)?.number("rope_theta")? {
        Some(_) => rope::read_whole(config, family),
        None if config.has("rope_parameters") => {
            Ok(vec![(LlamaSizes::rope_layers, [0_usize].as_slice().into())])
        }
        None => Err("it has no rope_parameters: null means that no layer rotates".to_owned()),
    },
    write: |sizes| match (0..sizes.layers).any(|layer| sizes.attends(layer) && sizes.rotates(layer)) {
        true => rope::write_flat(sizes),
        false => vec![("rope_parameters", Json::Null)],
    },
};

/// Renames the norms of layers with linear attention as in released folders.
fn released(tensors: &mut [FolderTensor], sizes: &LlamaSizes) {
    for layer in (0..sizes.layers).filter(|layer| sizes.delta(*layer).is_some()) {
        let layer = format!("model.layers.{layer}.");
        for tensor in tensors.iter_mut().filter(|tensor| tensor.name.starts_with(&layer)) {
            rename_norm(tensor, "input_layernorm", "attention_layer_norm");
            rename_norm(tensor, "post_attention_layernorm", "feedforward_layer_norm");
        }
    }
}

/// Changes names and shapes of tensors to those that transformers 5 writes: a norm has one name in all
/// layers, and a layer's convolution kernels are three tensors of equal size.
fn rewritten(tensors: &mut [FolderTensor], sizes: &LlamaSizes) {
    let columns = sizes.linear_heads().packed_columns();
    for tensor in tensors {
        rename_norm(tensor, "post_attention_layernorm", "feedforward_layer_norm");
        if let Some(part) = CONVOLUTIONS.iter().position(|name| tensor.name.contains(name)) {
            tensor.shape[0] = columns / 3;
            tensor.first_row = part * (columns / 3);
        }
    }
}

fn rename_norm(tensor: &mut FolderTensor, ours: &str, theirs: &str) {
    tensor.name = tensor.name.replace(&format!(".{ours}."), &format!(".{theirs}."));
}
