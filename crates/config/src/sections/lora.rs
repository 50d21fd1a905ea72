//! The keys of `[lora]`.

use std::path::PathBuf;

use keys::{Interval, Row, Takes, choice, section};
use nn::{HuggingFaceModel, Lora, LoraScaling, MOST_EXTENT};

use crate::choices::{LoraBase, path_value, read_path};
use crate::paths;

section! {
    /// `[lora]`: low-rank adapters, trained on top of a frozen model.
    pub struct LoraSection = "lora" {
        /// An adapter folder in PEFT's format, relative to the configuration file. Settings that are not
        /// configured come from its adapter_config.json, the initial values from its safetensors.
        from: Option<PathBuf> = Row::new(Takes::Text, read_path, path_value)
            .default("\"\"")
            .any_bits()
            .local()
            .finish(|path, raw| paths::file(path, raw, LoraSection::from, "folder of adapters"));
        /// The rank of the adapters; 0: no adapters.
        rank: usize = Row::count(0, MOST_EXTENT).default("0");
        /// The numerator of the adapters' scaling factor, which `scaling` defines.
        alpha: f64 = Row::number(Interval::NotNegative).derived("the rank", |raw| {
            Ok((raw.integer(LoraSection::rank)? as f64).into())
        });
        /// The adapters' scaling factor: `alpha` divided by the rank, or by its square root (rsLoRA).
        scaling: LoraScaling = choice!(LoraScaling, LoraScaling::ALL).default("\"alpha/rank\"");
        /// Ranks of individual modules, such as "q_proj=32" or "*.layers.0.*=8". Names are written as in
        /// `targets`; the first match is used.
        rank_pattern: Vec<String> = Row::text_or_texts().default("[]");
        /// Values of `alpha` of individual modules, written as in `rank_pattern`.
        alpha_pattern: Vec<String> = Row::text_or_texts().default("[]");
        /// The learning rate of the B matrices as a multiple of `optim.learning_rate`. LoRA+ uses this; its
        /// authors recommend 16.
        b_learning_rate: f64 = Row::number(Interval::Positive).default("1");
        /// Dropout probability of the adapters' inputs.
        dropout: f64 = Row::number(Interval::Fraction).default("0");
        /// The linear layers that get an adapter: names of modules or their endings, as in PEFT, such as
        /// "q_proj" or "c_attn"; globs of names; or "all-linear".
        targets: Vec<String> = Row::text_or_texts().default("[\"all-linear\"]");
        /// Modules trained in full, without adapters: names as in `targets`, or of enclosing modules, such as
        /// "embed_tokens" or "lm_head". PEFT's `modules_to_save`.
        train_also: Vec<String> = Row::text_or_texts().default("[]");
        /// The storage of the frozen matrices of linear layers, except the head. "compute" is the type of
        /// other weights. "bf16" and "f16" keep the values of a folder of that type, in half the bytes of
        /// f32. The others are codes that each use decodes, with an 8-bit scale for each block of 64
        /// elements: bitsandbytes' NF4 with double quantisation, 4-bit integers, or E4M3.
        base: LoraBase = choice!(LoraBase, LoraBase::ALL).default("\"compute\"").decides_times();
    }
}

impl LoraSection {
    /// Returns the adapters of a model, with module names of Hugging Face's format if the model has one;
    /// `None` for rank 0.
    ///
    /// # Errors
    /// The key with an invalid name or value, and a sentence about it.
    pub(crate) fn adapters(
        &self,
        model: Option<&HuggingFaceModel>,
    ) -> Result<Option<Lora>, (&'static str, String)> {
        let LoraSection { rank, alpha, dropout, ref targets, base, .. } = *self;
        if rank == 0 {
            return Ok(None);
        }
        let refused = |key| move |reason| (key, reason);
        let tensors = model.map_or(&[][..], |model| &model.tensors);
        let lora = Lora::new(rank, alpha, dropout, targets, tensors).with_scaling(self.scaling);
        let lora = lora.of_folder(self.from.is_some()).beside(base.alphabet()).beside_values(base.dtype());
        let lora = lora.with_rank_pattern(&self.rank_pattern).map_err(refused(Self::rank_pattern))?;
        let lora = lora.with_alpha_pattern(&self.alpha_pattern).map_err(refused(Self::alpha_pattern))?;
        lora.with_trained(&self.train_also, model).map_err(refused(Self::train_also)).map(Some)
    }
}
