//! Tests of special and added tokens, from every file that defines them. Expected values come from
//! `AutoTokenizer` of transformers 5.24 on the same folders.

use crate::common::{added, byte_level, open, sentence_pieces, tokenizer, write};
use data::{Error, SpecialTokens, Tokenizer};
use serde_json::{Value, json};

const BEGIN: &str = "<\u{FF5C}begin\u{2581}of\u{2581}sentence\u{FF5C}>";
const END: &str = "<\u{FF5C}end\u{2581}of\u{2581}sentence\u{FF5C}>";
const TEXT: &str = "<|endoftext|>";
const CONFIG: &str = "tokenizer_config.json";
const MAP: &str = "special_tokens_map.json";

/// A configuration with these keys, for a class without default special tokens.
fn config(keys: Value) -> (&'static str, Value) {
    let mut config = json!({"tokenizer_class": "PreTrainedTokenizerFast"});
    config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    (CONFIG, config)
}

fn object(text: &str) -> Value {
    json!({"content": text, "lstrip": false, "normalized": false, "rstrip": false, "single_word": false})
}

/// A list of added tokens by id.
fn numbered(tokens: &[(usize, &str)]) -> Value {
    let entry = |(number, text): &(usize, &str)| {
        let mut token = object(text);
        token["special"] = true.into();
        (number.to_string(), token)
    };
    Value::Object(tokens.iter().map(entry).collect())
}

/// (file name, contents) of the files in a folder.
type Files<'a> = Vec<(&'a str, Value)>;
/// Expected (special tokens by name, vocabulary size, tokens of a text).
type Expected<'a> = (&'a [(&'a str, &'a str)], usize, &'a [u32]);

