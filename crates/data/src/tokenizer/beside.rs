//! The tokenizer of token shards, by the files beside them.

use crate::files::files;
use serde_json::Value;
use std::path::Path;

use super::Tokenizer;
use super::file::TOKENIZER;

/// The record that `plimsoll tokenize` leaves beside its shards.
const RECORD: &str = "tokens.json";
/// The most bytes of a record.
const MOST_RECORD: u64 = 64 << 20;

impl Tokenizer {
    /// Returns the name, for [`Tokenizer::from_name`], of the tokenizer that made the first of some shards:
    /// the tokenizer.json beside it, or the built-in one in the record of `plimsoll tokenize`. `None` if
    /// there is neither, or no shard.
    #[must_use]
    pub fn beside_shards(base: &Path, patterns: &[String]) -> Option<String> {
        let shards = files(base, patterns).ok()?;
        let folder = shards.first()?.parent()?;
        let file = folder.join(TOKENIZER);
        if file.is_file() {
            return file.to_str().map(str::to_owned);
        }
        let record = record(folder)?;
        let name = record["tokenizer"].as_str()?;
        Self::NAMES.contains(&name).then(|| name.to_owned())
    }

    /// Returns the token before each document of some shards, as the record of `plimsoll tokenize` beside the
    /// first of them says; `None` without such a record.
    #[must_use]
    pub fn separator_of_shards(base: &Path, patterns: &[String]) -> Option<u32> {
        let shards = files(base, patterns).ok()?;
        let separator = record(shards.first()?.parent()?)?["separator"].as_u64()?;
        u32::try_from(separator).ok()
    }
}

/// Returns the record of `plimsoll tokenize` in a folder, if there is one.
fn record(folder: &Path) -> Option<Value> {
    serde_json::from_slice(&system::input::read(&folder.join(RECORD), MOST_RECORD).ok()?).ok()
}
