//! Recognises files that stand in for others: git-lfs pointers, or web pages saved under the file's name.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Maximum size of a pointer in bytes, according to git-lfs's specification.
const MOST_POINTER: u64 = 1024;
/// Number of bytes from which a stand-in is recognised.
const FIRST: usize = 64;
/// First bytes of pointers, with a sentence: git-lfs, its first version, Xet and git-annex.
const POINTERS: [(&str, &str); 4] = [
    ("version https://git-lfs.github.com/spec/", GIT_LFS),
    ("version https://hawser.github.com/spec/", GIT_LFS),
    ("# xet version ", "it is a pointer of Xet, not the file itself: download the file"),
    (
        "/annex/objects/",
        "it is a pointer of git-annex, not the file itself: `git annex get` fetches the file",
    ),
];
const GIT_LFS: &str = "it is a pointer of git-lfs, not the file itself: `git lfs pull` fetches the file";
/// First bytes of web pages, in lower case.
const PAGES: [&str; 2] = ["<!doctype html", "<html"];

/// Returns the sentence for a file that is only a pointer to its contents; `None` for others.
#[must_use]
pub fn pointer(file: &File) -> Option<&'static str> {
    let is_short = file.metadata().is_ok_and(|metadata| metadata.len() < MOST_POINTER);
    let mut first = [0; FIRST];
    let read = if is_short { file.read_at(&mut first, 0).unwrap_or(0) } else { 0 };
    POINTERS.iter().find(|(start, _)| first[..read].starts_with(start.as_bytes())).map(|(_, text)| *text)
}

/// Returns the sentence for bytes that begin a web page; `None` for others. For readers of formats that are
/// never web pages.
#[must_use]
pub fn page(bytes: &[u8]) -> Option<&'static str> {
    let first = bytes.trim_ascii_start();
    let begins = |start: &&str| {
        first.get(..start.len()).is_some_and(|first| first.eq_ignore_ascii_case(start.as_bytes()))
    };
    PAGES.iter().any(begins).then_some("it is a web page (HTML): download the file itself")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_and_pages_are_recognised_by_their_first_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let lfs = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
        for (text, expected) in [
            (lfs.to_owned(), "git-lfs"),
            ("version https://hawser.github.com/spec/v1\n".to_owned(), "git-lfs"),
            ("# xet version 0\nfilesize = 1\n".to_owned(), "Xet"),
            ("/annex/objects/SHA256E-s1--0\n".to_owned(), "git-annex"),
            (format!("{lfs}{}", "x".repeat(1024)), ""),
            ("version 1\n".to_owned(), ""),
            (String::new(), ""),
        ] {
            std::fs::write(&path, &text).unwrap();
            let sentence = pointer(&File::open(&path).unwrap());
            assert_eq!(sentence.is_some(), !expected.is_empty(), "{text}");
            assert!(sentence.unwrap_or_default().contains(expected), "{text}");
        }
        assert!(page(b"\n <!DOCTYPE HTML>\n").is_some() && page(b"<html lang=\"en\">").is_some());
        assert!(page(b"<h").is_none() && page(b"{\"a\": \"<html>\"}").is_none());
    }
}
