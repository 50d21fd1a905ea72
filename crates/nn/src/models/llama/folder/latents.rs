//! Latents of attention in folders of DeepSeek-V3 and GLM-4.7 Flash.

use serde_json::{Value as Json, json};

use super::family::LatentDefaults;
use super::family::{FolderOption, LATENT_NAMES, ROTATED};
use super::options::whole;
use super::rope;
use crate::hugging_face::FolderTensor;
use crate::models::llama::sizes::LlamaSizes;

/// Epsilon of the norms of latents; it does not depend on the configured epsilon.
const EPSILON: f64 = 1e-6;

/// Translates the widths of latents and of the parts of heads.
pub(super) const LATENTS: FolderOption = FolderOption {
    names: LATENT_NAMES,
    read: |config, family| {
        let LatentDefaults { queries: absent, values, .. } = family.absent.latents;
        let latents = config.optional_count("kv_lora_rank")?.unwrap_or(512);
        let queries = match config.has("q_lora_rank") {
            true => config.optional_count("q_lora_rank")?.unwrap_or(0),
            false => absent,
        };
        Ok(vec![
            (LlamaSizes::latent_width, latents.into()),
            (LlamaSizes::query_latent_width, queries.into()),
            (LlamaSizes::rope_width, config.optional_count("qk_rope_head_dim")?.unwrap_or(ROTATED).into()),
            (LlamaSizes::latent_epsilon, EPSILON.into()),
            (LlamaSizes::value_width, config.optional_count("v_head_dim")?.unwrap_or(values).into()),
            (LlamaSizes::rope_interleaved, config.flag("rope_interleave")?.unwrap_or(true).into()),
        ])
    },
    write: |sizes| {
        let rotated = sizes.rotated();
        let queries = sizes.query_latent_width;
        vec![
            ("head_dim", json!(rotated)),
            ("kv_lora_rank", json!(sizes.latent_width)),
            ("q_lora_rank", json!((queries > 0).then_some(queries))),
            ("qk_head_dim", json!(sizes.head_width)),
            ("qk_nope_head_dim", json!(sizes.head_width - rotated)),
            ("qk_rope_head_dim", json!(rotated)),
            ("rope_interleave", json!(sizes.rope_interleaved)),
            ("v_head_dim", json!(sizes.value_width)),
        ]
    },
};

/// Translates the rotary frequencies of the rotated columns, and the factor of scores that follows from
/// YaRN's `mscale_all_dim`.
pub(super) const LATENT_ROPE: FolderOption = FolderOption {
    names: &["rope_theta", "rope_scaling", "rope_parameters", "original_max_position_embeddings"],
    read: |config, family| {
        let mut keys = rope::read_flat(config, family)?;
        let scaling = rope::dialects::flat(config)?;
        if let Some(part) = scaling.number("partial_rotary_factor")?.filter(|part| *part != 1.0) {
            return Err(format!("partial_rotary_factor = {part} is not supported; supported: 1"));
        }
        let all = scaling.number("mscale_all_dim")?.unwrap_or(0.0);
        let factor = scaling.number("factor")?;
        if let Some(factor) = factor.filter(|_| all != 0.0) {
            let head = family.head_width(config)? as f64;
            keys.push((LlamaSizes::attention_scale, score_factor(head, all, factor).into()));
        }
        Ok(keys)
    },
    write: |sizes| {
        let all_columns = LlamaSizes { rope_width: 0, ..sizes.clone() };
        let mut settings = rope::write_flat(&all_columns);
        let scaling = settings.iter_mut().find(|(name, _)| *name == "rope_scaling");
        if let (Some((_, Json::Object(scaling))), Some(all)) = (scaling, all_dim(sizes)) {
            scaling.insert("mscale_all_dim".to_owned(), whole(all));
        }
        settings
    },
};

/// Returns the factor of scores for heads of `width` columns.
fn score_factor(width: f64, all_dim: f64, factor: f64) -> f64 {
    let growth = if factor <= 1.0 { 1.0 } else { 0.1 * all_dim * libm::log(factor) + 1.0 };
    growth * growth / width.sqrt()
}

/// Returns the `mscale_all_dim` that results in the model's factor of scores; `None` for the default factor.
fn all_dim(sizes: &LlamaSizes) -> Option<f64> {
    let scale = sizes.attention_scale;
    let width = sizes.head_width as f64;
    let growth = (scale * width.sqrt()).sqrt();
    (scale > 0.0 && sizes.rope_factor > 1.0).then(|| (growth - 1.0) / (0.1 * libm::log(sizes.rope_factor)))
}

/// Returns the tensors of a layer's queries, keys and values.
pub(super) fn qkv(prefix: &str, sizes: &LlamaSizes) -> Vec<FolderTensor> {
    let LlamaSizes { width, latent_width, query_latent_width, heads, .. } = *sizes;
    let part = |name: &str, kind: &str, shape: &[usize]| {
        let name = format!("{prefix}.{name}.{kind}");
        FolderTensor::whole(name.clone(), name, shape)
    };
    let same = |name: &str, shape: &[usize]| part(name, "weight", shape);
    let rotated = sizes.rotated();
    let [queries, keys_values] =
        [heads * sizes.head_width, heads * (sizes.head_width - rotated + sizes.value_width)];
    let mut tensors = match query_latent_width {
        0 => vec![same("q_proj", &[queries, width])],
        latents => vec![
            same("q_a_proj", &[latents, width]),
            same("q_a_layernorm", &[latents]),
            same("q_b_proj", &[queries, latents]),
        ],
    };
    tensors.extend([
        same("kv_a_proj_with_mqa", &[latent_width + rotated, width]),
        same("kv_a_layernorm", &[latent_width]),
        same("kv_b_proj", &[keys_values, latent_width]),
    ]);
    if sizes.qkv_bias {
        tensors.push(part("kv_a_proj_with_mqa", "bias", &[latent_width + rotated]));
        tensors.extend((query_latent_width > 0).then(|| part("q_a_proj", "bias", &[query_latent_width])));
    }
    tensors
}
