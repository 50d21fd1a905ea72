//! `llama`, `mistral`, `qwen2` and `qwen3`: the configurations and tensors of `LlamaForCausalLM` and similar
//! models. Rotary embeddings are half-split in both; queries, keys and values are rows of one parameter, and
//! so are gate and up.

use keys::Value;
use serde_json::{Map, json};
use tensor::ops::rotary::Scaling;

use super::{FolderConfig, FolderTensor, HuggingFaceConfig, HuggingFaceModel};

pub(crate) const CONFIG: HuggingFaceConfig =
    HuggingFaceConfig { model_types: &["llama", "mistral", "qwen2", "qwen3"], keys };

type Keys = Vec<(&'static str, Value)>;

/// The names of the feed-forward activations: ours, and Hugging Face's, the first of which is written.
const ACTIVATIONS: [(&str, &[&str]); 3] =
    [("silu", &["silu", "swish"]), ("gelu", &["gelu_pytorch_tanh", "gelu_new"]), ("gelu-erf", &["gelu"])];
/// The tensors with a row for each token.
const TABLES: [&str; 2] = ["model.embed_tokens.weight", "lm_head.weight"];
/// The head width of a `qwen3` that does not state it.
const QWEN3_HEAD: usize = 128;
const EPSILON: f64 = 1e-6;
const THETA: f64 = 10_000.0;

fn keys(config: &FolderConfig) -> Result<Keys, String> {
    check(config)?;
    let model_type = config.model_type()?;
    let (heads, width) = (config.count("num_attention_heads")?, config.count("hidden_size")?);
    let head = match (config.optional_count("head_dim")?, model_type) {
        (Some(head), _) => head,
        (None, "qwen3") => QWEN3_HEAD,
        (None, _) => (width / heads).max(1),
    };
    let mut keys: Keys = vec![
        ("model.layers", config.count("num_hidden_layers")?.into()),
        ("model.heads", heads.into()),
        ("model.key_value_heads", config.optional_count("num_key_value_heads")?.unwrap_or(heads).into()),
        ("model.width", width.into()),
        ("model.head_width", head.into()),
        ("model.feed_forward", config.count("intermediate_size")?.into()),
        ("model.context", config.count("max_position_embeddings")?.into()),
        ("model.vocabulary", config.count("vocab_size")?.into()),
        ("model.tied", config.flag("tie_word_embeddings")?.unwrap_or(false).into()),
        ("model.activation", activation(config)?.into()),
        ("model.qkv_bias", (model_type == "qwen2").into()),
        ("model.qk_norm", (model_type == "qwen3").into()),
        ("model.norm_epsilon", config.number("rms_norm_eps")?.unwrap_or(EPSILON).into()),
    ];
    keys.extend(rope(config)?);
    Ok(keys)
}

/// Refuses settings that no family implements.
fn check(config: &FolderConfig) -> Result<(), String> {
    config.only("attention_bias", false)?;
    config.only("mlp_bias", false)?;
    config.only("use_sliding_window", false)?;
    let other = config.texts("layer_types")?.and_then(|all| all.into_iter().find(|t| *t != "full_attention"));
    if let Some(other) = other {
        return Err(format!(
            "layer_types has \"{other}\", which is not supported; supported: \"full_attention\""
        ));
    }
    // Hugging Face drops only attention weights, and this family also the branches' results.
    if let Some(dropout) = config.number("attention_dropout")?.filter(|dropout| *dropout != 0.0) {
        return Err(format!("attention_dropout = {dropout} is not supported; supported: 0"));
    }
    // A window has no effect if use_sliding_window exists and is false.
    let window = config.optional_count("sliding_window")?.filter(|_| config.model_type() == Ok("mistral"));
    let context = config.count("max_position_embeddings")?;
    match window.filter(|window| *window < context) {
        Some(window) => Err(format!(
            "sliding_window = {window} below max_position_embeddings = {context} is not supported; supported: null"
        )),
        None => Ok(()),
    }
}

fn activation(config: &FolderConfig) -> Result<&'static str, String> {
    let theirs = config.text("hidden_act")?.unwrap_or("silu");
    let entry = ACTIVATIONS.iter().find(|(_, names)| names.contains(&theirs));
    entry.map(|(ours, _)| *ours).ok_or_else(|| {
        let built: Vec<_> = ACTIVATIONS.iter().map(|(_, names)| format!("\"{}\"", names[0])).collect();
        format!("hidden_act = \"{theirs}\" is not supported; supported: {}", built.join(", "))
    })
}