#[test]
fn every_file_that_states_tokens_is_read() {
    let sentences = byte_level(&[], &[BEGIN, END]);
    let text = byte_level(&[], &[TEXT]);
    let mut plain = byte_level(&[], &[]);
    plain["added_tokens"] = json!([added(256, "<e>", false)]);
    const SPELLED: &[u32] = &[97, 60, 105, 62, 60, 101, 62];
    let table: Vec<(&str, &Value, Files<'_>, Expected<'_>)> = vec![
        (
            "texts",
            &sentences,
            vec![config(json!({"bos_token": BEGIN, "eos_token": END}))],
            (&[("bos_token", BEGIN), ("eos_token", END)], 258, SPELLED),
        ),
        (
            "objects",
            &sentences,
            vec![config(json!({"bos_token": object(BEGIN), "eos_token": object(END)}))],
            (&[("bos_token", BEGIN), ("eos_token", END)], 258, SPELLED),
        ),
        (
            "the map of older folders",
            &sentences,
            vec![config(json!({})), (MAP, json!({"bos_token": BEGIN, "eos_token": object(END)}))],
            (&[("bos_token", BEGIN), ("eos_token", END)], 258, SPELLED),
        ),
        (
            "the map before the configuration",
            &sentences,
            vec![config(json!({"bos_token": END})), (MAP, json!({"bos_token": BEGIN}))],
            (&[("bos_token", BEGIN)], 258, SPELLED),
        ),
        (
            "no map beside a list of added tokens",
            &sentences,
            vec![
                config(
                    json!({"bos_token": END, "added_tokens_decoder": numbered(&[(256, BEGIN), (257, END)])}),
                ),
                (MAP, json!({"bos_token": BEGIN})),
            ],
            (&[("bos_token", END)], 258, SPELLED),
        ),
        (
            "a list of added tokens",
            &text,
            vec![config(json!({
                "eos_token": "<e>",
                "added_tokens_decoder": numbered(&[(256, TEXT), (257, "<i>"), (258, "<e>")]),
            }))],
            (&[("eos_token", "<e>")], 259, &[97, 257, 258]),
        ),
        (
            "added tokens of older folders, in the order of their numbers",
            &text,
            vec![config(json!({"eos_token": "<e>"})), ("added_tokens.json", json!({"<i>": 258, "<e>": 257}))],
            (&[("eos_token", "<e>")], 259, &[97, 258, 257]),
        ),
        (
            "a list of special tokens",
            &text,
            vec![config(json!({"eos_token": TEXT, "extra_special_tokens": ["<i>", "<e>"]}))],
            (&[("eos_token", TEXT)], 259, &[97, 257, 258]),
        ),
        (
            "special tokens with names",
            &text,
            vec![config(json!({"eos_token": TEXT, "extra_special_tokens": {"image_token": "<i>"}}))],
            (&[("eos_token", TEXT), ("image_token", "<i>")], 258, &[97, 257, 60, 101, 62]),
        ),
        (
            "the older name of the list",
            &text,
            vec![config(json!({"eos_token": TEXT, "additional_special_tokens": ["<i>"]}))],
            (&[("eos_token", TEXT)], 258, &[97, 257, 60, 101, 62]),
        ),
        (
            "a key of the model",
            &text,
            vec![config(json!({"eos_token": TEXT, "image_token": "<i>", "add_bos_token": true}))],
            (&[("eos_token", TEXT), ("image_token", "<i>")], 258, &[97, 257, 60, 101, 62]),
        ),
        (
            "defaults of the class",
            &text,
            vec![(CONFIG, json!({"tokenizer_class": "GPT2TokenizerFast"}))],
            (&[("bos_token", TEXT), ("eos_token", TEXT), ("unk_token", TEXT)], 257, SPELLED),
        ),
        (
            "a default that the configuration takes away",
            &text,
            vec![(CONFIG, json!({"tokenizer_class": "GPT2Tokenizer", "bos_token": null}))],
            (&[("eos_token", TEXT), ("unk_token", TEXT)], 257, SPELLED),
        ),
        (
            "the class that goes with the model",
            &text,
            vec![("config.json", json!({"model_type": "qwen2"}))],
            (&[("eos_token", TEXT), ("unk_token", TEXT), ("pad_token", TEXT)], 257, SPELLED),
        ),
        (
            "defaults that are no tokens here",
            &text,
            vec![(CONFIG, json!({"tokenizer_class": "LlamaTokenizer"}))],
            (&[], 257, SPELLED),
        ),
        (
            "a token that becomes special",
            &plain,
            vec![config(json!({"eos_token": "<e>", "added_tokens_decoder": numbered(&[(256, "<e>")])}))],
            (&[("eos_token", "<e>")], 257, &[97, 60, 105, 62, 256]),
        ),
        ("no file", &text, vec![], (&[], 257, SPELLED)),
    ];
    for (what, described, beside, (named, vocabulary, tokens)) in table {
        let tokenizer = tokenizer(described, &beside);
        let special = tokenizer.special_tokens();
        let own: Vec<(&str, &str)> = special.named.iter().map(|(name, text)| (&**name, &**text)).collect();
        assert_eq!(own, named, "{what}");
        assert_eq!(tokenizer.vocabulary(), vocabulary, "{what}");
        assert_eq!(tokenizer.encode_prompt("a<i><e>").unwrap(), tokens, "{what}");
        // In other texts, special tokens are text.
        assert_eq!(tokenizer.encode("a<e>").unwrap(), [97, 60, 101, 62], "{what}");
        // The copies that a run keeps are the same tokenizer.
        let Tokenizer::File(file) = &tokenizer else { panic!("{what}: no file") };
        let copy = tempfile::tempdir().unwrap();
        std::fs::write(copy.path().join("tokenizer.json"), file.json()).unwrap();
        for (name, contents) in file.beside() {
            std::fs::write(copy.path().join(name), contents).unwrap();
        }
        assert_eq!(open(copy.path()).unwrap(), tokenizer, "{what}");
        assert_eq!(open(copy.path()).unwrap().identity(), tokenizer.identity(), "{what}");
    }
}

