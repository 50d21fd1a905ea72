//! The bytes of a tokenizer's tokens, from which text is decoded even if a character spans several tokens.

use serde_json::Value;

/// The character that represents a space in SentencePiece tokens.
const SPACE: char = '\u{2581}';

/// The bytes of every token, as the decoder of a `tokenizer.json` produces them.
#[derive(Debug)]
pub(super) struct TokenBytes {
    bytes: Vec<u8>,
    /// End of each token's bytes, as an offset into `bytes`.
    ends: Vec<usize>,
    is_token: Vec<bool>,
    start: Start,
}

/// How a decoder changes the start of a text, where encoding added a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// No change.
    Kept,
    /// Removes at most this many bytes of this value.
    Strips(u8, usize),
    /// All spaces written as [`SPACE`], or as another configured character, are removed from the first token.
    WithoutSpaces,
}

pub(super) struct VocabularyToken {
    pub(super) text: String,
    pub(super) is_added: bool,
}

impl TokenBytes {
    /// Returns the bytes of `tokens`, in id order, for the `decoder` of a `tokenizer.json`; `None` if it does
    /// not decode token by token.
    pub(super) fn new(
        decoder: &Value,
        tokens: impl Iterator<Item = Option<VocabularyToken>>,
    ) -> Option<Self> {
        let (steps, start) = steps(decoder)?;
        let mut bytes = Vec::new();
        let mut ends = Vec::new();
        let mut is_token = Vec::new();
        for token in tokens {
            is_token.push(token.is_some());
            if let Some(token) = token {
                bytes.extend(bytes_of(token, &steps));
            }
            ends.push(bytes.len());
        }
        Some(Self { bytes, ends, is_token, start })
    }

    /// Returns the bytes of a token; `None` for an id without a token.
    pub(super) fn get(&self, token: u32) -> Option<&[u8]> {
        let index = token as usize;
        self.is_token.get(index).filter(|is_token| **is_token)?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        Some(&self.bytes[start..self.ends[index]])
    }

    /// Returns how the decoder changes the start of a text.
    pub(super) fn start(&self) -> Start {
        self.start
    }
}

/// A step of a decoder, which changes each token independently.
enum Step {
    /// Converts byte-level characters to bytes.
    ByteLevel,
    Replace(String, String),
    /// Converts tokens like `<0xE2>` to a byte.
    ByteFallback,
    /// Removes up to these numbers of a character from the start and end of a token.
    Strip(char, [usize; 2]),
}

/// Returns the steps of a decoder, and how it changes the start of a text; `None` if tokens depend on each
/// other.
fn steps(decoder: &Value) -> Option<(Vec<Step>, Start)> {
    let one = std::slice::from_ref(decoder);
    let listed = match decoder["type"].as_str()? {
        "Sequence" => decoder["decoders"].as_array()?,
        _ => one,
    };
    let mut steps = Vec::new();
    let mut start = Start::Kept;
    let mut is_fused = false;
    for step in listed {
        match step["type"].as_str()? {
            "ByteLevel" if !is_fused => steps.push(Step::ByteLevel),
            "ByteFallback" if !is_fused => steps.push(Step::ByteFallback),
            "Fuse" => is_fused = true,
            "Metaspace" if !is_fused => {
                let space = step["replacement"].as_str().map_or(SPACE.into(), str::to_owned);
                let never = step["prepend_scheme"] == "never" || step["add_prefix_space"] == false;
                start = if never { start } else { Start::WithoutSpaces };
                steps.push(Step::Replace(space, " ".to_owned()));
            }
            "Replace" => {
                let from = step["pattern"]["String"].as_str()?;
                let to = step["content"].as_str()?;
                // A longer text may lie in two tokens.
                if is_fused && from.chars().nth(1).is_some() {
                    return None;
                }
                steps.push(Step::Replace(from.to_owned(), to.to_owned()));
            }
            "Strip" => {
                let content = step["content"].as_str()?.chars().next()?;
                let [first, last] = ["start", "stop"].map(|key| step[key].as_u64().unwrap_or(0) as usize);
                match is_fused {
                    true if last == 0 && content.is_ascii() && start == Start::Kept => {
                        start = Start::Strips(content as u8, first);
                    }
                    true => return None,
                    false => steps.push(Step::Strip(content, [first, last])),
                }
            }
            _ => return None,
        }
    }
    Some((steps, start))
}

/// Returns the bytes of a token. An added token keeps its text, which no step converts.
fn bytes_of(token: VocabularyToken, steps: &[Step]) -> Vec<u8> {
    let VocabularyToken { mut text, is_added } = token;
    for step in steps {
        match step {
            Step::ByteLevel if is_added => {}
            Step::ByteLevel => match text.chars().map(byte_level).collect::<Option<Vec<u8>>>() {
                Some(bytes) => return bytes,
                None => return text.into_bytes(),
            },
            Step::Replace(from, to) => text = text.replace(from, to),
            Step::ByteFallback => {
                if let Some(byte) = fallback(&text) {
                    return vec![byte];
                }
            }
            Step::Strip(content, most) => text = stripped(&text, *content, *most).to_owned(),
        }
    }
    text.into_bytes()
}

/// Parses a token like `<0xE2>` to its byte.
fn fallback(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

fn stripped(text: &str, content: char, [first, last]: [usize; 2]) -> &str {
    let mut rest = text;
    for _ in 0..first {
        rest = rest.strip_prefix(content).unwrap_or(rest);
    }
    for _ in 0..last {
        rest = rest.strip_suffix(content).unwrap_or(rest);
    }
    rest
}

/// Returns whether byte-level tokenizers spell a byte as the character of the same number.
pub(super) fn is_own_character(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

fn byte_level(character: char) -> Option<u8> {
    let number = u32::from(character);
    match u8::try_from(number) {
        Ok(byte) => is_own_character(byte).then_some(byte),
        // The others follow from U+0100 on, in order.
        Err(_) => (0..=u8::MAX).filter(|byte| !is_own_character(*byte)).nth((number - 0x100) as usize),
    }
}
