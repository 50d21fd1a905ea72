//! A family of Hugging Face folders: what distinguishes its models from Llama's.

use keys::Value;
use serde_json::Value as Json;

use crate::hugging_face::FolderConfig;
use crate::models::llama::sizes::LlamaSizes;

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
    /// Name here of the activation that the family has whatever the folder says, which is "silu".
    pub(super) own_activation: Option<&'static str>,
    /// Values of settings that a folder leaves out.
    pub(super) absent: Absent,
    /// Values of keys that all models of the family have.
    pub(super) fixed: fn(&FolderConfig) -> Result<Keys, String>,
    pub(super) options: &'static [FolderOption],
    /// Whether queries, keys and values are one tensor, and gate and up another.
    pub(super) is_fused: bool,
    /// The layout of experts, if the family has some.
    pub(super) experts: Option<ExpertLayout>,
}

/// The names of experts' tensors in a folder.
#[derive(Clone, Copy)]
pub(super) struct ExpertLayout {
    /// The module of the router and the experts, after the layer's name.
    pub(super) module: &'static str,
    /// The router, in that module.
    pub(super) router: &'static str,
    /// Names of gate, up and down of one expert; `None`: the tensors are those of all experts together,
    /// transposed, with the columns of gate and up in turn.
    pub(super) parts: Option<[&'static str; 3]>,
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
    /// `layer_types`: whether a layer has the window, by its index and the configured period, if any.
    pub(super) windowed: fn(usize, Option<usize>) -> bool,
    /// `attn_logit_softcapping` and `final_logit_softcapping`; 0: none.
    pub(super) caps: [f64; 2],
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
    windowed: |_, _| true,
    caps: [0.0; 2],
    padding: None,
};

/// Settings of families with latents: their widths, and those of the parts of heads.
pub(super) const LATENT_NAMES: &[&str] = &[
    "kv_lora_rank",
    "q_lora_rank",
    "qk_head_dim",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "rope_interleave",
];
/// Columns of a head that rotate, if a folder with latents does not state them.
pub(super) const ROTATED: usize = 64;
/// Columns of a head that do not rotate, or of a value, if a folder with latents does not state them.
pub(super) const PLAIN: usize = 128;

/// A group of settings that some families have, translated in both directions.
pub(super) struct FolderOption {
    /// The settings in a `config.json`.
    pub(super) names: &'static [&'static str],
    /// Translates them into keys.
    pub(super) read: fn(&FolderConfig, &FolderFamily) -> Result<Keys, String>,
    /// Translates sizes into them, as far as they can express them.
    pub(super) write: fn(&LlamaSizes) -> Settings,
}

impl FolderFamily {
    /// Values in a head.
    pub(super) fn head_width(&self, config: &FolderConfig) -> Result<usize, String> {
        if self.has_latents() {
            let part = |name: &str, absent| Ok::<_, String>(config.optional_count(name)?.unwrap_or(absent));
            return Ok(part("qk_nope_head_dim", PLAIN)? + part("qk_rope_head_dim", ROTATED)?);
        }
        let heads = config.count("num_attention_heads")?;
        let width = config.count("hidden_size")?;
        let own = config.optional_count("head_dim")?.or(self.absent.head_width);
        Ok(own.unwrap_or((width / heads).max(1)))
    }

    /// Returns whether models of the family have latents.
    pub(super) fn has_latents(&self) -> bool {
        self.options.iter().any(|option| option.names == LATENT_NAMES)
    }
}

/// No fixed keys.
pub(super) fn none(_: &FolderConfig) -> Result<Keys, String> {
    Ok(Keys::new())
}
