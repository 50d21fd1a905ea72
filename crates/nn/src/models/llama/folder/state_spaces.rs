//! Settings of families with layers of Mamba-2, and the tensors of these layers.

use serde_json::{Value as Json, json};
use system::quoted::shortened;

use super::family::{FolderFamily, FolderOption, Keys, Settings};
use crate::hugging_face::{FolderConfig, FolderTensor};
use crate::layers::StateSpaceSizes;
use crate::models::llama::mixers::{FULL, SequenceMixer};
use crate::models::llama::sizes::LlamaSizes;

/// Names of a layer of Mamba-2 in a folder; the first one is written.
const STATE_SPACE: [&str; 2] = ["linear_attention", "mamba"];
/// Names of a layer with attention in a folder; the first one is written.
const ATTENTION: [&str; 2] = [FULL, "attention"];

/// Granite 4's layers of Mamba-2.
pub(super) const STATE_SPACES: FolderOption = FolderOption {
    names: &[
        "layer_types",
        "layers_block_type",
        "mamba_n_heads",
        "mamba_n_groups",
        "mamba_d_state",
        "mamba_d_head",
        "mamba_d_conv",
        "mamba_expand",
        "mamba_chunk_size",
        "mamba_conv_bias",
        "mamba_proj_bias",
        "time_step_limit",
    ],
    read,
    write: |sizes| {
        let types: Vec<_> = (0..sizes.layers)
            .map(|layer| match sizes.mixer(layer) {
                SequenceMixer::StateSpace => STATE_SPACE[0],
                mixer => mixer.name(),
            })
            .collect();
        let columns = sizes.state_heads * sizes.state_head_width;
        let expand = columns as f64 / sizes.width as f64;
        vec![
            ("layer_types", json!(types)),
            ("mamba_conv_bias", json!(sizes.state_convolution_bias)),
            ("mamba_d_conv", json!(sizes.state_convolution_width)),
            ("mamba_d_head", json!(sizes.state_head_width)),
            ("mamba_d_state", json!(sizes.state_width)),
            ("mamba_expand", super::options::whole(expand)),
            ("mamba_n_groups", json!(sizes.state_groups)),
            ("mamba_n_heads", json!(sizes.state_heads)),
            ("mamba_proj_bias", json!(sizes.state_bias)),
            ("time_step_limit", limits_of(sizes)),
        ]
    },
};

fn read(config: &FolderConfig, _: &FolderFamily) -> Result<Keys, String> {
    let heads = config.optional_count("mamba_n_heads")?.unwrap_or(128);
    let expand = config.number("mamba_expand")?.unwrap_or(2.0);
    let columns = (expand * config.count("hidden_size")? as f64) as usize;
    let head = match config.value("mamba_d_head") {
        None | Some(Json::String(_)) => columns / heads,
        Some(_) => config.count("mamba_d_head")?,
    };
    if heads * head != columns {
        return Err(format!(
            "mamba_n_heads = {heads} heads of {head} columns are not the {columns} of mamba_expand"
        ));
    }
    let [least, largest] = limits(config, "time_step_limit")?;
    let count = |name: &str, absent: usize| Ok::<_, String>(config.optional_count(name)?.unwrap_or(absent));
    let flag = |name: &str, absent: bool| Ok::<_, String>(config.flag(name)?.unwrap_or(absent));
    Ok(vec![
        (LlamaSizes::layer_types, types(config)?.as_slice().into()),
        (LlamaSizes::state_heads, heads.into()),
        (LlamaSizes::state_head_width, head.into()),
        (LlamaSizes::state_width, count("mamba_d_state", 256)?.into()),
        (LlamaSizes::state_groups, count("mamba_n_groups", 1)?.into()),
        (LlamaSizes::state_convolution_width, count("mamba_d_conv", 4)?.into()),
        (LlamaSizes::state_convolution_bias, flag("mamba_conv_bias", true)?.into()),
        (LlamaSizes::state_bias, flag("mamba_proj_bias", false)?.into()),
        (LlamaSizes::state_least_step, least.into()),
        (LlamaSizes::state_largest_step, largest.into()),
    ])
}

/// Returns the types of the layers.
fn types(config: &FolderConfig) -> Result<Vec<String>, String> {
    let layers = config.count("num_hidden_layers")?;
    let types = match config.texts("layer_types")? {
        Some(types) => types,
        None => config.texts("layers_block_type")?.unwrap_or_else(|| vec![STATE_SPACE[1]; layers]),
    };
    let translated = |name: &str| match name {
        name if ATTENTION.contains(&name) => Ok(FULL.to_owned()),
        name if STATE_SPACE.contains(&name) => Ok(SequenceMixer::StateSpace.name().to_owned()),
        other => Err(format!(
            "layer_types has \"{}\", which is not supported; supported: \"{}\" and \"{FULL}\"",
            shortened(other),
            STATE_SPACE[0]
        )),
    };
    types.into_iter().map(translated).collect()
}

