//! Settings that some families of folders have, each translated in both directions.

use serde_json::{Value as Json, json};
use system::quoted::shortened;

use super::family::{FolderFamily, FolderOption, Keys, Settings};
use super::rope;
use crate::hugging_face::FolderConfig;
use crate::models::llama::mixers::{FULL, SLIDING};
use crate::models::llama::sizes::LlamaSizes;

/// Rejects attention windows.
pub(super) const NO_WINDOW: FolderOption = FolderOption {
    names: &["use_sliding_window", "sliding_window", "max_window_layers", "layer_types"],
    read: |config, _| {
        config.only("use_sliding_window", false)?;
        all_full(config)?;
        Ok(Keys::new())
    },
    write: |_| vec![("use_sliding_window", json!(false))],
};

/// One attention window in all layers.
pub(super) const ONE_WINDOW: FolderOption = FolderOption {
    names: &["sliding_window", "use_sliding_window", "layer_types"],
    read: |config, family| {
        // A window has no effect if use_sliding_window exists and is false.
        let off = config.flag("use_sliding_window")? == Some(false);
        let window = window(config, family)?.filter(|_| !off);
        Ok(window.map(|window| (LlamaSizes::window, window.into())).into_iter().collect())
    },
    write: |sizes| vec![("sliding_window", json!(some(sizes.window)))],
};

/// An attention window in some layers.
pub(super) const LAYER_TYPES: FolderOption = FolderOption {
    names: &["sliding_window", "layer_types", "sliding_window_pattern", "_sliding_window_pattern"],
    read: layer_types,
    write: |sizes| {
        let layer_type = |layer| if sizes.is_windowed(layer) { SLIDING } else { FULL };
        let types: Vec<_> = (0..sizes.layers).map(layer_type).collect();
        vec![("layer_types", json!(types)), ("sliding_window", json!(some(sizes.window)))]
    },
};

/// An attention window in some layers; only these layers rotate queries and keys.
pub(super) const WINDOW_ROPE: FolderOption = FolderOption {
    names: &["sliding_window", "layer_types", "sliding_window_pattern"],
    read: |config, family| {
        let Some(window) = window(config, family)? else {
            return all_full(config).map(|()| Keys::new());
        };
        let types = match config.texts("layer_types")? {
            Some(types) => types,
            None => types_by_pattern(config, family)?,
        };
        rotating_windows(window, types)
    },
    write: LAYER_TYPES.write,
};

/// An attention window that another setting enables.
pub(super) const SWITCHED_WINDOW: FolderOption = FolderOption {
    names: &["use_sliding_window", "sliding_window", "layer_types"],
    read: |config, family| match config.flag("use_sliding_window")? {
        // Without a list, transformers derives the layers from other settings.
        Some(true) if !config.has("layer_types") => {
            Err("use_sliding_window = true is supported with layer_types only".to_owned())
        }
        Some(true) => layer_types(config, family),
        _ => all_full(config).map(|()| Keys::new()),
    },
    write: |sizes| {
        let mut settings = (LAYER_TYPES.write)(sizes);
        settings.push(("use_sliding_window", json!(sizes.window > 0)));
        settings
    },
};

/// Biases of attention's projections, absent by default.
pub(super) const ATTENTION_BIAS: FolderOption = FolderOption {
    names: &["attention_bias"],
    read: |config, _| {
        let bias = config.flag("attention_bias")?.unwrap_or(false);
        Ok(match bias {
            true => vec![(LlamaSizes::qkv_bias, true.into()), (LlamaSizes::output_bias, true.into())],
            false => Keys::new(),
        })
    },
    write: |sizes| vec![("attention_bias", json!(sizes.output_bias))],
};

/// Biases of attention's projections, present by default.
pub(super) const ALL_BIASES: FolderOption = FolderOption {
    names: &["attention_bias"],
    read: |config, _| {
        let bias = config.flag("attention_bias")?.unwrap_or(true);
        Ok(vec![(LlamaSizes::qkv_bias, bias.into()), (LlamaSizes::output_bias, bias.into())])
    },
    write: |sizes| vec![("attention_bias", json!(sizes.output_bias))],
};

