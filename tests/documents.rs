//! Tests of README and `docs/`: every command runs, every path and link exists, and the table of keys equals
//! the program's.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests, a panic is the report of a failure")]

mod common;
mod excerpts;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use common::jobs::has_mpi;

/// Requirements of fenced commands that are not run here.
const NEEDS: [&str; 5] = ["build", "gpu", "mpi", "slurm", "torchrun"];

/// Returns the fenced shell commands of a page: their requirement, if any, and the lines with continuations
/// joined.
fn commands(text: &str) -> Vec<(Option<String>, Vec<String>)> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(info) = line.strip_prefix("```sh") else { continue };
        let needs = Some(info.trim().to_owned()).filter(|needs| !needs.is_empty());
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        let joined = block.join("\n").replace("\\\n", " ");
        blocks.push((needs, joined.lines().map(str::to_owned).collect()));
    }
    blocks
}

fn pages() -> Vec<PathBuf> {
    let own = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "SECURITY.md"];
    let mut pages: Vec<_> = own.map(|page| common::root().join(page)).into();
    pages.push(common::root().join("launch/devices/README.md"));
    for folder in ["docs", "benches/notes"] {
        let files = std::fs::read_dir(common::root().join(folder)).unwrap();
        pages.extend(files.map(|entry| entry.unwrap().path()));
    }
    pages.sort();
    pages
}

/// Creates a directory that resembles the source tree, in which commands may write.
fn scratch() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for name in ["Cargo.toml", "benches", "crates", "kernels", "launch", "tests"] {
        std::os::unix::fs::symlink(common::root().join(name), directory.path().join(name)).unwrap();
    }
    std::fs::create_dir(directory.path().join("bin")).unwrap();
    std::os::unix::fs::symlink(common::program(), directory.path().join("bin/plimsoll")).unwrap();
    directory
}

fn run(line: &str, directory: &Path, page: &Path) {
    let path = format!("{}:{}", directory.join("bin").display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("bash");
    command.args(["-ec", line]).current_dir(directory).env("PATH", path).stdin(Stdio::null());
    // `launch/mpirun` builds the program unless `PLIMSOLL` is set.
    command.env("PLIMSOLL", common::program());
    // Concurrent mpirun jobs fail if they create the same session directory.
    let output = command.env("OMPI_MCA_orte_tmpdir_base", directory).output().unwrap();
    let message = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}: {line}\n{}", page.display(), String::from_utf8_lossy(&message));
}

/// Runs the commands of a page in a new directory, one after another. Returns how many were run.
fn run_all(page: &Path) -> usize {
    let directory = scratch();
    let mut ran = 0;
    for (needs, lines) in commands(&std::fs::read_to_string(page).unwrap()) {
        match needs.as_deref() {
            Some("mpi") if has_mpi() => {}
            Some(needs) => {
                assert!(NEEDS.contains(&needs), "{}: unknown need {needs:?}", page.display());
                continue;
            }
            None => {}
        }
        for line in lines {
            run(&line, directory.path(), page);
            ran += 1;
        }
    }
    ran
}

/// A page whose commands are tested in `tests/generation/chat.rs`; they run here only if
/// `PLIMSOLL_LONG_TESTS` is set.
const TESTED_ELSEWHERE: &str = "docs/adapters-and-chat.md";

/// Runs two pages at a time; many commands wait or use one core.
#[test]
fn every_command_runs() {
    let is_long = std::env::var_os("PLIMSOLL_LONG_TESTS").is_some();
    let pages: Vec<_> =
        pages().into_iter().filter(|page| is_long || !page.ends_with(TESTED_ELSEWHERE)).collect();
    let next = AtomicUsize::new(0);
    let take = || std::iter::from_fn(|| pages.get(next.fetch_add(1, Ordering::Relaxed)));
    let ran: usize = std::thread::scope(|scope| {
        let threads = [(); 2].map(|()| scope.spawn(|| take().map(|page| run_all(page)).sum::<usize>()));
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(ran > 15, "only {ran} commands were found");
}

/// Returns the anchors of a page: those that GitHub derives from headings, and explicit ones.
fn anchors(text: &str) -> Vec<String> {
    let of_heading = |line: &str| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let characters = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        characters.map(|c| if c == ' ' { '-' } else { c }).collect::<String>()
    };
    let headings = text.lines().filter(|line| line.starts_with('#')).map(of_heading);
    let written = text.lines().filter_map(|line| line.strip_prefix("<a id=\"")?.strip_suffix("\"></a>"));
    headings.chain(written.map(str::to_owned)).collect()
}

#[test]
fn every_path_and_link_exists() {
    let mut seen = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        let words = text.split(|c: char| c.is_whitespace() || "`(),;|".contains(c));
        for word in words.map(|word| word.trim_end_matches(['.', ':'])) {
            let starts = ["launch/", "./launch/", "crates/", "tests/", "benches/", "kernels/"];
            if starts.iter().any(|start| word.starts_with(start)) && !word.contains(['*', '<']) {
                assert!(common::root().join(word).exists(), "{} names {word}", page.display());
                seen += 1;
            }
        }
        for target in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link) {
            if target.starts_with("https://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            assert!(path.exists(), "{} links to {target}", page.display());
            if !anchor.is_empty() {
                let text = std::fs::read_to_string(&path).unwrap();
                assert!(anchors(&text).contains(&anchor.to_owned()), "{} links to {target}", page.display());
            }
            seen += 1;
        }
    }
    assert!(seen > 30, "only {seen} paths and links were found");
}

