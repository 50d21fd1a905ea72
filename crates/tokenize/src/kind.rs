//! Kinds of input files, by their names.

use std::path::Path;

/// The kind of a file, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    JsonLines,
    Parquet,
}

impl Kind {
    pub(crate) fn of(path: &Path) -> Self {
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

/// The end of a file's name, after the last dot.
pub(crate) fn extension(path: &Path) -> &str {
    path.extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}
