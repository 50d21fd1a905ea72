//! Language models in folders of models with further parts, such as images, and default sizes that their
//! configurations leave out.

use serde_json::{Value as Json, json};
use system::quoted::shortened;

use super::names;
use super::nemotron;
use super::reader::WITH_PARTS;
use super::tensors::{EMBEDDING, LAYER_EMBEDDINGS, PREFIX};
use crate::hugging_face::{FolderConfig, HuggingFaceModel, LANGUAGE_PART};

/// `model_type` of models with several parts, each with the `model_type` of its language model.
pub(super) const WITH_PARTS_TYPES: [(&str, &[&str]); 5] = [
    ("gemma3", &["gemma3_text"]),
    ("gemma4", &["gemma4_text"]),
    ("mistral3", &["mistral", "ministral3"]),
    ("qwen3_5", &["qwen3_5_text"]),
    ("qwen3_5_moe", &["qwen3_5_moe_text"]),
];

/// Tensors renamed in folders with several parts: (name in [`HuggingFaceModel`], name in these folders).
const RENAMED: [(&str, &str); 2] = [
    (EMBEDDING, "model.language_model.embed_tokens.weight"),
    (LAYER_EMBEDDINGS, "model.language_model.embed_tokens_per_layer.weight"),
];

/// Language models whose rotary settings have some for images. Tokens of a text have one position each, for
/// which these settings have no effect.
const WITH_IMAGE_POSITIONS: [&str; 2] = ["qwen3_5_text", "qwen3_5_moe_text"];
/// Keys of rotary settings that concern images only.
const IMAGE_POSITIONS: [&str; 2] = ["mrope_section", "mrope_interleaved"];

/// Sizes: `vocab_size`, `hidden_size`, `intermediate_size`, `num_hidden_layers`, `num_attention_heads`,
/// `num_key_value_heads` and `max_position_embeddings`.
const NAMES: [&str; 7] = [
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
];

/// Objects of rotary settings.
const ROPE: [&str; 2] = ["rope_parameters", "rope_scaling"];

/// Default sizes of families, in the order of [`NAMES`].
const SIZES: [(&str, [usize; 7]); 5] = [
    ("gemma3_text", [262_208, 2304, 9216, 26, 8, 4, 131_072]),
    ("gemma4_text", [262_144, 2304, 9216, 30, 8, 4, 131_072]),
    ("mistral", [32_000, 4096, 14_336, 32, 32, 8, 131_072]),
    ("ministral3", [131_072, 4096, 14_336, 34, 32, 8, 262_144]),
    (names::NEMOTRON_H, nemotron::SIZES),
];

/// Returns the values of `model_type` of the language models of `outer`; empty for a language model.
pub(super) fn inner_types(outer: &str) -> &'static [&'static str] {
    WITH_PARTS_TYPES.iter().find(|(name, _)| *name == outer).map_or(&[], |(_, inner)| inner)
}

/// Returns the settings of the language model, with default sizes, and the folder's `model_type`.
pub(super) fn language_model(config: &FolderConfig) -> Result<(FolderConfig, &'static str), String> {
    let name = config.model_type()?;
    let Some((outer, inner)) = WITH_PARTS_TYPES.iter().find(|(outer, _)| *outer == name) else {
        return Ok((with_sizes(without_image_positions(config.clone(), name), name), ""));
    };
    config.check(&WITH_PARTS)?;
    let text = config.object("text_config")?.ok_or_else(|| "it has no text_config".to_owned())?;
    let text = text.with_defaults(&[("model_type", json!(inner[0]))]);
    let own = text.model_type()?;
    if !inner.contains(&own) {
        let own = shortened(own);
        return Err(format!("model_type = \"{own}\" of text_config is not supported with \"{outer}\""));
    }
    let mut settings: serde_json::Map<String, Json> =
        text.entries().map(|(key, value)| (key.to_owned(), value.clone())).collect();
    if let Some(tied) = config.value("tie_word_embeddings") {
        settings.insert("tie_word_embeddings".to_owned(), tied.clone());
    }
    let own = own.to_owned();
    let config = without_image_positions(FolderConfig::from_settings(settings), &own);
    Ok((with_sizes(config, &own), outer))
}

/// Returns the names of unknown settings beside the language model's.
pub(super) fn ignored(config: &FolderConfig) -> Vec<String> {
    let is_outer = config.model_type().is_ok_and(|name| !inner_types(name).is_empty());
    if !is_outer {
        return Vec::new();
    }
    config.check(&WITH_PARTS).unwrap_or_default().into_iter().map(str::to_owned).collect()
}

/// Returns the configuration without settings for positions of images.
fn without_image_positions(config: FolderConfig, model_type: &str) -> FolderConfig {
    if !WITH_IMAGE_POSITIONS.contains(&model_type) {
        return config;
    }
    let without = |(key, value): (&str, &Json)| {
        let mut value = value.clone();
        if let (true, Some(settings)) = (ROPE.contains(&key), value.as_object_mut()) {
            settings.retain(|name, _| !IMAGE_POSITIONS.contains(&name.as_str()));
        }
        (key.to_owned(), value)
    };
    FolderConfig::from_settings(config.entries().map(without).collect())
}

fn with_sizes(config: FolderConfig, model_type: &str) -> FolderConfig {
    let config = nemotron::with_layers(config, model_type);
    let Some((_, sizes)) = SIZES.iter().find(|(name, _)| *name == model_type) else { return config };
    let defaults: Vec<_> = NAMES.into_iter().zip(sizes.map(Json::from)).collect();
    config.with_defaults(&defaults)
}

/// Renames a model's tensors as in a folder with several parts.
pub(super) fn with_parts(mut model: HuggingFaceModel) -> HuggingFaceModel {
    for tensor in &mut model.tensors {
        if let Some(rest) = tensor.name.strip_prefix(PREFIX) {
            tensor.name = format!("{LANGUAGE_PART}{rest}");
        }
    }
    for prefix in model.unused.iter_mut().chain(&mut model.unused_modules) {
        if let Some(rest) = prefix.strip_prefix(PREFIX) {
            *prefix = format!("{LANGUAGE_PART}{rest}");
        }
    }
    let renamed = |name: &'static str| {
        RENAMED.iter().find(|(alone, _)| *alone == name).map_or(name, |(_, with_parts)| with_parts)
    };
    model.tables = model.tables.into_iter().map(renamed).collect();
    model.copies = model.copies.into_iter().map(|(copy, of)| (copy, renamed(of))).collect();
    HuggingFaceModel { is_part: true, ..model }
}
