//! The family of Nemotron-H: layers of one branch each, and experts without a gate.

use keys::Value;
use serde_json::{Value as Json, json};
use system::quoted::shortened;

use super::experts::routed_by_groups;
use super::family::{Absent, ExpertLayout, FolderFamily, FolderOption, Keys, LLAMA, ROUTER, Settings, USUAL};
use super::names;
use super::options::NO_BIASES;
use super::state_spaces::{limits, limits_of};
use crate::hugging_face::FolderConfig;
use crate::models::llama::mixers::{FULL, SequenceMixer};
use crate::models::llama::sizes::LlamaSizes;

/// Lists of the types of the layers.
const TYPES: [&str; 2] = ["layers_block_type", "layer_types"];
/// One letter for the type of each layer.
const PATTERN: &str = "hybrid_override_pattern";

/// Types of layers: ours, whether the layer has experts, names in a list (the first one is written), and the
/// letter in a pattern.
const LAYERS: [(SequenceMixer, bool, &[&str], char); 4] = [
    (SequenceMixer::StateSpace, false, &["linear_attention", "mamba"], 'M'),
    (SequenceMixer::Full, false, &[FULL, "attention"], '*'),
    (SequenceMixer::FeedForward, false, &["mlp"], '-'),
    (SequenceMixer::FeedForward, true, &["moe"], 'E'),
];

/// Default sizes, which configurations leave out.
pub(super) const SIZES: [usize; 7] = [131_072, 4096, 21_504, 4, 32, 8, 4096];

/// Nemotron-H.
pub(super) const NEMOTRON_H: FolderFamily = FolderFamily {
    model_type: names::NEMOTRON_H,
    architecture: "NemotronHForCausalLM",
    activation: "mlp_hidden_act",
    absent: Absent { head_width: Some(128), epsilon: 1e-5, ..LLAMA },
    fixed: |_| {
        Ok(vec![
            (LlamaSizes::single_branches, true.into()),
            (LlamaSizes::gated, false.into()),
            (LlamaSizes::rope_layers, [0_usize].as_slice().into()),
        ])
    },
    options: &[ONE_BRANCH, STATES, NO_BIASES, EXPERTS],
    experts: Some(ExpertLayout { ..ROUTER }),
    ..USUAL
};

/// Layers of one branch each. No layer has positions or a window, and sums of branches have the type of
/// computing.
const ONE_BRANCH: FolderOption = FolderOption {
    names: &[
        TYPES[0],
        TYPES[1],
        PATTERN,
        "layer_norm_epsilon",
        "rope_theta",
        "partial_rotary_factor",
        "attention_head_dim",
        "residual_in_fp32",
        "hidden_dropout",
    ],
    read: |config, family| {
        config.only("residual_in_fp32", false)?;
        config.only("tie_word_embeddings", false)?;
        if let Some(dropout) = config.number("hidden_dropout")?.filter(|dropout| *dropout != 0.0) {
            return Err(format!("hidden_dropout = {dropout} is not supported; supported: 0"));
        }
        let width = family.head_width(config)?;
        if let Some(other) = config.optional_count("attention_head_dim")?.filter(|other| *other != width) {
            return Err(format!("attention_head_dim = {other} is not supported; head_dim is {width}"));
        }
        let layers = layers(config)?;
        let types: Vec<String> = layers.iter().map(|(mixer, _)| mixer.name().to_owned()).collect();
        Ok(vec![(LlamaSizes::layer_types, types.as_slice().into())])
    },
    write: |sizes| {
        let name = |layer| {
            let own = (sizes.mixer(layer), sizes.has_experts(layer));
            let entry = LAYERS.iter().find(|(mixer, experts, ..)| (*mixer, *experts) == own);
            entry.map(|(_, _, names, _)| names[0])
        };
        let types: Vec<_> = (0..sizes.layers).map(name).collect();
        vec![(TYPES[0], json!(types)), ("residual_in_fp32", json!(false))]
    },
};

/// Layers of Mamba-2, with one group of the norm for each group of heads.
const STATES: FolderOption = FolderOption {
    names: &[
        "ssm_state_size",
        "mamba_num_heads",
        "mamba_head_dim",
        "mamba_hidden_act",
        "n_groups",
        "mamba_n_groups",
        "conv_kernel",
        "mamba_d_conv",
        "use_conv_bias",
        "mamba_conv_bias",
        "use_bias",
        "time_step_limit",
        "mamba_dt_limit",
        "time_step_min",
        "mamba_dt_min",
    ],
    read: |config, _| {
        if let Some(other) = config.text("mamba_hidden_act")?.filter(|name| !["silu", "swish"].contains(name))
        {
            let other = shortened(other);
            return Err(format!("mamba_hidden_act = \"{other}\" is not supported; supported: \"silu\""));
        }
        // The older name of a setting takes precedence, as in transformers.
        let count = |names: &[&str], absent: usize| -> Result<usize, String> {
            let found = names.iter().map(|name| config.optional_count(name)).find(|found| *found != Ok(None));
            Ok(found.transpose()?.flatten().unwrap_or(absent))
        };
        let groups = count(&["mamba_n_groups", "n_groups"], 8)?;
        let bias = config.flag("mamba_conv_bias")?.or(config.flag("use_conv_bias")?);
        let older = config.has("mamba_dt_limit");
        let [least, largest] = limits(config, if older { "mamba_dt_limit" } else { "time_step_limit" })?;
        // Transformers' layers without kernels bound time steps by this setting.
        let floor = config.number("mamba_dt_min")?.or(config.number("time_step_min")?);
        let least = least.max(floor.unwrap_or(0.001));
        Ok(vec![
            (LlamaSizes::state_heads, count(&["mamba_num_heads"], 128)?.into()),
            (LlamaSizes::state_head_width, count(&["mamba_head_dim"], 64)?.into()),
            (LlamaSizes::state_width, count(&["ssm_state_size"], 128)?.into()),
            (LlamaSizes::state_groups, groups.into()),
            (LlamaSizes::state_norm_groups, groups.into()),
            (LlamaSizes::state_convolution_width, count(&["mamba_d_conv", "conv_kernel"], 4)?.into()),
            (LlamaSizes::state_convolution_bias, bias.unwrap_or(true).into()),
            (LlamaSizes::state_bias, config.flag("use_bias")?.unwrap_or(false).into()),
            (LlamaSizes::state_least_step, least.into()),
            (LlamaSizes::state_largest_step, largest.into()),
        ])
    },
    write: |sizes| {
        vec![
            ("conv_kernel", json!(sizes.state_convolution_width)),
            ("mamba_head_dim", json!(sizes.state_head_width)),
            ("mamba_num_heads", json!(sizes.state_heads)),
            ("n_groups", json!(sizes.state_groups)),
            ("ssm_state_size", json!(sizes.state_width)),
            ("time_step_limit", limits_of(sizes)),
            ("time_step_min", json!(sizes.state_least_step)),
            ("use_bias", json!(sizes.state_bias)),
            ("use_conv_bias", json!(sizes.state_convolution_bias)),
        ]
    },
};

