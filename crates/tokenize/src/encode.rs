//! Encodes units of text to tokens, on all cores.

use crate::error::{Error, Result};
use crate::job::{Format, Job};
use crate::unit::{Content, Unit};
use data::Tokenizer;
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// An encoded unit of text.
#[derive(Debug)]
pub(crate) struct Encoded {
    pub(crate) tokens: Vec<u32>,
    pub(crate) bytes: u64,
    /// Whether the unit was skipped because it could not be tokenized.
    pub(crate) is_skipped: bool,
}

/// Encodes units, in order.
///
/// # Errors
/// The first unit that cannot be encoded, unless invalid units are skipped.
pub(crate) fn encode_all(job: &Job, units: &[Unit]) -> Result<Vec<Encoded>> {
    let encoded: Vec<Result<Encoded>> = units.par_iter().map(|unit| encode(job, unit)).collect();
    encoded.into_iter().collect()
}

fn encode(job: &Job, unit: &Unit) -> Result<Encoded> {
    let invalid = |reason: String| match job.skip_invalid {
        true => Ok(Encoded { tokens: Vec::new(), bytes: 0, is_skipped: true }),
        false => Err(Error::Invalid { path: unit.path.to_path_buf(), line: unit.line, reason }),
    };
    let text = match &unit.content {
        Content::Text(bytes) => Cow::Borrowed(bytes.as_slice()),
        Content::JsonLine(line) => match text_of(line, &job.text_key) {
            Ok(text) => Cow::Owned(text.into_bytes()),
            Err(reason) => return invalid(reason),
        },
        Content::Invalid(reason) => return invalid(reason.clone()),
    };
    // nanoGPT's own scripts write no separator before a text file.
    let is_separated = unit.starts_document && (unit.line.is_some() || job.format == Format::LlmC);
    let mut tokens: Vec<u32> = job.separator.filter(|_| is_separated).into_iter().collect();
    match encode_text(&job.tokenizer, &text) {
        Ok(encoded) => tokens.extend(encoded),
        Err(reason) => return invalid(reason),
    }
    Ok(Encoded { tokens, bytes: text.len() as u64, is_skipped: false })
}

fn encode_text(tokenizer: &Tokenizer, text: &[u8]) -> std::result::Result<Vec<u32>, String> {
    if *tokenizer == Tokenizer::Bytes {
        return Ok(text.iter().map(|byte| u32::from(*byte)).collect());
    }
    let text = std::str::from_utf8(text).map_err(|error| format!("its text is not UTF-8: {error}"))?;
    tokenizer.encode(text).map_err(|error| error.to_string())
}

/// Returns the string at `key` of a line of JSON, parsed as Python parses it.
pub(crate) fn text_of(line: &[u8], key: &str) -> std::result::Result<String, String> {
    let line = line.trim_ascii_end();
    let text = match find_text(line, key) {
        Err(error) => data::python_text(line, key).unwrap_or_else(|| Err(within_line(&error)))?,
        Ok(text) => text,
    };
    text.ok_or_else(|| format!("it has no key \"{key}\""))
}

fn find_text(line: &[u8], key: &str) -> serde_json::Result<Option<String>> {
    let mut json = serde_json::Deserializer::from_slice(line);
    let text = TextAt(key).deserialize(&mut json)?;
    json.end()?;
    Ok(text)
}

/// Formats an error without its line number, which is always 1.
fn within_line(error: &serde_json::Error) -> String {
    error.to_string().replace(" at line 1 column ", " at column ")
}

/// Deserializes the string at one key of an object without storing the other values.
struct TextAt<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for TextAt<'_> {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> std::result::Result<Self::Value, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for TextAt<'_> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
        let mut text = None;
        while let Some(key) = map.next_key::<Cow<'_, str>>()? {
            if key == self.0 {
                let value = map.next_value::<serde_json::Value>()?;
                let string = value.as_str().map(str::to_owned);
                text = Some(string.ok_or_else(|| A::Error::custom(format!("\"{key}\" is not a string")))?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(text)
    }
}
