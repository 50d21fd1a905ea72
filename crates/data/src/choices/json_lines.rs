//! Reads multiple-choice questions from JSON lines, JSON lists or Parquet.

use std::path::Path;

use serde_json::{Map, Value};

use super::encode::Context;
use super::question::{Ending, Question, TextLengths, check};
use crate::chat::check_keys;
use crate::records::each_record;
use crate::{Error, Tokenizer};
use system::readers::{FileKey, Reader, Unlisted};
use system::tally::Tally;

/// Values that mean an absent text or list.
const NOTHING: &[&str] = &["\"\"", "[]"];

/// The keys accepted in a question.
pub(crate) const QUESTION: Reader = Reader {
    of: "A question of multiple choice",
    keys: &[
        FileKey::known(&["context", "ctx"], "the text before the endings"),
        FileKey::known(&["endings"], "the list of texts"),
        FileKey::known(&["label"], "the correct ending: its index, a number or its text, or its letter"),
        FileKey::ignored(
            &["ind", "activity_label", "ctx_a", "ctx_b", "split", "split_type", "source_id"],
            "HellaSwag's; `ctx` is `ctx_a` and `ctx_b`",
        ),
        FileKey::refused(
            &["question", "query", "passage", "system", "system_prompt", "description", "fewshot", "prefix"],
            NOTHING,
            "all of the text before the endings is \"context\"",
        ),
        FileKey::refused(&["choices", "options", "suffix"], NOTHING, "the texts that follow are \"endings\""),
        FileKey::refused(
            &["delimiter", "target_delimiter"],
            &["\" \""],
            "an ending follows its context after a space",
        ),
        FileKey::refused(
            &["answer", "answerKey", "gold", "target"],
            NOTHING,
            "the correct ending is \"label\", its index or its letter",
        ),
        FileKey::refused(&["weight", "weights"], &["1"], "all questions count the same"),
    ],
    shared: &[],
    unlisted: Unlisted::Counted,
};

/// Reads the questions of JSON lines, a JSON list or Parquet.
///
/// # Errors
/// The file cannot be read, or a line is not a question.
pub(super) fn read(path: &Path, tokenizer: &Tokenizer) -> Result<Vec<Question>, Error> {
    let mut questions = Vec::new();
    let mut unread = Tally::default();
    let bad =
        |(number, reason)| Error::BadQuestion { path: path.to_path_buf(), unit: "line", number, reason };
    let read = each_record(path, |record| {
        let number = record.line as usize;
        let keys = check_keys(&QUESTION, &record).map_err(|reason| bad((number, reason)))?;
        unread.add_all(keys.iter().map(String::as_str));
        questions.push(question(&record.values, number, tokenizer).map_err(bad)?);
        Ok(())
    });
    read.map_err(|error| match error {
        Error::BadConversation { line, reason, .. } => bad((line as usize, reason)),
        other => other,
    })?;
    if let Some(keys) = unread.list() {
        tracing::info!("questions: keys that are not read: {keys}");
    }
    Ok(questions)
}

fn question(
    value: &Map<String, Value>,
    number: usize,
    tokenizer: &Tokenizer,
) -> Result<Question, (usize, String)> {
    let wrong = |what: &str| (number, what.to_owned());
    let [context, ctx] = ["context", "ctx"].map(|key| value.get(key).filter(|text| !text.is_null()));
    if context.zip(ctx).is_some_and(|(context, ctx)| context != ctx) {
        return Err(wrong("its \"context\" and \"ctx\" are two texts"));
    }
    let context = context.or(ctx).and_then(Value::as_str);
    let context = context.ok_or_else(|| wrong("it has no text \"context\" or \"ctx\""))?;
    let endings = value.get("endings").and_then(Value::as_array);
    let endings = endings.ok_or_else(|| wrong("it has no list \"endings\""))?;
    let texts: Option<Vec<&str>> = endings.iter().map(Value::as_str).collect();
    let texts = texts.ok_or_else(|| wrong("an ending is no text"))?;
    let numbered = |reason: String| (number, reason);
    let label = label(value.get("label"), &texts).map_err(numbered)?;
    let context = Context::new(context, tokenizer).map_err(numbered)?;
    let ending = |text: &&str| {
        let lengths = TextLengths { characters: text.chars().count(), bytes: text.len() };
        Ok(Ending { tokens: context.ending(text).map_err(numbered)?, lengths: Some(lengths) })
    };
    let endings = texts.iter().map(ending).collect::<Result<_, (usize, String)>>()?;
    check(Question { context: context.tokens, endings, label }, number)
}

/// Parses a label to the index of an ending: a number from 0, possibly in a string, or a letter.
///
/// # Errors
/// There is no label, or it is a letter that is also the text of another ending.
fn label(label: Option<&Value>, endings: &[&str]) -> Result<usize, String> {
    let missing = "it has no \"label\", the number of an ending from 0 on or its letter from A on".to_owned();
    let number = label.and_then(|label| match label {
        Value::String(text) => text.parse().ok(),
        number => number.as_u64(),
    });
    if let Some(number) = number {
        return usize::try_from(number).map_err(|_| missing);
    }
    let text = label.and_then(Value::as_str).ok_or_else(|| missing.clone())?;
    let [letter @ (b'A'..=b'Z' | b'a'..=b'z')] = *text.as_bytes() else { return Err(missing) };
    let index = usize::from(letter.to_ascii_uppercase() - b'A');
    match endings.iter().position(|ending| *ending == text) {
        Some(other) if other != index => Err(format!(
            "its label is {text}, which is the letter of ending {} and the text of ending {}",
            index + 1,
            other + 1
        )),
        _ => Ok(index),
    }
}
