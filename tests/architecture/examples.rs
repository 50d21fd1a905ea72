//! Examples: the documentation of every library begins with one, and those that are programs of a crate's
//! `examples` folder are shown there and tested.

use crate::assert_none;
use crate::house::{self, File, PROGRAM, sources_of};

/// Examples without results, which only print.
const PRINTING: [&str; 2] = ["crates/bench/examples/memory.rs", "crates/config/examples/reference.rs"];

/// Libraries whose documentation has no example.
fn without_example(names: &[String], files: &[File]) -> Vec<String> {
    let has_example = |name: &String| {
        let path = format!("{}/lib.rs", sources_of(name));
        files.iter().any(|file| file.path == path && file.text.contains("\n//! ```"))
    };
    let lacking = names.iter().filter(|name| !has_example(name));
    lacking.map(|name| format!("the documentation of {name} has no example")).collect()
}

#[test]
fn every_library_has_an_example() {
    let names: Vec<String> = house::manifests().into_keys().collect();
    assert!(names.iter().any(|name| name == PROGRAM));
    assert_none(&without_example(&names, &house::files()));
}

#[test]
fn a_library_without_an_example_is_reported() {
    let file = |text: &str| File { path: "crates/one/src/lib.rs".to_owned(), text: text.to_owned() };
    let lacking = |text: &str| without_example(&["one".to_owned()], &[file(text)]).len();
    assert_eq!(lacking("//! One.\n//!\n//! ```\n//! one();\n//! ```\n"), 0);
    assert_eq!(lacking("//! One.\n"), 1);
}

/// Programs in folders of examples that have no test, or that no library shows.
fn unshown(files: &[File]) -> Vec<String> {
    let is_example = |file: &&File| {
        let is_program = file.path.contains("/examples/") && file.path.ends_with(".rs");
        is_program && !PRINTING.contains(&file.path.as_str())
    };
    let shows = |path: &str| {
        let end = path.rsplit_once("/examples/").map_or(path, |(_, name)| name);
        let shown = format!("examples/{end}\"), \"```\")]");
        files.iter().any(|file| file.path.ends_with("lib.rs") && file.text.contains(&shown))
    };
    let is_bad = |file: &&File| !file.text.contains("#[test]") || !shows(&file.path);
    let bad = files.iter().filter(is_example).filter(is_bad);
    bad.map(|file| format!("{} has no test, or no library shows it", file.path)).collect()
}

#[test]
fn every_example_is_tested_and_shown() {
    let files = house::files();
    let count = files.iter().filter(|file| file.path.contains("/examples/")).count();
    assert!(count > PRINTING.len(), "only {count} examples were found");
    assert_none(&unshown(&files));
}
