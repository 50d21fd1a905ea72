//! The special tokens of a tokenizer, and their uses.

use crate::Error;
use std::path::Path;
use tokenizers::{Encoding, Token};

use super::description::{Description, token_numbers};
use super::folder::read_object;

/// Tokens that commonly precede a document, most likely first, for tokenizers whose files name none.
const STARTS: [&str; 9] = [
    "<|begin_of_text|>",
    "<|endoftext|>",
    "<|bos|>",
    "<s>",
    "<bos>",
    "<\u{FF5C}begin\u{2581}of\u{2581}sentence\u{FF5C}>",
    "<|startoftext|>",
    "[BOS]",
    "[CLS]",
];

/// Tokens that commonly end a text, most likely first, for tokenizers whose files name none.
const ENDS: [&str; 7] = [
    "<|end_of_text|>",
    "<|endoftext|>",
    "</s>",
    "<eos>",
    "<\u{FF5C}end\u{2581}of\u{2581}sentence\u{FF5C}>",
    "[EOS]",
    "[SEP]",
];

/// The special tokens of a tokenizer, used wherever a text begins or ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// (name, text) of special tokens, by the names that chat templates may use.
    pub named: Vec<(String, String)>,
    /// The token before a document: `bos_token`, or else `eos_token`.
    pub separator: Option<u32>,
    /// The token that represents an empty text before another one: `bos_token`, or else `eos_token`.
    pub prefix: Option<u32>,
    /// The token at the end of an answer or of generated text: `eos_token`.
    pub end: Option<u32>,
    /// Tokens that the tokenizer puts in front of a text.
    pub before_text: Vec<u32>,
    /// Tokens that end generated texts, listed in `generation_config.json` beside the tokenizer.
    pub generation_ends: Vec<u32>,
}

impl SpecialTokens {
    pub(super) fn new(tokenizer: &tokenizers::Tokenizer, description: &Description) -> Self {
        let token = |text: &str| tokenizer.token_to_id(text);
        let [bos, eos] = ["bos_token", "eos_token"].map(|name| token(description.text_of(name)?));
        let is_known = |number: &u32| tokenizer.id_to_token(*number).is_some();
        let named = |texts: &[&str]| texts.iter().find_map(|text| token(text));
        // Common spellings count only where no file names a token.
        let guessed = |texts: &[&str]| if bos.or(eos).is_none() { named(texts) } else { None };
        let before_text = before_text(tokenizer);
        let first = description.first.filter(is_known);
        let last = description.ends.first().copied().filter(is_known);
        let start = || bos.or(first).or(eos).or(last).or_else(|| before_text.first().copied());
        let end = || eos.or(last).or_else(|| guessed(&ENDS));
        let separator = start().or_else(|| guessed(&STARTS)).or_else(end);
        Self {
            separator,
            prefix: bos.or(eos).or(separator),
            end: end(),
            named: description
                .named
                .iter()
                .map(|(name, token)| (name.clone(), token.content.clone()))
                .collect(),
            before_text,
            generation_ends: description.ends.clone(),
        }
    }

    /// Returns the tokens that end generated texts, from `eos_token_id` of a `generation_config.json` or a
    /// model's `config.json`; empty if there is no such file or key.
    ///
    /// # Errors
    /// The file cannot be read or is not a JSON object, or the values are not token ids.
    pub fn generation_ends_in(file: &Path) -> Result<Vec<u32>, Error> {
        let Some(config) = read_object(file)? else { return Ok(Vec::new()) };
        token_numbers(config.get("eos_token_id")).map_err(|reason| Error::BadTokenizerFile {
            path: file.to_owned(),
            reason: format!("eos_token_id: {reason}"),
        })
    }

    /// Returns the text of the special token called `name`, such as `bos_token`; `None` if there is none.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.named.iter().find(|(own, _)| own == name).map(|(_, text)| text.as_str())
    }
}

fn before_text(tokenizer: &tokenizers::Tokenizer) -> Vec<u32> {
    let text = Encoding::from_tokens(vec![Token::new(0, String::new(), (0, 0))], 0);
    let Ok(processed) = tokenizer.post_process(text, None, true) else { return Vec::new() };
    let mask = processed.get_special_tokens_mask();
    let special = mask.iter().take_while(|is_special| **is_special == 1).count();
    processed.get_ids()[..special].to_vec()
}
