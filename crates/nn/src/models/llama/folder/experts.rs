//! Translates settings of experts in a `config.json`, and maps the tensors of their layers.

use serde_json::json;
use system::quoted::shortened;

use super::family::{ExpertLayout, FolderOption, Keys, Settings};
use super::names;
use crate::hugging_face::{FolderConfig, FolderTensor};
use crate::layers::ScoreFunction;
use crate::models::llama::sizes::LlamaSizes;

/// Experts in all layers; their width is the setting for feed-forward layers.
pub(super) const LOCAL_EXPERTS: FolderOption = FolderOption {
    names: &[
        "num_local_experts",
        "num_experts_per_tok",
        "router_aux_loss_coef",
        "output_router_logits",
        "router_jitter_noise",
    ],
    read: |config, _| {
        let noise = config.number("router_jitter_noise")?.unwrap_or(0.0);
        if noise != 0.0 {
            return Err(format!("router_jitter_noise = {noise} is not supported; supported: 0"));
        }
        Ok(vec![
            (LlamaSizes::experts, config.count("num_local_experts")?.into()),
            (LlamaSizes::experts_per_token, config.count("num_experts_per_tok")?.into()),
        ])
    },
    write: |sizes| {
        vec![
            ("num_local_experts", json!(sizes.experts)),
            ("num_experts_per_tok", json!(sizes.experts_per_token)),
        ]
    },
};

/// Experts in some layers, with a width setting of their own.
pub(super) const SPARSE_EXPERTS: FolderOption = FolderOption {
    names: &[
        "num_experts",
        "num_local_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "norm_topk_prob",
        "decoder_sparse_step",
        "mlp_only_layers",
        "router_aux_loss_coef",
        "output_router_logits",
    ],
    read: |config, _| {
        let experts = match config.optional_count("num_experts")? {
            Some(experts) => experts,
            None => config.count("num_local_experts")?,
        };
        let (layers, step) =
            (config.count("num_hidden_layers")?, config.optional_count("decoder_sparse_step")?);
        let dense = config.counts("mlp_only_layers")?.unwrap_or_default();
        let has =
            |layer: usize| !dense.contains(&layer) && (layer + 1).is_multiple_of(step.unwrap_or(1).max(1));
        let listed: Vec<usize> = (0..layers).map(|layer| usize::from(has(layer))).collect();
        Ok(vec![
            (LlamaSizes::experts, experts.into()),
            (LlamaSizes::experts_per_token, config.count("num_experts_per_tok")?.into()),
            (LlamaSizes::expert_width, config.count("moe_intermediate_size")?.into()),
            (LlamaSizes::expert_layers, listed.as_slice().into()),
            (LlamaSizes::router_normalised, config.flag("norm_topk_prob")?.unwrap_or(false).into()),
        ])
    },
    write: |sizes| {
        let dense: Vec<_> = (0..sizes.layers).filter(|layer| !sizes.has_experts(*layer)).collect();
        vec![
            ("decoder_sparse_step", json!(1)),
            ("mlp_only_layers", json!(dense)),
            ("moe_intermediate_size", json!(sizes.expert_width)),
            ("norm_topk_prob", json!(sizes.router_normalised)),
            ("num_experts", json!(sizes.experts)),
            ("num_experts_per_tok", json!(sizes.experts_per_token)),
        ]
    },
};

/// [`SPARSE_EXPERTS`] with a gated shared expert, as in Qwen3-Next.
pub(super) const GATED_EXPERTS: FolderOption = FolderOption {
    names: &[
        "num_experts",
        "num_local_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "norm_topk_prob",
        "decoder_sparse_step",
        "mlp_only_layers",
        "router_aux_loss_coef",
        "output_router_logits",
        "shared_expert_intermediate_size",
    ],
    read: |config, family| {
        let mut keys = (SPARSE_EXPERTS.read)(config, family)?;
        // Qwen3-Next normalises by default, and Qwen3.5 always.
        let normalised = config.flag("norm_topk_prob")?.unwrap_or(true);
        keys.retain(|(key, _)| *key != LlamaSizes::router_normalised);
        keys.push((LlamaSizes::router_normalised, normalised.into()));
        keys.push((LlamaSizes::shared_expert_width, config.count("shared_expert_intermediate_size")?.into()));
        keys.push((LlamaSizes::shared_expert_gate, true.into()));
        Ok(keys)
    },
    write: |sizes| {
        let mut settings = (SPARSE_EXPERTS.write)(sizes);
        settings.push(("shared_expert_intermediate_size", json!(sizes.shared_expert_width)));
        settings
    },
};

