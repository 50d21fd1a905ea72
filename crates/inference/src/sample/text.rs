//! A text during generation: its tokens, the part that is final, and its end.

use data::{TextStream, Tokenizer};
use serde::Serialize;

use super::prompts::Prompt;

/// Returns the number of tokens kept when a text exceeds `capacity`.
pub(super) fn tail(capacity: usize) -> usize {
    capacity.div_ceil(2)
}

/// The reason why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The text reached the requested number of tokens.
    Length,
    /// The model generated an end token.
    Token,
    /// A stop string occurred.
    Stop,
    /// The time limit was reached.
    Time,
}

/// A sampled text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SampledText {
    /// The prompt.
    pub prompt: String,
    /// The continuation.
    pub text: String,
    /// Tokens of the prompt.
    pub prompt_tokens: Vec<u32>,
    /// Tokens of the continuation, including tokens of a stop string but not an end token.
    pub tokens: Vec<u32>,
    /// Seed of the draws.
    pub seed: u64,
    /// Why the text ended.
    pub end: End,
    /// Index of the conversation turn that the text answers.
    #[serde(skip_serializing_if = "is_first")]
    pub turn: usize,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_first(turn: &usize) -> bool {
    *turn == 0
}

/// A text being generated.
pub(super) struct Text {
    pub(super) prompt: Prompt,
    /// All tokens, beginning with the prompt's.
    tokens: Vec<u32>,
    /// Number of generated tokens, including an end token.
    drawn: usize,
    /// Index of the first token that the model sees.
    start: usize,
    /// Whether the model has yet to process the tokens from `start` on.
    pub(super) is_new: bool,
    stream: TextStream,
    /// White space with which the text may begin and which is not part of it; `None` once handled.
    space: Option<String>,
    /// Decoded text of the generated tokens so far.
    text: String,
    /// Number of bytes of `text` that can no longer be removed by a stop string.
    certain: usize,
    end: Option<End>,
}

impl Text {
    /// Starts continuing a prompt. `space` at the start of the text is removed.
    pub(super) fn new(prompt: Prompt, space: &str, tokenizer: &Tokenizer) -> Self {
        Text {
            tokens: prompt.tokens.clone(),
            stream: TextStream::new(tokenizer, &prompt.tokens),
            prompt,
            drawn: 0,
            start: 0,
            is_new: true,
            space: Some(space.to_owned()),
            text: String::new(),
            certain: 0,
            end: None,
        }
    }

    /// Returns the tokens that the model sees.
    pub(super) fn window(&self) -> &[u32] {
        &self.tokens[self.start..]
    }

    /// Returns all tokens so far.
    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Returns the number of generated tokens.
    pub(super) fn drawn(&self) -> usize {
        self.drawn
    }

    /// Returns the part of the continuation that is final.
    pub(super) fn certain(&self) -> &str {
        &self.text[..self.certain]
    }

    pub(super) fn end(&self) -> Option<End> {
        self.end
    }

    /// Adds a token. When a text reaches the model's context, it continues from its later half.
    pub(super) fn add(
        &mut self,
        token: u32,
        tokenizer: &Tokenizer,
        stops: &[String],
        ends: &[u32],
        capacity: usize,
    ) {
        self.drawn += 1;
        self.is_new = false;
        if ends.contains(&token) {
            return self.finish(End::Token, tokenizer);
        }
        self.tokens.push(token);
        if self.window().len() > capacity {
            (self.start, self.is_new) = (self.tokens.len() - tail(capacity), true);
        }
        self.text += &self.stream.push(tokenizer, token);
        self.drop_space();
        self.cut(stops);
    }

    /// Ends the text for a reason, unless it has already ended.
    pub(super) fn finish(&mut self, end: End, tokenizer: &Tokenizer) {
        if self.end.is_none() {
            self.text += &self.stream.finish(tokenizer);
            self.drop_space();
            self.certain = self.text.len();
            self.end = Some(end);
        }
    }

    /// Removes the white space before the text.
    fn drop_space(&mut self) {
        let Some(space) = &self.space else { return };
        if self.text.len() < space.len() && space.starts_with(&*self.text) {
            return;
        }
        if self.text.starts_with(&**space) {
            self.text.drain(..space.len());
        }
        self.space = None;
    }

    /// Ends the text before a stop string. A possible beginning of a stop string is not yet final.
    fn cut(&mut self, stops: &[String]) {
        if self.space.is_some() {
            return;
        }
        let position = stops.iter().filter_map(|stop| self.text[self.certain..].find(&**stop)).min();
        if let Some(index) = position {
            self.certain += index;
            self.text.truncate(self.certain);
            self.end = Some(End::Stop);
            return;
        }
        let open = self.text[self.certain..].char_indices().map(|(index, _)| self.certain + index);
        let may_begin = |index: &usize| stops.iter().any(|stop| stop.starts_with(&self.text[*index..]));
        self.certain = open.into_iter().find(may_begin).unwrap_or(self.text.len());
    }

    pub(super) fn into_sampled(self) -> SampledText {
        let prompt_tokens = self.prompt.tokens;
        SampledText {
            prompt: self.prompt.text,
            text: self.text,
            tokens: self.tokens[prompt_tokens.len()..].to_vec(),
            prompt_tokens,
            seed: self.prompt.seed,
            end: self.end.unwrap_or(End::Length),
            turn: self.prompt.turn,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_before_an_answer_is_not_part_of_it() {
        for (drawn, expected) in [("  b", " b"), (" b", "b"), ("b", "b"), (" ", ""), ("", "")] {
            let prompt = Prompt { text: "p".to_owned(), tokens: vec![112], seed: 0, turn: 0 };
            let mut text = Text::new(prompt, " ", &Tokenizer::Bytes);
            for byte in drawn.bytes() {
                text.add(u32::from(byte), &Tokenizer::Bytes, &[], &[], 100);
            }
            text.finish(End::Length, &Tokenizer::Bytes);
            assert_eq!(text.certain(), expected, "{drawn:?}");
        }
    }

    #[test]
    fn a_stop_text_is_never_shown_in_part() {
        let table: [(&str, &[&str], &str, Option<End>); 6] = [
            ("abcdef", &["cd"], "ab", Some(End::Stop)),
            ("abcdef", &["x", "ef"], "abcd", Some(End::Stop)),
            ("ababac", &["abac"], "ab", Some(End::Stop)),
            ("aé€b", &["€"], "aé", Some(End::Stop)),
            ("abc", &["cd"], "ab", None),
            ("abc", &[], "abc", None),
        ];
        for (drawn, stops, shown, end) in table {
            let stops: Vec<String> = stops.iter().map(ToString::to_string).collect();
            let prompt = Prompt { text: "p".to_owned(), tokens: vec![112], seed: 0, turn: 0 };
            let mut text = Text::new(prompt, "", &Tokenizer::Bytes);
            for byte in drawn.bytes() {
                if text.end().is_none() {
                    text.add(u32::from(byte), &Tokenizer::Bytes, &stops, &[], 100);
                    assert!(shown.starts_with(text.certain()), "{drawn} {stops:?}: {}", text.certain());
                }
            }
            assert_eq!((text.certain(), text.end()), (shown, end), "{drawn} {stops:?}");
        }
    }
}