#[test]
fn texts_begin_and_end_with_the_tokens_that_the_files_name() {
    let sentences = byte_level(&[], &["<s>", BEGIN, END]);
    let pieces = |ends: &[&str]| sentence_pieces(&[], ends);
    type Row<'a> = (&'a str, Value, Files<'a>, [Option<u32>; 2], &'a [u32]);
    let table: Vec<Row<'_>> = vec![
        (
            "first and last token of a sentence",
            sentences.clone(),
            vec![config(json!({"bos_token": BEGIN, "eos_token": END}))],
            [Some(257), Some(258)],
            &[],
        ),
        (
            "no first token",
            sentences.clone(),
            vec![config(json!({"bos_token": null, "eos_token": END}))],
            [Some(258), Some(258)],
            &[],
        ),
        (
            "a first token for generating text",
            sentences.clone(),
            vec![
                config(json!({"eos_token": "<s>"})),
                ("generation_config.json", json!({"bos_token_id": 257, "eos_token_id": [256, 258]})),
            ],
            [Some(257), Some(256)],
            &[],
        ),
        (
            "tokens for generating text alone",
            sentences.clone(),
            vec![("generation_config.json", json!({"eos_token_id": [258]}))],
            [Some(258), Some(258)],
            &[],
        ),
        ("nanochat", byte_level(&[], &["<|bos|>", "<|user_start|>"]), vec![], [Some(256), None], &[]),
        (
            "DeepSeek without a configuration",
            byte_level(&[], &[BEGIN, END]),
            vec![],
            [Some(256), Some(257)],
            &[],
        ),
        ("other tokens", byte_level(&[], &["<a>"]), vec![], [None, None], &[]),
        ("what the tokenizer puts before a text", pieces(&[]), vec![], [Some(1), Some(2)], &[1]),
        ("tokens on both sides of a text", pieces(&["</s>"]), vec![], [Some(1), Some(2)], &[1]),
    ];
    for (what, described, beside, [separator, end], before_text) in table {
        let tokenizer = tokenizer(&described, &beside);
        let special = tokenizer.special_tokens();
        assert_eq!((special.separator, special.end), (separator, end), "{what}");
        assert_eq!(special.before_text, before_text, "{what}");
    }
}

#[test]
fn damaged_files_are_refused_by_name_and_key() {
    let directory = tempfile::tempdir().unwrap();
    for (name, contents, expected) in [
        (CONFIG, json!("{"), "it is no JSON object"),
        (CONFIG, json!([1]), "it is no JSON object"),
        (CONFIG, json!({"bos_token": 3}), "bos_token: it is neither a text nor an object with \"content\""),
        (CONFIG, json!({"eos_token": {}}), "eos_token: it is neither"),
        (CONFIG, json!({"extra_special_tokens": 1}), "extra_special_tokens: it is neither a list"),
        (CONFIG, json!({"extra_special_tokens": [1]}), "extra_special_tokens: it is neither a text"),
        (CONFIG, json!({"added_tokens_decoder": []}), "added_tokens_decoder is no object"),
        (
            CONFIG,
            json!({"added_tokens_decoder": {"a": "b"}}),
            "added_tokens_decoder, token a: it is no number",
        ),
        (CONFIG, json!({"added_tokens_decoder": {"1": 2}}), "added_tokens_decoder, token 1: it is neither"),
        (MAP, json!("nonsense"), "it is no JSON object"),
        (MAP, json!({"bos_token": []}), "bos_token: it is neither"),
        ("added_tokens.json", json!({"<e>": "257"}), "\"<e>\" has no number"),
        ("generation_config.json", json!("}"), "it is no JSON object"),
        (
            "generation_config.json",
            json!({"eos_token_id": "</s>"}),
            "eos_token_id: \"</s>\" is no token's number",
        ),
        ("generation_config.json", json!({"eos_token_id": [-1]}), "eos_token_id: -1 is no token's number"),
    ] {
        write(directory.path(), &byte_level(&[], &[TEXT]), &[(name, contents.clone())]);
        let refused = open(directory.path()).unwrap_err();
        assert!(matches!(refused, Error::BadTokenizerFile { .. }), "{name}: {refused}");
        let text = refused.to_string();
        let path = directory.path().join(name).display().to_string();
        assert!(text.starts_with(&format!("{path}: {expected}")), "{name} {contents}: {text}");
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn one_token_or_several_end_generated_texts() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("generation_config.json");
    assert!(SpecialTokens::generation_ends_in(&file).unwrap().is_empty());
    for (text, expected) in
        [("{}", vec![]), ("{\"eos_token_id\": 2}", vec![2]), ("{\"eos_token_id\": [2, 3]}", vec![2, 3])]
    {
        std::fs::write(&file, text).unwrap();
        assert_eq!(SpecialTokens::generation_ends_in(&file).unwrap(), expected, "{text}");
    }
}
