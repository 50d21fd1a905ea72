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
const QWEN: &str = "mtp.";
/// Parts of a module, and their names in Qwen's folders.
const QWEN_PARTS: [(&str, &str); 4] = [
    ("enorm.", "pre_fc_norm_embedding."),
    ("hnorm.", "pre_fc_norm_hidden."),
    ("eh_proj.", "fc."),
    ("shared_head.norm.", "norm."),
];

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
    let layers = [sizes.layers + index, sizes.layer_of_modules()];
    tensors.extend(layer_tensors(sizes, family, layers));
    // Qwen's names have room for one module.
    for tensor in tensors.iter_mut().filter(|_| is_qwen(family) && index == 0) {
        let Some(rest) = tensor.name.strip_prefix(&prefix) else { continue };
        let own = QWEN_PARTS
            .iter()
            .find_map(|(ours, theirs)| rest.strip_prefix(ours).map(|end| format!("{QWEN}{theirs}{end}")));
        tensor.name = own.unwrap_or_else(|| format!("{QWEN}layers.0.{rest}"));
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
    // Blocks of modules of Nemotron-H are several layers, which cannot be trained here.
    if is_qwen(family) || family.model_type == NEMOTRON_H {
        return match modules {
            0 => vec![QWEN.to_owned()],
            _ => (1..MOST_MODULES).map(|index| format!("{QWEN}layers.{index}.")).collect(),
        };
    }
    match count_name(family) {
        Some(_) => (modules..MOST_MODULES).map(|index| prefix(sizes, index)).collect(),
        None => Vec::new(),
    }
}
