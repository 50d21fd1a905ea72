//! Settings of linear attention in a `config.json`, and the tensors of its layers.

use serde_json::json;

use super::family::{FolderOption, Keys, Settings};
use super::options::unsupported_type;
use crate::hugging_face::{FolderConfig, FolderTensor};
use crate::layers::DeltaLayout;
use crate::models::llama::mixers::{FULL, SequenceMixer};
use crate::models::llama::sizes::LlamaSizes;

/// Name of the convolution of queries, keys and values together.
const CONVOLUTION: &str = "conv1d.";
/// Names of the convolutions of queries, of keys and of values.
pub(super) const CONVOLUTIONS: [&str; 3] = ["q_conv1d.", "k_conv1d.", "v_conv1d."];
/// Names of the settings of linear attention.
const NAMES: &[&str] = &[
    "layer_types",
    "full_attention_interval",
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_value_head_dim",
    "attn_output_gate",
];

/// Linear attention in most layers, with separate projections, and gated attention in the others.
pub(super) const LINEAR_ATTENTION: FolderOption =
    FolderOption { names: NAMES, read: |config, _| read(config, DeltaLayout::Separate), write };

/// [`LINEAR_ATTENTION`] with projections by key head.
pub(super) const GROUPED_LINEAR_ATTENTION: FolderOption =
    FolderOption { names: NAMES, read: |config, _| read(config, DeltaLayout::Grouped), write };

fn read(config: &FolderConfig, layout: DeltaLayout) -> Result<Keys, String> {
    config.only("attn_output_gate", true)?;
    let count = |name: &str, absent: usize| Ok::<_, String>(config.optional_count(name)?.unwrap_or(absent));
    Ok(vec![
        (LlamaSizes::layer_types, types(config)?.as_slice().into()),
        (LlamaSizes::attention_gate, true.into()),
        (LlamaSizes::linear_key_heads, count("linear_num_key_heads", 16)?.into()),
        (LlamaSizes::linear_value_heads, count("linear_num_value_heads", 32)?.into()),
        (LlamaSizes::linear_key_width, count("linear_key_head_dim", 128)?.into()),
        (LlamaSizes::linear_value_width, count("linear_value_head_dim", 128)?.into()),
        (LlamaSizes::linear_convolution_width, count("linear_conv_kernel_dim", 4)?.into()),
        (LlamaSizes::linear_layout, layout.name().into()),
    ])
}

pub(super) fn write(sizes: &LlamaSizes) -> Settings {
    let types: Vec<_> = (0..sizes.layers).map(|layer| sizes.mixer(layer).name()).collect();
    vec![
        ("layer_types", json!(types)),
        ("linear_conv_kernel_dim", json!(sizes.linear_convolution_width)),
        ("linear_key_head_dim", json!(sizes.linear_key_width)),
        ("linear_num_key_heads", json!(sizes.linear_key_heads)),
        ("linear_num_value_heads", json!(sizes.linear_value_heads)),
        ("linear_value_head_dim", json!(sizes.linear_value_width)),
    ]
}

/// Returns the types of the layers: listed, or attention in the last layer of every interval.
pub(super) fn types(config: &FolderConfig) -> Result<Vec<String>, String> {
    let linear = SequenceMixer::LinearAttention.name();
    let Some(types) = config.texts("layer_types")? else {
        let layers = config.count("num_hidden_layers")?;
        let interval = config.optional_count("full_attention_interval")?.unwrap_or(4).max(1);
        let name = |layer: usize| if (layer + 1).is_multiple_of(interval) { FULL } else { linear };
        return Ok((0..layers).map(|layer| name(layer).to_owned()).collect());
    };
    match types.iter().find(|name| ![FULL, linear].contains(name)) {
        Some(other) => Err(unsupported_type(other, &format!("\"{FULL}\" and \"{linear}\""))),
        None => Ok(types.into_iter().map(str::to_owned).collect()),
    }
}

/// Returns the tensors of a layer's linear attention. With `splits`, queries, keys and values are separate
/// tensors, and so are the kernels of their convolutions.
pub(super) fn tensors(layer: &str, sizes: &LlamaSizes, splits: bool) -> Vec<FolderTensor> {
    let heads = sizes.linear_heads();
    let width = sizes.width;
    let [queries, keys, values] = heads.groups_of_columns();
    let packed = heads.packed_columns();
    let channels = if sizes.linear_channel_decays { heads.width } else { 1 };
    let decays = heads.value * channels;
    let inner = sizes.linear_gate_rank;
    let mut parts: Vec<(&str, Vec<usize>)> = match sizes.linear_layout {
        DeltaLayout::Separate if inner > 0 => vec![
            ("in_proj_qkv.weight", vec![packed, width]),
            ("g_a_proj.weight", vec![inner, width]),
            ("g_b_proj.weight", vec![values, inner]),
            ("in_proj_b.weight", vec![heads.value, width]),
            ("f_a_proj.weight", vec![inner, width]),
            ("f_b_proj.weight", vec![decays, inner]),
        ],
        DeltaLayout::Separate => vec![
            ("in_proj_qkv.weight", vec![packed, width]),
            ("in_proj_z.weight", vec![values, width]),
            ("in_proj_b.weight", vec![heads.value, width]),
            ("in_proj_a.weight", vec![decays, width]),
        ],
        DeltaLayout::Grouped => vec![
            ("in_proj_qkvz.weight", vec![queries + keys + 2 * values, width]),
            ("in_proj_ba.weight", vec![2 * heads.value, width]),
        ],
    };
    parts.extend([
        ("conv1d.weight", vec![packed, 1, sizes.linear_convolution_width]),
        ("dt_bias", vec![decays]),
        ("A_log", vec![heads.value]),
        ("norm.weight", vec![heads.value_width]),
        ("out_proj.weight", vec![width, values]),
    ]);
    let tensor = |(part, shape): (&str, Vec<usize>)| {
        let name = format!("{layer}.linear_attn.{part}");
        FolderTensor::whole(name.clone(), name, &shape)
    };
    let mut tensors: Vec<_> = parts.into_iter().map(tensor).collect();
    if splits {
        tensors = tensors.into_iter().flat_map(|tensor| split(tensor, [queries, keys, values])).collect();
    }
    tensors
}

/// Splits a tensor with rows of queries, keys and values into three tensors; leaves other tensors whole.
fn split(whole: FolderTensor, rows: [usize; 3]) -> Vec<FolderTensor> {
    let names = [("in_proj_qkv.", ["q_proj.", "k_proj.", "v_proj."]), (CONVOLUTION, CONVOLUTIONS)];
    let Some((packed, names)) = names.into_iter().find(|(packed, _)| whole.name.contains(packed)) else {
        return vec![whole];
    };
    let mut first_row = 0;
    let part = |(name, rows): (&str, usize)| {
        let mut tensor = FolderTensor { first_row, ..whole.clone() };
        tensor.name = whole.name.replace(packed, name);
        tensor.shape[0] = rows;
        first_row += rows;
        tensor
    };
    names.into_iter().zip(rows).map(part).collect()
}
