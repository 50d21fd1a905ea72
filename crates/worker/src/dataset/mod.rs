//! Opens the data of a run as configured.

mod conversations;
mod images;
mod read_ahead;
mod shapes;
mod source;
mod text;

use config::{Data, DataKind, RunConfig, SampleLengths};
use data::{SyntheticKind, SyntheticOptions, SyntheticSource};
use nn::Examples;

use crate::error::Result;
pub use source::{CACHE, DataScope, Dataset, SampleSizes};

/// Reads the samples and returns their lengths if they decide `model.context`; otherwise `None`.
///
/// # Errors
/// The data is invalid; the error names the key.
pub fn sample_lengths(config: &RunConfig) -> Result<Option<SampleLengths>> {
    match config.data.kind {
        _ if !config.is_sized_by_data() => Ok(None),
        DataKind::Preference => conversations::pair_lengths(config).map(Some),
        _ => conversations::lengths(config).map(Some),
    }
}

/// Opens the configured data.
///
/// # Errors
/// The data is invalid; the error names the key.
pub fn open(config: &RunConfig, scope: DataScope) -> Result<Dataset> {
    let data = &config.data;
    let train = &config.train;
    let kind = match (data.kind, config.model.examples()) {
        (DataKind::Synthetic, Examples::Numbers { inputs, outputs }) => {
            SyntheticKind::Regression { inputs, outputs }
        }
        (DataKind::Synthetic, Examples::Tokens { vocabulary, context }) => {
            SyntheticKind::Tokens { vocabulary, context }
        }
        (DataKind::Synthetic, Examples::Images { channels, size, classes }) => {
            SyntheticKind::Images { channels, size, classes }
        }
        (DataKind::Text | DataKind::Tokens, _) => return text::open(config, scope),
        (DataKind::Chat | DataKind::Preference, _) if scope == DataScope::Shapes => {
            conversations::check_files(config)?;
            let shapes = shapes::token_shapes(config, data.document_mask);
            return shapes.map_err(|source| conversations::refused(config, Data::paths, source));
        }
        (DataKind::Chat, _) => return Ok(Dataset::of_chat(conversations::open(config)?)),
        (DataKind::Preference, _) => return Ok(Dataset::of_pairs(conversations::open_pairs(config)?)),
        (DataKind::Images, _) => return Ok(Dataset::of_images(images::open(config)?)),
    };
    Ok(Dataset::synthetic(SyntheticSource::new(SyntheticOptions {
        kind,
        micro_batch: train.micro_batch_size,
        seed: train.seed,
        validation_micro_batches: train.validation_micro_batches,
    })?))
}
