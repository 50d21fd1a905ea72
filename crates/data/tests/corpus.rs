//! Tests of corpora of real files.

use data::{Corpus, Error};
use proptest::prelude::*;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

fn directory(files: &[(&str, &[u8])]) -> TempDir {
    let directory = TempDir::new().unwrap();
    for (name, bytes) in files {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    directory
}

fn open(base: &Path, patterns: &[&str]) -> Result<Corpus, Error> {
    Corpus::open(base, &patterns.iter().map(ToString::to_string).collect::<Vec<_>>())
}

fn read(corpus: &Corpus, range: std::ops::Range<u64>) -> Result<Vec<u8>, Error> {
    let mut tokens = vec![0; (range.end - range.start) as usize];
    corpus.read(range.start, &mut tokens)?;
    Ok(tokens.into_iter().map(|token| u8::try_from(token).unwrap()).collect())
}

fn text(corpus: &Corpus) -> String {
    String::from_utf8(read(corpus, 0..corpus.len()).unwrap()).unwrap()
}

#[test]
fn files_are_sorted_and_occur_once_under_any_names() {
    let directory = directory(&[
        ("b.txt", b"B"),
        ("a.txt", b"A"),
        ("sub/deep/c.txt", b"C"),
        ("sub/d.md", b"D"),
        ("empty.txt", b""),
        (".hidden.txt", b"H"),
        ("sub/[x].txt", b"X"),
    ]);
    let base = directory.path();
    let absolute = base.join("a.txt").to_string_lossy().into_owned();
    let table: [(&[&str], &str); 10] = [
        (&["*.txt"], "AB"),
        (&["b.txt", "a.txt"], "AB"),
        (&["a.txt", "./a.txt", "sub/../a.txt", "*.txt"], "AB"),
        (&["**/*.txt"], "ABXC"),
        (&["sub/*"], "XD"),
        (&["sub/[x].txt"], "X"),
        (&["sub/**/*.txt", "sub/*.md"], "XDC"),
        (&["[ab].txt"], "AB"),
        (&[".*.txt"], "H"),
        (&[&absolute, "b.txt"], "AB"),
    ];
    for (patterns, expected) in table {
        let mut actual: Vec<char> = text(&open(base, patterns).unwrap()).chars().collect();
        if patterns.len() == 1 {
            assert_eq!(actual.iter().collect::<String>(), expected, "{patterns:?}");
        }
        let mut expected: Vec<char> = expected.chars().collect();
        actual.sort_unstable();
        expected.sort_unstable();
        assert_eq!(actual, expected, "{patterns:?}");
    }
}

#[test]
fn the_order_of_patterns_does_not_matter() {
    let directory = directory(&[("a", b"1"), ("b/a", b"2"), ("b/b", b"3"), ("c", b"4")]);
    for patterns in [["c", "b/*", "a"], ["a", "b/*", "c"], ["b/*", "a", "c"]] {
        assert_eq!(text(&open(directory.path(), &patterns).unwrap()), "1234", "{patterns:?}");
    }
}

#[cfg(unix)]
#[test]
fn a_name_that_is_not_utf8_is_ignored() {
    use std::os::unix::ffi::OsStrExt;
    let directory = directory(&[("a.txt", b"A")]);
    fs::write(directory.path().join(std::ffi::OsStr::from_bytes(b"\xff.txt")), "B").unwrap();
    assert_eq!(text(&open(directory.path(), &["*.txt"]).unwrap()), "A");
}

#[test]
fn a_base_directory_is_a_name_and_not_a_glob() {
    let directory = directory(&[("[a]*/x.txt", b"inside"), ("a/x.txt", b"outside")]);
    assert_eq!(text(&open(&directory.path().join("[a]*"), &["*.txt"]).unwrap()), "inside");
}

#[test]
fn invalid_corpora_are_refused_by_name() {
    let directory = directory(&[("file.txt", b"text"), ("empty.txt", b""), ("sub/other.txt", b"text")]);
    let base = directory.path();
    let at = base.display();
    let table: [(&[&str], String); 9] = [
        (&[], "the corpus names no file".into()),
        (&["file.txt", "missing.txt"], format!("there is no file {at}/missing.txt")),
        (&["*.md"], format!("the glob '*.md' matches no file in {at}")),
        (&["su*"], format!("the glob 'su*' matches no file in {at}")),
        (&["sub"], format!("{at}/sub is a directory, not a regular file")),
        (&["/dev/null"], "/dev/null is a device, pipe or socket, not a regular file".into()),
        (&["empty.txt", "file.txt"], "'empty.txt' has no text".into()),
        (&["e*.txt"], "'e*.txt' has no text".into()),
        (&["file.txt/inner"], format!("{at}/file.txt/inner cannot be read: Not a directory (os error 20)")),
    ];
    for (patterns, expected) in table {
        assert_eq!(open(base, patterns).unwrap_err().to_string(), expected, "{patterns:?}");
    }
    let unclosed = open(base, &["[a.txt"]).unwrap_err();
    assert!(matches!(&unclosed, Error::BadPattern { pattern, .. } if pattern == "[a.txt"), "{unclosed}");
}

#[test]
fn the_fingerprint_is_the_sha256_of_the_text_for_any_division() {
    let whole = directory(&[("x", b"abc")]);
    let divided = directory(&[("1", b"a"), ("2", b""), ("3", b"bc")]);
    // FIPS 180-4's example for "abc".
    let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    for directory in [whole, divided] {
        assert_eq!(open(directory.path(), &["*"]).unwrap().fingerprint().unwrap(), expected);
    }
}

/// Opening and reading a sparse file of 1 TiB anywhere takes neither memory nor time.
#[test]
fn a_corpus_larger_than_memory_is_read_at_any_position() {
    use std::io::{Seek, SeekFrom, Write};
    const LENGTH: u64 = 1 << 40;
    let directory = TempDir::new().unwrap();
    let mut file = fs::File::create(directory.path().join("1.bin")).unwrap();
    file.set_len(LENGTH).unwrap();
    file.seek(SeekFrom::Start(LENGTH - 4)).unwrap();
    file.write_all(b"tail").unwrap();
    fs::write(directory.path().join("2.bin"), b"next").unwrap();

    let corpus = open(directory.path(), &["*.bin"]).unwrap();
    assert_eq!(corpus.len(), LENGTH + 4);
    assert_eq!(read(&corpus, LENGTH - 5..LENGTH + 2).unwrap(), b"\0tailne");
    assert_eq!(read(&corpus, LENGTH / 2..LENGTH / 2 + 3).unwrap(), [0; 3]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_range_is_read_across_files(
        files in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 1..8),
        a in 0_u64..200, b in 0_u64..200,
    ) {
        let whole = files.concat();
        prop_assume!(!whole.is_empty());
        let directory = TempDir::new().unwrap();
        for (index, bytes) in files.iter().enumerate() {
            fs::write(directory.path().join(format!("{index}.bin")), bytes).unwrap();
        }
        let corpus = open(directory.path(), &["*.bin"]).unwrap();
        prop_assert_eq!(corpus.len(), whole.len() as u64);
        let from = a.min(b);
        let to = a.max(b);
        match whole.get(from as usize..to as usize) {
            Some(expected) => prop_assert_eq!(read(&corpus, from..to).unwrap(), expected),
            None => {
                let is_refused = matches!(read(&corpus, from..to), Err(Error::BeyondCorpus { .. }));
                prop_assert!(is_refused);
            }
        }
    }
}

#[test]
fn a_file_that_changes_while_it_is_open_is_an_error_that_names_it() {
    let directory = directory(&[("a.txt", b"abc"), ("b.txt", b"defg"), ("c.txt", b"hi")]);
    let corpus = open(directory.path(), &["*.txt"]).unwrap();
    assert_eq!(text(&corpus), "abcdefghi");
    let path = directory.path().join("b.txt");
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1).unwrap();
    let error = read(&corpus, 0..corpus.len()).unwrap_err();
    assert!(matches!(&error, Error::Changed { path: named, before: 4, now: 1 } if *named == path), "{error}");
    for (range, changed) in [(0..3, false), (2..4, true), (3..4, true), (6..7, true), (7..9, false)] {
        assert_eq!(read(&corpus, range.clone()).is_err(), changed, "{range:?}");
    }
    // A new file of that name, or none, leaves the open one unchanged.
    let corpus = open(directory.path(), &["*.txt"]).unwrap();
    fs::write(directory.path().join("new"), "more than before").unwrap();
    fs::rename(directory.path().join("new"), &path).unwrap();
    fs::remove_file(directory.path().join("c.txt")).unwrap();
    assert_eq!(text(&corpus), "abcdhi");
}

/// A corpus can have more files than a process may keep open by default.
#[test]
fn a_corpus_may_have_thousands_of_files() {
    let directory = TempDir::new().unwrap();
    for index in 0..3000 {
        fs::write(directory.path().join(format!("{index:04}")), format!("{index:04}")).unwrap();
    }
    let corpus = open(directory.path(), &["*"]).unwrap();
    assert_eq!(corpus.files().count(), 3000);
    assert_eq!(read(&corpus, 4 * 1023..4 * 1025).unwrap(), b"10231024");
    assert_eq!(read(&corpus, 4 * 2999..4 * 3000).unwrap(), b"2999");
    // A file that is opened again is compared with its earlier state.
    fs::write(directory.path().join("new"), "2999").unwrap();
    fs::rename(directory.path().join("new"), directory.path().join("2999")).unwrap();
    assert!(matches!(read(&corpus, 4 * 2999..4 * 3000), Err(Error::Changed { .. })));
}
