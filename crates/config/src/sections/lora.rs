//! The keys of `[lora]`.

use std::path::PathBuf;

use keys::{Interval, Row, Takes, choice, section};
use nn::{FolderTensor, Lora, MOST_EXTENT};

use crate::choices::{LoraBase, path_value, read_path};
use crate::paths;

section! {
    /// `[lora]`: low-rank adapters, which alone are trained beside the frozen model.
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
        /// The factor of an adapter is `alpha` / `rank`.
        alpha: f64 = Row::number(Interval::NotNegative).derived("the rank", |raw| {
            Ok((raw.integer(LoraSection::rank)? as f64).into())
        });
        /// The probability of dropout of an adapter's input.
        dropout: f64 = Row::number(Interval::Fraction).default("0");
        /// The linear layers with an adapter: names of modules or their ends, as PEFT takes them, such as
        /// "q_proj" or "c_attn", globs of names, or "all-linear".
        targets: Vec<String> = Row::text_or_texts().default("[\"all-linear\"]");
        /// The learning rate of the matrices B, as a multiple of `optim.learning_rate`: LoRA+, whose authors
        /// recommend 16.
        b_learning_rate: f64 = Row::number(Interval::Positive).default("1");
        /// The storage of the frozen matrices of linear layers but the head: in `precision.compute`, or in
        /// codes that each use decodes, with 8-bit scales of blocks of 64 elements: bitsandbytes' NF4 with
        /// double quantisation, 4-bit integers, or E4M3.
        base: LoraBase = choice!(LoraBase, LoraBase::ALL).default("\"compute\"").decides_times();
    }
}

impl LoraSection {
    /// The adapters of a model with these tensors in Hugging Face's format; `None` for rank 0.
    pub(crate) fn of(&self, tensors: &[FolderTensor]) -> Option<Lora> {
        let LoraSection { rank, alpha, dropout, ref targets, base, .. } = *self;
        let lora = || {
            let lora = Lora::new(rank, alpha, dropout, targets, tensors);
            lora.of_folder(self.from.is_some()).beside(base.alphabet())
        };
        (rank > 0).then(lora)
    }
}
