//! Hugging Face folders of Llama and related models: Mistral, Qwen, Gemma, Phi, OLMo, SmolLM, Granite.
//!
//! Queries, keys and values are rows of one parameter, as are gate and up. Each family is a record of
//! [`families`]; shared options translate settings in both directions.

mod cohere;
mod convolutions;
mod ernie;
mod experts;
mod families;
mod family;
mod gemma4;
mod kimi_linear;
mod latents;
mod later_tokens;
mod linear_attention;
mod minimax;
mod names;
mod nemotron;
mod olmo_hybrid;
mod options;
mod parts;
pub(crate) mod reader;
mod rope;
mod side_by_side;
mod state_spaces;
mod tensors;

use std::path::Path;

use keys::{Document, Implied, KeyValues, RawValues, Section, Table, Value};
use serde_json::{Map, Value as Json, json};
use system::quoted::shortened;

use super::sizes::LlamaSizes;
use crate::hugging_face::{FolderConfig, HuggingFaceConfig, HuggingFaceModel, TiedHead};
use families::FAMILIES;
use family::{FolderFamily, Keys, POSITIONS, Settings};
use parts::WITH_PARTS_TYPES;
use reader::LLAMA;
use tensors::PREFIX;

pub(super) const CONFIG: HuggingFaceConfig = HuggingFaceConfig {
    model_types: &MODEL_TYPES,
    keys,
    ignored,
    tied: Some(TiedHead {
        key: LlamaSizes::tied,
        head: tensors::HEAD,
        embedding: tensors::EMBEDDING,
        prefix: PREFIX,
    }),
};

const MODEL_TYPES: [&str; FAMILIES.len() + WITH_PARTS_TYPES.len()] = {
    let mut names = [""; FAMILIES.len() + WITH_PARTS_TYPES.len()];
    let mut index = 0;
    while index < FAMILIES.len() {
        names[index] = FAMILIES[index].model_type;
        index += 1;
    }
    while index < names.len() {
        names[index] = WITH_PARTS_TYPES[index - FAMILIES.len()].0;
        index += 1;
    }
    names
};

/// Feed-forward activations: our name, and Hugging Face's names; the first one is written.
const ACTIVATIONS: [(&str, &[&str]); 4] = [
    ("silu", &["silu", "swish"]),
    ("gelu", &["gelu_pytorch_tanh", "gelu_new"]),
    ("gelu-erf", &["gelu"]),
    ("relu-squared", &["relu2"]),
];

fn keys(config: &FolderConfig) -> Result<Keys, String> {
    let (config, outer) = &parts::language_model(config)?;
    let family = family(config)?;
    check(config, family)?;
    // Options come first: the first value of a key holds.
    let mut keys = (family.fixed)(config)?;
    for option in family.options {
        keys.extend((option.read)(config, family)?);
    }
    keys.extend(vec![
        (LlamaSizes::layers, config.count("num_hidden_layers")?.into()),
        (LlamaSizes::heads, config.count("num_attention_heads")?.into()),
        (LlamaSizes::key_value_heads, family.key_value_heads(config)?.into()),
        (LlamaSizes::width, config.count("hidden_size")?.into()),
        (LlamaSizes::head_width, family.head_width(config)?.into()),
        (LlamaSizes::context, positions(config, family)?.into()),
        (LlamaSizes::vocabulary, config.count("vocab_size")?.into()),
        (LlamaSizes::tied, config.flag("tie_word_embeddings")?.unwrap_or(family.absent.tied).into()),
        (LlamaSizes::activation, activation(config, family)?.into()),
        (
            LlamaSizes::norm_epsilon,
            config.number(family.epsilon_name())?.unwrap_or(family.absent.epsilon).into(),
        ),
        (LlamaSizes::hugging_face, if outer.is_empty() { family.model_type } else { outer }.into()),
    ]);
    if has_dense_width(family) {
        keys.push((LlamaSizes::feed_forward, config.count("intermediate_size")?.into()));
    }
    Ok(keys)
}

/// Returns the number of positions, by the family's name for it or the usual one.
fn positions(config: &FolderConfig, family: &FolderFamily) -> Result<usize, String> {
    match config.optional_count(family.positions)? {
        Some(positions) => Ok(positions),
        None => config.count(POSITIONS),
    }
}

/// Returns whether folders of a family have the width of dense layers.
fn has_dense_width(family: &FolderFamily) -> bool {
    !family.options.iter().any(|option| option.names == experts::UNIFORM_EXPERTS.names)
}

