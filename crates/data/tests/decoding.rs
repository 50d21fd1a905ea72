//! Whole texts and incremental tokens are decoded as by the library `tokenizers`.

use crate::common::{added, byte_level, sentence_pieces, tokenizer};
use data::{TextStream, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Decodes tokens one by one after the tokens `before`.
fn streamed(tokenizer: &Tokenizer, before: &[u32], tokens: &[u32]) -> String {
    let mut stream = TextStream::new(tokenizer, before);
    let mut text: String = tokens.iter().map(|token| stream.push(tokenizer, *token)).collect();
    text += &stream.finish(tokenizer);
    text
}

/// Returns the ids of the tokens with these texts.
fn numbers(tokenizer: &Tokenizer, texts: &[&str]) -> Vec<u32> {
    texts.iter().map(|text| tokenizer.token(text).unwrap()).collect()
}

fn pieces() -> Tokenizer {
    tokenizer(&sentence_pieces(&["the", "sky"], &[]), &[])
}

/// A tokenizer as of newer models like Llama 2, with the decoder `Metaspace`.
fn metaspace() -> Tokenizer {
    let mut described = sentence_pieces(&["the", "sky"], &[]);
    described["normalizer"] = Value::Null;
    described["pre_tokenizer"] =
        json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "first", "split": false});
    described["decoder"] = described["pre_tokenizer"].clone();
    tokenizer(&described, &[])
}

/// A tokenizer as of BERT, whose words are joined by spaces.
fn word_pieces() -> Tokenizer {
    let vocabulary = ["[UNK]", "the", "sky", "##s", "is", "."];
    let numbered = vocabulary.iter().enumerate().map(|(number, text)| ((*text).to_owned(), number.into()));
    let vocabulary: serde_json::Map<String, Value> = numbered.collect();
    let described = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [added(0, "[UNK]", true)],
        "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocabulary,
        },
    });
    tokenizer(&described, &[])
}

#[test]
fn bytes_of_a_character_make_it_in_any_tokens() {
    let smile = ["<0xF0>", "<0x9F>", "<0x98>", "<0x80>"];
    for (before, texts, expected) in [
        (&["a"][..], [&smile[..], &["b", "c"]].concat(), "\u{1F600}bc"),
        (&["a"], vec!["<0xC3>", "b"], "\u{FFFD}b"),
        (&["a"], vec!["<0xE2>", "<0x82>"], "\u{FFFD}"),
        (&["a"], vec!["<0xFF>", "<0xFF>", "b"], "\u{FFFD}\u{FFFD}b"),
        (&[], [&["\u{2581}"][..], &smile].concat(), "\u{1F600}"),
    ] {
        let tokenizer = pieces();
        let [before, tokens] = [before, &texts].map(|texts| numbers(&tokenizer, texts));
        assert_eq!(streamed(&tokenizer, &before, &tokens), expected, "{texts:?}");
    }
}

/// A decoder removes the space that encoding puts in front of a text, but none within the text.
#[test]
fn a_continuation_keeps_its_first_space() {
    let mark = "\u{2581}";
    for (before, texts, expected) in [
        (&["a"][..], &[mark, "b", "c"][..], " bc"),
        (&["a"], &["\u{2581}the", "\u{2581}sky"], " the sky"),
        (&["a"], &[mark, mark, "b"], "  b"),
        (&["a"], &["b"], "b"),
        // The first text after tokens that stand for none.
        (&[], &["\u{2581}the", "\u{2581}sky"], "the sky"),
        (&["<s>"], &["\u{2581}the", "\u{2581}sky"], "the sky"),
        (&["<s>"], &["b"], "b"),
    ] {
        for tokenizer in [pieces(), metaspace()] {
            let [before, tokens] = [before, texts].map(|texts| numbers(&tokenizer, texts));
            assert_eq!(streamed(&tokenizer, &before, &tokens), expected, "{before:?} {texts:?}");
        }
    }
    let byte_level = tokenizer(&byte_level(&[["\u{120}", "b"]], &[]), &[]);
    assert_eq!(streamed(&byte_level, &[97], &[256, 99]), " bc");
    assert_eq!(streamed(&byte_level, &[], &[256, 99]), " bc");
    let words = word_pieces();
    let [before, tokens] =
        [&["the", "sky"][..], &["##s", "is", "the", "."]].map(|texts| numbers(&words, texts));
    assert_eq!(streamed(&words, &before, &tokens), "s is the.");
    assert_eq!(streamed(&words, &[], &tokens[1..]), "is the.");
}

/// Texts equal those of `Tokenizer.decode` of tokenizers 0.22.
#[test]
fn whole_texts_are_those_of_the_library() {
    let pieces = pieces();
    let text = numbers(&pieces, &["<s>", "\u{2581}the", "\u{2581}", "a", "</s>", "\u{2581}sky"]);
    assert_eq!(pieces.decode(&text), "<s> the a</s> sky");
    assert_eq!(pieces.decode(&[u32::MAX, text[3]]), "\u{FFFD}a");
    let metaspace = metaspace();
    let text = numbers(&metaspace, &["\u{2581}the", "\u{2581}", "a", "\u{2581}sky"]);
    assert_eq!(metaspace.decode(&text), "the a sky");
    let mut described = byte_level(&[], &["<|im_end|>"]);
    let tokens = described["added_tokens"].as_array_mut().unwrap();
    tokens.push(added(257, "caf\u{E9} \u{4F60}", false));
    let byte_level = tokenizer(&described, &[]);
    assert_eq!(byte_level.decode(&[97, 257, 256, 0xC3, 0xA9]), "acaf\u{E9} \u{4F60}<|im_end|>\u{E9}");
    // Special tokens stand for no text.
    let lengths = byte_level.byte_lengths().unwrap();
    assert_eq!((lengths[97], lengths[0xC3], lengths[256], lengths[257]), (1, 1, 0, 9));
}

proptest! {
    /// No sequence of bytes panics, and incremental texts together equal the whole text.
    #[test]
    fn texts_that_come_in_parts_are_the_text(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        let pieces = pieces();
        let fallback: Vec<u32> = bytes.iter().map(|byte| 3 + u32::from(*byte)).collect();
        let text = String::from_utf8_lossy(&bytes);
        prop_assert_eq!(&streamed(&pieces, &numbers(&pieces, &["a"]), &fallback), &text);
        let single: Vec<u32> = bytes.iter().map(|byte| u32::from(*byte)).collect();
        prop_assert_eq!(&streamed(&Tokenizer::Bytes, &[], &single), &text);
        let mut stream = TextStream::new(&Tokenizer::Bytes, &[]);
        let mut before = String::new();
        for token in &single {
            before += &stream.push(&Tokenizer::Bytes, *token);
            prop_assert!(text.starts_with(&before));
        }
    }
}