/// Checks that the README cites only figures that are in the benchmarks.
#[test]
fn the_figures_of_the_readme_are_in_the_benchmarks() {
    let read = |path: &str| std::fs::read_to_string(common::root().join(path)).unwrap();
    let readme = read("README.md");
    let benchmarks = read("docs/benchmarks.md");
    let (_, results) = readme.split_once("## Results").unwrap();
    let (results, _) = results.split_once("\n## ").unwrap();
    let is_part = |c: char| c.is_ascii_digit() || c == ',' || c == '.';
    let numbers = |text: &str| -> Vec<String> {
        let words = text.split(|c| !is_part(c)).map(|word| word.trim_matches([',', '.']));
        words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
    };
    let figures = numbers(&benchmarks);
    let mut cited = 0;
    for row in results.lines().filter(|line| line.starts_with('|')) {
        // The first cell is the model's name.
        for figure in row.split('|').skip(2).flat_map(numbers) {
            assert!(
                figures.contains(&figure),
                "README.md has {figure}, which docs/benchmarks.md has not: {row}"
            );
            cited += 1;
        }
    }
    assert!(cited > 20, "only {cited} figures were found");
}

/// Checks that the keys in the changelog and in the tables for other trainers' users exist.
#[test]
fn translated_words_are_keys() {
    vision::register().unwrap();
    let reference = config::reference();
    let sections: Vec<&str> = reference
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('.'))
        .map(|(s, _)| s)
        .collect();
    let mut seen = 0;
    for page in ["docs/migrating.md", "docs/absent.md", "CHANGELOG.md"] {
        let text = std::fs::read_to_string(common::root().join(page)).unwrap();
        for code in text.split('`').skip(1).step_by(2) {
            let name = code.split([' ', '=']).next().unwrap_or_default();
            let is_key = name.split_once('.').is_some_and(|(section, _)| sections.contains(&section));
            if is_key {
                assert!(reference.contains(&format!("| `{name}` |")), "{page} names {name}");
                seen += 1;
            }
        }
    }
    assert!(seen > 80, "only {seen} keys were found");
}

/// Returns the `--help` text of a command of the program.
fn help(command: &[&str]) -> String {
    let output = Command::new(common::program()).args(command).arg("--help").output().unwrap();
    assert!(output.status.success(), "plimsoll {command:?} --help fails");
    String::from_utf8(output.stdout).unwrap()
}

/// Checks that the commands and options in the changelog exist.
#[test]
fn the_changelog_names_commands_and_options_of_the_program() {
    let text = std::fs::read_to_string(common::root().join("CHANGELOG.md")).unwrap();
    let mut seen = 0;
    for code in text.split('`').skip(1).step_by(2) {
        let Some(line) = code.strip_prefix("plimsoll ") else { continue };
        let (options, commands): (Vec<&str>, Vec<&str>) =
            line.split(' ').partition(|word| word.starts_with("--"));
        let help = help(&commands);
        for option in options {
            assert!(help.contains(option), "CHANGELOG.md names `{code}`");
        }
        seen += 1;
    }
    assert!(seen > 8, "only {seen} commands were found");
}

/// Compares the lines between two marks of a page with `expected`, or writes them if PLIMSOLL_WRITE_DOCS=1.
fn compare_made(page: &str, [start, end]: [&str; 2], expected: &str) {
    let path = common::root().join(page);
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(&format!("{start}\n")).unwrap();
    let (made, after) = rest.split_once(end).unwrap();
    if std::env::var_os("PLIMSOLL_WRITE_DOCS").is_some() {
        return std::fs::write(&path, format!("{before}{start}\n{expected}{end}{after}")).unwrap();
    }
    for (written, expected) in made.lines().zip(expected.lines()) {
        assert_eq!(
            written, expected,
            "PLIMSOLL_WRITE_DOCS=1 cargo test --test documents the_table_of_keys writes {page}"
        );
    }
    assert_eq!(made, expected);
}

#[test]
fn the_table_of_keys_equals_the_program() {
    vision::register().unwrap();
    let marks = ["<!-- keys: made by config::reference -->", "<!-- end of keys -->"];
    compare_made("docs/configuration.md", marks, &config::reference());
}

/// Checks that every variable used by a program, script or test is listed.
#[test]
fn all_environment_variables_are_listed() {
    let is_of_name = |character: char| character.is_ascii_uppercase() || character == '_';
    let mut unlisted = Vec::new();
    let folders = ["crates", "launch", "tests", "benches", ".ci"].map(|folder| common::root().join(folder));
    let mut paths: Vec<_> = folders.into_iter().filter(|path| path.exists()).collect();
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            paths.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        for (at, prefix) in text.match_indices("PLIMSOLL_") {
            let rest = &text[at + prefix.len()..];
            let end = rest.find(|character| !is_of_name(character)).unwrap_or(rest.len());
            let name = format!("{prefix}{}", &rest[..end]);
            let is_made_up = ["PLIMSOLL_STRAT_SECONDS", "PLIMSOLL_XYZ_UNLIKE_ANY"].contains(&name.as_str());
            if end > 0 && !is_made_up && plimsoll::ENVIRONMENT.key(&name).is_none() {
                unlisted.push(format!("{name} in {}", path.display()));
            }
        }
    }
    assert!(unlisted.is_empty(), "{unlisted:#?}");
}

/// Checks that every crate that reads other programs' files lists its readers.
#[test]
fn the_table_of_keys_of_files_equals_the_program() {
    let readers =
        [data::READERS, nn::READERS, vision::READERS, run::READERS, &[&plimsoll::ENVIRONMENT]].concat();
    let sections: Vec<String> = readers.iter().map(|reader| reader.section()).collect();
    let marks = ["<!-- readers: made by Reader::section -->", "<!-- end of readers -->"];
    compare_made("docs/readers.md", marks, &sections.join("\n"));
    for reader in readers {
        let mut names: Vec<_> = reader.keys.iter().flat_map(|key| key.names()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{}: a key is listed twice", reader.of);
    }
}