fn family(config: &FolderConfig) -> Result<&'static FolderFamily, String> {
    let name = config.model_type()?;
    find(name).ok_or_else(|| format!("model_type = \"{}\" is not supported", shortened(name)))
}

fn find(name: &str) -> Option<&'static FolderFamily> {
    FAMILIES.iter().find(|family| family.model_type == name)
}

/// Rejects settings that affect results but are not supported by the family.
fn check(config: &FolderConfig, family: &FolderFamily) -> Result<(), String> {
    config.check(&LLAMA)?;
    // Most families drop nothing when they are trained.
    let dropout = config.number("attention_dropout")?.filter(|dropout| *dropout != 0.0);
    if let Some(dropout) = dropout.filter(|_| !family.reads("attention_dropout")) {
        return Err(format!("attention_dropout = {dropout} is not supported; supported: 0"));
    }
    let is_others = |name: &str| !family.reads(name) && FAMILIES.iter().any(|other| other.reads(name));
    // Some families use a token and a bound that others ignore.
    let is_ignored = |name: &str| ["pad_token_id", "time_step_min", "mamba_dt_min"].contains(&name);
    let other = config
        .entries()
        .find(|(name, value)| is_others(name) && !is_ignored(name) && !is_neutral(name, value));
    other.map_or(Ok(()), |(name, value)| {
        let value = value.to_string();
        let value = shortened(&value);
        Err(format!("{name} = {value} is not supported with model_type = \"{}\"", family.model_type))
    })
}

/// Returns whether a setting's value has no effect.
fn is_neutral(name: &str, value: &Json) -> bool {
    let factor = ["multiplier", "scaling", "factor", "scale"].iter().any(|end| name.ends_with(end));
    match value {
        Json::Null | Json::Bool(false) => true,
        Json::Number(number) => number.as_f64() == Some(if factor { 1.0 } else { 0.0 }),
        Json::Array(values) => values.is_empty(),
        Json::Object(values) => values.is_empty(),
        Json::Bool(true) | Json::String(_) => false,
    }
}

/// Returns the names of unknown settings, which are ignored.
fn ignored(config: &FolderConfig) -> Vec<String> {
    let mut names = parts::ignored(config);
    if let Ok((config, _)) = parts::language_model(config) {
        names.extend(ignored_here(&config));
    }
    names
}

fn ignored_here(config: &FolderConfig) -> Vec<String> {
    config.check(&LLAMA).unwrap_or_default().into_iter().map(str::to_owned).collect()
}

fn activation(config: &FolderConfig, family: &FolderFamily) -> Result<&'static str, String> {
    if let Some(own) = family.own_activation {
        return Ok(own);
    }
    // Gemma's older setting means the same function as its newer one.
    let gelu = |name| if name == "gelu" { "gelu_pytorch_tanh" } else { name };
    let (name, theirs) = match (config.text(family.activation)?, family.activation) {
        (Some(name), key) => (key, name),
        (None, "hidden_act") if family.model_type == "nanochat" => ("hidden_act", "relu2"),
        (None, "hidden_act") => ("hidden_act", "silu"),
        (None, _) if family.model_type == names::NEMOTRON_H => (family.activation, "relu2"),
        (None, _) => ("hidden_act", config.text("hidden_act")?.map_or("gelu_pytorch_tanh", gelu)),
    };
    let entry = ACTIVATIONS.iter().find(|(_, names)| names.contains(&theirs));
    entry.map(|(ours, _)| *ours).ok_or_else(|| {
        let built: Vec<_> = ACTIVATIONS.iter().map(|(_, names)| format!("\"{}\"", names[0])).collect();
        let theirs = shortened(theirs);
        format!("{name} = \"{theirs}\" is not supported; supported: {}", built.join(", "))
    })
}

/// Returns the names of all families, formatted for a sentence.
pub(super) fn names() -> String {
    MODEL_TYPES.map(|name| format!("\"{name}\"")).join(", ")
}

