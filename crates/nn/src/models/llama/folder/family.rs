//! A family of Hugging Face folders: how its models differ from Llama's.

use keys::Value;
use serde_json::Value as Json;

use crate::hugging_face::{FolderConfig, FolderTensor};
use crate::models::llama::sizes::LlamaSizes;

/// Configuration keys, each as `model.key` with its value.
pub(super) type Keys = Vec<(&'static str, Value)>;
/// Settings of a `config.json`.
pub(super) type Settings = Vec<(&'static str, Json)>;

/// A family of folders. Its options translate settings that not all families have.
pub(super) struct FolderFamily {
    /// The value of `model_type`.
    pub(super) model_type: &'static str,
    /// The entry of `architectures`.
    pub(super) architecture: &'static str,
    /// The setting with the number of positions.
    pub(super) positions: &'static str,
    /// The setting with the feed-forward activation.
    pub(super) activation: &'static str,
    /// Our name of the activation, for a family whose folders state "silu" but compute another.
    pub(super) own_activation: Option<&'static str>,
    /// Defaults of settings that a folder omits.
    pub(super) absent: Absent,
    /// Returns the keys with equal values in all models of the family.
    pub(super) fixed: fn(&FolderConfig) -> Result<Keys, String>,
    pub(super) options: &'static [FolderOption],
    /// Whether queries, keys and values are one tensor, and gate and up another.
    pub(super) is_fused: bool,
    /// Names of the experts' tensors, if the family has experts.
    pub(super) experts: Option<ExpertLayout>,
    /// Names of the norms of queries and of keys within attention.
    pub(super) qk_norms: [&'static str; 2],
    /// Changes names and shapes of tensors to those in released folders, if these differ from Llama's.
    pub(super) released: Option<ChangeTensors>,
    /// Changes names and shapes of tensors to those that transformers 5 writes, if these differ again.
    pub(super) rewritten: Option<ChangeTensors>,
}

/// Changes the names and shapes of a model's tensors.
pub(super) type ChangeTensors = fn(&mut [FolderTensor], &LlamaSizes);

/// The settings that most families share. Every family has a name and options of its own.
pub(super) const USUAL: FolderFamily = FolderFamily {
    model_type: "",
    architecture: "",
    positions: POSITIONS,
    activation: "hidden_act",
    own_activation: None,
    absent: LLAMA,
    fixed: none,
    options: &[],
    is_fused: false,
    experts: None,
    qk_norms: ["q_norm", "k_norm"],
    released: None,
    rewritten: None,
};

/// Names of the experts' tensors in a folder.
#[derive(Clone, Copy)]
pub(super) struct ExpertLayout {
    /// Module of the router and the experts, relative to the layer.
    pub(super) module: &'static str,
    /// Name of the router within the module.
    pub(super) router: &'static str,
    /// Names of an expert's gate, up and down matrices. `None`: the tensors contain all experts, transposed,
    /// with alternating columns of gate and up.
    pub(super) parts: Option<[&'static str; 3]>,
    /// Name of the router's corrections within the module, if it has any.
    pub(super) correction: &'static str,
    /// Whether the corrections are a matrix of one row instead of a vector.
    pub(super) correction_is_matrix: bool,
}

/// The usual names of the experts' tensors.
pub(super) const ROUTER: ExpertLayout = ExpertLayout {
    module: "mlp",
    router: "gate",
    parts: Some(["gate_proj", "up_proj", "down_proj"]),
    correction: "gate.e_score_correction_bias",
    correction_is_matrix: false,
};

/// Defaults of settings that a folder omits.
#[derive(Clone, Copy)]
pub(super) struct Absent {
    /// `head_dim`; `None` means `hidden_size` / `num_attention_heads`.
    pub(super) head_width: Option<usize>,
    /// `num_key_value_heads`; `None` means `num_attention_heads`.
    pub(super) key_value_heads: Option<usize>,
    /// `tie_word_embeddings`.
    pub(super) tied: bool,
    /// `rms_norm_eps`.
    pub(super) epsilon: f64,
    /// `rope_theta` of layers without a window, and of layers with one.
    pub(super) theta: [f64; 2],
    /// `sliding_window`.
    pub(super) window: Option<usize>,
    /// `layer_types`: returns whether a layer has the window, from its index and the configured period, if
    /// any.
    pub(super) windowed: fn(usize, Option<usize>) -> bool,
    /// `attn_logit_softcapping` and `final_logit_softcapping`; 0 for no cap.
    pub(super) caps: [f64; 2],
    /// `pad_token_id`.
    pub(super) padding: Option<usize>,
    /// Widths of latents and of the parts of heads.
    pub(super) latents: LatentDefaults,
}

/// Default widths in a folder with latents.
#[derive(Clone, Copy)]
pub(super) struct LatentDefaults {
    /// `q_lora_rank`.
    pub(super) queries: usize,
    /// `qk_nope_head_dim`.
    pub(super) plain: usize,
    /// `v_head_dim`.
    pub(super) values: usize,
}

/// Llama's defaults.
pub(super) const LLAMA: Absent = Absent {
    head_width: None,
    key_value_heads: None,
    tied: false,
    epsilon: 1e-6,
    theta: [10_000.0; 2],
    window: None,
    windowed: |_, _| true,
    caps: [0.0; 2],
    padding: None,
    latents: LatentDefaults { queries: 1536, plain: 128, values: 128 },
};

/// Settings of families with latents: the widths of latents and of the parts of heads.
pub(super) const LATENT_NAMES: &[&str] = &[
    "kv_lora_rank",
    "q_lora_rank",
    "qk_head_dim",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "rope_interleave",
];
/// Usual name of the number of positions.
pub(super) const POSITIONS: &str = "max_position_embeddings";
/// Epsilon of families with layer norms.
pub(super) const LAYER_NORM_EPSILON: &str = "layer_norm_eps";
/// Names that the epsilon of norms has in some families.
const EPSILONS: [&str; 2] = [LAYER_NORM_EPSILON, "layer_norm_epsilon"];
/// Default number of rotated columns of a head in a folder with latents.
pub(super) const ROTATED: usize = 64;

/// A group of settings that some families have, translated in both directions.
pub(super) struct FolderOption {
    /// Names of the settings in a `config.json`.
    pub(super) names: &'static [&'static str],
    /// Translates the settings to configuration keys.
    pub(super) read: fn(&FolderConfig, &FolderFamily) -> Result<Keys, String>,
    /// Translates a model's sizes to the settings, as far as these can express them.
    pub(super) write: fn(&LlamaSizes) -> Settings,
}

impl FolderFamily {
    /// Returns the number of values per head.
    pub(super) fn head_width(&self, config: &FolderConfig) -> Result<usize, String> {
        if self.has_latents() {
            let part = |name: &str, absent| Ok::<_, String>(config.optional_count(name)?.unwrap_or(absent));
            return Ok(
                part("qk_nope_head_dim", self.absent.latents.plain)? + part("qk_rope_head_dim", ROTATED)?
            );
        }
        let heads = config.count("num_attention_heads")?;
        let width = config.count("hidden_size")?;
        let own = match config.has("head_dim") {
            true => config.optional_count("head_dim")?,
            false => self.absent.head_width,
        };
        Ok(own.unwrap_or((width / heads).max(1)))
    }

    /// Returns the number of key and value heads.
    pub(super) fn key_value_heads(&self, config: &FolderConfig) -> Result<usize, String> {
        let own = match config.has("num_key_value_heads") {
            true => config.optional_count("num_key_value_heads")?,
            false => self.absent.key_value_heads,
        };
        own.map_or_else(|| config.count("num_attention_heads"), Ok)
    }

    /// Returns whether an option of the family translates the setting `name`.
    pub(super) fn reads(&self, name: &str) -> bool {
        self.options.iter().any(|option| option.names.contains(&name))
    }

    /// Returns the name of the setting with the epsilon of norms.
    pub(super) fn epsilon_name(&self) -> &'static str {
        EPSILONS.into_iter().find(|name| self.reads(name)).unwrap_or("rms_norm_eps")
    }

    /// Returns whether models of the family have latents.
    pub(super) fn has_latents(&self) -> bool {
        self.options.iter().any(|option| option.names == LATENT_NAMES)
    }
}

/// Returns whether a layer is not the last one of its period.
pub(super) fn is_not_last(layer: usize, period: usize) -> bool {
    !(layer + 1).is_multiple_of(period)
}

/// Returns no keys, for families in which every key may differ between models.
pub(super) fn none(_: &FolderConfig) -> Result<Keys, String> {
    Ok(Keys::new())
}