/// Experts in all layers, with normalised weights and a gated shared expert, as in Qwen3.5.
pub(super) const UNIFORM_EXPERTS: FolderOption = FolderOption {
    names: &[
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "router_aux_loss_coef",
        "output_router_logits",
        "shared_expert_intermediate_size",
    ],
    read: |config, family| {
        let mut keys = (GATED_EXPERTS.read)(config, family)?;
        // There are no dense layers, whose width folders do not have.
        keys.push((LlamaSizes::feed_forward, config.count("moe_intermediate_size")?.into()));
        Ok(keys)
    },
    write: |sizes| {
        let has = |(name, _): &(&str, serde_json::Value)| UNIFORM_EXPERTS.names.contains(name);
        (GATED_EXPERTS.write)(sizes).into_iter().filter(has).collect()
    },
};

/// OLMoE's experts: in all layers, with weights that are not divided by their sum by default.
pub(super) const ALL_EXPERTS: FolderOption = FolderOption {
    names: &[
        "num_experts",
        "num_local_experts",
        "num_experts_per_tok",
        "norm_topk_prob",
        "router_aux_loss_coef",
        "output_router_logits",
    ],
    read: |config, _| {
        Ok(vec![
            (LlamaSizes::experts, either(config, ["num_experts", "num_local_experts"], 64)?.into()),
            (
                LlamaSizes::experts_per_token,
                config.optional_count("num_experts_per_tok")?.unwrap_or(8).into(),
            ),
            (LlamaSizes::router_normalised, config.flag("norm_topk_prob")?.unwrap_or(false).into()),
        ])
    },
    write: |sizes| {
        vec![
            ("norm_topk_prob", json!(sizes.router_normalised)),
            ("num_experts", json!(sizes.experts)),
            ("num_experts_per_tok", json!(sizes.experts_per_token)),
        ]
    },
};

/// Returns the count under the first of two names that a folder has; `absent` if it has neither.
pub(super) fn either(config: &FolderConfig, names: [&str; 2], absent: usize) -> Result<usize, String> {
    let [first, second] = names;
    let found = config.optional_count(first)?.or(config.optional_count(second)?);
    Ok(found.unwrap_or(absent))
}

/// DeepSeek-V3's experts: sigmoid scores with a correction, expert groups, shared experts, and dense first
/// layers.
pub(super) const ROUTED_EXPERTS: FolderOption = FolderOption {
    names: &[
        "n_routed_experts",
        "num_experts_per_tok",
        "n_shared_experts",
        "moe_intermediate_size",
        "first_k_dense_replace",
        "norm_topk_prob",
        "routed_scaling_factor",
        "n_group",
        "topk_group",
        "num_nextn_predict_layers",
        "num_mtp_layers",
        "output_router_logits",
    ],
    read: routed,
    write: |sizes| {
        let shared = sizes.shared_expert_width / sizes.expert_width.max(1);
        let dense = (0..sizes.layers).take_while(|layer| !sizes.has_experts(*layer)).count();
        vec![
            ("first_k_dense_replace", json!(dense)),
            ("moe_intermediate_size", json!(sizes.expert_width)),
            ("n_group", json!(sizes.expert_groups)),
            ("n_routed_experts", json!(sizes.experts)),
            ("n_shared_experts", json!(shared)),
            ("norm_topk_prob", json!(sizes.router_normalised)),
            ("num_experts_per_tok", json!(sizes.experts_per_token)),
            // Modules that predict later tokens are counted when tensors are listed.
            ("num_nextn_predict_layers", json!(0)),
            ("routed_scaling_factor", json!(sizes.router_scale)),
            ("topk_group", json!(sizes.expert_groups_per_token)),
        ]
    },
};

/// [`ROUTED_EXPERTS`] in the layers that a list names.
pub(super) const LISTED_EXPERTS: FolderOption = FolderOption {
    names: &[
        "n_routed_experts",
        "num_experts_per_tok",
        "n_shared_experts",
        "moe_intermediate_size",
        "first_k_dense_replace",
        "mlp_layer_types",
        "norm_topk_prob",
        "routed_scaling_factor",
        "n_group",
        "topk_group",
        "num_nextn_predict_layers",
        "num_mtp_layers",
        "output_router_logits",
    ],
    read: |config, family| {
        let layers = config.count("num_hidden_layers")?;
        let listed = layers_by_type(config)?;
        let listed = listed.unwrap_or_else(|| (0..layers).map(|layer| usize::from(layer > 0)).collect());
        let dense = listed.iter().take_while(|has_experts| **has_experts == 0).count();
        if let Some(other) = config.whole("first_k_dense_replace")?.filter(|other| *other != dense) {
            return Err(format!(
                "first_k_dense_replace = {other} is not supported with {dense} dense first layers: \
                 mlp_layer_types lists the layers with experts"
            ));
        }
        let scale = config.number("routed_scaling_factor")?.unwrap_or(1.8);
        let mut keys = vec![
            (LlamaSizes::expert_layers, listed.as_slice().into()),
            (LlamaSizes::router_scale, scale.into()),
        ];
        // The first value of a key counts.
        keys.extend(routed(config, family)?);
        Ok(keys)
    },
    write: |sizes| {
        let has_experts = |layer| if sizes.has_experts(layer) { "sparse" } else { "dense" };
        let types: Vec<_> = (0..sizes.layers).map(has_experts).collect();
        let others = (ROUTED_EXPERTS.write)(sizes).into_iter();
        let mut settings: Settings = others.filter(|(name, _)| *name != "first_k_dense_replace").collect();
        settings.push(("mlp_layer_types", json!(types)));
        settings
    },
};

