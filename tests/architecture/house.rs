//! Reads the project's document, manifests and files for the checks.
#![expect(clippy::panic, clippy::unwrap_used, reason = "a house that cannot be read fails its tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use toml::{Table, Value};

/// A file and its text.
pub(crate) struct File {
    /// Path from the root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Name of the root package; its sources are in `crates/cli`.
pub(crate) const PROGRAM: &str = "plimsoll";

/// Returns the path, from the root, of a crate's sources.
pub(crate) fn sources_of(name: &str) -> String {
    if name == PROGRAM { "crates/cli".to_owned() } else { format!("crates/{name}/src") }
}

/// Returns the project's root; tests run in the folder of their package.
pub(crate) fn root() -> PathBuf {
    std::env::current_dir().unwrap()
}

pub(crate) fn document() -> String {
    read("ARCHITECTURE.md")
}

/// The text of a file of the project.
pub(crate) fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns every manifest by crate: the folder's name below `crates/`, and [`PROGRAM`] for the root.
pub(crate) fn manifests() -> BTreeMap<String, Table> {
    let mut manifests = BTreeMap::from([(PROGRAM.to_owned(), table("Cargo.toml"))]);
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let path = format!("crates/{name}/Cargo.toml");
        if root().join(&path).exists() {
            manifests.insert(name, table(&path));
        }
    }
    manifests
}

fn table(path: &str) -> Table {
    read(path).parse().unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the project's crates in each manifest's `[dependencies]`, including target-specific ones.
pub(crate) fn arrows_of(manifests: &BTreeMap<String, Table>) -> BTreeMap<String, BTreeSet<String>> {
    let nothing = Table::new();
    let shared = manifests.get(PROGRAM).and_then(|root| section(root, &["workspace", "dependencies"]));
    let shared = shared.unwrap_or(&nothing);
    let folder = |name: &str, dependency: &Value| -> Option<String> {
        let from_workspace = dependency.get("workspace").and_then(Value::as_bool) == Some(true);
        let dependency = if from_workspace { shared.get(name)? } else { dependency };
        let path = Path::new(dependency.get("path")?.as_str()?);
        Some(path.file_name()?.to_str()?.to_owned())
    };
    let crates_of = |manifest: &Table| {
        let targets = manifest.get("target").and_then(Value::as_table).unwrap_or(&nothing);
        let tables = targets.values().filter_map(Value::as_table).chain([manifest]);
        let dependencies = tables.filter_map(|table| section(table, &["dependencies"])).flatten();
        dependencies.filter_map(|(name, dependency)| folder(name, dependency)).collect()
    };
    manifests.iter().map(|(name, manifest)| (name.clone(), crates_of(manifest))).collect()
}

fn section<'a>(table: &'a Table, keys: &[&str]) -> Option<&'a Table> {
    keys.iter().try_fold(table, |table, key| table.get(*key)?.as_table())
}

/// Returns every text file of the project: files that git tracks or would add. Without a repository, returns
/// the files in the project's folders.
pub(crate) fn files() -> Vec<File> {
    let listing = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .current_dir(root())
        .output();
    let listed = listing.ok().filter(|output| output.status.success() && root().join(".git").exists());
    let mut paths: Vec<String> = match listed.and_then(|output| String::from_utf8(output.stdout).ok()) {
        Some(names) => names.split_terminator('\0').map(str::to_owned).collect(),
        None => walk(),
    };
    paths.sort();
    paths.dedup();
    let text =
        |path: String| std::fs::read_to_string(root().join(&path)).ok().map(|text| File { path, text });
    paths.into_iter().filter_map(text).collect()
}

fn walk() -> Vec<String> {
    let mut folders: Vec<String> =
        [".ci", ".github", "benches", "crates", "docs", "kernels", "launch", "tests"]
            .map(str::to_owned)
            .into();
    let mut paths: Vec<String> =
        ["README.md", "ARCHITECTURE.md", "Cargo.toml", "deny.toml"].map(str::to_owned).into();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root().join(&folder)).into_iter().flatten().flatten() {
            let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() { folders.push(path) } else { paths.push(path) }
        }
    }
    paths
}

#[test]
fn dependencies_are_found_in_every_form() {
    let root = "
        [workspace.dependencies]
        alias = { path = 'crates/real', package = 'plimsoll-real' }
        serde = '1'
        [dependencies]
        alias.workspace = true
        serde.workspace = true
        [dev-dependencies]
        ignored = { path = 'crates/ignored' }";
    let one = "
        [dependencies]
        near = { path = '../near', optional = true }
        [target.'cfg(unix)'.dependencies]
        alias = { workspace = true }";
    let manifest = |text: &str| text.parse::<Table>().unwrap();
    let arrows = arrows_of(&[(PROGRAM.to_owned(), manifest(root)), ("one".to_owned(), manifest(one))].into());
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(arrows[PROGRAM], set(&["real"]));
    assert_eq!(arrows["one"], set(&["near", "real"]));
}

#[test]
fn without_git_the_same_sources_are_found() {
    let sources = |path: &String| path.ends_with(".rs") && path.starts_with("crates/");
    let mut walked: Vec<String> = walk().into_iter().filter(sources).collect();
    walked.sort();
    let paths: Vec<String> = files().into_iter().map(|file| file.path).filter(sources).collect();
    assert_eq!(walked, paths);
    assert!(!paths.is_empty());
}
