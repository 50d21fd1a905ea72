//! Tests of tokenizers.

use super::*;
use proptest::prelude::*;

#[test]
fn decoding_replaces_invalid_text() {
    let table: [(Tokenizer, &[u32], &str); 6] = [
        (Tokenizer::Bytes, &[104, 105], "hi"),
        (Tokenizer::Bytes, &[0xC3, 0xA9], "é"),
        (Tokenizer::Bytes, &[104, 0xC3, 105], "h\u{FFFD}i"),
        (Tokenizer::Bytes, &[104, 256, u32::MAX], "h\u{FFFD}\u{FFFD}"),
        // Token 127 is the byte 0xC3.
        (Tokenizer::Gpt2, &[31373, 127, 31373, 50257], "hello\u{FFFD}hello\u{FFFD}"),
        (Tokenizer::None, &[1, 2], "<1><2>"),
    ];
    for (tokenizer, tokens, text) in table {
        assert_eq!(tokenizer.decode(tokens), text, "{tokens:?}");
    }
}

#[test]
fn names_give_their_tokenizers_and_others_are_files() {
    for name in Tokenizer::NAMES {
        assert_eq!(Tokenizer::from_name(name).unwrap().name(), *name);
    }
    let refused = Tokenizer::from_name("gtp2").unwrap_err();
    assert_eq!(refused.to_string(), "there is no file gtp2");
}

/// Loads a tokenizer from a file with this text.
fn loaded(text: &[u8]) -> Result<Tokenizer, Error> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokenizer.json");
    std::fs::write(&path, text).unwrap();
    Tokenizer::from_name(directory.path().to_str().unwrap())
}

#[test]
fn files_that_are_no_tokenizer_are_refused_in_a_sentence() {
    for text in [
        r#"{"decoder":""#,
        r#"{"decoder":"}"#,
        "",
        "{",
        "[]",
        "{}",
        "null",
        r#"{"model":{"type":"BPE"}}"#,
        r#"{"version":"1.0","added_tokens":[],"model":{"type":"BPE","vocab":{},"merges":["a"]}}"#,
        r#"{"version":"1.0","model":{"type":"WordLevel","vocab":{"a":-1},"unk_token":"b"}}"#,
        r#"{"version":"1.0","model":{"type":"WordLevel","vocab":{"a":4294967295},"unk_token":"a"}}"#,
        r#"{"version":"1.0","model":{"type":"BPE","vocab":{"a":0},"merges":[],"dropout":0.1}}"#,
        r#"{"version":"1.0","model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"},"post_processor":
            {"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},
            {"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{}}}"#,
    ] {
        let refused = loaded(text.as_bytes()).unwrap_err();
        assert!(matches!(refused, Error::BadTokenizer { .. }), "{text}: {refused}");
    }
}

#[test]
fn folders_and_links_instead_of_files_are_refused_by_name() {
    let model = r#"{"version":"1.0","model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"}}"#;
    for name in
        ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"]
    {
        for is_folder in [true, false] {
            let directory = tempfile::tempdir().unwrap();
            let at = |name: &str| directory.path().join(name);
            std::fs::write(at("tokenizer.json"), model).unwrap();
            let _ = std::fs::remove_file(at(name));
            match is_folder {
                true => std::fs::create_dir(at(name)).unwrap(),
                false => std::os::unix::fs::symlink("nowhere", at(name)).unwrap(),
            }
            let refused = Tokenizer::from_name(directory.path().to_str().unwrap()).unwrap_err().to_string();
            assert!(refused.contains(name), "{refused}");
        }
    }
}

/// Tokens equal those of tiktoken's `get_encoding("gpt2")` in Python.
#[test]
fn gpt2_gives_the_tokens_of_tiktoken() {
    let table: [(&str, &[u32]); 4] = [
        ("hello world", &[31373, 995]),
        ("First Citizen:\nBefore we proceed", &[5962, 22307, 25, 198, 8421, 356, 5120]),
        ("a  b\n\n c", &[64, 220, 275, 628, 269]),
        ("<|endoftext|>", &[27, 91, 437, 1659, 5239, 91, 29]),
    ];
    for (text, tokens) in table {
        assert_eq!(Tokenizer::Gpt2.encode(text).unwrap(), tokens, "{text}");
        assert_eq!(Tokenizer::Gpt2.decode(tokens), text);
    }
    assert_eq!(Tokenizer::Gpt2.separator(), Tokenizer::Gpt2.token("<|endoftext|>"));
    assert_eq!(Tokenizer::Gpt2.byte_lengths().unwrap()[31373], 5);
}

/// Very long runs of a character, on which a regular expression might give up, are encoded.
#[test]
fn gpt2_takes_any_text() {
    for character in [" ", "a", "é"] {
        let text = character.repeat(1_200_000);
        assert_eq!(Tokenizer::Gpt2.decode(&Tokenizer::Gpt2.encode(&text).unwrap()), text, "{character:?}");
    }
}

proptest! {
    #[test]
    fn decoding_inverts_encoding(text in "\\PC{0,60}") {
        for tokenizer in [Tokenizer::Bytes, Tokenizer::Gpt2] {
            let tokens = tokenizer.encode(&text).unwrap();
            let lengths = tokenizer.byte_lengths().unwrap();
            let bytes: usize = tokens.iter().map(|token| lengths[*token as usize] as usize).sum();
            prop_assert_eq!(bytes, text.len());
            prop_assert_eq!(tokenizer.decode(&tokens), text.as_str());
        }
    }

    #[test]
    fn a_damaged_file_never_panics(
        cut in 0_usize..4_000,
        replaced in 0_usize..4_000,
        byte in 0_u8..=255,
    ) {
        let mut text = Tokenizer::Bytes.json().unwrap();
        let cut = cut % text.len();
        let replaced = replaced % text.len();
        prop_assert!(loaded(&text[..cut]).is_err());
        text[replaced] = byte;
        if let Ok(tokenizer) = loaded(&text) {
            // What loads also encodes.
            prop_assert!(tokenizer.encode("a é").is_ok());
        }
    }

    #[test]
    fn cutting_before_a_space_changes_no_token(left in "[a-z0-9 é!\n']{0,20}", right in "[a-z0-9 é!\n']{0,20}") {
        let left = format!("{left}x");
        let right = format!(" y{right}");
        let encode = |text: &str| Tokenizer::Gpt2.encode(text).unwrap();
        prop_assert_eq!([encode(&left), encode(&right)].concat(), encode(&format!("{left}{right}")));
    }
}
