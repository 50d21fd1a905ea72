//! Tests that reads are bounded, writes are atomic, and foreign files are kept, for all kinds of files.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests, a panic is the report of a failure")]

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use system::input;
use system::lines::{Line, Lines};
use system::output::{OutputFile, Replace, open_own, remove_all_temporaries, remove_temporaries, write_own};
use system::terminal::visible;

/// Returns a directory with one path of each irregular kind, and the text of its refusal.
fn irregular() -> (tempfile::TempDir, Vec<(PathBuf, &'static str)>) {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    mknodat(CWD, path("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    fs::create_dir(path("directory")).unwrap();
    drop(UnixListener::bind(path("socket")).unwrap());
    symlink("fifo", path("link to a fifo")).unwrap();
    let all = vec![
        (path("fifo"), "a FIFO"),
        (path("directory"), "a directory"),
        (path("socket"), "a socket"),
        (path("link to a fifo"), "a FIFO"),
        ("/dev/zero".into(), "a device"),
    ];
    (directory, all)
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn only_regular_files_within_the_bound_are_read() {
    let (directory, all) = irregular();
    for (path, words) in all {
        let error = input::read(&path, 100).unwrap_err().to_string();
        assert!(error.contains(words), "{}: {error}", path.display());
    }
    let file = directory.path().join("file");
    fs::write(&file, [b'x'; 100]).unwrap();
    assert_eq!(input::read(&file, 100).unwrap().len(), 100);
    let error = input::read(&file, 99).unwrap_err();
    assert_eq!((error.kind(), error.to_string().contains("99 bytes")), (ErrorKind::FileTooLarge, true));
    fs::write(&file, b"\xff").unwrap();
    assert!(input::read_text(&file, 9).unwrap_err().to_string().contains("UTF-8"));
    assert_eq!(input::read(&directory.path().join("none"), 9).unwrap_err().kind(), ErrorKind::NotFound);
}

/// Checks that a file's size is compared before reading: this one exceeds memory a hundredfold.
#[test]
fn a_file_beyond_the_bound_is_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sparse");
    fs::File::create(&path).unwrap().set_len(1 << 42).unwrap();
    let error = input::read(&path, 1 << 41).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FileTooLarge, "{error}");
    // System files have size 0.
    assert!(!input::read(Path::new("/proc/self/status"), 1 << 20).unwrap().is_empty());
}

#[test]
fn lines_are_read_one_by_one_within_the_bound() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lines");
    // Lines of at most 3 bytes before the end or the first longer line, whose number is reported.
    for (text, lines, too_long) in [
        (&b""[..], &[][..], None),
        (b"a\n\nbcd\n", &[(&b"a"[..], 0..2, true), (b"", 2..3, true), (b"bcd", 3..7, true)], None),
        (b"a\nbc", &[(b"a", 0..2, true), (b"bc", 2..4, false)], None),
        (b"a\r\n\xff\n", &[(b"a\r", 0..3, true), (b"\xff", 3..5, true)], None),
        (b"a\nbcde\nf\n", &[(b"a", 0..2, true)], Some("line 2 has more than 3 bytes")),
        (b"abcd", &[], Some("line 1 has more than 3 bytes")),
    ] {
        fs::write(&path, text).unwrap();
        let mut read = Lines::open(&path, 3).unwrap();
        for (number, (text, range, is_complete)) in (1..).zip(lines) {
            let expected = Line { number, text, range: range.clone(), is_complete: *is_complete };
            assert_eq!(read.next_line().unwrap().unwrap(), expected);
        }
        match too_long {
            None => assert_eq!(read.next_line().unwrap(), None, "{text:?}"),
            Some(words) => assert!(read.next_line().unwrap_err().to_string().contains(words), "{text:?}"),
        }
    }
    let sparse = fs::File::create(&path).unwrap();
    sparse.set_len(1 << 42).unwrap();
    assert_eq!(Lines::open(&path, 1 << 20).unwrap().next_line().unwrap_err().kind(), ErrorKind::FileTooLarge);
}

#[test]
fn packed_data_is_unpacked_up_to_the_bound() {
    let packed = |bytes: &[u8]| {
        let mut packer = GzEncoder::new(Vec::new(), Compression::best());
        packer.write_all(bytes).unwrap();
        packer.finish().unwrap()
    };
    let bomb = packed(&vec![0; 10 << 20]);
    assert!(bomb.len() < 20_000);
    let error = input::unpack(&bomb, 1 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FileTooLarge);
    assert_eq!(input::unpack(&bomb, 10 << 20).unwrap().len(), 10 << 20);
    assert_eq!(*input::unpack(b"plain", 1).unwrap(), *b"plain");
    // All members of the file are unpacked.
    assert!(input::unpack(&[packed(&[1; 60]), packed(&[2; 60])].concat(), 100).is_err());
}