/// The rotary frequencies: `rope_theta` and `rope_scaling`, or `rope_parameters` with both.
fn rope(config: &FolderConfig) -> Result<Keys, String> {
    let parameters = config.object("rope_parameters")?;
    let theta = match &parameters {
        Some(parameters) => parameters.number("rope_theta")?,
        None => None,
    };
    let theta = theta.or(config.number("rope_theta")?).unwrap_or(THETA);
    let mut keys: Keys = vec![("model.rope_theta", theta.into())];
    let scaling = match parameters {
        Some(parameters) => Some(parameters),
        None => config.object("rope_scaling")?,
    };
    let Some(scaling) = scaling else { return Ok(keys) };
    let kind = scaling.text("rope_type")?.or(scaling.text("type")?).unwrap_or("default");
    let number =
        |key: &str| scaling.number(key)?.ok_or_else(|| format!("rope_type = \"{kind}\" has no {key}"));
    if let Some(part) = scaling.number("partial_rotary_factor")?.filter(|part| *part != 1.0) {
        return Err(format!("partial_rotary_factor = {part} is not supported; supported: 1"));
    }
    match kind {
        "default" => {}
        "linear" => keys.extend([
            ("model.rope_scaling", "linear".into()),
            ("model.rope_factor", number("factor")?.into()),
        ]),
        "llama3" => keys.extend([
            ("model.rope_scaling", "llama3".into()),
            ("model.rope_factor", number("factor")?.into()),
            ("model.rope_low_turns", number("low_freq_factor")?.into()),
            ("model.rope_high_turns", number("high_freq_factor")?.into()),
            ("model.rope_original_context", scaling.count("original_max_position_embeddings")?.into()),
        ]),
        other => {
            return Err(format!(
                "rope_type = \"{other}\" is not supported; supported: \"default\", \"linear\" and \"llama3\""
            ));
        }
    }
    Ok(keys)
}

/// Sizes of a model that determine the folder.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) key_value_heads: usize,
    pub(crate) width: usize,
    pub(crate) head_width: usize,
    pub(crate) feed_forward: usize,
    pub(crate) context: usize,
    pub(crate) vocabulary: usize,
    pub(crate) tied: bool,
    /// Our name of the activation.
    pub(crate) activation: &'static str,
    pub(crate) qkv_bias: bool,
    pub(crate) qk_norm: bool,
    pub(crate) norm_epsilon: f64,
    pub(crate) rope_theta: f64,
    pub(crate) rope_scaling: Scaling,
}

/// The model in the folder's format; `None` if transformers have no such model: normalised queries with
/// biases.
pub(crate) fn model(sizes: &Sizes) -> Option<HuggingFaceModel> {
    let Sizes { width, vocabulary, tied, .. } = *sizes;
    let table = [vocabulary, width];
    let mut tensors = vec![same("model.embed_tokens.weight", &table)];
    for layer in 0..sizes.layers {
        tensors.extend(block(layer, sizes));
    }
    tensors.push(same("model.norm.weight", &[width]));
    let mut ignored = vec!["rotary_emb.inv_freq"];
    match tied {
        true => ignored.push("lm_head.weight"),
        false => tensors.push(same("lm_head.weight", &table)),
    }
    Some(HuggingFaceModel {
        config: config(sizes)?,
        prefix: "model.",
        tensors,
        tables: TABLES.to_vec(),
        ignored,
    })
}

/// A tensor with the same name as its parameter.
fn same(name: &str, shape: &[usize]) -> FolderTensor {
    FolderTensor::whole(name.to_owned(), name.to_owned(), shape)
}

