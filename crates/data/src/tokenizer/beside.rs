//! Finds the tokenizer of token shards from the files beside them.

use crate::files::files;
use serde_json::Value;
use std::path::Path;

use super::Tokenizer;
use super::file::TOKENIZER;

/// File name of the record that `plimsoll tokenize` writes beside its shards.
const RECORD: &str = "tokens.json";
/// Maximum size of a record in bytes.
const MOST_RECORD: u64 = 64 << 20;

impl Tokenizer {
    /// Returns the name, for [`Tokenizer::from_name`], of the tokenizer that made the first shard: the
    /// tokenizer.json beside it, or a built-in tokenizer named in the record of `plimsoll tokenize`. `None`
    /// if there is neither, or no shard.
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

    /// Returns the separator token recorded by `plimsoll tokenize` beside the first shard; `None` without a
    /// record.
    #[must_use]
    pub fn separator_of_shards(base: &Path, patterns: &[String]) -> Option<u32> {
        let shards = files(base, patterns).ok()?;
        let separator = record(shards.first()?.parent()?)?["separator"].as_u64()?;
        u32::try_from(separator).ok()
    }
}

/// Returns the record of `plimsoll tokenize` in a folder; `None` if there is none.
fn record(folder: &Path) -> Option<Value> {
    serde_json::from_slice(&system::input::read(&folder.join(RECORD), MOST_RECORD).ok()?).ok()
}
