//! Checks that every test file belongs to a program that cargo builds.

use crate::assert_none;
use crate::house::{self, File};

/// Splits the path of a test file into its package's folder (empty or with a final `/`) and its path below
/// `tests/`.
fn split(path: &str) -> Option<(&str, &str)> {
    let (package, below) = path.strip_suffix(".rs").and(path.split_once("tests/"))?;
    let is_package =
        package.is_empty() || (package.starts_with("crates/") && package.matches('/').count() == 2);
    // A separate package.
    (is_package && !path.starts_with("tests/outside/")).then_some((package, below))
}

/// Returns test files that are neither a program of their package nor a module of one.
fn never_built(files: &[File]) -> Vec<String> {
    let text = |path: &str| files.iter().find(|file| file.path == path).map_or("", |file| &file.text);
    let is_built = |package: &str, below: &str| {
        let manifest = text(&format!("{package}Cargo.toml"));
        let is_found = !manifest.contains("autotests = false");
        let is_program = (is_found && (!below.contains('/') || below.ends_with("/main.rs")))
            || manifest.contains(&format!("path = \"tests/{below}\""));
        let module = below.trim_end_matches(".rs").trim_end_matches("/mod");
        let declared = format!("mod {};", module.rsplit('/').next().unwrap_or(module));
        let folder = format!("{package}tests/");
        is_program || files.iter().any(|file| file.path.starts_with(&folder) && file.text.contains(&declared))
    };
    let tests = files.iter().filter_map(|file| split(&file.path));
    let forgotten = tests.filter(|(package, below)| !is_built(package, below));
    forgotten.map(|(package, below)| format!("{package}tests/{below} is in no program of tests")).collect()
}

#[test]
fn every_file_of_tests_is_built() {
    assert_none(&never_built(&house::files()));
}

#[test]
fn a_file_that_no_program_builds_is_reported() {
    let file = |path: &str, text: &str| File { path: path.to_owned(), text: text.to_owned() };
    let listed = "autotests = false\n[[test]]\npath = \"tests/main.rs\"";
    let files = [
        file("Cargo.toml", ""),
        file("tests/found.rs", ""),
        file("crates/one/Cargo.toml", listed),
        file("crates/one/tests/main.rs", "mod near;\nmod folder;"),
        file("crates/one/tests/near.rs", ""),
        file("crates/one/tests/folder/mod.rs", ""),
        file("crates/one/tests/forgotten.rs", ""),
    ];
    assert_eq!(never_built(&files), ["crates/one/tests/forgotten.rs is in no program of tests"]);
}