fn block(layer: usize, sizes: &Sizes) -> Vec<FolderTensor> {
    let Sizes { heads, key_value_heads, width, head_width, feed_forward, .. } = *sizes;
    let at = |part: &str| format!("model.layers.{layer}.{part}");
    let (queries, keys) = (heads * head_width, key_value_heads * head_width);
    let attention = [("q_proj", queries), ("k_proj", keys), ("v_proj", keys)];
    let mut tensors = vec![
        same(&at("input_layernorm.weight"), &[width]),
        same(&at("post_attention_layernorm.weight"), &[width]),
        same(&at("self_attn.o_proj.weight"), &[width, queries]),
        same(&at("mlp.down_proj.weight"), &[width, feed_forward]),
    ];
    tensors.extend(rows(&at("self_attn"), "qkv_proj.weight", &attention, Some(width)));
    if sizes.qkv_bias {
        tensors.extend(rows(&at("self_attn"), "qkv_proj.bias", &attention, None));
    }
    if sizes.qk_norm {
        let norm = |part: &str| same(&at(&format!("self_attn.{part}.weight")), &[head_width]);
        tensors.extend(["q_norm", "k_norm"].map(norm));
    }
    let gated = [("gate_proj", feed_forward), ("up_proj", feed_forward)];
    tensors.extend(rows(&at("mlp"), "gate_up_proj.weight", &gated, Some(width)));
    tensors
}

/// The tensors that are consecutive rows of the parameter `{prefix}.{fused}`.
fn rows(prefix: &str, fused: &str, parts: &[(&str, usize)], columns: Option<usize>) -> Vec<FolderTensor> {
    let kind = fused.rsplit('.').next().unwrap_or_default();
    let mut first_row = 0;
    let part = |(name, rows): &(&str, usize)| {
        let tensor = FolderTensor {
            name: format!("{prefix}.{name}.{kind}"),
            shape: std::iter::once(*rows).chain(columns).collect(),
            parameter: format!("{prefix}.{fused}"),
            first_row,
            transposed: false,
            counter: false,
        };
        first_row += rows;
        tensor
    };
    parts.iter().map(part).collect()
}

fn config(sizes: &Sizes) -> Option<Map<String, serde_json::Value>> {
    let (model_type, architecture) = match (sizes.qkv_bias, sizes.qk_norm) {
        (false, false) => ("llama", "LlamaForCausalLM"),
        (true, false) => ("qwen2", "Qwen2ForCausalLM"),
        (false, true) => ("qwen3", "Qwen3ForCausalLM"),
        (true, true) => return None,
    };
    let (_, names) = ACTIVATIONS.iter().find(|(ours, _)| *ours == sizes.activation)?;
    let scaling = match sizes.rope_scaling {
        Scaling::None => json!(null),
        Scaling::Linear { factor } => json!({ "factor": factor, "rope_type": "linear" }),
        Scaling::Llama3 { factor, low, high, context } => json!({
            "factor": factor,
            "high_freq_factor": high,
            "low_freq_factor": low,
            "original_max_position_embeddings": context,
            "rope_type": "llama3",
        }),
    };
    let settings = [
        ("architectures", json!([architecture])),
        ("attention_bias", json!(false)),
        ("attention_dropout", json!(0.0)),
        ("head_dim", json!(sizes.head_width)),
        ("hidden_act", json!(names[0])),
        ("hidden_size", json!(sizes.width)),
        ("intermediate_size", json!(sizes.feed_forward)),
        ("max_position_embeddings", json!(sizes.context)),
        ("model_type", json!(model_type)),
        ("num_attention_heads", json!(sizes.heads)),
        ("num_hidden_layers", json!(sizes.layers)),
        ("num_key_value_heads", json!(sizes.key_value_heads)),
        ("rms_norm_eps", json!(sizes.norm_epsilon)),
        ("rope_scaling", scaling),
        ("rope_theta", json!(sizes.rope_theta)),
        ("tie_word_embeddings", json!(sizes.tied)),
        ("use_sliding_window", json!(false)),
        ("vocab_size", json!(sizes.vocabulary)),
    ];
    Some(settings.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}
