//! Compares every path, name, arrow, absent word and `unsafe` file in ARCHITECTURE.md with the code.
//!
//! A check is a function from the document and the project to complaints, so that tests can run it on
//! projects with errors.

mod document;
mod examples;
mod house;
mod modules;
mod programs;
mod release;
mod sentences;
mod source;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use document::{ABSENT, MAP};
use house::{File, PROGRAM, sources_of};
use source::{code_of, line_of};
use toml::{Table, Value};

type Arrows = BTreeMap<String, BTreeSet<String>>;

#[track_caller]
fn assert_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n  {}\n", complaints.join("\n  "));
}

fn missing_paths(document: &str, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let paths = document::paths(document, sources_of);
    let missing = paths.into_iter().filter(|path| !exists(path));
    missing.map(|path| format!("ARCHITECTURE.md names `{path}`, which does not exist")).collect()
}

#[test]
fn every_path_exists() {
    assert_none(&missing_paths(&house::document(), |path| house::root().join(path).exists()));
}

#[test]
fn a_missing_path_is_reported() {
    let document = "In `a/b.rs`, `c.toml`, `a::b`, `not a/path`, `d/`.\n\
        ## The map\n| `one` | x `y.rs` |\n## Else\n| `two` | `z.md` |\n";
    let paths = document::paths(document, sources_of);
    let all = ["a/b.rs", "c.toml", "crates/one/src/y.rs", "d/", "z.md"];
    assert_eq!(paths.iter().map(String::as_str).collect::<Vec<_>>(), all);
    assert_eq!(missing_paths(document, |path| path != "c.toml").len(), 1);
}

fn unknown_names(document: &str, files: &[File]) -> Vec<String> {
    let code: String = rust(files).map(|file| code_of(&file.text)).collect();
    let is_unknown = |name: &&str| name.split("::").any(|part| line_of(&code, part).is_none());
    let unknown = document::names(document).into_iter().filter(is_unknown);
    unknown.map(|name| format!("ARCHITECTURE.md names `{name}`, which no crate has")).collect()
}

fn rust(files: &[File]) -> impl Iterator<Item = &File> {
    files.iter().filter(|file| file.path.ends_with(".rs"))
}

#[test]
fn every_name_is_in_the_code() {
    let crates =
        house::files().into_iter().filter(|file| file.path.starts_with("crates/")).collect::<Vec<_>>();
    assert_none(&unknown_names(&house::document(), &crates));
}

#[test]
fn a_missing_name_is_reported() {
    let files = [file("crates/one/src/lib.rs", "pub struct Here; // and Gone")];
    assert_eq!(unknown_names("`Here`, `here::Here`, `Gone`, `README`, `a b`", &files).len(), 2);
}

fn wrong_arrows(document: &str, arrows: &Arrows) -> Vec<String> {
    let written = document::arrows(document);
    let one_sided = |from: &Arrows, to: &Arrows, what: &str| {
        let mut complaints = Vec::new();
        for (name, targets) in from {
            let Some(others) = to.get(name) else {
                complaints.push(format!("{name}: {what}"));
                continue;
            };
            complaints.extend(targets.difference(others).map(|target| format!("{name} → {target}: {what}")));
        }
        complaints
    };
    let mut complaints = one_sided(&written, arrows, "written in ARCHITECTURE.md, and not in Cargo.toml");
    complaints.extend(one_sided(arrows, &written, "in Cargo.toml, and not written in ARCHITECTURE.md"));
    complaints
}

#[test]
fn the_arrows_are_those_of_the_manifests() {
    assert_none(&wrong_arrows(&house::document(), &house::arrows_of(&house::manifests())));
}

#[test]
fn a_wrong_arrow_is_reported_in_both_directions() {
    let written = |lines: &str| format!("## The arrows\n\n{lines}\n## Else\n    x → y\n");
    let arrows = document::arrows(&written("    a → b, c\n    b →\n    c →"));
    assert_eq!(wrong_arrows(&written("    a → b, c\n    b →\n    c →"), &arrows), [""; 0]);
    assert_eq!(wrong_arrows(&written("    a → b\n    b →\n    c →"), &arrows).len(), 1);
    assert_eq!(wrong_arrows(&written("    a → b, c\n    b → c\n    c →"), &arrows).len(), 1);
    assert_eq!(wrong_arrows(&written("    a → b, c\n    b →"), &arrows).len(), 1);
    assert_eq!(wrong_arrows(&written("    a → b, c\n    b →\n    c →\n    d →"), &arrows).len(), 1);
}

