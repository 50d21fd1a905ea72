//! Converts data arguments: local files, or data sets on the Hugging Face hub.

use config::{Data, DataKind};
use keys::Value as Setting;
use serde_json::Value;

use super::arguments::texts;
use super::converter::{Converter, Outcome, none, not_a, not_needed, switch};
use crate::found_data::{FoundData, find_data};

/// Extensions of data files.
const FILES: [&str; 9] = [".jsonl", ".json", ".ndjson", ".parquet", ".txt", ".gz", ".zst", ".bin", ".csv"];

/// Sets the kind of data. All data must be of one kind.
pub(super) fn set_kind(converter: &mut Converter<'_>, kind: DataKind) -> Outcome {
    match converter.document.get(Data::kind) {
        Some(Setting::Text(other)) if other != kind.name() => {
            none(format!("data has one kind, and other arguments say data.kind = \"{other}\""))
        }
        _ => {
            converter.kind = Some(kind);
            converter.set(Data::kind, kind.name(), "")
        }
    }
}

/// Sets one conversation per sequence, which is other trainers' default.
pub(super) fn set_packing(converter: &mut Converter<'_>) -> Option<String> {
    let is_chat = converter.document.get(Data::kind) == Some(&Setting::from(DataKind::Chat.name()));
    let is_set = |key| converter.document.get(key).is_some();
    if !is_chat || is_set(Data::pack_documents) || is_set(Data::group_by_length) {
        return None;
    }
    let comment = format!("{}'s default: one conversation in a sequence", converter.program.title());
    converter.document.set(Data::pack_documents, false, comment.as_str());
    Some(converter.document.assignment(Data::pack_documents))
}

/// Converts a switch to learn all tokens of a conversation.
pub(super) fn learn_all(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    switch(value, || converter.set(Data::train_on, "all", "every token is learnt"))
}

/// Converts a list of roles whose messages are learned.
pub(super) fn learn_roles(converter: &mut Converter<'_>, value: &Value) -> Outcome {
    match texts(value) {
        None => not_a("list of roles", value),
        Some(roles) if roles == ["assistant"] => not_needed("the answers of the assistant are learnt"),
        Some(roles) => converter.set(Data::train_on, roles.as_slice(), "roles whose messages are learnt"),
    }
}

/// Sets the format of conversations. With several formats none is set, so that each object determines its
/// own.
pub(super) fn set_format(converter: &mut Converter<'_>, format: &'static str) -> Outcome {
    let kind = set_kind(converter, DataKind::Chat);
    match (kind, converter.document.get(Data::format)) {
        (Outcome::Converted(kind), None) => {
            match converter.set(Data::format, format, "format of conversations") {
                Outcome::Converted(format) => Outcome::Converted(format!("{kind}, {format}")),
                other => other,
            }
        }
        (Outcome::Converted(kind), Some(Setting::Text(other))) if other == format => {
            Outcome::Converted(format!("{kind}, {}", converter.document.assignment(Data::format)))
        }
        (Outcome::Converted(_), Some(_)) => none("data.format is one for all files, and another one is set"),
        (other, _) => other,
    }
}

/// Adds the paths of `name` to a key: a file, a glob, a folder, or a data set on the hub.
pub(super) fn add_paths(converter: &mut Converter<'_>, key: &'static str, name: &str) -> Outcome {
    let directories = converter.directories;
    let is_here = directories.current().join(name).exists();
    let found = if is_here { find_data(directories.current(), &[name.to_owned()]).ok() } else { None };
    let paths = match &found {
        Some(found) => found.paths.clone(),
        None if is_here || FILES.iter().any(|end| name.ends_with(end)) || name.contains('*') => {
            vec![name.to_owned()]
        }
        None => vec![of_hub(converter, name)],
    };
    if let (None, None, Some(FoundData { kind, .. })) =
        (converter.kind, converter.document.get(Data::kind), &found)
    {
        set_kind(converter, *kind);
    }
    let mut all: Vec<Setting> = match converter.document.get(key) {
        Some(Setting::List(paths)) => paths.clone(),
        _ => Vec::new(),
    };
    all.extend(paths.iter().map(|path| Setting::from(directories.for_configuration(path))));
    converter.set(key, Setting::List(all), "files and globs")
}

/// Returns a glob for the files of a data set on the hub, and adds a note on how to download it.
fn of_hub(converter: &mut Converter<'_>, name: &str) -> String {
    let folder = name.rsplit('/').next().unwrap_or(name);
    converter.notes.push(format!(
        "{name}: there is no such file here; if it is a data set on Hugging Face's hub, `hf download {name} \
         --repo-type dataset --local-dir {folder}` makes the folder, whose files data.paths must name"
    ));
    format!("{folder}/**/*.parquet")
}

/// Adds the paths in a string or a list of strings.
pub(super) fn paths(converter: &mut Converter<'_>, key: &'static str, value: &Value) -> Outcome {
    let Some(names) = texts(value) else { return not_a("path", value) };
    let mut outcome = none("it names no file");
    for name in names {
        outcome = add_paths(converter, key, &name);
    }
    outcome
}