/// Biases of queries, keys and values.
pub(super) const QKV_BIAS: FolderOption = FolderOption {
    names: &["attention_bias"],
    read: |config, _| {
        Ok(vec![(LlamaSizes::qkv_bias, config.flag("attention_bias")?.unwrap_or(false).into())])
    },
    write: |sizes| vec![("attention_bias", json!(sizes.qkv_bias))],
};

/// Biases of queries, keys and values, present by default, and of the output projection.
pub(super) const OUTPUT_BIAS: FolderOption = FolderOption {
    names: &["attention_bias", "attention_out_bias"],
    read: |config, _| {
        Ok(vec![
            (LlamaSizes::qkv_bias, config.flag("attention_bias")?.unwrap_or(true).into()),
            (LlamaSizes::output_bias, config.flag("attention_out_bias")?.unwrap_or(false).into()),
        ])
    },
    write: |sizes| {
        vec![("attention_bias", json!(sizes.qkv_bias)), ("attention_out_bias", json!(sizes.output_bias))]
    },
};

/// Norms of the heads of queries and keys.
pub(super) const QK_NORM: FolderOption = FolderOption {
    names: &["use_qk_norm"],
    read: |config, _| Ok(vec![(LlamaSizes::qk_norm, config.flag("use_qk_norm")?.unwrap_or(false).into())]),
    write: |sizes| vec![("use_qk_norm", json!(sizes.qk_norm))],
};

/// Rejects experts, and a model without norms of queries and keys.
pub(super) const DENSE: FolderOption = FolderOption {
    names: &["use_qk_norm", "num_experts"],
    read: |config, _| {
        config.only("use_qk_norm", true)?;
        match config.optional_count("num_experts")?.filter(|experts| *experts > 1) {
            Some(experts) => Err(format!("num_experts = {experts} is not supported; supported: 1")),
            None => Ok(Keys::new()),
        }
    },
    write: |_| Settings::new(),
};

/// Biases of the feed-forward layers.
pub(super) const MLP_BIAS: FolderOption = FolderOption {
    names: &["mlp_bias"],
    read: |config, _| Ok(vec![(LlamaSizes::mlp_bias, config.flag("mlp_bias")?.unwrap_or(false).into())]),
    write: |sizes| match sizes.mlp_bias {
        true => vec![("mlp_bias", json!(true))],
        false => Settings::new(),
    },
};

/// Rejects biases other than those that the family always has.
pub(super) const NO_BIASES: FolderOption = FolderOption {
    names: &["attention_bias", "mlp_bias"],
    read: |config, _| {
        config.only("attention_bias", false)?;
        config.only("mlp_bias", false)?;
        Ok(Keys::new())
    },
    write: |_| vec![("attention_bias", json!(false))],
};

/// Soft caps of attention scores and of token scores.
pub(super) const CAPS: FolderOption = FolderOption {
    names: &CAP_NAMES,
    read: caps,
    write: |sizes| {
        let cap = |cap: f64| json!((cap > 0.0).then_some(cap));
        CAP_NAMES.into_iter().zip([sizes.attention_soft_cap, sizes.logit_soft_cap].map(cap)).collect()
    },
};

const CAP_NAMES: [&str; 2] = ["attn_logit_softcapping", "final_logit_softcapping"];

/// The square of the divisor of attention scores.
pub(super) const QUERY_SCALAR: FolderOption = FolderOption {
    names: &["query_pre_attn_scalar"],
    read: |config, _| {
        let scalar = config.number("query_pre_attn_scalar")?.unwrap_or(256.0);
        Ok(vec![(LlamaSizes::attention_scale, (1.0 / scalar.sqrt()).into())])
    },
    write: |sizes| {
        let scalar = match sizes.attention_scale {
            0.0 => sizes.head_width as f64,
            scale => 1.0 / (scale * scale),
        };
        vec![("query_pre_attn_scalar", whole(scalar))]
    },
};