fn wrong_map(document: &str, manifests: &BTreeMap<String, Table>) -> Vec<String> {
    let rows = document::rows(document, MAP);
    let written: BTreeSet<&str> = rows.iter().map(|row| row.name).collect();
    let crates: BTreeSet<&str> = manifests.keys().map(String::as_str).collect();
    let mut complaints: Vec<String> =
        crates.difference(&written).map(|name| format!("{name} is not on the map")).collect();
    complaints
        .extend(written.difference(&crates).map(|name| format!("{name} is on the map and not in the house")));
    complaints
}

/// Returns crates that are not members of the workspace or do not use its lints.
fn outside_the_rules(manifests: &BTreeMap<String, Table>) -> Vec<String> {
    let at = |manifest: &Table, keys: [&str; 2]| manifest.get(keys[0])?.get(keys[1]).cloned();
    let members = manifests.get(PROGRAM).and_then(|root| at(root, ["workspace", "members"]));
    let is_member = |name: &String| {
        let path = Value::String(format!("crates/{name}"));
        name == PROGRAM || members.as_ref().and_then(Value::as_array).is_some_and(|all| all.contains(&path))
    };
    let mut complaints = Vec::new();
    for (name, manifest) in manifests {
        if !is_member(name) {
            complaints.push(format!("{name} is no member of the workspace"));
        }
        if at(manifest, ["lints", "workspace"]) != Some(Value::Boolean(true)) {
            complaints.push(format!("{name}'s manifest lacks `[lints] workspace = true`"));
        }
    }
    complaints
}

#[test]
fn every_crate_is_on_the_map_and_follows_the_rules() {
    let manifests = house::manifests();
    assert_none(&wrong_map(&house::document(), &manifests));
    assert_none(&outside_the_rules(&manifests));
}

#[test]
fn a_crate_outside_the_map_or_the_rules_is_reported() {
    let root = "workspace.members = ['crates/one']\nlints.workspace = true";
    let manifests = |one: &str| {
        let parse_table = |text: &str| text.parse::<Table>().unwrap();
        BTreeMap::from([
            (PROGRAM.to_owned(), parse_table(root)),
            (one.to_owned(), parse_table("lints.workspace = true")),
        ])
    };
    let map = "## The map\n| `plimsoll` | x |\n| `one` | y |\n";
    assert_eq!(wrong_map(map, &manifests("one")), [""; 0]);
    assert_eq!(wrong_map(map, &manifests("two")).len(), 2);
    assert_eq!(outside_the_rules(&manifests("one")), [""; 0]);
    assert_eq!(outside_the_rules(&manifests("two")).len(), 1);
    let mut lax = manifests("one");
    lax.insert("one".to_owned(), "lints.workspace = false".parse().unwrap());
    assert_eq!(outside_the_rules(&lax).len(), 1);
}

fn wrong_unsafe(document: &str, files: &[File]) -> Vec<String> {
    let listed = document::unsafe_files(document);
    let lines =
        rust(files).filter_map(|file| Some((file.path.as_str(), line_of(&code_of(&file.text), "unsafe")?)));
    let by_path: BTreeMap<&str, usize> = lines.collect();
    let unlisted = by_path.iter().filter(|(path, _)| !listed.contains(*path));
    let mut complaints: Vec<String> = unlisted
        .map(|(path, line)| format!("{path}:{line}: `unsafe` in a file that ARCHITECTURE.md does not list"))
        .collect();
    let idle = listed.iter().filter(|path| !by_path.contains_key(*path));
    complaints.extend(idle.map(|path| format!("ARCHITECTURE.md lists {path} for `unsafe`, and it has none")));
    complaints
}

#[test]
fn unsafe_is_only_in_the_listed_files() {
    assert_none(&wrong_unsafe(&house::document(), &house::files()));
}

#[test]
fn unsafe_in_another_file_is_reported() {
    let document = "## Where `unsafe` is\n\n* `a.rs`: why\n";
    let files = |a: &str, b: &str| [file("a.rs", a), file("b.rs", b)];
    assert_eq!(wrong_unsafe(document, &files("unsafe {}", "// unsafe\nf(\"unsafe\")")), [""; 0]);
    assert_eq!(wrong_unsafe(document, &files("unsafe {}", "unsafe fn f() {}")).len(), 1);
    assert_eq!(wrong_unsafe(document, &files("", "")).len(), 1);
}

