//! The keys of `[lora]`.

use std::path::PathBuf;

use keys::{Interval, Row, Takes, choice, section};
use nn::{HuggingFaceModel, Lora, LoraScaling, MOST_EXTENT};

use crate::choices::{LoraBase, path_value, read_path};
use crate::paths;

section! {
    /// `[lora]`: low-rank adapters, which are trained beside a frozen model.
    pub struct LoraSection = "lora" {
        /// A folder of adapters in PEFT's format, relative to the configuration: settings that are not
        /// written come from its adapter_config.json, and the initial values from its safetensors.
        from: Option<PathBuf> = Row::new(Takes::Text, read_path, path_value)
            .default("\"\"")
            .any_bits()
            .local()
            .finish(|path, raw| paths::file(path, raw, LoraSection::from, "folder of adapters"));
        /// The rank of the adapters; 0: there are none.
        rank: usize = Row::count(0, MOST_EXTENT).default("0");
        /// The factor of an adapter is `alpha` / `rank`, unless `scaling` is "rslora".
        alpha: f64 = Row::number(Interval::NotNegative).derived("the rank", |raw| {
            Ok((raw.integer(LoraSection::rank)? as f64).into())
        });
        /// The factor of an adapter: `alpha` divided by the rank, or by its square root (rsLoRA).
        scaling: LoraScaling = choice!(LoraScaling, LoraScaling::ALL).default("\"alpha/rank\"");
        /// Ranks of single modules, such as "q_proj=32" or "*.layers.0.*=8": names as in `targets`, of which
        /// the first that matches decides.
        rank_pattern: Vec<String> = Row::text_or_texts().default("[]");
        /// Values of `alpha` of single modules, as `rank_pattern` has ranks.
        alpha_pattern: Vec<String> = Row::text_or_texts().default("[]");
        /// The learning rate of the matrices B, as a multiple of `optim.learning_rate`: LoRA+, whose authors
        /// recommend 16.
        b_learning_rate: f64 = Row::number(Interval::Positive).default("1");
        /// The probability of dropout of an adapter's input.
        dropout: f64 = Row::number(Interval::Fraction).default("0");
        /// The linear layers with an adapter: names of modules or their ends, as PEFT takes them, such as
        /// "q_proj" or "c_attn", globs of names, or "all-linear".
        targets: Vec<String> = Row::text_or_texts().default("[\"all-linear\"]");
        /// Modules that are trained wholly, without adapters: names as in `targets`, or of modules around
        /// them, such as "embed_tokens" or "lm_head". PEFT's `modules_to_save`.
        train_also: Vec<String> = Row::text_or_texts().default("[]");
        /// The storage of the frozen matrices of linear layers but the head: in `precision.compute`, or in
        /// codes that each use decodes, with 8-bit scales of blocks of 64 elements: bitsandbytes' NF4 with
        /// double quantisation, 4-bit integers, or E4M3.
        base: LoraBase = choice!(LoraBase, LoraBase::ALL).default("\"compute\"").decides_times();
    }
}

impl LoraSection {
    /// The adapters of a model, as Hugging Face's format has it if it does; `None` for rank 0.
    ///
    /// # Errors
    /// The key of wrong names or values, and a sentence.
    pub(crate) fn of(
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
        let lora = lora.of_folder(self.from.is_some()).beside(base.alphabet());
        let lora = lora.with_rank_pattern(&self.rank_pattern).map_err(refused(Self::rank_pattern))?;
        let lora = lora.with_alpha_pattern(&self.alpha_pattern).map_err(refused(Self::alpha_pattern))?;
        lora.with_trained(&self.train_also, model).map_err(refused(Self::train_also)).map(Some)
    }
}
