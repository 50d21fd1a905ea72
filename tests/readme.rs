//! The README agrees with the program and the repository.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests, a panic is the report of a failure")]

mod common;

fn readme() -> String {
    std::fs::read_to_string(common::root().join("README.md")).unwrap()
}

#[test]
fn the_table_of_keys_is_the_programs() {
    let text = readme();
    let (_, rest) = text.split_once("<!-- keys: made by config::reference -->\n").unwrap();
    let (table, _) = rest.split_once("<!-- end of keys -->").unwrap();
    let expected = config::reference();
    for (written, expected) in table.lines().zip(expected.lines()) {
        assert_eq!(written, expected);
    }
    assert_eq!(table, expected);
}

#[test]
fn named_files_exist() {
    let root = common::root();
    let text = readme();
    let words = text.split(|c: char| c.is_whitespace() || "`(),;|".contains(c));
    let paths = words.map(|word| word.trim_end_matches(['.', ':'])).filter(|word| {
        let starts = ["launch/", "./launch/", "crates/", "tests/", "benches/"];
        starts.iter().any(|start| word.starts_with(start)) && !word.contains('*')
    });
    let mut seen = 0;
    for path in paths {
        assert!(root.join(path).exists(), "README names {path}");
        seen += 1;
    }
    assert!(seen > 3);
}