fn present_though_absent(document: &str, files: &[File]) -> Vec<String> {
    let mut complaints = Vec::new();
    for row in document::rows(document, ABSENT) {
        let folder = format!("{}/", sources_of(row.name));
        let sources: Vec<&File> = rust(files)
            .filter(|file| file.path.starts_with(&folder))
            .filter(|file| !["/tests/", "/examples/"].iter().any(|beside| file.path.contains(beside)))
            .collect();
        let terms: Vec<&str> = document::quoted(row.rest).collect();
        if sources.is_empty() || terms.is_empty() {
            complaints.push(format!("\"{ABSENT}\" has a row for {} that checks nothing", row.name));
        }
        for file in sources {
            let code = code_of(&file.text);
            let matches = terms.iter().filter_map(|term| Some((term, line_of(&code, term)?)));
            complaints.extend(
                matches.map(|(term, line)| format!("{}:{line}: `{term}` is to be absent here", file.path)),
            );
        }
    }
    complaints
}

#[test]
fn absent_words_are_absent() {
    let document = house::document();
    assert!(!document::rows(&document, ABSENT).is_empty());
    assert_none(&present_though_absent(&document, &house::files()));
}

#[test]
fn words_that_should_be_absent_are_reported() {
    let document = "## What is absent\n\n| `one` | `std::time`, `*cuda*` |\n| `none` | `x` |\n";
    let complaints = |text: &str| present_though_absent(document, &[file("crates/one/src/a.rs", text)]).len();
    let of_the_row_without_sources = 1;
    assert_eq!(complaints("// std::time\nf(\"cuda\")"), of_the_row_without_sources);
    assert_eq!(complaints("use std::time::Instant; fn to_cuda() {}"), of_the_row_without_sources + 2);
}

/// Returns lines with paths of a developer's machine, or of folders beside the project.
fn foreign_paths(files: &[File]) -> Vec<String> {
    let foreign = [concat!("/wo", "rk/"), concat!("..", "/shared")];
    let is_foreign = |line: &str| {
        let starts = |at: usize| {
            !line[..at].ends_with(|before: char| before.is_alphanumeric() || "._-".contains(before))
        };
        foreign.iter().any(|path| line.match_indices(path).any(|(at, _)| starts(at)))
    };
    let mut complaints = Vec::new();
    for file in files {
        let lines = file.text.lines().enumerate().filter(|(_, line)| is_foreign(line));
        complaints.extend(lines.map(|(at, line)| format!("{}:{}: {}", file.path, at + 1, line.trim())));
    }
    complaints
}

#[test]
fn nothing_names_a_path_outside_the_project() {
    let files = house::files();
    assert!(files.len() > 100, "only {} files found", files.len());
    assert_none(&foreign_paths(&files));
}

#[test]
fn a_path_outside_the_project_is_reported() {
    let complaints = |text: String| foreign_paths(&[file("a.md", &text)]).len();
    assert_eq!(
        complaints(format!("in {}main and\n({}/x)", concat!("/wo", "rk/"), concat!("..", "/shared"))),
        2
    );
    assert_eq!(complaints(format!("frame{}, lanes/of{}x", "work/", concat!("/wo", "rk/"))), 0);
}

#[test]
fn no_modules_of_a_crate_import_each_other() {
    let files = house::files();
    let crates = house::manifests().into_keys().map(|name| format!("{}/", sources_of(&name)));
    let complaints: Vec<String> = crates.flat_map(|folder| modules::cycles(&folder, &files)).collect();
    assert_none(&complaints);
}

/// Maximum number of columns of a line of code.
const COLUMNS: usize = 110;

/// Returns lines of code and comments that are too wide, ignoring the contents of literals.
fn wide_lines(files: &[File]) -> Vec<String> {
    let is_code = |file: &&File| [".rs", ".cu", ".cuh"].iter().any(|end| file.path.ends_with(end));
    let squeezed = |code: &str| code.split_whitespace().map(|word| word.chars().count() + 1).sum::<usize>();
    let wide = |file: &File| -> Vec<String> {
        let code = code_of(&file.text);
        let lines = file.text.lines().zip(code.lines()).enumerate();
        let lines = lines.filter(|(_, (line, _))| line.chars().count() > COLUMNS);
        let lines = lines
            .filter(|(_, (line, code))| line.trim_start().starts_with("//") || squeezed(code) > COLUMNS - 10);
        lines
            .map(|(at, (line, _))| format!("{}:{}: {} columns", file.path, at + 1, line.chars().count()))
            .collect()
    };
    files.iter().filter(is_code).flat_map(wide).collect()
}

#[test]
fn lines_of_code_are_narrow_enough() {
    assert_none(&wide_lines(&house::files()));
    assert_eq!(
        wide_lines(&[file("a.rs", &"x".repeat(COLUMNS + 1)), file("a.md", &"x".repeat(200))]).len(),
        1
    );
}

fn file(path: &str, text: &str) -> File {
    File { path: path.to_owned(), text: text.to_owned() }
}
