//! Detects the kind of data in files and folders from their contents.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use config::DataKind;
use data::{ChatFormat, Encoding};
use telemetry::units::{bytes, counted};

use crate::error::{RecipeError, Result};

/// Maximum number of inspected files; further ones are assumed to be alike.
const MOST_LOOKED_AT: usize = 32;
/// Number of bytes at a file's start that show whether it is text.
const START: usize = 4096;
/// Extensions of files with objects.
const OBJECTS: [&str; 4] = ["jsonl", "ndjson", "json", "parquet"];
/// Extensions of compressed files.
const PACKED: [&str; 2] = ["gz", "zst"];
/// Keys of objects whose values are plain text.
const TEXTS: [&str; 2] = ["text", "content"];

/// Data for a language model.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundData {
    /// Kind of the data.
    pub kind: DataKind,
    /// Format of conversations, if detected.
    pub format: Option<ChatFormat>,
    /// Whether a chat template is needed to form the text.
    pub needs_template: bool,
    /// Paths and globs of the files.
    pub paths: Vec<String>,
    /// Total bytes of all files.
    pub bytes: u64,
    /// Number of files, and how their kind was detected.
    pub summary: String,
}

/// Fraction of the data that is held out by default.
pub(crate) const HELD_OUT: f64 = 0.05;
/// Approximate bytes per token of text, and bytes per token in shards.
pub(crate) const BYTES_PER_TOKEN: u64 = 4;
pub(crate) const BYTES_IN_SHARDS: u64 = 2;
/// Minimum number of sequences in the held-out part of a text.
const HELD_OUT_SEQUENCES: f64 = 2.0;
/// Minimum number of tokens in a sequence.
const LEAST_CONTEXT: usize = 16;

impl FoundData {
    /// Returns the maximum sequence length with which the held-out part of a text still has a sequence.
    pub(crate) fn most_context(&self) -> usize {
        let bytes_per_token = match self.kind {
            DataKind::Text => BYTES_PER_TOKEN,
            DataKind::Tokens => BYTES_IN_SHARDS,
            _ => return usize::MAX,
        };
        let held_out = (self.bytes / bytes_per_token) as f64 * HELD_OUT;
        let most = (held_out / HELD_OUT_SEQUENCES) as usize;
        most.checked_ilog2().map_or(LEAST_CONTEXT, |power| LEAST_CONTEXT.max(1 << power))
    }
}

/// Kind of a file's contents.
#[derive(Clone, Debug, PartialEq)]
struct Contents {
    kind: DataKind,
    format: Option<ChatFormat>,
    needs_template: bool,
    /// Name of the contents, such as `conversations`.
    name: &'static str,
    evidence: String,
}

/// Detects the data in files, globs and folders, relative to `directory`.
///
/// # Errors
/// There is no file, a file is of no known kind, or files are of several kinds.
pub fn find_data(directory: &Path, paths: &[String]) -> Result<FoundData> {
    let mut patterns = Vec::new();
    for path in paths {
        patterns.extend(globs(directory, path)?);
    }
    let files = data::files(directory, &patterns)?;
    let mut found: Option<(&Path, Contents)> = None;
    for file in files.iter().take(MOST_LOOKED_AT) {
        let contents = look_at(file)?;
        match &found {
            Some((first, other)) if other.kind != contents.kind => {
                return Err(RecipeError::Refused(format!(
                    "{} has {} and {} has {}: name data of one kind",
                    first.display(),
                    other.name,
                    file.display(),
                    contents.name
                )));
            }
            Some(_) => {}
            None => found = Some((file, contents)),
        }
    }
    let Some((_, contents)) = found else { return Err(data::Error::NoPaths.into()) };
    let size = |file: &PathBuf| std::fs::metadata(file).map_or(0, |metadata| metadata.len());
    let total = files.iter().map(size).sum();
    let count = counted(files.len() as u64, "file");
    Ok(FoundData {
        kind: contents.kind,
        format: contents.format,
        needs_template: contents.needs_template,
        paths: patterns,
        bytes: total,
        summary: format!("{count} of {} ({}), by {}", contents.name, bytes(total), contents.evidence),
    })
}

