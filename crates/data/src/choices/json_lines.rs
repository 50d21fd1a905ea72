//! Questions as JSON lines.

use serde_json::Value;

use super::question::{Ending, Parsed, Question, check};
use crate::Tokenizer;

pub(super) fn parse(bytes: &[u8], tokenizer: &Tokenizer) -> Parsed {
    let text = std::str::from_utf8(bytes).map_err(|error| (1, error.to_string()))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines.map(|(index, line)| question(line, index + 1, tokenizer)).collect()
}

fn question(line: &str, number: usize, tokenizer: &Tokenizer) -> Result<Question, (usize, String)> {
    let value: Value = serde_json::from_str(line).map_err(|error| (number, error.to_string()))?;
    let wrong = |what: &str| (number, what.to_owned());
    let context = ["context", "ctx"].iter().find_map(|key| value.get(key)).and_then(Value::as_str);
    let context = context.ok_or_else(|| wrong("it has no text \"context\" or \"ctx\""))?;
    let endings = value.get("endings").and_then(Value::as_array);
    let endings = endings.ok_or_else(|| wrong("it has no list \"endings\""))?;
    // Some files contain numbers as text.
    let label = value.get("label").and_then(|label| match label {
        Value::String(text) => text.parse().ok(),
        number => number.as_u64(),
    });
    let label = label.and_then(|label| usize::try_from(label).ok());
    let label = label.ok_or_else(|| wrong("it has no \"label\", the number of an ending from 0 on"))?;
    let encode = |text: &str| tokenizer.encode(text).map_err(|error| (number, error.to_string()));
    let ending = |ending: &Value| {
        let text = ending.as_str().ok_or_else(|| wrong("an ending is no text"))?;
        Ok(Ending { tokens: encode(&format!(" {text}"))?, bytes: Some(text.len()) })
    };
    let endings = endings.iter().map(ending).collect::<Result<_, (usize, String)>>()?;
    check(Question { context: encode(context)?, endings, label }, number)
}
