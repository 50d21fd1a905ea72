//! Folders of Kimi Linear: linear attention with a decay of each channel, attention over latents without
//! rotation, and DeepSeek's experts under other names.

use serde_json::json;

use super::experts::layers_by_type;
use super::family::{
    Absent, ExpertLayout, FolderFamily, FolderOption, Keys, LATENT_NAMES, LLAMA, LatentDefaults, ROUTER,
    Settings, USUAL,
};
use super::latents::LATENTS;
use super::linear_attention;
use super::options::{NO_BIASES, PADDING};
use crate::hugging_face::readers::DELTA;
use crate::hugging_face::{FolderConfig, FolderTensor};
use crate::layers::{GateFunction, ScoreFunction};
use crate::models::llama::mixers::{FULL, SequenceMixer};
use crate::models::llama::sizes::LlamaSizes;

/// Kimi Linear.
pub(super) const KIMI_LINEAR: FolderFamily = FolderFamily {
    model_type: "kimi_linear",
    architecture: "KimiLinearForCausalLM",
    positions: "model_max_length",
    absent: Absent {
        key_value_heads: Some(32),
        epsilon: 1e-5,
        padding: Some(163_839),
        latents: LatentDefaults { queries: 0, plain: 128, values: 128 },
        ..LLAMA
    },
    options: &[PADDING, CHANNEL_DECAYS, NO_BIASES, STILL_LATENTS, NO_ROTATION, KIMI_EXPERTS],
    experts: Some(ExpertLayout { module: "block_sparse_moe", parts: Some(["w1", "w3", "w2"]), ..ROUTER }),
    released: Some(released),
    rewritten: Some(rewritten),
    ..USUAL
};

/// Object with the sizes of linear attention in released folders; it precedes settings beside it.
const SIZES: &str = "linear_attn_config";

/// Linear attention in most layers, with a decay of each channel and gates from two layers.
const CHANNEL_DECAYS: FolderOption = FolderOption {
    names: &["layer_types", SIZES, "linear_conv_kernel_dim", "linear_head_dim", "linear_num_heads"],
    read: |config, _| {
        let own = config.object(SIZES)?;
        if let Some(own) = &own {
            own.check(&DELTA)?;
        }
        let size = |short: &str, name: &str, absent: usize| {
            let inner = own.as_ref().map_or(Ok(None), |own| own.optional_count(short))?;
            Ok::<_, String>(inner.or(config.optional_count(name)?).unwrap_or(absent))
        };
        let heads = size("num_heads", "linear_num_heads", 32)?;
        let width = size("head_dim", "linear_head_dim", 128)?;
        let taps = size("short_conv_kernel_size", "linear_conv_kernel_dim", 4)?;
        Ok(vec![
            (LlamaSizes::layer_types, types(config, own.as_ref())?.as_slice().into()),
            (LlamaSizes::linear_key_heads, heads.into()),
            (LlamaSizes::linear_value_heads, heads.into()),
            (LlamaSizes::linear_key_width, width.into()),
            (LlamaSizes::linear_value_width, width.into()),
            (LlamaSizes::linear_convolution_width, taps.into()),
            (LlamaSizes::linear_channel_decays, true.into()),
            (LlamaSizes::linear_gate_rank, width.into()),
            (LlamaSizes::linear_gate, GateFunction::Sigmoid.name().into()),
        ])
    },
    write: |sizes| {
        let types: Vec<_> = (0..sizes.layers).map(|layer| sizes.mixer(layer).name()).collect();
        vec![
            ("layer_types", json!(types)),
            ("linear_conv_kernel_dim", json!(sizes.linear_convolution_width)),
            ("linear_head_dim", json!(sizes.linear_key_width)),
            ("linear_num_heads", json!(sizes.linear_key_heads)),
        ]
    },
};

/// Returns the types of the layers: listed, or in released folders by numbers that begin with 1.
fn types(config: &FolderConfig, own: Option<&FolderConfig>) -> Result<Vec<String>, String> {
    let counts = |name: &str| own.map_or(Ok(None), |own| own.counts(name));
    let (Some(full), Some(linear), false) =
        (counts("full_attn_layers")?, counts("kda_layers")?, config.value("layer_types").is_some())
    else {
        return linear_attention::types(config);
    };
    let name = |layer: usize| match (full.contains(&layer), linear.contains(&layer)) {
        (true, false) => Ok(FULL.to_owned()),
        (false, true) => Ok(SequenceMixer::LinearAttention.name().to_owned()),
        _ => Err(format!("{SIZES} has layer {layer} not in one of full_attn_layers and kda_layers")),
    };
    (1..=config.count("num_hidden_layers")?).map(name).collect()
}

/// Attention over latents without rotation.
const STILL_LATENTS: FolderOption = FolderOption {
    names: LATENT_NAMES,
    read: |config, family| {
        // The first value of a key counts.
        let mut keys: Keys = vec![(LlamaSizes::rope_interleaved, false.into())];
        keys.extend((LATENTS.read)(config, family)?);
        Ok(keys)
    },
    write: |sizes| {
        let settings = (LATENTS.write)(sizes).into_iter();
        settings.filter(|(name, _)| *name != "rope_interleave").collect()
    },
};

