//! Excerpts of code on pages: a block ```` ```rust PATH ```` is in that file, line by line.
//!
//! Indentation, blank lines, lines of comments and remarks behind a line (two spaces, then `//`) are not
//! compared. A line `// …` leaves out any number of lines.

use std::path::PathBuf;

use crate::common;

/// A line that leaves out lines of the file.
const ELISION: &str = "// …";

/// An excerpt on a page.
struct Excerpt {
    path: String,
    /// Lines that follow each other in the file, between elisions.
    pieces: Vec<Vec<String>>,
}

/// A line as it is compared, without a remark of the page; `None` for a blank line or a comment.
fn compared(line: &str) -> Option<String> {
    let line = line.split("  //").next().unwrap_or_default().trim();
    (!line.is_empty() && !line.starts_with("//")).then(|| line.to_owned())
}

/// The excerpts of a page, in order.
fn excerpts(page: &str) -> Vec<Excerpt> {
    let mut excerpts = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(path) = line.strip_prefix("```rust ") else { continue };
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").map(str::trim).collect();
        let pieces = block.split(|line| *line == ELISION);
        let pieces = pieces.map(|piece| piece.iter().filter_map(|line| compared(line)).collect());
        excerpts.push(Excerpt { path: path.to_owned(), pieces: pieces.collect() });
    }
    excerpts
}

/// The first piece of an excerpt that does not follow the pieces before it in `file`.
fn missing<'a>(excerpt: &'a Excerpt, file: &str) -> Option<&'a [String]> {
    let lines: Vec<String> = file.lines().map(str::trim).filter_map(compared).collect();
    let mut start = 0;
    for piece in excerpt.pieces.iter().filter(|piece| !piece.is_empty()) {
        let Some(index) = lines[start..].windows(piece.len()).position(|window| window == piece) else {
            return Some(piece);
        };
        start += index + piece.len();
    }
    None
}

#[test]
fn excerpts_are_in_the_code() {
    let page = common::root().join("docs/one-step.md");
    let excerpts = excerpts(&std::fs::read_to_string(page).unwrap());
    assert!(excerpts.len() > 20, "only {} excerpts were found", excerpts.len());
    for excerpt in &excerpts {
        let path: PathBuf = common::root().join(&excerpt.path);
        let file = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", excerpt.path));
        let missing = missing(excerpt, &file);
        assert!(
            missing.is_none(),
            "docs/one-step.md: {} has not, in this order:\n{missing:#?}",
            excerpt.path
        );
    }
}

#[test]
fn a_wrong_excerpt_is_reported() {
    let file = "fn f() {\n    // One.\n    one();\n\n    two();\n    three();\n}\n";
    let page = |code: &str| excerpts(&format!("Text\n```rust a.rs\n{code}\n```\n"));
    let is_there = |code: &str| missing(&page(code)[0], file).is_none();
    assert!(is_there("one();  // first\ntwo();\n// …\n}"));
    assert!(!is_there("one();\nthree();"));
    assert!(!is_there("three();\n// …\none();"));
    assert!(!is_there("four();"));
}
