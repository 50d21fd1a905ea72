//! Writes the built-in tokenizers as a `tokenizer.json` for other programs.

use super::gpt2;
use super::token_bytes::is_own_character;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Returns the `tokenizer.json` of the byte tokenizer.
pub(super) fn bytes() -> Value {
    let vocabulary = (0..=u8::MAX).map(|byte| (spelled(&[byte]), byte.into())).collect();
    described(vocabulary, Vec::new(), json!([]))
}

/// Returns the `tokenizer.json` of GPT-2's tokenizer.
pub(super) fn gpt2() -> Value {
    let tokens: Vec<Vec<u8>> = (0..gpt2::END_OF_TEXT).map(gpt2::bytes_of).collect();
    let numbers: HashMap<&[u8], usize> =
        tokens.iter().enumerate().map(|(token, bytes)| (bytes.as_slice(), token)).collect();
    let merges = tokens.iter().enumerate().filter(|(_, bytes)| bytes.len() > 1);
    let merges = merges.map(|(token, bytes)| parts(bytes, token, &numbers).map(spelled).join(" "));
    let merges = merges.map(Value::from).collect();
    let vocabulary = tokens.iter().enumerate().map(|(token, bytes)| (spelled(bytes), token.into()));
    let end = json!([{
        "id": gpt2::END_OF_TEXT, "content": gpt2::SEPARATOR, "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true,
    }]);
    let whole = vocabulary.chain([(gpt2::SEPARATOR.to_owned(), gpt2::END_OF_TEXT.into())]).collect();
    described(whole, merges, end)
}

fn described(vocabulary: Map<String, Value>, merges: Vec<Value>, added: Value) -> Value {
    let bytes = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true,
    });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": bytes, "post_processor": bytes, "decoder": bytes,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary,
            "merges": merges,
        },
    })
}

/// Returns the two tokens that are merged to make a token: what earlier merges leave of its bytes.
fn parts<'a>(bytes: &'a [u8], token: usize, numbers: &HashMap<&[u8], usize>) -> [&'a [u8]; 2] {
    // Ends of the parts.
    let mut ends: Vec<usize> = (1..=bytes.len()).collect();
    while ends.len() > 2 {
        let merged = |index: &usize| {
            let start = if *index == 0 { 0 } else { ends[index - 1] };
            numbers.get(&bytes[start..ends[index + 1]]).filter(|number| **number < token)
        };
        let first = (0..ends.len() - 1).filter_map(|index| Some((*merged(&index)?, index))).min();
        // Every token is made by merges of earlier ones.
        let Some((_, index)) = first else { break };
        ends.remove(index);
    }
    [&bytes[..ends[0]], &bytes[ends[0]..]]
}

/// Spells bytes as byte-level tokenizers do: printable ones as themselves, the others as characters from
/// U+0100 on.
fn spelled(bytes: &[u8]) -> String {
    let character = |byte: &u8| match is_own_character(*byte) {
        true => char::from(*byte),
        false => {
            let position = (0..*byte).filter(|earlier| !is_own_character(*earlier)).count() as u32;
            char::from_u32(0x100 + position).unwrap_or(char::REPLACEMENT_CHARACTER)
        }
    };
    bytes.iter().map(character).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Tokenizer;

    #[test]
    fn files_of_built_in_tokenizers_give_their_tokens() {
        let directory = tempfile::tempdir().unwrap();
        let text =
            include_str!("described.rs").repeat(2) + "h\u{E9} \u{20AC}\u{1F600}  \t\r\n\0 don't I'LL 1234";
        for tokenizer in [Tokenizer::Bytes, Tokenizer::Gpt2] {
            let file = directory.path().join(tokenizer.name());
            std::fs::write(&file, tokenizer.json().unwrap()).unwrap();
            let read = Tokenizer::from_name(file.to_str().unwrap()).unwrap();
            assert_eq!(read.vocabulary(), tokenizer.vocabulary());
            assert_eq!(read.encode(&text).unwrap(), tokenizer.encode(&text).unwrap());
            assert_eq!(read.byte_lengths(), tokenizer.byte_lengths());
            for token in 0..tokenizer.vocabulary() as u32 {
                assert_eq!(read.decode(&[token]), tokenizer.decode(&[token]), "{token}");
            }
        }
    }
}