/// Returns 1 for each layer with experts and 0 for the others, as listed; `None` without a list.
pub(super) fn layers_by_type(config: &FolderConfig) -> Result<Option<Vec<usize>>, String> {
    let Some(types) = config.texts("mlp_layer_types")? else { return Ok(None) };
    match types.iter().find(|name| !["dense", "sparse"].contains(name)) {
        Some(other) => {
            let other = shortened(other);
            Err(format!(
                "mlp_layer_types has \"{other}\", which is not supported; supported: \"dense\" and \"sparse\""
            ))
        }
        None => Ok(Some(types.iter().map(|name| usize::from(*name == "sparse")).collect())),
    }
}

/// [`ROUTED_EXPERTS`], or no experts if all layers are dense.
pub(super) const DENSE_OR_ROUTED: FolderOption = FolderOption {
    names: ROUTED_EXPERTS.names,
    read: |config, family| {
        let dense = config.number("first_k_dense_replace")?;
        let dense = dense.ok_or_else(|| "it has no first_k_dense_replace".to_owned())?;
        match dense >= config.count("num_hidden_layers")? as f64 {
            true => Ok(Keys::new()),
            false => routed(config, family),
        }
    },
    write: |sizes| match sizes.has_mixture() {
        true => (ROUTED_EXPERTS.write)(sizes),
        false => vec![("first_k_dense_replace", json!(sizes.layers))],
    },
};

fn routed(config: &FolderConfig, _: &super::family::FolderFamily) -> Result<Keys, String> {
    let whole = |name: &str| Ok::<_, String>(config.number(name)?.map(|number| number as usize));
    let width = config.count("moe_intermediate_size")?;
    let layers = config.count("num_hidden_layers")?;
    let dense = whole("first_k_dense_replace")?.unwrap_or(1);
    let listed: Vec<usize> = (0..layers).map(|layer| usize::from(layer >= dense)).collect();
    let shared = whole("n_shared_experts")?.unwrap_or(1);
    Ok(vec![
        (LlamaSizes::experts, config.count("n_routed_experts")?.into()),
        (LlamaSizes::experts_per_token, config.count("num_experts_per_tok")?.into()),
        (LlamaSizes::expert_width, width.into()),
        (LlamaSizes::shared_expert_width, (shared * width).into()),
        (LlamaSizes::expert_layers, listed.as_slice().into()),
    ]
    .into_iter()
    .chain(routed_by_groups(config)?)
    .collect())
}

/// Returns the keys of DeepSeek-V3's router.
pub(super) fn routed_by_groups(config: &FolderConfig) -> Result<Keys, String> {
    let count = |name: &str| Ok::<_, String>(config.optional_count(name)?.unwrap_or(1));
    Ok(vec![
        (LlamaSizes::router_scores, ScoreFunction::Sigmoid.name().into()),
        (LlamaSizes::router_correction, true.into()),
        (LlamaSizes::router_normalised, config.flag("norm_topk_prob")?.unwrap_or(true).into()),
        (LlamaSizes::router_scale, config.number("routed_scaling_factor")?.unwrap_or(1.0).into()),
        (LlamaSizes::expert_groups, count("n_group")?.into()),
        (LlamaSizes::expert_groups_per_token, count("topk_group")?.into()),
    ])
}

/// gpt-oss's bounds of the gate.
pub(super) const BOUNDED_GATE: FolderOption = FolderOption {
    names: &["swiglu_limit", "swiglu_alpha"],
    read: |config, _| {
        let alpha = config.number("swiglu_alpha")?.unwrap_or(1.702);
        match alpha == 1.702 {
            true => Ok(Keys::new()),
            false => Err(format!("swiglu_alpha = {alpha} is not supported; supported: 1.702")),
        }
    },
    write: |sizes| -> Settings { vec![("swiglu_limit", json!(sizes.gate_limit))] },
};