/// Experts with the router of DeepSeek-V3, beside shared experts whose width is a setting of its own.
const EXPERTS: FolderOption = FolderOption {
    names: &[
        "n_routed_experts",
        "num_local_experts",
        "n_shared_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "moe_latent_size",
        "norm_topk_prob",
        "routed_scaling_factor",
        "n_group",
        "topk_group",
        "num_nextn_predict_layers",
        "output_router_logits",
    ],
    read: |config, _| {
        let listed: Vec<usize> = layers(config)?.iter().map(|(_, experts)| usize::from(*experts)).collect();
        if !listed.contains(&1) {
            return Ok(Keys::new());
        }
        let count = |name: &str, absent: usize| {
            Ok::<Value, String>(config.optional_count(name)?.unwrap_or(absent).into())
        };
        let experts =
            config.optional_count("num_local_experts")?.or(config.optional_count("n_routed_experts")?);
        let mut keys = vec![
            (LlamaSizes::experts, experts.unwrap_or(8).into()),
            (LlamaSizes::experts_per_token, count("num_experts_per_tok", 2)?),
            (LlamaSizes::expert_width, count("moe_intermediate_size", 7688)?),
            (LlamaSizes::shared_expert_width, count("moe_shared_expert_intermediate_size", 7688)?),
            (LlamaSizes::expert_layers, listed.as_slice().into()),
        ];
        if let Some(latents) = config.optional_count("moe_latent_size")? {
            keys.push((LlamaSizes::expert_latent_width, latents.into()));
        }
        keys.extend(routed_by_groups(config)?);
        Ok(keys)
    },
    write: |sizes| -> Settings {
        let of_modules = |feed_forward: &str| ("mtp_layers_block_type", json!([FULL, feed_forward]));
        if !sizes.has_mixture() {
            return vec![of_modules("mlp")];
        }
        let latents = match sizes.expert_latent_width {
            0 => Json::Null,
            width => json!(width),
        };
        vec![
            ("moe_intermediate_size", json!(sizes.expert_width)),
            ("moe_latent_size", latents),
            ("moe_shared_expert_intermediate_size", json!(sizes.shared_expert_width)),
            ("n_group", json!(sizes.expert_groups)),
            ("n_routed_experts", json!(sizes.experts)),
            ("n_shared_experts", json!(1)),
            ("norm_topk_prob", json!(sizes.router_normalised)),
            ("num_experts_per_tok", json!(sizes.experts_per_token)),
            of_modules("moe"),
            ("num_nextn_predict_layers", json!(0)),
            ("routed_scaling_factor", json!(sizes.router_scale)),
            ("topk_group", json!(sizes.expert_groups_per_token)),
        ]
    },
};

/// Returns the mixer of each layer, and whether it has experts.
fn layers(config: &FolderConfig) -> Result<Vec<(SequenceMixer, bool)>, String> {
    for name in TYPES {
        let Some(types) = config.texts(name)? else { continue };
        let translated = |own: &str| {
            let entry = LAYERS.iter().find(|(_, _, names, _)| names.contains(&own));
            let refused = || {
                let supported = LAYERS.map(|(_, _, names, _)| format!("\"{}\"", names[0])).join(", ");
                let own = shortened(own);
                format!("{name} has \"{own}\", which is not supported; supported: {supported}")
            };
            entry.map(|(mixer, experts, ..)| (*mixer, *experts)).ok_or_else(refused)
        };
        return types.into_iter().map(translated).collect();
    }
    let letters = config.text(PATTERN)?.unwrap_or("ME*-");
    let translated = |own: char| {
        let entry = LAYERS.iter().find(|(.., letter)| *letter == own);
        let refused = || format!("{PATTERN} has \"{own}\", which is not supported; supported: M, *, - and E");
        entry.map(|(mixer, experts, ..)| (*mixer, *experts)).ok_or_else(refused)
    };
    letters.chars().map(translated).collect()
}

/// Returns the configuration with its number of layers, which is the length of the list of types.
pub(super) fn with_layers(config: FolderConfig, model_type: &str) -> FolderConfig {
    if model_type != names::NEMOTRON_H {
        return config;
    }
    let Ok(layers) = layers(&config) else { return config };
    let entries = config.entries().map(|(name, value)| (name.to_owned(), value.clone()));
    let own = ("num_hidden_layers".to_owned(), json!(layers.len()));
    FolderConfig::from_settings(entries.chain([own]).collect())
}