#[test]
fn an_output_replaces_only_allowed_files_and_leaves_no_temporary() {
    let mark = "<!-- Plimsoll -->";
    let ours = format!("<svg>{mark}");
    let theirs = "thesis".to_owned();
    let table: [(Option<&str>, Replace, bool); 9] = [
        (None, Replace::Nothing, true),
        (None, Replace::Marked(mark), true),
        (Some(&ours), Replace::Marked(mark), true),
        (Some(""), Replace::Marked(mark), true),
        (Some(&theirs), Replace::Marked(mark), false),
        (Some(&ours), Replace::Nothing, false),
        (Some(""), Replace::Nothing, false),
        (Some(&theirs), Replace::Anything, true),
        (Some(&ours), Replace::Anything, true),
    ];
    for (before, replace, allowed) in table {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("page");
        if let Some(before) = before {
            fs::write(&path, before).unwrap();
        }
        let written = OutputFile::new(&path, replace).and_then(|output| output.write(b"new"));
        assert_eq!(written.is_ok(), allowed, "{before:?} {replace:?} {written:?}");
        let expected = if allowed { Some("new") } else { before };
        assert_eq!(fs::read_to_string(&path).ok().as_deref(), expected, "{before:?} {replace:?}");
        assert_eq!(names(directory.path()), ["page"]);
    }
    // A file created while the result is computed is kept too.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("page");
    let output = OutputFile::new(&path, Replace::Marked(mark)).unwrap();
    assert!(names(directory.path()).is_empty());
    fs::write(&path, "thesis").unwrap();
    assert_eq!(output.write(b"new").unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(
        (names(directory.path()), fs::read(&path).unwrap()),
        (vec!["page".to_owned()], b"thesis".to_vec())
    );
}

#[test]
fn an_output_is_always_a_regular_file() {
    let (directory, all) = irregular();
    for (path, words) in all {
        for replace in [Replace::Anything, Replace::Marked("x")] {
            let error = OutputFile::new(&path, replace).unwrap_err().to_string();
            let link = "a symbolic link";
            assert!(error.contains(words) || error.contains(link), "{}: {error}", path.display());
        }
        assert!(write_own(&path, b"new").is_err(), "{}", path.display());
    }
    for path in ["", "/", "missing/file", "Cargo.toml/file"] {
        assert!(OutputFile::new(Path::new(path), Replace::Anything).is_err(), "{path}");
    }
    assert_eq!(names(directory.path()), ["directory", "fifo", "link to a fifo", "socket"]);
}

#[test]
fn links_are_replaced_and_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("theirs"), "thesis").unwrap();
    for target in ["theirs", "nothing"] {
        let link = path("link");
        symlink(target, &link).unwrap();
        let refused = OutputFile::new(&link, Replace::Marked("thesis")).unwrap_err();
        assert!(refused.to_string().contains("a symbolic link"), "{refused}");
        for options in [
            OpenOptions::new().append(true).create(true),
            OpenOptions::new().write(true).create(true).truncate(true),
            OpenOptions::new().read(true).write(true),
        ] {
            let refused = open_own(&link, options).unwrap_err();
            assert!(refused.to_string().contains("a symbolic link"), "{refused}");
        }
        write_own(&link, b"new").unwrap();
        assert!(!fs::symlink_metadata(&link).unwrap().is_symlink());
        fs::remove_file(&link).unwrap();
    }
    assert_eq!(fs::read(path("theirs")).unwrap(), b"thesis");
    assert_eq!(names(directory.path()), ["theirs"]);
    fs::write(path("metrics"), "a\n").unwrap();
    open_own(&path("metrics"), OpenOptions::new().append(true)).unwrap().write_all(b"b\n").unwrap();
    assert_eq!(fs::read(path("metrics")).unwrap(), b"a\nb\n");
}

#[test]
fn temporaries_of_a_killed_process_are_removed_and_other_files_kept() {
    let directory = tempfile::tempdir().unwrap();
    let others =
        ["summary.json", ".summary.json.backup", ".other.json.123", ".summary.json.", "summary.json.12"];
    let gone = [".summary.json.123", ".summary.json.123-4"];
    for name in others.iter().chain(&gone) {
        fs::write(directory.path().join(name), "x").unwrap();
    }
    remove_temporaries(&directory.path().join("summary.json")).unwrap();
    let mut others = others.map(str::to_owned);
    others.sort();
    assert_eq!(names(directory.path()), others);
    remove_all_temporaries(directory.path()).unwrap();
    let others = [".summary.json.", ".summary.json.backup", "summary.json", "summary.json.12"];
    assert_eq!(names(directory.path()), others);
    remove_all_temporaries(&directory.path().join("none")).unwrap();
}

#[test]
fn control_characters_are_visible() {
    for (text, shown) in [
        ("plain\ttext\n é €", "plain\ttext\n é €"),
        ("\u{1b}[31mred\u{1b}]0;title\u{7}", "␛[31mred␛]0;title␇"),
        ("a\r\u{8}b\u{7f}\0", "a␍␈b␡␀"),
        ("\u{9b}2J", "\\u{9b}2J"),
        ("ab\u{202e}dc\u{2066}", "ab\\u{202e}dc\\u{2066}"),
    ] {
        assert_eq!(visible(text), shown);
        assert_eq!(visible(&visible(text)), shown);
    }
}
