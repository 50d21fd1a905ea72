//! The programs whose files can be converted, recognised by their keys.

use serde_json::{Map, Value};

use crate::error::{RecipeError, Result};

system::names! {
    /// A program whose files of arguments can be converted.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Program {
        /// Axolotl's configurations.
        Axolotl = "axolotl",
        /// TRL's configurations, or arguments of Hugging Face's Trainer.
        Trl = "trl",
        /// LLaMA-Factory's arguments.
        LlamaFactory = "llama-factory",
    }
}

/// Keys that only axolotl has.
const AXOLOTL: [&str; 13] = [
    "base_model",
    "sequence_len",
    "adapter",
    "micro_batch_size",
    "sample_packing",
    "val_set_size",
    "lora_target_linear",
    "dataset_prepared_path",
    "flash_attention",
    "rl",
    "num_epochs",
    "pad_to_sequence_len",
    "special_tokens",
];
/// Keys that only LLaMA-Factory has.
const LLAMA_FACTORY: [&str; 11] = [
    "stage",
    "finetuning_type",
    "cutoff_len",
    "template",
    "lora_rank",
    "lora_target",
    "dataset_dir",
    "quantization_bit",
    "pref_beta",
    "pref_loss",
    "overwrite_cache",
];
/// Keys of Hugging Face's Trainer and of TRL.
const TRL: [&str; 12] = [
    "per_device_train_batch_size",
    "num_train_epochs",
    "gradient_accumulation_steps",
    "lr_scheduler_type",
    "output_dir",
    "learning_rate",
    "max_steps",
    "dataset_name",
    "model_name_or_path",
    "use_peft",
    "packing",
    "beta",
];

impl Program {
    /// Returns the program's name, for sentences.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Program::Axolotl => "axolotl",
            Program::Trl => "TRL",
            Program::LlamaFactory => "LLaMA-Factory",
        }
    }

    /// Returns the program to which the arguments belong, and the keys that identify it.
    ///
    /// # Errors
    /// The keys belong to no known program. `name` is the file's name in the error.
    pub(super) fn recognise(arguments: &Map<String, Value>, name: &str) -> Result<(Self, Vec<&'static str>)> {
        let present = |keys: &[&'static str]| -> Vec<&'static str> {
            keys.iter().copied().filter(|key| arguments.contains_key(*key)).collect()
        };
        let own = [(Self::Axolotl, present(&AXOLOTL)), (Self::LlamaFactory, present(&LLAMA_FACTORY))];
        let most = own.into_iter().max_by_key(|(_, keys)| keys.len()).filter(|(_, keys)| !keys.is_empty());
        let shared = || Some((Self::Trl, present(&TRL))).filter(|(_, keys)| !keys.is_empty());
        most.or_else(shared).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|program| program.name()).collect();
            RecipeError::Refused(format!(
                "{name}: its keys are those of no program that is read here: --format names one of {}",
                names.join(", ")
            ))
        })
    }
}
