//! Units of text. A unit is encoded by one call.

use std::path::Path;
use std::sync::Arc;

/// A document, or a piece of one.
#[derive(Debug)]
pub(crate) struct Unit {
    pub(crate) content: Content,
    pub(crate) path: Arc<Path>,
    /// Line of a JSON lines file, or row of a Parquet file, from 1; `None` for text.
    pub(crate) line: Option<u64>,
    pub(crate) starts_document: bool,
    /// Whether the unit is held out for validation.
    pub(crate) is_validation: bool,
}

#[derive(Debug)]
pub(crate) enum Content {
    Text(Vec<u8>),
    /// A line of JSON that contains the text.
    JsonLine(Vec<u8>),
    /// The unit could not be read, for this reason.
    #[cfg_attr(not(feature = "parquet"), expect(dead_code, reason = "only rows of Parquet lack text"))]
    Invalid(String),
}

impl Content {
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Text(bytes) | Self::JsonLine(bytes) => bytes.len(),
            Self::Invalid(_) => 0,
        }
    }
}
