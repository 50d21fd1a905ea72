//! Settings of MiniMax-M2: the rotated part of heads, and the types of attention of its layers.

use system::quoted::shortened;

use super::family::{FolderOption, Keys};
use super::rope;
use crate::models::llama::sizes::LlamaSizes;

/// Rotary frequencies shared by all layers; the rotated part of a head may be a number of columns.
pub(super) const ROTARY_DIM: FolderOption = FolderOption {
    names: &[
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
        "partial_rotary_factor",
        "original_max_position_embeddings",
        "rotary_dim",
    ],
    read: |config, family| {
        let mut keys = rope::read_flat(config, family)?;
        let Some(columns) = config.optional_count("rotary_dim")? else { return Ok(keys) };
        let head = family.head_width(config)?;
        match rope::dialects::flat(config)?.number("partial_rotary_factor")? {
            None if columns == head => {}
            None => keys.push((LlamaSizes::rope_width, columns.into())),
            Some(part) if (head as f64 * part) as usize == columns => {}
            Some(part) => {
                return Err(format!(
                    "rotary_dim = {columns} and partial_rotary_factor = {part} differ: keep one of them"
                ));
            }
        }
        Ok(keys)
    },
    write: rope::write_flat,
};

/// Rejects layers with linear attention, shared experts, and a model without norms of queries and keys or
/// without corrections of experts.
pub(super) const ATTENTION_TYPES: FolderOption = FolderOption {
    names: &["attn_type_list", "use_qk_norm", "qk_norm_type", "use_routing_bias", "shared_intermediate_size"],
    read: |config, _| {
        config.only("use_qk_norm", true)?;
        config.only("use_routing_bias", true)?;
        if let Some(kind) = config.text("qk_norm_type")?.filter(|kind| *kind != "per_layer") {
            let kind = shortened(kind);
            return Err(format!("qk_norm_type = \"{kind}\" is not supported; supported: \"per_layer\""));
        }
        if let Some(width) = config.whole("shared_intermediate_size")?.filter(|width| *width > 0) {
            return Err(format!("shared_intermediate_size = {width} is not supported; supported: 0"));
        }
        let types = config.counts("attn_type_list")?.unwrap_or_default();
        match types.iter().find(|kind| **kind != 1) {
            Some(kind) => Err(format!("attn_type_list has {kind}, which is not supported; supported: 1")),
            None => Ok(Keys::new()),
        }
    },
    write: |_| Vec::new(),
};