/// Layers without rotation; folders may have frequencies, which no layer uses.
const NO_ROTATION: FolderOption = FolderOption {
    names: &["mla_use_nope", "rope_theta", "rope_scaling", "rope_parameters"],
    read: |config, _| {
        config.only("mla_use_nope", true)?;
        Ok(vec![(LlamaSizes::rope_layers, [0_usize].as_slice().into())])
    },
    write: |_| Settings::new(),
};

/// DeepSeek's experts.
const KIMI_EXPERTS: FolderOption = FolderOption {
    names: &[
        "num_experts",
        "num_experts_per_token",
        "num_shared_experts",
        "moe_intermediate_size",
        "dense_ffn_hidden",
        "first_k_dense_replace",
        "moe_layer_freq",
        "mlp_layer_types",
        "moe_renormalize",
        "moe_router_activation_func",
        "routed_scaling_factor",
        "num_expert_group",
        "topk_group",
        "use_grouped_topk",
        "num_nextn_predict_layers",
        "output_router_logits",
    ],
    read: experts,
    write: |sizes| {
        let has_experts = |layer| if sizes.has_experts(layer) { "sparse" } else { "dense" };
        let types: Vec<_> = (0..sizes.layers).map(has_experts).collect();
        let shared = sizes.shared_expert_width / sizes.expert_width.max(1);
        vec![
            ("mlp_layer_types", json!(types)),
            ("moe_intermediate_size", json!(sizes.expert_width)),
            ("moe_renormalize", json!(sizes.router_normalised)),
            ("num_expert_group", json!(sizes.expert_groups)),
            ("num_experts", json!(sizes.experts)),
            ("num_experts_per_token", json!(sizes.experts_per_token)),
            ("num_shared_experts", json!(shared)),
            ("routed_scaling_factor", json!(sizes.router_scale)),
            ("topk_group", json!(sizes.expert_groups_per_token)),
        ]
    },
};

fn experts(config: &FolderConfig, _: &FolderFamily) -> Result<Keys, String> {
    let count = |name: &str, absent: usize| Ok::<_, String>(config.optional_count(name)?.unwrap_or(absent));
    let width = count("moe_intermediate_size", 1024)?;
    let groups = count("num_expert_group", 1)?;
    let shared = config.whole("num_shared_experts")?.unwrap_or(1);
    let sigmoid = ScoreFunction::Sigmoid.name();
    let scores = config.text("moe_router_activation_func")?.unwrap_or(sigmoid);
    if scores != sigmoid {
        let scores = system::quoted::shortened(scores);
        return Err(format!(
            "moe_router_activation_func = \"{scores}\" is not supported; supported: \"{sigmoid}\""
        ));
    }
    if groups > 1 {
        config.only("use_grouped_topk", true)?;
    }
    let mut keys = vec![
        (LlamaSizes::experts, count("num_experts", 256)?.into()),
        (LlamaSizes::experts_per_token, count("num_experts_per_token", 8)?.into()),
        (LlamaSizes::expert_width, width.into()),
        (LlamaSizes::shared_expert_width, (shared * width).into()),
        (LlamaSizes::expert_layers, sparse_layers(config)?.as_slice().into()),
        (LlamaSizes::router_scores, sigmoid.into()),
        (LlamaSizes::router_correction, true.into()),
        (LlamaSizes::router_normalised, config.flag("moe_renormalize")?.unwrap_or(true).into()),
        (LlamaSizes::router_scale, config.number("routed_scaling_factor")?.unwrap_or(2.446).into()),
        (LlamaSizes::expert_groups, groups.into()),
        (LlamaSizes::expert_groups_per_token, count("topk_group", 1)?.into()),
    ];
    if let Some(width) = config.optional_count("dense_ffn_hidden")? {
        keys.push((LlamaSizes::feed_forward, width.into()));
    }
    Ok(keys)
}

/// Returns 1 for each layer with experts and 0 for the others: as listed, or at an interval after the first
/// dense layers.
fn sparse_layers(config: &FolderConfig) -> Result<Vec<usize>, String> {
    if let Some(listed) = layers_by_type(config)? {
        return Ok(listed);
    }
    let dense = config.whole("first_k_dense_replace")?.unwrap_or(1);
    let interval = config.optional_count("moe_layer_freq")?.unwrap_or(1);
    let has = |layer: usize| usize::from(layer >= dense && layer.is_multiple_of(interval));
    Ok((0..config.count("num_hidden_layers")?).map(has).collect())
}

/// Changes the shape of `A_log` to that in released folders: `[1, 1, heads, 1]`.
fn released(tensors: &mut [FolderTensor], sizes: &LlamaSizes) {
    for tensor in tensors.iter_mut().filter(|tensor| tensor.name.ends_with(".A_log")) {
        tensor.shape = vec![1, 1, sizes.linear_value_heads, 1];
    }
}

/// Renames dense feed-forward layers like experts, as transformers 5 does.
fn rewritten(tensors: &mut [FolderTensor], _: &LlamaSizes) {
    for tensor in tensors {
        tensor.name = tensor.name.replace(".mlp.", ".block_sparse_moe.");
    }
}
