//! Modules that predict later tokens, in folders: their names, and the setting with their number.

use super::family::FolderFamily;
use super::names::NEMOTRON_H;
use super::tensors::{EMBEDDING, HEAD, PREFIX, layer_tensors, same};
use crate::hugging_face::FolderTensor;
use crate::models::llama::sizes::LlamaSizes;
use crate::parameters::MOST_MODULES;

/// Number of modules in DeepSeek-V3's `config.json` and similar ones.
const COUNT: &str = "num_nextn_predict_layers";
/// Number of modules in Qwen3.5's `config.json`.
const QWEN_COUNT: &str = "mtp_num_hidden_layers";
/// Settings with the number of modules.
pub(super) const COUNTS: [&str; 2] = [COUNT, QWEN_COUNT];
/// Prefix of the modules' tensors in folders of Qwen3-Next, Qwen3.5 and Nemotron-H.
const MTP: &str = "mtp.";
/// Parts of a module, and their names in Qwen's folders.
const QWEN_PARTS: [(&str, &str); 4] = [
    ("enorm.", "pre_fc_norm_embedding."),
    ("hnorm.", "pre_fc_norm_hidden."),
    ("eh_proj.", "fc."),
    ("shared_head.norm.", "norm."),
];

/// Parts of the second layer of a module in Nemotron-H's folders, and their names; all others are of the
/// first one.
const SECOND: [(&str, &str); 3] =
    [("post_attention_layernorm.", "norm."), ("mlp.", "mixer."), ("shared_head.norm.", "final_layernorm.")];
/// Number of layers of a module in Nemotron-H's folders: attention, and feed-forward layers or experts.
const LAYERS: usize = 2;

/// Returns whether a family names its module as Qwen3-Next does.
fn is_qwen(family: &FolderFamily) -> bool {
    ["qwen3_next", "qwen3_5"].iter().any(|name| family.model_type.starts_with(name))
}

/// Returns the setting with the number of modules; `None` for a family without such a setting.
pub(super) fn count_name(family: &FolderFamily) -> Option<&'static str> {
    match is_qwen(family) {
        true => Some(QWEN_COUNT),
        false => family.reads(COUNT).then_some(COUNT),
    }
}

/// Returns the prefix of the parameters of module `index`.
pub(super) fn prefix(sizes: &LlamaSizes, index: usize) -> String {
    format!("{PREFIX}layers.{}.", sizes.layers + index)
}

/// Returns the tensors of the first `modules` modules.
pub(super) fn tensors(sizes: &LlamaSizes, family: &FolderFamily, modules: usize) -> Vec<FolderTensor> {
    (0..modules).flat_map(|index| module(sizes, family, index)).collect()
}

fn module(sizes: &LlamaSizes, family: &FolderFamily, index: usize) -> Vec<FolderTensor> {
    let prefix = prefix(sizes, index);
    let part = |part: &str, shape: &[usize]| same(&format!("{prefix}{part}.weight"), shape);
    let mut tensors = vec![part("eh_proj", &[sizes.width, 2 * sizes.width])];
    if sizes.norm_weights {
        let norms = ["enorm", "hnorm", "shared_head.norm"];
        tensors.extend(norms.map(|norm| part(norm, &[sizes.width])));
    }
    for layer in std::iter::once(sizes.layer_of_modules()).chain(sizes.feed_forward_of_modules()) {
        tensors.extend(layer_tensors(sizes, family, [sizes.layers + index, layer]));
    }
    for tensor in &mut tensors {
        let Some(rest) = tensor.name.strip_prefix(&prefix) else { continue };
        let renamed = |parts: &[(&str, &str)]| {
            let part = |(ours, theirs): &(&str, &str)| Some(format!("{theirs}{}", rest.strip_prefix(*ours)?));
            parts.iter().find_map(part)
        };
        if family.model_type == NEMOTRON_H {
            let first = LAYERS * index;
            let second = renamed(&SECOND).map(|part| (first + 1, part));
            let (layer, part) = second.unwrap_or_else(|| (first, rest.to_owned()));
            tensor.name = format!("{MTP}layers.{layer}.{part}");
        } else if is_qwen(family) && index == 0 {
            let own = renamed(&QWEN_PARTS).unwrap_or_else(|| format!("layers.0.{rest}"));
            tensor.name = format!("{MTP}{own}");
        }
    }
    tensors
}

/// Returns the tensors of modules that repeat the token table and the output head, each with the original.
pub(super) fn copies(sizes: &LlamaSizes, modules: usize) -> Vec<(String, &'static str)> {
    let head = if sizes.tied { EMBEDDING } else { HEAD };
    let of_module = |index: usize| {
        let name = |part: &str| format!("{}{part}.weight", prefix(sizes, index));
        [(name("embed_tokens"), EMBEDDING), (name("shared_head.head"), head)]
    };
    (0..modules).flat_map(of_module).collect()
}

/// Returns prefixes of the tensors of modules after the first `modules`, which a folder may have.
pub(super) fn unused(sizes: &LlamaSizes, family: &FolderFamily, modules: usize) -> Vec<String> {
    let is_nemotron = family.model_type == NEMOTRON_H;
    if is_qwen(family) || is_nemotron {
        // Qwen's names have room for one module.
        let [used, all] =
            if is_nemotron { [modules, MOST_MODULES].map(|count| LAYERS * count) } else { [1, MOST_MODULES] };
        return match modules {
            0 => vec![MTP.to_owned()],
            _ => (used..all).map(|index| format!("{MTP}layers.{index}.")).collect(),
        };
    }
    match count_name(family) {
        Some(_) => (modules..MOST_MODULES).map(|index| prefix(sizes, index)).collect(),
        None => Vec::new(),
    }
}
