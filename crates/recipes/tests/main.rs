//! Tests of configurations for jobs and from other trainers' files.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests, a panic is the report of a failure")]

mod conversions;
mod jobs;

use std::path::{Path, PathBuf};

use recipes::Document;
use tempfile::TempDir;

/// Returns the project's root.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// Creates a directory with models in `models/`, conversations and preference pairs in `data/`, and an empty
/// directory for configurations.
fn directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let link = |from: &str, to: &str| {
        std::os::unix::fs::symlink(root().join(from), directory.path().join(to)).unwrap();
    };
    for name in ["data", "runs"] {
        std::fs::create_dir(directory.path().join(name)).unwrap();
    }
    link("tests/golden/models", "models");
    link("launch/recipes/chat/conversations.jsonl", "data/chat.jsonl");
    link("launch/recipes/chat/pairs.jsonl", "data/pairs.jsonl");
    link("launch/recipes/chat/template.jinja", "template.jinja");
    directory
}

/// Asserts the values of keys, as `key = value`; an empty value means that the key is not set.
fn assert_settings(document: &Document, name: &str, settings: &[&str]) {
    for setting in settings {
        let (key, _) = setting.split_once(" = ").unwrap_or_else(|| panic!("{setting}"));
        let expected = if setting.ends_with(" = ") { "" } else { setting };
        assert_eq!(document.assignment(key), expected, "{name}\n{}", document.to_toml());
    }
}
