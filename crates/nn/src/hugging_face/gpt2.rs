//! Translation of Hugging Face's `GPT2LMHeadModel`: configuration and tensors. Its linear layers are stored
//! as `[inputs, outputs]`.

use keys::Value;
use serde_json::{Map, json};
use system::quoted::shortened;

use super::readers::GPT2;
use super::{FolderConfig, FolderTensor, HuggingFaceConfig, HuggingFaceModel, TiedHead};

pub(crate) const CONFIG: HuggingFaceConfig = HuggingFaceConfig {
    model_types: &["gpt2"],
    keys,
    ignored,
    tied: Some(TiedHead { key: "model.tied", head: HEAD, embedding: EMBEDDING, prefix: PREFIX }),
};

/// The only supported epsilon of a layer normalisation.
const EPSILON: f64 = 1e-5;
/// Hidden width of the feed-forward layers as a multiple of the width.
const EXPANSION: usize = 4;

/// Dropout probability if a folder has none.
const DROPOUT: f64 = 0.1;

/// Activations: our name, and Hugging Face's names; the first one is written.
const ACTIVATIONS: [(&str, &[&str]); 5] = [
    ("gelu", &["gelu_new", "gelu_pytorch_tanh"]),
    ("gelu-erf", &["gelu"]),
    ("relu", &["relu"]),
    ("relu-squared", &["relu2"]),
    ("silu", &["silu", "swish"]),
];

/// Sizes of a model that determine the folder's tensors.
pub(crate) struct Sizes {
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) width: usize,
    /// Number of rows of the position table.
    pub(crate) positions: usize,
    pub(crate) vocabulary: usize,
    pub(crate) tied: bool,
    /// Our name of the activation.
    pub(crate) activation: &'static str,
    /// Dropout probability.
    pub(crate) dropout: f64,
}

/// Returns the names of unknown settings, which are ignored.
fn ignored(config: &FolderConfig) -> Vec<String> {
    config.check(&GPT2).unwrap_or_default().into_iter().map(str::to_owned).collect()
}

fn keys(config: &FolderConfig) -> Result<Vec<(&'static str, Value)>, String> {
    config.check(&GPT2)?;
    let width = config.count("n_embd")?;
    let inner = config.optional_count("n_inner")?;
    if let Some(inner) = inner.filter(|inner| *inner != EXPANSION * width) {
        return Err(format!(
            "n_inner = {inner} is not supported; supported: {EXPANSION} times n_embd = {width}"
        ));
    }
    if let Some(epsilon) = config.number("layer_norm_epsilon")?.filter(|epsilon| *epsilon != EPSILON) {
        return Err(format!("layer_norm_epsilon = {epsilon:e} is not supported; supported: {EPSILON:e}"));
    }
    let positions = config.count("n_positions")?;
    Ok(vec![
        ("model.layers", config.count("n_layer")?.into()),
        ("model.heads", config.count("n_head")?.into()),
        ("model.width", width.into()),
        ("model.context", positions.into()),
        ("model.max_context", positions.into()),
        ("model.vocabulary", config.count("vocab_size")?.into()),
        ("model.tied", config.flag("tie_word_embeddings")?.unwrap_or(true).into()),
        ("model.activation", activation(config)?.into()),
        ("model.dropout", dropout(config)?.into()),
    ])
}

/// Returns the dropout probability shared by all three settings.
///
/// # Errors
/// The three probabilities differ.
fn dropout(config: &FolderConfig) -> Result<f64, String> {
    let probability = |key: &str| Ok::<_, String>(config.number(key)?.unwrap_or(DROPOUT));
    let all = [probability("attn_pdrop")?, probability("embd_pdrop")?, probability("resid_pdrop")?];
    if all.iter().any(|one| *one != all[0]) {
        let [attention, embedding, residual] = all;
        return Err(format!(
            "attn_pdrop = {attention}, embd_pdrop = {embedding} and resid_pdrop = {residual} are not \
             supported; supported: one probability for all"
        ));
    }
    Ok(all[0])
}

fn activation(config: &FolderConfig) -> Result<&'static str, String> {
    let theirs = config.text("activation_function")?.unwrap_or("gelu_new");
    let entry = ACTIVATIONS.iter().find(|(_, names)| names.contains(&theirs));
    entry.map(|(ours, _)| *ours).ok_or_else(|| {
        let built: Vec<_> = ACTIVATIONS.iter().map(|(_, names)| format!("\"{}\"", names[0])).collect();
        let theirs = shortened(theirs);
        format!("activation_function = \"{theirs}\" is not supported; supported: {}", built.join(", "))
    })
}