/// Returns the tensors of a layer's experts.
pub(super) fn tensors(
    layer: &str,
    sizes: &LlamaSizes,
    (model_type, layout): (&str, ExpertLayout),
) -> Vec<FolderTensor> {
    let LlamaSizes { width, experts, .. } = *sizes;
    let router = format!("{layer}.{}.{}", layout.module, layout.router);
    let ours = format!("{layer}.mlp");
    let whole = |name: String, ours: String, shape: &[usize]| FolderTensor::whole(name, ours, shape);
    let mut tensors =
        vec![whole(format!("{router}.weight"), format!("{ours}.router.weight"), &[experts, width])];
    if sizes.router_bias {
        tensors.push(whole(format!("{router}.bias"), format!("{ours}.router.bias"), &[experts]));
    }
    if sizes.router_correction {
        let name = format!("{layer}.{}.{}", layout.module, layout.correction);
        let row = [1, experts];
        let shape = if layout.correction_is_matrix { &row[..] } else { &row[1..] };
        tensors.push(whole(name, format!("{ours}.router.correction"), shape));
    }
    let layer_module = format!("{layer}.{}", layout.module);
    let latents = sizes.expert_latent_width;
    if latents > 0 {
        for (part, shape) in [("fc1_latent_proj", [latents, width]), ("fc2_latent_proj", [width, latents])] {
            let name = |module: &str| format!("{module}.{part}.weight");
            tensors.push(whole(name(&layer_module), name(&ours), &shape));
        }
    }
    let theirs = format!("{layer_module}.experts");
    let ours = format!("{ours}.experts");
    match layout.parts {
        None if names::fuses_gate(model_type) => tensors.extend(of_layers((&layer_module, &ours), sizes)),
        Some(parts) => {
            (0..experts).for_each(|expert| tensors.extend(of_expert((&theirs, &ours), sizes, parts, expert)));
        }
        None => tensors.extend(of_all((&theirs, &ours), sizes)),
    }
    tensors
}

/// Returns the tensors of one expert, if a folder stores experts separately.
fn of_expert(
    (theirs, ours): (&str, &str),
    sizes: &LlamaSizes,
    parts: [&str; 3],
    expert: usize,
) -> Vec<FolderTensor> {
    let hidden = sizes.expert_width;
    let width = if sizes.expert_latent_width > 0 { sizes.expert_latent_width } else { sizes.width };
    let tensor = |part: &str, layer: &str, first_row: usize, shape: [usize; 2]| FolderTensor {
        first_row,
        ..FolderTensor::whole(
            format!("{theirs}.{expert}.{part}.weight"),
            format!("{ours}.{layer}_proj.weight"),
            &shape,
        )
    };
    let [gate, up, down] = parts;
    if !sizes.gated {
        return vec![
            tensor(up, "up", expert * hidden, [hidden, width]),
            tensor(down, "down", expert * width, [width, hidden]),
        ];
    }
    vec![
        tensor(gate, "gate_up", 2 * expert * hidden, [hidden, width]),
        tensor(up, "gate_up", (2 * expert + 1) * hidden, [hidden, width]),
        tensor(down, "down", expert * width, [width, hidden]),
    ]
}

/// Returns the tensors of all experts of a layer, if a folder stores them together and not transposed.
fn of_layers((theirs, ours): (&str, &str), sizes: &LlamaSizes) -> [FolderTensor; 2] {
    let LlamaSizes { experts, expert_width: hidden, width, .. } = *sizes;
    let tensor = |theirs_layer: &str, layer: &str, shape: [usize; 3]| {
        let name = format!("{theirs}.{theirs_layer}.weight");
        FolderTensor::whole(name, format!("{ours}.{layer}_proj.weight"), &shape)
    };
    [
        tensor("input_linear", "gate_up", [experts, 2 * hidden, width]),
        tensor("output_linear", "down", [experts, width, hidden]),
    ]
}

/// Returns the tensors of all experts of a layer, if a folder stores them together.
fn of_all((theirs, ours): (&str, &str), sizes: &LlamaSizes) -> Vec<FolderTensor> {
    let LlamaSizes { experts, expert_width: hidden, width, .. } = *sizes;
    let tensor = |name: &str, layer: &str, kind: &str, shape: &[usize], interleaved| FolderTensor {
        transposed: shape.len() == 3 || interleaved,
        interleaved,
        ..FolderTensor::whole(format!("{theirs}.{name}"), format!("{ours}.{layer}_proj.{kind}"), shape)
    };
    let mut tensors = vec![
        tensor("gate_up_proj", "gate_up", "weight", &[experts, width, 2 * hidden], true),
        tensor("down_proj", "down", "weight", &[experts, hidden, width], false),
    ];
    if sizes.mlp_bias {
        tensors.push(tensor("gate_up_proj_bias", "gate_up", "bias", &[experts, 2 * hidden], true));
        tensors.push(tensor("down_proj_bias", "down", "bias", &[experts, width], false));
    }
    tensors
}
