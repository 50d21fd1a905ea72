//! Kinds of input files, recognised by name.

use std::path::Path;

/// The kind of an input file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    JsonLines,
    Parquet,
}

impl Kind {
    pub(crate) fn from_name(path: &Path) -> Self {
        let plain = match extension(path) {
            "gz" | "zst" => path.with_extension(""),
            _ => path.to_path_buf(),
        };
        match extension(&plain) {
            "jsonl" | "ndjson" | "json" => Self::JsonLines,
            "parquet" => Self::Parquet,
            _ => Self::Text,
        }
    }
}

/// Returns the extension of a file's name, empty if it has none.
pub(crate) fn extension(path: &Path) -> &str {
    path.extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}
