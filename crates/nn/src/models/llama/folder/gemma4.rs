//! Settings of Gemma 4: heads by type of layer, keys used as values, and embeddings for each layer.

use keys::Value;
use serde_json::{Map, json};

use super::family::{Absent, FolderFamily, FolderOption, Keys, LLAMA, Settings, USUAL, is_not_last};
use super::options::{ATTENTION_BIAS, LAYER_TYPES, PADDING, SCORE_CAP, listed_types, window_and_types};
use super::rope;
use crate::hugging_face::FolderConfig;
use crate::models::llama::mixers::{FULL, SLIDING};
use crate::models::llama::sizes::LlamaSizes;

/// Default of `global_head_dim`.
const FULL_HEAD: usize = 512;
/// Default of `hidden_size_per_layer_input`.
const LAYER_EMBEDDING: usize = 256;
/// Default of `vocab_size_per_layer_input`.
const LAYER_VOCABULARY: usize = 262_144;

/// Gemma 4 without images.
pub(super) const GEMMA_4: FolderFamily = FolderFamily {
    model_type: "gemma4_text",
    architecture: "Gemma4ForCausalLM",
    activation: "hidden_activation",
    absent: Absent {
        head_width: Some(256),
        tied: true,
        theta: [1_000_000.0, 10_000.0],
        window: Some(512),
        windowed: |layer, _| is_not_last(layer, 6),
        padding: Some(0),
        ..LLAMA
    },
    fixed: |config| {
        let width = config.count("hidden_size")? as f64;
        Ok(vec![
            (LlamaSizes::norm_position, "both".into()),
            (LlamaSizes::embedding_scale, Value::from(width.sqrt())),
            (LlamaSizes::qk_norm, true.into()),
            (LlamaSizes::value_norm, true.into()),
            (LlamaSizes::attention_scale, 1.0.into()),
            (LlamaSizes::layer_factors, true.into()),
        ])
    },
    options: &[
        PADDING,
        TYPES_BEFORE_FULL,
        FULL_HEADS,
        LAYER_EMBEDDINGS,
        NO_MIXTURE,
        SCORE_CAP,
        ATTENTION_BIAS,
        SHARED_ROPE,
    ],
    ..USUAL
};

/// Separate rotary frequencies per type of layer; layers without a window may use a share of them.
const SHARED_ROPE: FolderOption =
    FolderOption { names: rope::LAYER_NAMES, read: rope::read_share, write: rope::write_share };

/// An attention window in some layers; the last layer has none.
const TYPES_BEFORE_FULL: FolderOption = FolderOption {
    names: LAYER_TYPES.names,
    read: |config, family| {
        let (window, types) = types(config, family)?;
        listed_types(window, types)
    },
    write: LAYER_TYPES.write,
};

/// Heads of layers without a window, and values that are keys.
const FULL_HEADS: FolderOption = FolderOption {
    names: &[
        "per_layer_config",
        "global_head_dim",
        "num_global_key_value_heads",
        "attention_k_eq_v",
        "num_kv_shared_layers",
        "use_double_wide_mlp",
        "use_bidirectional_attention",
    ],
    read: |config, family| {
        let shared = config.whole("num_kv_shared_layers")?.unwrap_or(0);
        let is_wide = config.flag("use_double_wide_mlp")?.unwrap_or(false);
        let hidden = config.count("intermediate_size")?;
        // Only tokens of images would attend to later ones.
        if let Some(other) = config.text("use_bidirectional_attention")?.filter(|other| *other != "vision") {
            return Err(format!(
                "use_bidirectional_attention = \"{other}\" is not supported; supported: null and \"vision\""
            ));
        }
        let are_values = config.flag("attention_k_eq_v")?.unwrap_or(false);
        let [width, heads] = full_heads(config, family, are_values)?;
        Ok(vec![
            (LlamaSizes::full_head_width, width.into()),
            (LlamaSizes::full_key_value_heads, heads.into()),
            (LlamaSizes::keys_as_values, are_values.into()),
            (LlamaSizes::shared_layers, shared.into()),
            (LlamaSizes::shared_layers_feed_forward, (hidden * if is_wide { 2 } else { 1 }).into()),
        ])
    },
    write: |sizes| {
        let mut layers = Map::new();
        for layer in (0..sizes.layers).filter(|layer| !sizes.is_windowed(*layer)) {
            let own = json!({
                "head_dim": sizes.full_head_width, "num_key_value_heads": sizes.full_key_value_heads,
            });
            layers.insert(layer.to_string(), own);
        }
        vec![
            ("attention_k_eq_v", json!(sizes.keys_as_values)),
            ("num_kv_shared_layers", json!(sizes.shared_layers)),
            ("per_layer_config", json!(layers)),
            ("use_double_wide_mlp", json!(sizes.shared_layers_feed_forward == 2 * sizes.feed_forward)),
        ]
    },
};

