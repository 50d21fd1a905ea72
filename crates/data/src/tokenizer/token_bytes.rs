//! The bytes of a tokenizer's tokens, which make text whatever tokens characters are divided into.

use serde_json::Value;

/// The character that stands for a space in tokens of SentencePiece.
const SPACE: char = '\u{2581}';

/// The bytes of every token, as the decoder of a `tokenizer.json` makes text of them.
#[derive(Debug)]
pub(super) struct TokenBytes {
    bytes: Vec<u8>,
    /// The end of each token's bytes; `None` of numbers that are no token.
    ends: Vec<usize>,
    is_token: Vec<bool>,
    start: Start,
}

/// The change of a text's start by a decoder: encoding has put a space there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// None.
    Kept,
    /// At most so many bytes of this value are removed from the text.
    Strips(u8, usize),
    /// All spaces of the first token are removed that stand for [`SPACE`] or another character.
    WithoutSpaces,
}

pub(super) struct VocabularyToken {
    pub(super) text: String,
    pub(super) is_added: bool,
}

impl TokenBytes {
    /// Returns the bytes of `tokens`, in order, by the `decoder` of a `tokenizer.json`; `None` if its decoder
    /// does not work token by token.
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

    /// Returns the bytes of a token; `None` of a number that is no token.
    pub(super) fn get(&self, token: u32) -> Option<&[u8]> {
        let index = token as usize;
        self.is_token.get(index).filter(|is_token| **is_token)?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        Some(&self.bytes[start..self.ends[index]])
    }

    /// The change of a text's start.
    pub(super) fn start(&self) -> Start {
        self.start
    }
}

/// A step of a decoder that changes each token for itself.
enum Step {
    /// Characters stand for bytes.
    ByteLevel,
    Replace(String, String),
    /// `<0xE2>` is a byte.
    ByteFallback,
    /// Removes at most so many of a character from both ends of a token.
    Strip(char, [usize; 2]),
}

/// Returns the steps of a decoder and the change of a text's start; `None` if tokens depend on each other.
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

/// Returns the bytes of a token. Those of an added token are its text's, which no step takes for bytes.
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

/// The byte of `<0xE2>`.
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

/// Returns whether a byte's character in byte-level tokens is its own.
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
