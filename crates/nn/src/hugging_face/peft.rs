//! PEFT's format of low-rank adapters: `adapter_config.json`, and the names of the matrices.

use serde_json::json;

use super::{FolderConfig, FolderTensor, HuggingFaceModel};
use crate::lora::Lora;

/// Prefix of the names of the matrices.
const PREFIX: &str = "base_model.model.";

/// The settings of adapters in an `adapter_config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterConfig {
    /// The rank.
    pub r: usize,
    /// Numerator of the factor.
    pub alpha: f64,
    /// Probability of dropout.
    pub dropout: f64,
    /// Names of modules.
    pub targets: Vec<String>,
    /// The model that they belong to: a folder, or a name on Hugging Face's hub.
    pub base: Option<String>,
}

impl AdapterConfig {
    /// Reads the text of an `adapter_config.json`.
    ///
    /// # Errors
    /// Other text; adapters of another kind.
    pub fn parse(text: &str) -> Result<Self, String> {
        let config = FolderConfig::parse(text)?;
        match config.text("peft_type")? {
            Some("LORA") => {}
            other => {
                return Err(format!("peft_type = \"{}\" is not built: \"LORA\" is", other.unwrap_or("")));
            }
        }
        match config.text("bias")? {
            None | Some("none") => {}
            Some(other) => return Err(format!("bias = \"{other}\" is not built: \"none\" is")),
        }
        for key in ["use_dora", "use_rslora", "lora_bias"] {
            config.only(key, false)?;
        }
        for key in ["modules_to_save", "layers_to_transform", "rank_pattern", "alpha_pattern"] {
            if !config.is_empty(key) {
                return Err(format!("{key} is not built"));
            }
        }
        let targets = match config.text("target_modules") {
            Ok(Some(all)) => vec![all.to_owned()],
            _ => config.texts("target_modules")?.unwrap_or_default().into_iter().map(str::to_owned).collect(),
        };
        let r = config.count("r")?;
        Ok(AdapterConfig {
            r,
            alpha: config.number("lora_alpha")?.unwrap_or(r as f64),
            dropout: config.number("lora_dropout")?.unwrap_or(0.0),
            targets,
            base: config.text("base_model_name_or_path")?.map(str::to_owned),
        })
    }
}

impl Lora {
    /// Returns the adapters, whose matrices are `tensors`, as a PEFT folder. `base` is the folder of their
    /// model, and `is_transposed` whether linear layers are `[inputs, outputs]` there.
    #[must_use]
    pub fn folder(
        &self,
        tensors: &[FolderTensor],
        base: Option<&str>,
        is_transposed: bool,
    ) -> HuggingFaceModel {
        let modules = tensors.iter().filter_map(|tensor| tensor.name.strip_suffix(".lora_A.weight"));
        let settings = [
            ("base_model_name_or_path", json!(base)),
            ("bias", json!("none")),
            ("fan_in_fan_out", json!(is_transposed)),
            ("inference_mode", json!(true)),
            ("init_lora_weights", json!(true)),
            ("lora_alpha", number(self.alpha)),
            ("lora_dropout", json!(self.dropout)),
            ("modules_to_save", json!(null)),
            ("peft_type", json!("LORA")),
            ("r", json!(self.r)),
            ("target_modules", modules.collect()),
            ("task_type", json!("CAUSAL_LM")),
            ("use_dora", json!(false)),
            ("use_rslora", json!(false)),
        ];
        let named = |tensor: &FolderTensor| FolderTensor {
            name: format!("{PREFIX}{}", tensor.name),
            ..tensor.clone()
        };
        HuggingFaceModel {
            config: settings.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
            prefix: PREFIX,
            tensors: tensors.iter().map(named).collect(),
            copies: Vec::new(),
            tables: Vec::new(),
            ignored: Vec::new(),
        }
    }
}

/// Returns a whole number without a decimal point, as PEFT writes it.
fn number(value: f64) -> serde_json::Value {
    if value.fract() == 0.0 && value.abs() < 1e15 { json!(value as i64) } else { json!(value) }
}