/// Returns the globs of a folder's files, or `path` itself if it is not a folder.
fn globs(directory: &Path, path: &str) -> Result<Vec<String>> {
    let folder = directory.join(path);
    if !folder.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let unreadable = |source| RecipeError::Unreadable { path: folder.clone(), source };
    let mut ends = BTreeSet::new();
    for entry in std::fs::read_dir(&folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?.path();
        let name = entry.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let (true, false, Some((_, end))) = (entry.is_file(), name.starts_with('.'), name.split_once('.'))
        {
            ends.insert(end.to_owned());
        }
    }
    // Token shards have a description of the tokenizer beside them.
    let is_of_shards = ends.contains("bin");
    ends.retain(|end| !is_of_shards || end == "bin");
    if ends.is_empty() {
        let reason =
            format!("{path}: it has no files with data: name files or globs, as in '{path}/**/*.txt'");
        return Err(RecipeError::Refused(reason));
    }
    let base = path.trim_end_matches('/');
    Ok(ends.into_iter().map(|end| format!("{base}/*.{end}")).collect())
}

fn look_at(file: &Path) -> Result<Contents> {
    let mut start = Vec::with_capacity(START);
    let unreadable = |source| RecipeError::Unreadable { path: file.to_owned(), source };
    let opened = system::input::open(file).map_err(unreadable)?;
    opened.take(START as u64).read_to_end(&mut start).map_err(unreadable)?;
    if let Some(shards) = token_shards(file, &start) {
        return Ok(shards);
    }
    let is_packed = PACKED.contains(&extension(file));
    let plain = if is_packed { file.with_extension("") } else { file.to_owned() };
    if OBJECTS.contains(&extension(&plain)) {
        return objects(file);
    }
    if is_packed || start.contains(&0) {
        let reason = "it is neither text nor conversations, pairs of answers or token shards";
        return Err(RecipeError::Refused(format!("{}: {reason}", file.display())));
    }
    Ok(Contents {
        kind: DataKind::Text,
        format: None,
        needs_template: false,
        name: "plain text",
        evidence: "their bytes".to_owned(),
    })
}

fn token_shards(file: &Path, start: &[u8]) -> Option<Contents> {
    let magic = start.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    let has_header = [Encoding::Shard16, Encoding::Shard32]
        .iter()
        .any(|encoding| encoding.header().map(|header| header.magic) == magic);
    let evidence = match (has_header, extension(file)) {
        (true, _) => "their headers",
        (false, "bin") => "their names",
        (false, _) => return None,
    };
    Some(Contents {
        kind: DataKind::Tokens,
        format: None,
        needs_template: false,
        name: "tokens",
        evidence: evidence.to_owned(),
    })
}

/// Determines the contents of a file of objects from the first object's keys.
fn objects(file: &Path) -> Result<Contents> {
    let refused = |reason: &str| RecipeError::Refused(format!("{}: {reason}", file.display()));
    let object = data::first_object(file)?.ok_or_else(|| refused("it has no objects"))?;
    let has_messages = |key: &str| object.get(key).is_some_and(|value| value.is_array() || value.is_object());
    if object.contains_key("chosen") && object.contains_key("rejected") {
        return Ok(Contents {
            kind: DataKind::Preference,
            format: None,
            needs_template: has_messages("chosen"),
            name: "pairs of answers",
            evidence: "their keys \"chosen\" and \"rejected\"".to_owned(),
        });
    }
    match ChatFormat::detect(&object) {
        Ok(format) => Ok(Contents {
            kind: DataKind::Chat,
            format: Some(format),
            needs_template: format != ChatFormat::Completion || has_messages("prompt"),
            name: "conversations",
            evidence: format!("their keys, which are those of data.format = \"{}\"", format.name()),
        }),
        Err(_) if TEXTS.iter().any(|key| object.get(*key).is_some_and(serde_json::Value::is_string)) => {
            Err(refused(
                "its objects are texts: `plimsoll tokenize --text-key KEY` makes token shards of them, which \
                 can be named here",
            ))
        }
        Err(reason) => {
            Err(refused(&format!("its first object is neither a conversation nor a pair: {reason}")))
        }
    }
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}