/// Granite's scaling factors.
pub(super) const MULTIPLIERS: FolderOption = FolderOption {
    names: &["embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"],
    read: |config, _| {
        let number = |name: &str| Ok::<_, String>(config.number(name)?.unwrap_or(1.0));
        Ok(vec![
            (LlamaSizes::embedding_scale, number("embedding_multiplier")?.into()),
            (LlamaSizes::residual_scale, number("residual_multiplier")?.into()),
            (LlamaSizes::attention_scale, number("attention_multiplier")?.into()),
            (LlamaSizes::logit_scale, (1.0 / number("logits_scaling")?).into()),
        ])
    },
    write: |sizes| {
        let attention = match sizes.attention_scale {
            0.0 => 1.0 / (sizes.head_width as f64).sqrt(),
            scale => scale,
        };
        vec![
            ("attention_multiplier", json!(attention)),
            ("embedding_multiplier", json!(sizes.embedding_scale)),
            ("logits_scaling", json!(1.0 / sizes.logit_scale)),
            ("residual_multiplier", json!(sizes.residual_scale)),
        ]
    },
};

/// Layers without rotary positions.
pub(super) const ROPE_LAYERS: FolderOption = FolderOption {
    names: &["no_rope_layers", "no_rope_layer_interval"],
    read: |config, _| {
        let layers = config.count("num_hidden_layers")?;
        let interval = config.optional_count("no_rope_layer_interval")?.unwrap_or(4);
        let rotates = |layer: usize| usize::from(!(layer + 1).is_multiple_of(interval));
        let listed = config.counts("no_rope_layers")?;
        let listed = listed.unwrap_or_else(|| (0..layers).map(rotates).collect());
        Ok(vec![(LlamaSizes::rope_layers, listed.as_slice().into())])
    },
    write: |sizes| {
        let layers: Vec<_> = (0..sizes.layers).map(|layer| usize::from(sizes.rotates(layer))).collect();
        vec![("no_rope_layers", json!(layers))]
    },
};

/// The token whose embedding gets no gradient. Llama and Qwen do not read this setting, so that runs started
/// before it was supported keep their bits.
pub(super) const PADDING: FolderOption = FolderOption {
    names: &["pad_token_id"],
    read: |config, family| {
        let absent = || family.absent.padding.filter(|_| !config.has("pad_token_id"));
        let token = config.number("pad_token_id")?.map(|token| token as usize).or_else(absent);
        let token = token.filter(|token| config.count("vocab_size").is_ok_and(|tokens| *token < tokens));
        let tokens: Vec<usize> = token.into_iter().collect();
        Ok(vec![(LlamaSizes::padding_tokens, tokens.as_slice().into())])
    },
    write: |sizes| vec![("pad_token_id", json!(sizes.padding_tokens.first()))],
};

/// Dropout of embeddings and branches, which must be 0.
pub(super) const NO_DROPOUT: FolderOption = FolderOption {
    names: &["embd_pdrop", "resid_pdrop"],
    read: |config, _| {
        for name in ["embd_pdrop", "resid_pdrop"] {
            if let Some(dropout) = config.number(name)?.filter(|dropout| *dropout != 0.0) {
                return Err(format!("{name} = {dropout} is not supported; supported: 0"));
            }
        }
        Ok(Keys::new())
    },
    write: |_| vec![("embd_pdrop", json!(0.0)), ("resid_pdrop", json!(0.0))],
};

/// Dropout of attention weights and of branches; 0.1 by default.
pub(super) const DROPOUT: FolderOption = FolderOption {
    names: &["attention_dropout", "residual_dropout"],
    read: |config, _| {
        let attention = config.number("attention_dropout")?.unwrap_or(0.1);
        Ok(dropout(attention, config.number("residual_dropout")?.unwrap_or(0.1)))
    },
    write: |_| vec![("attention_dropout", json!(0.0)), ("residual_dropout", json!(0.0))],
};

