//! Tokenizes contexts and endings as lm-evaluation-harness does.

use crate::Tokenizer;

/// A context with which endings are tokenized together. A token that spans both belongs to the ending.
pub(super) struct Context<'a> {
    tokenizer: &'a Tokenizer,
    /// The text without trailing white space.
    text: &'a str,
    /// The trailing white space of the context, which is moved to the endings.
    space: &'a str,
    /// The tokens of the text, or a single token that represents an empty text.
    pub(super) tokens: Vec<u32>,
}

impl<'a> Context<'a> {
    /// Tokenizes a context.
    ///
    /// # Errors
    /// The text cannot be encoded, or is empty and the tokenizer has no token for that.
    pub(super) fn new(text: &'a str, tokenizer: &'a Tokenizer) -> Result<Self, String> {
        let (text, space) = text.split_at(text.trim_end_matches(is_space).len());
        let mut context = Self { tokenizer, text, space, tokens: Vec::new() };
        context.tokens = match text {
            "" => vec![empty(tokenizer)?],
            text => context.whole(text)?,
        };
        if context.tokens.is_empty() {
            return Err("its context has no token".to_owned());
        }
        Ok(context)
    }

    /// Returns the tokens of an ending, which follows the context after a space: the tokens of both together,
    /// without as many as the context has.
    pub(super) fn ending(&self, ending: &str) -> Result<Vec<u32>, String> {
        let ending = format!("{} {ending}", self.space);
        let (mut tokens, context) = match self.text {
            "" => {
                let tokens = encode(self.tokenizer, &ending)?;
                let begins = tokens.first() == self.tokens.first();
                (tokens, usize::from(begins))
            }
            text => (self.whole(&format!("{text}{ending}"))?, self.tokens.len()),
        };
        Ok(tokens.split_off(context.min(tokens.len())))
    }

    /// Tokenizes a text. The tokenizer's prefix tokens are put in front, unless the text already begins with
    /// the first of them.
    fn whole(&self, text: &str) -> Result<Vec<u32>, String> {
        let special = self.tokenizer.special_tokens();
        let has_start = special.prefix.and_then(|prefix| self.tokenizer.spelling(prefix));
        let before = match has_start.is_some_and(|start| text.starts_with(&*start)) {
            true => Vec::new(),
            false => special.before_text.clone(),
        };
        Ok([before, encode(self.tokenizer, text)?].concat())
    }
}

/// Returns the token that represents an empty context.
fn empty(tokenizer: &Tokenizer) -> Result<u32, String> {
    tokenizer.special_tokens().prefix.ok_or_else(|| {
        format!(
            "its context is empty, and no file of the tokenizer {} names a bos_token or eos_token to stand for it",
            tokenizer.name()
        )
    })
}

/// Tokenizes a text, in which special tokens may be spelled out.
fn encode(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, String> {
    let spans = tokenizer.encode_spans(text).map_err(|error| error.to_string())?;
    Ok(spans.into_iter().map(|(token, _)| token).collect())
}

/// Returns whether Python considers a character white space.
fn is_space(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\u{1C}'..='\u{1F}')
}
