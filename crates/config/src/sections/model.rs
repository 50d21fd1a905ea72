//! The keys of `[model]` that every family has.

use std::path::PathBuf;

use keys::{Row, Takes, section};

use crate::choices::{path_value, read_path};
use crate::paths;

section! {
    /// The key of `[model]` that every family has.
    pub struct ModelSection = "model" {
        /// The family of the model. The other keys of `[model]` belong to a family each.
        kind: String = Row::text();
        /// A folder of Hugging Face, relative to the configuration: the family and the sizes that are not
        /// written come from its config.json, and the initial weights from its safetensors.
        from: Option<PathBuf> = Row::new(Takes::Text, read_path, path_value)
            .default("\"\"")
            .any_bits()
            .local()
            .finish(|path, raw| paths::file(path, raw, ModelSection::from, "folder of the model"));
        /// Whether the vocabulary of the folder `from` grows to that of the tokenizer, rounded up to a
        /// multiple of 128, or to `vocabulary`: the new rows of the token embedding and the head are the mean
        /// of the others.
        resize_vocabulary: bool = Row::flag().default("false").any_bits();
        /// Whether only sizes come from the folder `from`, and initial weights are random.
        from_config: bool = Row::flag().default("false").any_bits();
    }
}