/// Describes the model in the folder's format; `None` for an activation that Hugging Face does not have.
pub(crate) fn model(sizes: &Sizes) -> Option<HuggingFaceModel> {
    let mut tensors = vec![
        FolderTensor::whole(name("wte.weight"), "wte.weight".into(), &[sizes.vocabulary, sizes.width]),
        FolderTensor::whole(name("wpe.weight"), "wpe.weight".into(), &[sizes.positions, sizes.width]),
    ];
    for layer in 0..sizes.layers {
        tensors.extend(block(layer, sizes.width));
    }
    tensors.extend(norm("ln_f", sizes.width));
    // Causal masks.
    let mut ignored = vec![".attn.bias", ".attn.masked_bias"];
    let mut copies = Vec::new();
    match sizes.tied {
        true => {
            ignored.push(HEAD);
            copies.push((HEAD.to_owned(), EMBEDDING));
        }
        false => {
            tensors.push(FolderTensor::whole(HEAD.into(), HEAD.into(), &[sizes.vocabulary, sizes.width]));
        }
    }
    Some(HuggingFaceModel {
        config: config(sizes)?,
        prefix: PREFIX,
        tensors,
        variants: Vec::new(),
        copies,
        tables: vec![EMBEDDING, HEAD],
        ignored,
        is_part: false,
        unused: Vec::new(),
        unused_modules: Vec::new(),
        modules: Vec::new(),
        module_counts: &[],
    })
}

/// Weight of the output head; a tied model's folder may contain it as a copy of the token table.
const HEAD: &str = "lm_head.weight";

const PREFIX: &str = "transformer.";

/// The token table.
const EMBEDDING: &str = "transformer.wte.weight";

fn name(rest: &str) -> String {
    format!("{PREFIX}{rest}")
}

fn norm(prefix: &str, width: usize) -> [FolderTensor; 2] {
    ["weight", "bias"].map(|part| {
        let own = format!("{prefix}.{part}");
        FolderTensor::whole(name(&own), own, &[width])
    })
}

fn linear(theirs: &str, ours: &str, inputs: usize, outputs: usize) -> [FolderTensor; 2] {
    let weight = format!("{theirs}.weight");
    let bias = format!("{theirs}.bias");
    [
        FolderTensor::transposed(name(&weight), format!("{ours}.weight"), [outputs, inputs]),
        FolderTensor::whole(name(&bias), format!("{ours}.bias"), &[outputs]),
    ]
}

fn block(layer: usize, width: usize) -> impl Iterator<Item = FolderTensor> {
    let at = |part: &str| format!("h.{layer}.{part}");
    let hidden = EXPANSION * width;
    [
        norm(&at("ln_1"), width),
        linear(&at("attn.c_attn"), &at("attn_qkv"), width, 3 * width),
        linear(&at("attn.c_proj"), &at("attn_proj"), width, width),
        norm(&at("ln_2"), width),
        linear(&at("mlp.c_fc"), &at("mlp_fc"), width, hidden),
        linear(&at("mlp.c_proj"), &at("mlp_proj"), hidden, width),
    ]
    .into_iter()
    .flatten()
}

fn config(sizes: &Sizes) -> Option<Map<String, serde_json::Value>> {
    let (_, activation) = ACTIVATIONS.iter().find(|(ours, _)| *ours == sizes.activation)?;
    let settings = [
        ("activation_function", json!(activation[0])),
        ("architectures", json!(["GPT2LMHeadModel"])),
        ("attn_pdrop", json!(sizes.dropout)),
        ("embd_pdrop", json!(sizes.dropout)),
        ("layer_norm_epsilon", json!(EPSILON)),
        ("model_type", json!("gpt2")),
        ("n_embd", json!(sizes.width)),
        ("n_head", json!(sizes.heads)),
        ("n_inner", json!(null)),
        ("n_layer", json!(sizes.layers)),
        ("n_positions", json!(sizes.positions)),
        ("resid_pdrop", json!(sizes.dropout)),
        ("tie_word_embeddings", json!(sizes.tied)),
        ("vocab_size", json!(sizes.vocabulary)),
    ];
    Some(settings.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}
