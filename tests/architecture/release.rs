//! Files of a release: licences, versions and the container image agree with the workspace.

use std::collections::BTreeMap;

use toml::{Table, Value};

use crate::assert_none;
use crate::house::{self, PROGRAM};

/// Maximum number of lines of one release in the changelog.
const RELEASE_LINES: usize = 60;

/// A string of `[workspace.package]`.
fn workspace_field(manifests: &BTreeMap<String, Table>, field: &str) -> String {
    let value = manifests[PROGRAM]["workspace"]["package"].get(field).and_then(Value::as_str);
    value.unwrap_or_default().to_owned()
}

/// Crates whose version or licence is not the workspace's.
fn uninherited(manifests: &BTreeMap<String, Table>) -> Vec<String> {
    let inherits = |manifest: &Table, field: &str| {
        let value = manifest.get("package").and_then(|package| package.get(field)?.get("workspace"));
        value.and_then(Value::as_bool) == Some(true)
    };
    let lacks = |(name, manifest): (&String, &Table)| {
        let missing = ["version", "license"].into_iter().filter(|field| !inherits(manifest, field));
        missing.map(|field| format!("{name}'s manifest lacks `{field}.workspace = true`")).collect::<Vec<_>>()
    };
    manifests.iter().flat_map(lacks).collect()
}

#[test]
fn every_crate_has_the_licence_and_version_of_the_workspace() {
    let mut manifests = house::manifests();
    manifests.insert("outside".to_owned(), house::read("tests/outside/Cargo.toml").parse().unwrap());
    assert_none(&uninherited(&manifests));
    assert_eq!(workspace_field(&manifests, "license"), "MIT OR Apache-2.0");
    assert!(house::read("LICENSE-MIT").contains("Copyright (c) 2026 The Plimsoll authors"));
    assert!(house::read("LICENSE-APACHE").contains("Version 2.0, January 2004"));
}

#[test]
fn a_crate_without_a_licence_is_reported() {
    let manifest: Table = "[package]\nversion.workspace = true\nlicense = 'MIT'".parse().unwrap();
    assert_eq!(uninherited(&[("one".to_owned(), manifest)].into()).len(), 1);
}

/// The releases of a changelog, newest first: each version with its number of lines.
fn releases(changelog: &str) -> Vec<(&str, usize)> {
    let sections = changelog.split("\n## ").skip(1);
    sections
        .map(|text| (text.split_whitespace().next().unwrap_or_default(), text.trim().lines().count()))
        .collect()
}

#[test]
fn the_changelog_is_short_and_ends_with_the_version() {
    let version = workspace_field(&house::manifests(), "version");
    let changelog = house::read("CHANGELOG.md");
    let releases = releases(&changelog);
    assert_eq!(releases.first().map(|release| release.0), Some(version.as_str()));
    let long = releases.iter().filter(|(_, lines)| *lines > RELEASE_LINES);
    assert_none(&long.map(|(version, lines)| format!("{version} has {lines} lines")).collect::<Vec<_>>());
    assert!(house::read("CITATION.cff").contains(&format!("\nversion: {version}\n")));
}

#[test]
fn lines_of_a_release_are_counted() {
    assert_eq!(
        releases("# Changes\n\n## 2.0 (today)\n\n* a\n* b\n\n## 1.0\n* c\n"),
        [("2.0", 4), ("1.0", 2)]
    );
}

/// Paths of the sources that a Dockerfile copies, and those that its build stage has built.
fn copied(dockerfile: &str) -> Vec<String> {
    let copies = dockerfile.lines().filter_map(|line| line.strip_prefix("COPY "));
    let sources = copies.flat_map(|line| {
        let paths: Vec<&str> = line.split_whitespace().filter(|word| !word.starts_with("--")).collect();
        let (_, sources) = paths.split_last().unwrap_or((&"", &[]));
        sources.iter().map(|path| path.trim_start_matches("/plimsoll/").to_owned()).collect::<Vec<_>>()
    });
    sources.collect()
}

#[test]
fn the_image_copies_files_that_exist() {
    let dockerfile = house::read("Dockerfile");
    let paths = copied(&dockerfile);
    assert!(paths.len() > 3, "only {paths:?} were found");
    let ignored = house::read(".dockerignore");
    for path in paths.iter().filter(|path| !path.starts_with("target/")) {
        assert!(house::root().join(path).exists(), "the Dockerfile copies {path}");
        let top = path.split('/').next().unwrap_or_default();
        assert!(!ignored.lines().any(|line| line == top), ".dockerignore leaves out {path}");
    }
    let rust = workspace_field(&house::manifests(), "rust-version");
    assert!(dockerfile.contains(&format!("FROM rust:{rust}-")), "the Dockerfile builds with another Rust");
}
