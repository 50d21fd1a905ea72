//! Questions as JSON lines.

use std::path::Path;

use serde_json::{Map, Value};

use super::question::{Ending, Question, check};
use crate::records::each_record;
use crate::{Error, Tokenizer};
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

/// Reads the questions of JSON lines, a list or Parquet.
///
/// # Errors
/// A file that cannot be read; a line that is no question.
pub(super) fn read(path: &Path, tokenizer: &Tokenizer) -> Result<Vec<Question>, Error> {
    let (mut questions, mut unread) = (Vec::new(), Tally::default());
    let bad =
        |(number, reason)| Error::BadQuestion { path: path.to_path_buf(), unit: "line", number, reason };
    let read = each_record(path, |record| {
        let number = record.line as usize;
        unread.add_all(QUESTION.check(&record.values).map_err(|reason| bad((number, reason)))?);
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
    let context = ["context", "ctx"].into_iter().find_map(|key| value.get(key)).and_then(Value::as_str);
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
