//! A family of Hugging Face folders: what distinguishes its models from Llama's.

use keys::Value;
use serde_json::Value as Json;

use super::options::FolderOption;
use crate::hugging_face::FolderConfig;

/// Keys of `[model]`, each as `model.key` with its value.
pub(super) type Keys = Vec<(&'static str, Value)>;
/// Settings of a `config.json`.
pub(super) type Settings = Vec<(&'static str, Json)>;

/// A family of folders. Its options translate the settings that not all families have.
pub(super) struct FolderFamily {
    /// The value of `model_type`.
    pub(super) model_type: &'static str,
    /// The entry of `architectures`.
    pub(super) architecture: &'static str,
    /// The key of the feed-forward activation.
    pub(super) activation: &'static str,
    /// Values of settings that a folder leaves out.
    pub(super) absent: Absent,
    /// Values of keys that all models of the family have.
    pub(super) fixed: fn(&FolderConfig) -> Result<Keys, String>,
    pub(super) options: &'static [FolderOption],
    /// Whether queries, keys and values are one tensor, and gate and up another.
    pub(super) is_fused: bool,
}

/// Values of settings that a folder leaves out.
#[derive(Clone, Copy)]
pub(super) struct Absent {
    /// `head_dim`; `None`: `hidden_size` / `num_attention_heads`.
    pub(super) head_width: Option<usize>,
    /// `tie_word_embeddings`.
    pub(super) tied: bool,
    /// `rms_norm_eps`.
    pub(super) epsilon: f64,
    /// `rope_theta` of layers without a window and of those with one.
    pub(super) theta: [f64; 2],
    /// `sliding_window`.
    pub(super) window: Option<usize>,
    /// `pad_token_id`.
    pub(super) padding: Option<usize>,
}

/// Llama's values.
pub(super) const LLAMA: Absent = Absent {
    head_width: None,
    tied: false,
    epsilon: 1e-6,
    theta: [10_000.0; 2],
    window: None,
    padding: None,
};

/// No fixed keys.
pub(super) fn none(_: &FolderConfig) -> Result<Keys, String> {
    Ok(Keys::new())
}
