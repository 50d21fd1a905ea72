//! The keys of `[model]` that every family has.

use std::path::PathBuf;

use keys::{Row, Takes, section};

use crate::choices::{path_value, read_path};
use crate::paths;

section! {
    /// The keys of `[model]` that every family has.
    pub struct ModelSection = "model" {
        /// The model family. Each of the other keys of `[model]` belongs to one family.
        kind: String = Row::text();
        /// A Hugging Face folder, relative to the configuration file. The family and sizes that are not
        /// configured come from its config.json, the initial weights from its safetensors.
        from: Option<PathBuf> = Row::new(Takes::Text, read_path, path_value)
            .default("\"\"")
            .any_bits()
            .local()
            .finish(|path, raw| paths::file(path, raw, ModelSection::from, "folder of the model"));
        /// Whether to enlarge the vocabulary of the folder `from` to the tokenizer's, rounded up to a
        /// multiple of 128, or to `vocabulary`. New rows of the token embedding and the head are the mean of
        /// the existing rows.
        resize_vocabulary: bool = Row::flag().default("false").any_bits();
        /// Whether to take only sizes from the folder `from` and start with random weights.
        from_config: bool = Row::flag().default("false").any_bits();
    }
}
