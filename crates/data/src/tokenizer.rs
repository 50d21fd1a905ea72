//! From text to token numbers and back.

use crate::Error;

/// A tokenizer. The numbers it gives are smaller than [`Tokenizer::vocabulary`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tokenizer {
    /// The tokenizer of token shards that nobody has named: their tokens are numbers without a text.
    None,
    /// Each byte is a token: a vocabulary of 256, and any file is a text.
    Bytes,
}

impl Tokenizer {
    /// The tokenizer called `name` in a configuration.
    ///
    /// # Errors
    /// [`Error::UnknownTokenizer`].
    pub fn from_name(name: &str) -> Result<Self, Error> {
        match name {
            "none" => Ok(Self::None),
            "bytes" => Ok(Self::Bytes),
            _ => Err(Error::UnknownTokenizer { name: name.to_owned() }),
        }
    }

    /// The name that [`Tokenizer::from_name`] knows it by.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::None => "none",
            Self::Bytes => "bytes",
        }
    }

    /// Number of tokens: one more than the largest token; 0 if it is not known.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Bytes => 256,
        }
    }

    /// The tokens of a text; none without a tokenizer.
    #[must_use]
    pub fn encode(&self, text: &str) -> Vec<u32> {
        match self {
            Self::None => Vec::new(),
            Self::Bytes => text.bytes().map(u32::from).collect(),
        }
    }

    /// The text of some tokens, for printing: what is not UTF-8, and tokens outside of the vocabulary,
    /// become U+FFFD. Without a tokenizer, their numbers.
    #[must_use]
    pub fn decode(&self, tokens: &[u32]) -> String {
        match self {
            Self::None => tokens.iter().map(|token| format!("<{token}>")).collect(),
            Self::Bytes => {
                // 0xFF is in no UTF-8 text.
                let bytes: Vec<u8> =
                    tokens.iter().map(|token| u8::try_from(*token).unwrap_or(0xFF)).collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn decoding_is_lossy_where_it_must_be() {
        let table: [(&[u32], &str); 4] = [
            (&[104, 105], "hi"),
            (&[0xC3, 0xA9], "é"),
            (&[104, 0xC3, 105], "h\u{FFFD}i"),
            (&[104, 256, u32::MAX], "h\u{FFFD}\u{FFFD}"),
        ];
        for (tokens, text) in table {
            assert_eq!(Tokenizer::Bytes.decode(tokens), text, "{tokens:?}");
        }
    }

    #[test]
    fn names_are_found_again_and_others_are_refused() {
        assert_eq!(Tokenizer::from_name(Tokenizer::Bytes.name()).unwrap(), Tokenizer::Bytes);
        let refused = Tokenizer::from_name("gtp2").unwrap_err();
        assert_eq!(refused.to_string(), "there is no tokenizer 'gtp2'; there is 'bytes'");
    }

    proptest! {
        #[test]
        fn text_comes_back(text in "\\PC{0,60}") {
            let tokens = Tokenizer::Bytes.encode(&text);
            prop_assert!(tokens.iter().all(|token| (*token as usize) < Tokenizer::Bytes.vocabulary()));
            prop_assert_eq!(Tokenizer::Bytes.decode(&tokens), text);
        }
    }
}
