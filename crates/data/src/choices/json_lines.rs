//! Questions as JSON lines.

use serde_json::Value;

use super::question::{Ending, Parsed, Question, check};
use crate::Tokenizer;
use system::readers::{FileKey, Reader, Unlisted};
use system::tally::Tally;

/// The keys of a question.
pub(crate) const QUESTION: Reader = Reader {
    of: "A question of multiple choice",
    keys: &[
        FileKey::known(&["context", "ctx"], "the text before the endings"),
        FileKey::known(&["endings"], "the list of texts"),
        FileKey::known(&["label"], "the index of the correct ending, a number or its text"),
        FileKey::ignored(
            &["ind", "activity_label", "ctx_a", "ctx_b", "split", "split_type", "source_id"],
            "HellaSwag's; `ctx` is `ctx_a` and `ctx_b`",
        ),
    ],
    shared: &[],
    unlisted: Unlisted::Counted,
};

pub(super) fn parse(bytes: &[u8], tokenizer: &Tokenizer) -> Parsed {
    let text = std::str::from_utf8(bytes).map_err(|error| (1, error.to_string()))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let mut unread = Tally::default();
    let questions = lines.map(|(index, line)| question(line, index + 1, tokenizer, &mut unread)).collect();
    if let Some(keys) = unread.list() {
        tracing::info!("questions: keys that are not read: {keys}");
    }
    questions
}

fn question(
    line: &str,
    number: usize,
    tokenizer: &Tokenizer,
    unread: &mut Tally,
) -> Result<Question, (usize, String)> {
    let value: Value = serde_json::from_str(line).map_err(|error| (number, error.to_string()))?;
    let wrong = |what: &str| (number, what.to_owned());
    let object = value.as_object().ok_or_else(|| wrong("it is no object"))?;
    unread.add_all(QUESTION.check(object).map_err(|reason| (number, reason))?);
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