/// Embeddings of tokens for each layer.
const LAYER_EMBEDDINGS: FolderOption = FolderOption {
    names: &["hidden_size_per_layer_input", "vocab_size_per_layer_input"],
    read: |config, _| {
        let width = match config.has("hidden_size_per_layer_input") {
            true => config.whole("hidden_size_per_layer_input")?.unwrap_or(0),
            false => LAYER_EMBEDDING,
        };
        let tokens = config.optional_count("vocab_size_per_layer_input")?.unwrap_or(LAYER_VOCABULARY);
        let vocabulary = config.count("vocab_size")?;
        if width > 0 && tokens != vocabulary {
            return Err(format!(
                "vocab_size_per_layer_input = {tokens} is not supported; supported: vocab_size = {vocabulary}"
            ));
        }
        Ok(vec![(LlamaSizes::layer_embedding_width, width.into())])
    },
    write: |sizes| {
        vec![
            ("hidden_size_per_layer_input", json!(sizes.layer_embedding_width)),
            ("vocab_size_per_layer_input", json!(sizes.vocabulary)),
        ]
    },
};

/// Rejects a mixture of experts beside the feed-forward layers.
const NO_MIXTURE: FolderOption = FolderOption {
    names: &["enable_moe_block", "num_experts", "top_k_experts", "moe_intermediate_size"],
    read: |config, _| {
        config.only("enable_moe_block", false)?;
        Ok(Keys::new())
    },
    write: |_| -> Settings { vec![("enable_moe_block", json!(false))] },
};

/// Returns the window and the type of each layer.
fn types<'a>(config: &'a FolderConfig, family: &FolderFamily) -> Result<(usize, Vec<&'a str>), String> {
    let listed = window_and_types(config, family)?;
    let (window, mut types) = listed.ok_or_else(|| "it has no sliding_window".to_owned())?;
    if let Some(last) = types.last_mut() {
        *last = FULL;
    }
    Ok((window, types))
}

/// Returns the width and the number of key and value heads of layers without a window.
fn full_heads(config: &FolderConfig, family: &FolderFamily, are_values: bool) -> Result<[usize; 2], String> {
    let key_value_heads = config.optional_count("num_key_value_heads")?;
    let key_value_heads = key_value_heads.map_or_else(|| config.count("num_attention_heads"), Ok)?;
    let usual = [family.head_width(config)?, key_value_heads];
    if !config.has("per_layer_config") {
        let width = config.optional_count("global_head_dim")?.unwrap_or(FULL_HEAD);
        let heads = config.optional_count("num_global_key_value_heads")?.filter(|_| are_values);
        return Ok([width, heads.unwrap_or(usual[1])]);
    }
    let layers = config.object("per_layer_config")?;
    let (_, types) = types(config, family)?;
    let mut full: Option<[usize; 2]> = None;
    for (layer, kind) in types.iter().enumerate() {
        let own = layers.as_ref().map(|layers| layers.object(&layer.to_string())).transpose()?.flatten();
        let heads = own.map_or(Ok(usual), |own| overridden(&own, usual, layer))?;
        let expected = if *kind == SLIDING { usual } else { *full.get_or_insert(heads) };
        if heads != expected {
            return Err(format!(
                "per_layer_config has heads of layer {layer} that differ from other layers of {kind}, which is \
                 not supported"
            ));
        }
    }
    let known = |name: &str| name.parse::<usize>().is_ok_and(|layer| layer < types.len());
    if let Some((name, _)) = layers.iter().flat_map(FolderConfig::entries).find(|(name, _)| !known(name)) {
        return Err(format!("per_layer_config has \"{name}\", which is no layer"));
    }
    Ok(full.unwrap_or(usual))
}

/// Returns the width and number of key and value heads of a layer, from `own` settings or else the usual
/// ones.
fn overridden(own: &FolderConfig, usual: [usize; 2], layer: usize) -> Result<[usize; 2], String> {
    const NAMES: [&str; 2] = ["head_dim", "num_key_value_heads"];
    if let Some((name, _)) = own.entries().find(|(name, _)| !NAMES.contains(name)) {
        return Err(format!(
            "per_layer_config has {name} of layer {layer}, which is not supported; supported: {} and {}",
            NAMES[0], NAMES[1]
        ));
    }
    let [width, heads] = NAMES.map(|name| own.optional_count(name));
    Ok([width?.unwrap_or(usual[0]), heads?.unwrap_or(usual[1])])
}
