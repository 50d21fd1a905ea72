//! Recognises tokenizers whose texts can be cut at a space without changing their tokens.

use serde_json::Value;
use tokenizers::AddedToken;

/// Alternatives of a regular expression that match only white space, or else other text with at most one
/// leading space and trailing line ends. No match has a single space after a visible character.
const HARMLESS: &[&str] = &[
    // Contractions.
    "'s",
    "'t",
    "'re",
    "'ve",
    "'m",
    "'ll",
    "'d",
    "'(?:[sdmt]|ll|ve|re)",
    "'(?i:[sdmt]|ll|ve|re)",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    "(?i:[sdmt]|ll|ve|re)",
    // Letters.
    r" ?\p{L}+",
    r"[\p{L}]+",
    r"[^\r\n\p{L}\p{N}]?\p{L}+",
    r"[^\r\n\p{L}\p{N}]?+\p{L}+",
    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    // DeepSeek: a character of ASCII punctuation before Latin letters, and runs of Chinese and Japanese.
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
    "[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+",
    // Digits.
    r" ?\p{N}+",
    r"\p{N}",
    r"\p{N}+",
    r"\p{N}{1,2}",
    r"\p{N}{1,3}",
    r"[\p{N}]",
    // Other visible characters.
    r" ?[^\s\p{L}\p{N}]+",
    r" ?[^\s\p{L}\p{N}]++",
    r"[^\s\p{L}\p{N}]+",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r" ?[^\s\p{L}\p{N}]++[\r\n]*",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    r" ?[\p{P}\p{S}]+[\r\n]*",
    // White space alone.
    r"[\r\n]",
    r"\s*[\r\n]",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+$",
    r"\s++$",
    EVERY_SPACE,
];

/// An alternative that begins a match at every space after a visible character.
const EVERY_SPACE: &str = r"\s+";

/// Returns whether texts can be cut at spaces: the tokenizer is byte-level, splits at spaces, and neither
/// adds nor changes spaces. `described` is its `tokenizer.json`, and `added` are its added tokens.
pub(super) fn cuts_at_spaces<'a>(described: &Value, mut added: impl Iterator<Item = &'a AddedToken>) -> bool {
    let normalizer = &described["normalizer"];
    let keeps_spaces = normalizer.is_null() || normalizer["type"] == "NFC";
    // Special tokens in a text are text. The others are found first, with the space around them.
    let finds_no_space = added.all(|token| {
        token.special || !(token.lstrip || token.rstrip || token.content.contains(char::is_whitespace))
    });
    let stages = stages(&described["pre_tokenizer"]);
    let is_byte_level = stages.iter().any(|stage| stage["type"] == "ByteLevel");
    let splits = stages.iter().map(|stage| Split::from_stage(stage)).collect::<Option<Vec<_>>>();
    keeps_spaces
        && finds_no_space
        && is_byte_level
        && splits.is_some_and(|all| all.contains(&Split::AtSpaces))
}

/// Returns the stages of a pre-tokenizer. Each divides the pieces of the previous one.
fn stages(pre_tokenizer: &Value) -> Vec<&Value> {
    match pre_tokenizer["pretokenizers"].as_array() {
        Some(stages) => stages.iter().flat_map(|stage| self::stages(stage)).collect(),
        None => vec![pre_tokenizer],
    }
}

/// How a stage divides a text. No resulting piece has a space after another character, unless noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Split {
    /// A piece begins at every single space between visible characters, so text may be cut there.
    AtSpaces,
    /// Pieces may contain spaces, which another stage divides.
    Elsewhere,
}

impl Split {
    /// Returns how a stage divides a text; `None` if the stage is unknown.
    fn from_stage(stage: &Value) -> Option<Self> {
        match stage["type"].as_str()? {
            "ByteLevel" if stage["add_prefix_space"] == true => None,
            "ByteLevel" if stage["use_regex"] == false => Some(Self::Elsewhere),
            "ByteLevel" => Some(Self::AtSpaces),
            "Digits" => Some(Self::Elsewhere),
            "Split" if stage["behavior"] == "Isolated" && stage["invert"] != true => {
                let pattern = stage["pattern"]["Regex"].as_str()?;
                let alternatives = alternatives(pattern);
                let is_known = alternatives.iter().all(|alternative| HARMLESS.contains(&&**alternative));
                let everywhere = alternatives.iter().any(|alternative| alternative == EVERY_SPACE);
                is_known.then_some(if everywhere { Self::AtSpaces } else { Self::Elsewhere })
            }
            _ => None,
        }
    }
}

/// Splits a regular expression into its alternatives, with line ends as escapes.
fn alternatives(pattern: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut depth = 0_usize;
    let mut in_class = false;
    let mut escaped = false;
    for character in pattern.replace('\r', "\\r").replace('\n', "\\n").chars() {
        let is_border = character == '|' && depth == 0 && !in_class && !escaped;
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '[' => in_class = true,
            ']' => in_class = false,
            '(' if !in_class => depth += 1,
            ')' if !in_class => depth = depth.saturating_sub(1),
            _ => {}
        }
        match all.last_mut() {
            Some(last) if !is_border => last.push(character),
            _ => all.push(String::new()),
        }
    }
    all
}