/// Describes the model, with `modules` modules that predict later tokens, in the format of the chosen family,
/// or of the first family that has the model's options; `None` if no family has.
pub(super) fn model(sizes: &LlamaSizes, modules: usize) -> Option<HuggingFaceModel> {
    let sizes = &sizes.in_scales();
    let inner = parts::inner_types(&sizes.hugging_face);
    let is_chosen = |family: &&FolderFamily| {
        let is_named = sizes.hugging_face == family.model_type || inner.contains(&family.model_type);
        sizes.hugging_face.is_empty() || is_named
    };
    let written = |family: &'static FolderFamily| Some((family, config(sizes, family)?));
    let (family, mut config) = FAMILIES.iter().filter(is_chosen).find_map(written)?;
    let usual = [PREFIX, tensors::EMBEDDING];
    let [prefix, embedding] = names::prefix_and_embedding(family.model_type).unwrap_or(usual);
    let mut ignored = vec!["rotary_emb.inv_freq"];
    let mut copies = later_tokens::copies(sizes, modules);
    if sizes.tied {
        ignored.push(tensors::HEAD);
        copies.push((tensors::HEAD.to_owned(), embedding));
    }
    if let Some(name) = later_tokens::count_name(family).filter(|_| modules > 0) {
        config.insert(name.to_owned(), json!(modules));
    }
    let of_modules = later_tokens::tensors(sizes, family, modules);
    let tensors = tensors::tensors(sizes, family, of_modules);
    let model = HuggingFaceModel {
        config,
        prefix,
        variants: tensors::variants(sizes, family, &tensors),
        tensors,
        copies,
        tables: vec![embedding, tensors::LAYER_EMBEDDINGS, tensors::HEAD],
        ignored,
        is_part: false,
        unused: tensors::unused(sizes),
        unused_modules: later_tokens::unused(sizes, family, modules),
        modules: (0..modules).map(|index| later_tokens::prefix(sizes, index)).collect(),
        module_counts: &later_tokens::COUNTS,
    };
    Some(if inner.is_empty() { model } else { parts::with_parts(model) })
}

/// Returns the `config.json` of a family; `None` if it cannot describe the model.
fn config(sizes: &LlamaSizes, family: &FolderFamily) -> Option<Map<String, Json>> {
    let of_folder = |ours: &str| match family.own_activation {
        Some(own) => (own == ours).then_some("silu"),
        None => {
            let entry = ACTIVATIONS.iter().find(|(name, _)| *name == ours);
            entry.map(|(_, names)| names[0])
        }
    };
    let activation = of_folder(sizes.activation.name())?;
    let mut settings: Settings = vec![
        ("architectures", json!([family.architecture])),
        ("attention_dropout", json!(0.0)),
        ("head_dim", json!(sizes.head_width)),
        (family.activation, json!(activation)),
        ("hidden_size", json!(sizes.width)),
        (family.positions, json!(sizes.context)),
        ("model_type", json!(family.model_type)),
        ("num_attention_heads", json!(sizes.heads)),
        ("num_hidden_layers", json!(sizes.layers)),
        ("num_key_value_heads", json!(sizes.key_value_heads)),
        (family.epsilon_name(), json!(sizes.norm_epsilon)),
        ("tie_word_embeddings", json!(sizes.tied)),
        ("vocab_size", json!(sizes.vocabulary)),
    ];
    if has_dense_width(family) {
        settings.push(("intermediate_size", json!(sizes.feed_forward)));
    }
    settings.extend(family.options.iter().flat_map(|option| (option.write)(sizes)));
    let config: Map<_, _> = settings.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let read = read(&FolderConfig::from_settings(config.clone()))?;
    is_same(&read, sizes).then_some(config)
}

/// Returns the sizes described by a configuration.
fn read(config: &FolderConfig) -> Option<LlamaSizes> {
    let implied =
        |(path, value): (&str, Value)| Implied { path: path.to_owned(), value, file: String::new() };
    let implied: Vec<_> = keys(config).ok()?.into_iter().map(implied).collect();
    let table = Table::new(LlamaSizes::keys().into_iter().cloned().collect());
    let document = Document { text: "", name: "", has_lines: false };
    let raw = RawValues::parse_implied(&table, document, Path::new("/"), &[], |_| Ok(implied)).ok()?;
    LlamaSizes::read(&raw).ok()
}

/// Returns whether two models compute the same, even if their options are written differently.
fn is_same(one: &LlamaSizes, other: &LlamaSizes) -> bool {
    let plain = |sizes: &LlamaSizes| {
        let mut sizes = sizes.canonical();
        [sizes.dropout, sizes.embedding_dropout, sizes.branch_dropout] = [0.0; 3];
        sizes.loss_pieces = 1;
        sizes.hugging_face.clear();
        sizes
    };
    plain(one).values() == plain(other).values()
}