/// Dropout of attention weights.
pub(super) const ATTENTION_DROPOUT: FolderOption = FolderOption {
    names: &["attention_dropout"],
    read: |config, _| Ok(dropout(config.number("attention_dropout")?.unwrap_or(0.0), 0.0)),
    write: |_| vec![("attention_dropout", json!(0.0))],
};

/// Returns the keys of dropout; none if nothing is dropped, so that one key of a run sets all of them.
fn dropout(attention: f64, branches: f64) -> Keys {
    if attention == 0.0 && branches == 0.0 {
        return Keys::new();
    }
    vec![
        (LlamaSizes::dropout, attention.into()),
        (LlamaSizes::branch_dropout, branches.into()),
        (LlamaSizes::embedding_dropout, 0.0.into()),
    ]
}

/// Rejects bounds of queries, keys and values.
pub(super) const NO_CLIP: FolderOption = FolderOption {
    names: &["clip_qkv"],
    read: |config, _| match config.number("clip_qkv")? {
        Some(bound) => Err(format!("clip_qkv = {bound} is not supported; supported: null")),
        None => Ok(Keys::new()),
    },
    write: |_| Settings::new(),
};

/// Rotary frequencies shared by all layers.
pub(super) const FLAT_ROPE: FolderOption =
    FolderOption { names: rope::FLAT_NAMES, read: rope::read_flat, write: rope::write_flat };

/// Rotary frequencies shared by all layers, for whole heads.
pub(super) const WHOLE_ROPE: FolderOption =
    FolderOption { names: rope::FLAT_NAMES, read: rope::read_whole, write: rope::write_flat };

/// [`WHOLE_ROPE`], or a base that grows with `alpha`.
pub(super) const ALPHA_ROPE: FolderOption =
    FolderOption { names: rope::FLAT_NAMES, read: rope::read_alpha, write: rope::write_flat };

/// Rotary frequencies shared by all layers, by default for half of each head.
pub(super) const HALF_ROPE: FolderOption =
    FolderOption { names: rope::FLAT_NAMES, read: rope::read_half, write: rope::write_flat };

/// Rotary frequencies shared by all layers, by default for a quarter of each head.
pub(super) const QUARTER_ROPE: FolderOption =
    FolderOption { names: rope::FLAT_NAMES, read: rope::read_quarter, write: rope::write_flat };

/// Rotary frequencies shared by all layers, and the growth of queries with their position.
pub(super) const GROWING_ROPE: FolderOption =
    FolderOption { names: rope::FLAT_NAMES, read: rope::read_growing, write: rope::write_growing };

/// A soft cap of the scores of tokens.
pub(super) const SCORE_CAP: FolderOption = FolderOption {
    names: &["final_logit_softcapping"],
    read: |config, family| Ok(caps(config, family)?.split_off(1)),
    write: |sizes| (CAPS.write)(sizes).split_off(1),
};

/// Separate rotary frequencies per type of layer.
pub(super) const LAYER_ROPE: FolderOption =
    FolderOption { names: rope::LAYER_NAMES, read: rope::read_by_layer, write: rope::write_by_layer };

/// Returns the window, if any.
fn window(config: &FolderConfig, family: &FolderFamily) -> Result<Option<usize>, String> {
    match config.has("sliding_window") {
        true => config.optional_count("sliding_window"),
        false => Ok(family.absent.window),
    }
}

fn layer_types(config: &FolderConfig, family: &FolderFamily) -> Result<Keys, String> {
    match window_and_types(config, family)? {
        Some((window, types)) => listed_types(window, types),
        None => Ok(Keys::new()),
    }
}

