//! Opens the tokenizer of a configuration, or finds it beside token shards.

use data::Tokenizer;
use keys::{Error, RawValues};

use crate::hub::how_to_download;
use crate::sections::Data;

/// Returns the name of the tokenizer recorded beside the data's first shards; `None` if none is recorded.
pub(crate) fn of_shards(data: &Data) -> Option<String> {
    Tokenizer::beside_shards(&data.base, first_paths(data)?)
}

/// Returns the separator token recorded beside the data's first shards; `None` if none is recorded.
pub(crate) fn separator_of_shards(data: &Data) -> Option<u32> {
    Tokenizer::separator_of_shards(&data.base, first_paths(data)?)
}

fn first_paths(data: &Data) -> Option<&[String]> {
    let of_mixture = || data.mixture.first().map(|source| source.paths.as_slice());
    Some(data.paths.as_slice()).filter(|paths| !paths.is_empty()).or_else(of_mixture)
}

/// Opens the tokenizer of this name.
///
/// # Errors
/// The tokenizer is missing, or its file is invalid.
pub(crate) fn open(name: &str, raw: &RawValues) -> Result<Tokenizer, Error> {
    Tokenizer::from_name(name).map_err(|error| {
        let missing = matches!(error, data::Error::Missing { .. });
        let written = raw.text(Data::tokenizer).ok().filter(|_| missing && raw.is_set(Data::tokenizer));
        let advice = written.and_then(|written| how_to_download(&written));
        let advice = advice.map_or_else(String::new, |advice| format!("; {advice}"));
        raw.conflict(&[Data::tokenizer], format!("{}: {error}{advice}", Data::tokenizer))
    })
}
