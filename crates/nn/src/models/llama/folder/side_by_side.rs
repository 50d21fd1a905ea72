//! Settings of Falcon-H1: attention beside Mamba-2 layers, each multiplied by a factor.

use serde_json::json;

use super::family::{FolderFamily, FolderOption, Keys};
use super::state_spaces::{limits, limits_of};
use crate::hugging_face::FolderConfig;
use crate::models::llama::mixers::SequenceMixer;
use crate::models::llama::sizes::LlamaSizes;

/// Settings of the state spaces, and factors.
pub(super) const SIDE_BY_SIDE: FolderOption = FolderOption {
    names: &[
        "mamba_n_heads",
        "mamba_n_groups",
        "mamba_d_state",
        "mamba_d_head",
        "mamba_d_conv",
        "mamba_d_ssm",
        "mamba_expand",
        "mamba_chunk_size",
        "mamba_conv_bias",
        "mamba_proj_bias",
        "mamba_rms_norm",
        "mamba_norm_before_gate",
        "projectors_bias",
        "time_step_limit",
        "attention_in_multiplier",
        "attention_out_multiplier",
        "key_multiplier",
        "ssm_in_multiplier",
        "ssm_out_multiplier",
        "ssm_multipliers",
        "mlp_multipliers",
        "embedding_multiplier",
        "lm_head_multiplier",
    ],
    read,
    write: |sizes| {
        let [attention, states] = sizes.mixer_factors();
        let scale = match sizes.attention_scale {
            0.0 => 1.0,
            scale => scale * (sizes.head_width as f64).sqrt(),
        };
        let groups = sizes.state_norm_groups;
        vec![
            ("attention_in_multiplier", json!(1.0)),
            ("attention_out_multiplier", json!(attention)),
            ("embedding_multiplier", json!(sizes.embedding_scale)),
            ("key_multiplier", json!(scale)),
            ("lm_head_multiplier", json!(sizes.logit_scale)),
            ("mamba_conv_bias", json!(sizes.state_convolution_bias)),
            ("mamba_d_conv", json!(sizes.state_convolution_width)),
            ("mamba_d_head", json!(sizes.state_head_width)),
            ("mamba_d_ssm", json!(sizes.state_heads * sizes.state_head_width)),
            ("mamba_d_state", json!(sizes.state_width)),
            ("mamba_n_groups", json!(sizes.state_groups)),
            ("mamba_n_heads", json!(sizes.state_heads)),
            ("mamba_norm_before_gate", json!(sizes.state_norm_first)),
            ("mamba_proj_bias", json!(sizes.state_bias)),
            ("mamba_rms_norm", json!(groups > 0)),
            ("mlp_multipliers", json!([sizes.gate_scale, sizes.feed_forward_scale])),
            ("projectors_bias", json!(sizes.state_bias)),
            ("ssm_in_multiplier", json!(1.0)),
            ("ssm_multipliers", json!(sizes.state_factors())),
            ("ssm_out_multiplier", json!(states)),
            ("time_step_limit", limits_of(sizes)),
        ]
    },
};

fn read(config: &FolderConfig, family: &FolderFamily) -> Result<Keys, String> {
    let count = |name: &str, absent: usize| Ok::<_, String>(config.optional_count(name)?.unwrap_or(absent));
    let flag = |name: &str, absent: bool| Ok::<_, String>(config.flag(name)?.unwrap_or(absent));
    let number = |name: &str| Ok::<_, String>(config.number(name)?.unwrap_or(1.0));
    let numbers = |name: &str, count: usize| {
        let numbers = config.numbers(name)?.unwrap_or_else(|| vec![1.0; count]);
        match numbers.len() == count {
            true => Ok(numbers),
            false => Err(format!("{name} has {} numbers instead of {count}", numbers.len())),
        }
    };
    let heads = count("mamba_n_heads", 128)?;
    let columns = count("mamba_d_ssm", 1024)?;
    let head = match config.value("mamba_d_head") {
        Some(serde_json::Value::Number(_)) => config.count("mamba_d_head")?,
        _ => columns / heads,
    };
    if heads * head != columns {
        return Err(format!(
            "mamba_n_heads = {heads} heads of {head} columns are not mamba_d_ssm = {columns}"
        ));
    }
    let [least, largest] = limits(config, "time_step_limit")?;
    let bias = flag("mamba_proj_bias", false)?;
    config.only("projectors_bias", bias)?;
    // A factor of a linear layer's input is one of its output, unless the layer has a bias.
    let into_attention = number("attention_in_multiplier")?;
    let into_states = number("ssm_in_multiplier")?;
    let attention_bias = flag("attention_bias", false)?;
    if bias && into_states != 1.0 || attention_bias && into_attention != 1.0 {
        return Err("factors of the inputs of layers with biases are not supported".to_owned());
    }
    let groups = count("mamba_n_groups", 1)?;
    let norm_groups = if flag("mamba_rms_norm", false)? { groups } else { 0 };
    let scale = number("key_multiplier")? * into_attention * into_attention;
    let attention_scale = scale / (family.head_width(config)? as f64).sqrt();
    let attention = number("attention_out_multiplier")? * into_attention;
    let states: Vec<f64> =
        numbers("ssm_multipliers", 5)?.into_iter().map(|factor| factor * into_states).collect();
    let mlp = numbers("mlp_multipliers", 2)?;
    let types = [SequenceMixer::AttentionAndStates.name().to_owned()];
    Ok(vec![
        (LlamaSizes::layer_types, types.as_slice().into()),
        (LlamaSizes::state_heads, heads.into()),
        (LlamaSizes::state_head_width, head.into()),
        (LlamaSizes::state_width, count("mamba_d_state", 256)?.into()),
        (LlamaSizes::state_groups, groups.into()),
        (LlamaSizes::state_convolution_width, count("mamba_d_conv", 4)?.into()),
        (LlamaSizes::state_convolution_bias, flag("mamba_conv_bias", true)?.into()),
        (LlamaSizes::state_bias, bias.into()),
        (LlamaSizes::state_norm_groups, norm_groups.into()),
        (LlamaSizes::state_norm_first, flag("mamba_norm_before_gate", true)?.into()),
        (LlamaSizes::state_least_step, least.into()),
        (LlamaSizes::state_largest_step, largest.into()),
        (LlamaSizes::state_scales, states.as_slice().into()),
        (LlamaSizes::mixer_scales, [attention, number("ssm_out_multiplier")?].as_slice().into()),
        (LlamaSizes::gate_scale, mlp[0].into()),
        (LlamaSizes::feed_forward_scale, mlp[1].into()),
        (LlamaSizes::attention_scale, attention_scale.into()),
        (LlamaSizes::embedding_scale, number("embedding_multiplier")?.into()),
        (LlamaSizes::logit_scale, number("lm_head_multiplier")?.into()),
    ])
}