/// Returns the limits of time steps as a folder has them.
pub(super) fn limits_of(sizes: &LlamaSizes) -> Json {
    let [low, high] = sizes.step_limits();
    let high = if high.is_finite() { json!(high) } else { json!({"__float__": "Infinity"}) };
    json!([low, high])
}

/// Returns the least and the largest time step that the setting `name` has; 0 without a largest.
pub(super) fn limits(config: &FolderConfig, name: &str) -> Result<[f64; 2], String> {
    let Some(limits) = config.value(name) else { return Ok([0.0; 2]) };
    let number = |value: &Json| match value {
        Json::Object(_) => Some(f64::INFINITY),
        Json::String(text) => text.parse().ok(),
        value => value.as_f64(),
    };
    let refused = || format!("{name} = {} is not two numbers", shortened(&limits.to_string()));
    let values: Option<Vec<f64>> = limits.as_array().ok_or_else(refused)?.iter().map(number).collect();
    match values.as_deref() {
        Some([least, largest]) if largest.is_infinite() => Ok([*least, 0.0]),
        Some([least, largest]) => Ok([*least, *largest]),
        _ => Err(refused()),
    }
}

/// Rotary positions, or none in any layer.
pub(super) const POSITIONS: FolderOption = FolderOption {
    names: &["position_embedding_type"],
    read: |config, _| match config.text("position_embedding_type")? {
        None | Some("nope") => Ok(vec![(LlamaSizes::rope_layers, [0_usize].as_slice().into())]),
        Some("rope") => Ok(Keys::new()),
        Some(other) => {
            let other = shortened(other);
            Err(format!(
                "position_embedding_type = \"{other}\" is not supported; supported: \"nope\" and \"rope\""
            ))
        }
    },
    write: |sizes| -> Settings {
        let rotates = (0..sizes.layers).any(|layer| sizes.rotates(layer));
        vec![("position_embedding_type", json!(if rotates { "rope" } else { "nope" }))]
    },
};

/// Granite 4's experts beside a shared layer, or the shared layer alone.
pub(super) const SHARED_EXPERTS: FolderOption = FolderOption {
    names: &[
        "shared_intermediate_size",
        "num_local_experts",
        "num_experts_per_tok",
        "router_aux_loss_coef",
        "output_router_logits",
    ],
    read: |config, _| {
        let shared = config.optional_count("shared_intermediate_size")?.unwrap_or(1024);
        let experts = config.whole("num_local_experts")?.unwrap_or(8);
        if experts == 0 {
            return Ok(vec![(LlamaSizes::feed_forward, shared.into())]);
        }
        Ok(vec![
            (LlamaSizes::experts, experts.into()),
            (
                LlamaSizes::experts_per_token,
                config.optional_count("num_experts_per_tok")?.unwrap_or(2).into(),
            ),
            (LlamaSizes::expert_width, config.count("intermediate_size")?.into()),
            (LlamaSizes::shared_expert_width, shared.into()),
        ])
    },
    write: |sizes| {
        let shared = if sizes.has_mixture() { sizes.shared_expert_width } else { sizes.feed_forward };
        let mut settings: Settings = vec![
            ("num_experts_per_tok", json!(sizes.experts_per_token)),
            ("num_local_experts", json!(if sizes.has_mixture() { sizes.experts } else { 0 })),
            ("shared_intermediate_size", json!(shared)),
        ];
        if sizes.has_mixture() {
            settings.push(("intermediate_size", json!(sizes.expert_width)));
        }
        settings
    },
};

/// Returns the tensors of a layer of Mamba-2.
pub(super) fn tensors(prefix: &str, width: usize, sizes: StateSpaceSizes) -> Vec<FolderTensor> {
    let StateSpaceSizes { heads, taps, .. } = sizes;
    let columns = heads.columns();
    let packed = heads.packed_columns();
    let outputs = columns + packed + heads.heads;
    let mut tensors = Vec::new();
    let mut add = |name: &str, shape: &[usize]| {
        let name = format!("{prefix}.mamba.{name}");
        tensors.push(FolderTensor::whole(name.clone(), name, shape));
    };
    for (layer, shape, bias) in [
        ("in_proj", &[outputs, width][..], sizes.bias),
        ("conv1d", &[packed, 1, taps], sizes.convolution_bias),
        ("out_proj", &[width, columns], sizes.bias),
    ] {
        add(&format!("{layer}.weight"), shape);
        if bias {
            add(&format!("{layer}.bias"), &shape[..1]);
        }
    }
    ["A_log", "D", "dt_bias"].into_iter().for_each(|name| add(name, &[heads.heads]));
    if sizes.norm_groups > 0 {
        add("norm.weight", &[columns]);
    }
    tensors
}
