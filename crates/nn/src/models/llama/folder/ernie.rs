//! Settings of Ernie 4.5: experts, and biases of all linear layers.

use serde_json::json;

use super::experts::either;
use super::family::{FolderFamily, FolderOption, Keys, Settings};
use crate::hugging_face::FolderConfig;
use crate::models::llama::sizes::LlamaSizes;

/// Biases of all linear layers but the output head.
pub(super) const EVERY_BIAS: FolderOption = FolderOption {
    names: &["use_bias"],
    read: |config, _| {
        let bias = config.flag("use_bias")?.unwrap_or(false);
        let keys = [LlamaSizes::qkv_bias, LlamaSizes::output_bias, LlamaSizes::mlp_bias];
        Ok(keys.into_iter().map(|key| (key, bias.into())).collect())
    },
    write: |sizes| vec![("use_bias", json!(sizes.mlp_bias))],
};

/// Rejects biases, because the experts and the output head of a mixture have none here.
pub(super) const BIASES: FolderOption = FolderOption {
    names: &["use_bias"],
    read: |config, _| config.only("use_bias", false).map(|()| Keys::new()),
    write: |_| vec![("use_bias", json!(false))],
};

/// Experts in a range of layers, with shared experts and corrections.
pub(super) const MOE_EXPERTS: FolderOption = FolderOption {
    names: &[
        "moe_num_experts",
        "num_experts",
        "moe_k",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "moe_num_shared_experts",
        "moe_layer_start_index",
        "moe_layer_end_index",
        "moe_layer_interval",
        "moe_norm_min",
        "num_nextn_predict_layers",
        "router_aux_loss_coef",
        "output_router_logits",
    ],
    read: experts,
    write: written,
};

fn experts(config: &FolderConfig, _: &FolderFamily) -> Result<Keys, String> {
    let width = config.optional_count("moe_intermediate_size")?.unwrap_or(1536);
    let shared = config.whole("moe_num_shared_experts")?.unwrap_or(2);
    let layers = config.count("num_hidden_layers")?;
    let start = config.whole("moe_layer_start_index")?.unwrap_or(1);
    // A negative index means the last layer.
    let end = match config.number("moe_layer_end_index")? {
        Some(end) if end >= 0.0 => config.whole("moe_layer_end_index")?.unwrap_or(layers),
        None | Some(-1.0) => layers,
        Some(end) => {
            return Err(format!("moe_layer_end_index = {end} is not supported; supported: -1 and more"));
        }
    };
    let interval = config.optional_count("moe_layer_interval")?.unwrap_or(1);
    let has = |layer: usize| (start..=end).contains(&layer) && (layer + 1).is_multiple_of(interval);
    let listed: Vec<usize> = (0..layers).map(|layer| usize::from(has(layer))).collect();
    let least = config.number("moe_norm_min")?.unwrap_or(1e-12);
    Ok(vec![
        (LlamaSizes::experts, either(config, ["moe_num_experts", "num_experts"], 64)?.into()),
        (LlamaSizes::experts_per_token, either(config, ["moe_k", "num_experts_per_tok"], 6)?.into()),
        (LlamaSizes::expert_width, width.into()),
        (LlamaSizes::shared_expert_width, (shared * width).into()),
        (LlamaSizes::expert_layers, listed.as_slice().into()),
        (LlamaSizes::router_correction, true.into()),
        (LlamaSizes::router_least_sum, least.into()),
    ])
}

fn written(sizes: &LlamaSizes) -> Settings {
    let mut layers = (0..sizes.layers).filter(|layer| sizes.has_experts(*layer));
    let first = layers.next().unwrap_or(sizes.layers);
    let second = layers.next();
    let last = layers.next_back().or(second).unwrap_or(first);
    // A single layer is the whole range.
    let interval = second.map_or(1, |second| second - first);
    let shared = sizes.shared_expert_width / sizes.expert_width.max(1);
    vec![
        ("moe_intermediate_size", json!(sizes.expert_width)),
        ("moe_k", json!(sizes.experts_per_token)),
        ("moe_layer_end_index", json!(last)),
        ("moe_layer_interval", json!(interval)),
        ("moe_layer_start_index", json!(first)),
        ("moe_norm_min", json!(sizes.router_least_sum)),
        ("moe_num_experts", json!(sizes.experts)),
        ("moe_num_shared_experts", json!(shared)),
    ]
}
