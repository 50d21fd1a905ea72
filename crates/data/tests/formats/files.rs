//! Tests of file kinds: JSON as Python writes it, and compressed files.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::{read, read_named, texts};

const OPENAI: &str =
    r#"{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}"#;

fn gz(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn files_are_what_their_first_bytes_say() {
    let expected = read(OPENAI).unwrap();
    let marked = format!("\u{feff}{OPENAI}\n");
    for (name, bytes) in [
        ("c.jsonl", marked.clone().into_bytes()),
        ("c.json", format!("\u{feff}[{OPENAI}]").into_bytes()),
        ("c.jsonl", format!("\n{OPENAI}\r\n").into_bytes()),
        ("c.jsonl.gz", gz(OPENAI)),
        ("c.jsonl", gz(&marked)),
        ("c.json.gz", gz(&format!("[{OPENAI}]"))),
    ] {
        assert_eq!(read_named(name, &bytes).unwrap(), expected, "{name}");
    }
    let utf16: Vec<u8> = OPENAI.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
    for (bytes, expected) in [
        ([&[0xff, 0xfe][..], &utf16].concat(), "it is UTF-16: convert it to UTF-8, plain or"),
        (lfs.to_vec(), "it is a pointer of git-lfs, not the file itself"),
        (b"<!DOCTYPE html>\n<html>".to_vec(), "it is a web page (HTML)"),
        (b"PK\x03\x04".to_vec(), "it is a zip archive: convert it"),
        (gz(OPENAI)[..30].to_vec(), "cannot be read"),
        (Vec::new(), "has no conversation"),
    ] {
        let refused = read_named("c.jsonl", &bytes).unwrap_err().to_string();
        assert!(refused.contains("c.jsonl") && refused.contains(expected), "{refused}");
    }
}

#[test]
fn numbers_that_are_not_finite_matter_in_keys_that_are_read() {
    let beside = |keys: &str| OPENAI.replacen('{', &format!("{{{keys}, "), 1);
    let expected = read(OPENAI).unwrap();
    for keys in [r#""score": NaN"#, r#""a": [-Infinity, {"b": Infinity}], "c": 1e999"#, r#""x": "\ud83d""#] {
        assert_eq!(read(&beside(keys)).unwrap(), expected, "{keys}");
    }
    let half = OPENAI.replace("ho", "h\\ud83d");
    for (text, key) in [
        (beside(r#""tools": [{"a": NaN}]"#), "tools"),
        (beside(r#""weight": NaN"#), "weight"),
        (half, "messages"),
    ] {
        let refused = read(&text).unwrap_err().to_string();
        let expected = format!("c.json:1: its \"{key}\" has NaN, Infinity or half of a surrogate pair");
        assert!(refused.contains(&expected), "{text}: {refused}");
    }
}

#[cfg(feature = "parquet")]
#[test]
fn rows_of_parquet_are_conversations() {
    let read = read_named("c.parquet", include_bytes!("conversations.parquet")).unwrap();
    let texts: Vec<_> = read.iter().map(texts).collect();
    let first = "<user>hi</><assistant>no</><user>hi</><assistant>ho</>";
    let expected = [(first, "ho</>"), ("<user>é?</><assistant>€</>", "€</>")];
    assert_eq!(texts, expected.map(|(text, learnt)| (text.to_owned(), learnt.to_owned())));
    let packed = zstd::stream::encode_all(OPENAI.as_bytes(), 0).unwrap();
    assert_eq!(read_named("c.jsonl.zst", &packed).unwrap(), super::read(OPENAI).unwrap());
    let cut = &include_bytes!("conversations.parquet")[..100];
    let refused = read_named("c.parquet", cut).unwrap_err().to_string();
    assert!(refused.contains("c.parquet: it is no Parquet file that can be read"), "{refused}");
}

#[cfg(not(feature = "parquet"))]
#[test]
fn parquet_is_refused_where_its_reader_is_left_out() {
    let refused = read_named("c.parquet", include_bytes!("conversations.parquet")).unwrap_err().to_string();
    assert!(
        refused.contains("c.parquet: this program was built without the readers of Parquet"),
        "{refused}"
    );
    assert!(texts(&read(OPENAI).unwrap()[0]).0.starts_with("<user>"));
}