/// Returns the window and the type of each layer; `None` without a window.
pub(super) fn window_and_types<'a>(
    config: &'a FolderConfig,
    family: &FolderFamily,
) -> Result<Option<(usize, Vec<&'a str>)>, String> {
    let Some(window) = window(config, family)? else {
        return all_full(config).map(|()| None);
    };
    let layers = config.count("num_hidden_layers")?;
    let period = config.optional_count("sliding_window_pattern")?;
    let period = period.or(config.optional_count("_sliding_window_pattern")?);
    let named = |layer| if (family.absent.windowed)(layer, period) { SLIDING } else { FULL };
    let types = match config.texts("layer_types")? {
        Some(types) => types,
        None => (0..layers).map(named).collect(),
    };
    Ok(Some((window, types)))
}

/// Returns the types of layers that a period implies.
fn types_by_pattern(config: &FolderConfig, family: &FolderFamily) -> Result<Vec<&'static str>, String> {
    let name = "sliding_window_pattern";
    let refused = |value: &Json| {
        let value = value.to_string();
        format!("{name} = {} is supported with layer_types only", shortened(&value))
    };
    let period = match config.entries().find(|(key, _)| *key == name) {
        Some((_, value)) if value.as_u64().is_none_or(|period| period == 0) => return Err(refused(value)),
        Some(_) => config.optional_count(name)?,
        None => None,
    };
    let named = |layer| if (family.absent.windowed)(layer, period) { SLIDING } else { FULL };
    Ok((0..config.count("num_hidden_layers")?).map(named).collect())
}

/// Returns the keys of a window in the layers of type [`SLIDING`].
pub(super) fn listed_types(window: usize, types: Vec<&str>) -> Result<Keys, String> {
    if let Some(other) = types.iter().find(|name| ![SLIDING, FULL].contains(name)) {
        return Err(unsupported_type(other, &format!("\"{FULL}\" and \"{SLIDING}\"")));
    }
    let types: Vec<String> = types.into_iter().map(str::to_owned).collect();
    Ok(vec![(LlamaSizes::window, window.into()), (LlamaSizes::layer_types, types.as_slice().into())])
}

/// Returns the keys of a window in the layers of type [`SLIDING`], which alone rotate.
pub(super) fn rotating_windows(window: usize, types: Vec<&str>) -> Result<Keys, String> {
    let rotates: Vec<usize> = types.iter().map(|name| usize::from(*name == SLIDING)).collect();
    let mut keys = listed_types(window, types)?;
    keys.push((LlamaSizes::rope_layers, rotates.as_slice().into()));
    Ok(keys)
}

/// Rejects layers with a window.
fn all_full(config: &FolderConfig) -> Result<(), String> {
    let other = config.texts("layer_types")?.and_then(|all| all.into_iter().find(|name| *name != FULL));
    other.map_or(Ok(()), |other| Err(unsupported_type(other, &format!("\"{FULL}\""))))
}

pub(super) fn unsupported_type(name: &str, supported: &str) -> String {
    let name = shortened(name);
    format!("layer_types has \"{name}\", which is not supported; supported: {supported}")
}

fn caps(config: &FolderConfig, family: &FolderFamily) -> Result<Keys, String> {
    let keys = [LlamaSizes::attention_soft_cap, LlamaSizes::logit_soft_cap];
    let cap = |((key, name), absent): ((&'static str, &str), f64)| {
        let cap = if config.has(name) { config.number(name)?.unwrap_or(0.0) } else { absent };
        Ok((key, cap.into()))
    };
    keys.into_iter().zip(CAP_NAMES).zip(family.absent.caps).map(cap).collect()
}

/// Returns `None` for a count of 0.
fn some(count: usize) -> Option<usize> {
    (count > 0).then_some(count)
}

/// Returns a number as an integer if it is one, up to rounding errors.
pub(super) fn whole(number: f64) -> Json {
    let rounded = number.round();
    if (number - rounded).abs() < 1e-9 * number.abs() { json!(rounded as i64) } else { json!(number) }
}
