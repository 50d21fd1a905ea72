//! Reads preference pairs from JSON or Parquet files as tokens.

use super::dialogue::{TemplateInput, check_unused};
use super::figures::Figures;
use super::format::check_keys;
use super::invalid::{InvalidLines, bad_line};
use super::keys::PAIR;
use super::message::{check_masks, checked};
use super::template::ChatTemplate;
use crate::records::{Record, each_line};
use crate::{Error, Tokenizer};
use serde_json::Value;
use std::path::{Path, PathBuf};
use system::numbers::grouped;
use system::pace::Pace;

/// A prompt with an answer, as tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// All tokens of prompt and answer.
    pub tokens: Vec<u32>,
    /// Index of the answer's first token.
    pub answer: usize,
}

/// Two answers to the same prompt. The first is preferred.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pair {
    /// The prompt with the chosen answer.
    pub chosen: Answered,
    /// The prompt with the rejected answer.
    pub rejected: Answered,
}

/// Options for reading preference pairs.
#[derive(Clone, Copy, Debug)]
pub struct PairReading<'a> {
    /// The chat template for messages, or the error that explains why there is none.
    pub template: Result<&'a ChatTemplate, &'a Error>,
    /// The tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// Vocabulary size of the model.
    pub vocabulary: usize,
    /// Whether to skip and count invalid lines instead of failing.
    pub skip_invalid: bool,
}

impl PairReading<'_> {
    /// Reads the preference pairs of `files`: JSON lines, JSON lists or Parquet, plain or compressed. A
    /// record has `chosen` and `rejected`, as texts or lists of messages, and either `prompt` or answers that
    /// begin with the prompt. A text ends with the tokenizer's end token. Prompt and answer are tokenized
    /// together; a token that spans both belongs to the answer. Skips empty lines. Logs progress. Returns the
    /// pairs of each file.
    ///
    /// # Errors
    /// A line, named with its file, is not a pair or is refused by the template (unless invalid lines are
    /// skipped). Or messages have no template, a token exceeds the vocabulary, or a file has no pair.
    pub fn read(&self, files: &[PathBuf]) -> Result<Vec<Vec<Pair>>, Error> {
        let mut figures = Figures::default();
        let mut invalid = InvalidLines::new(self.skip_invalid);
        let pace = Pace::of_files();
        let mut all = Vec::new();
        let mut count = 0;
        for path in files {
            let mut pairs = Vec::new();
            each_line(path, |record| {
                if pace.is_due() {
                    let read = grouped((count + pairs.len()) as u64);
                    tracing::info!("{}: read {read} pairs of answers", path.display());
                }
                let lacks_template = record.as_ref().is_ok_and(|record| self.lacks_template(record));
                let read = record.and_then(|record| self.pair(path, &record, &mut figures));
                let read = if lacks_template { Some(read?) } else { invalid.pass(read)? };
                let Some((line, pair)) = read else { return Ok(()) };
                for Answered { tokens, .. } in [&pair.chosen, &pair.rejected] {
                    let checked = self.tokenizer.check_tokens(tokens, self.vocabulary);
                    checked.map_err(|reason| bad_line(path, line, reason))?;
                }
                pairs.push(pair);
                Ok(())
            })?;
            invalid.end_file(path, pairs.len())?;
            count += pairs.len();
            all.push(pairs);
        }
        match count {
            0 => Err(Error::NoPairs { path: files.first().map_or(Path::new(""), PathBuf::as_path).into() }),
            _ => {
                figures.log("pairs of answers");
                invalid.log("pairs of answers");
                Ok(all)
            }
        }
    }

    /// Returns whether a record has messages but there is no template for them.
    fn lacks_template(&self, record: &Record) -> bool {
        self.template.is_err() && record.values.get("chosen").is_some_and(Value::is_array)
    }

    /// Returns the pair of a record with its line.
    ///
    /// # Errors
    /// The record is not a pair, is refused by the template, or lacks an answer.
    fn pair(&self, path: &Path, record: &Record, figures: &mut Figures) -> Result<(u64, Pair), Error> {
        let refused = |reason| bad_line(path, record.line, reason);
        figures.add_unread(&check_keys(&PAIR, record).map_err(refused)?);
        let (pair, unread) = pair(record, self.template, self.tokenizer).map_err(refused)?;
        figures.add_unread(&unread);
        check_answers(&pair).map_err(refused)?;
        Ok((record.line, pair))
    }
}

/// Returns the pair of an object, and the keys that its template ignores.
fn pair(
    record: &Record,
    template: Result<&ChatTemplate, &Error>,
    tokenizer: &Tokenizer,
) -> Result<(Pair, Vec<String>), String> {
    let object = &record.values;
    let prompt = object.get("prompt").filter(|prompt| !prompt.is_null());
    let [chosen, rejected] = ["chosen", "rejected"].map(|key| {
        let value = object.get(key).filter(|value| value.is_string() || value.is_array());
        value.ok_or_else(|| format!("it has no text or list of messages \"{key}\""))
    });
    match (prompt, chosen?, rejected?) {
        (None | Some(Value::String(_)), Value::String(chosen), Value::String(rejected)) => {
            check_unused(object)?;
            let prompt = prompt.and_then(Value::as_str);
            of_texts(prompt, chosen, rejected, tokenizer).map(|pair| (pair, Vec::new()))
        }
        (None | Some(Value::Array(_) | Value::String(_)), Value::Array(chosen), Value::Array(rejected)) => {
            check_prompt(prompt, [chosen, rejected])?;
            let prompt = prompt.and_then(Value::as_array);
            let input = TemplateInput::from_object(object)?;
            let template = template.map_err(ToString::to_string)?;
            of_messages(prompt, [chosen, rejected], &input, (template, tokenizer))
        }
        _ => Err("its \"prompt\", \"chosen\" and \"rejected\" are not all texts or all lists of messages"
            .to_owned()),
    }
}

fn of_texts(
    prompt: Option<&str>,
    chosen: &str,
    rejected: &str,
    tokenizer: &Tokenizer,
) -> Result<Pair, String> {
    let (prompt, chosen, rejected) = match prompt {
        Some(prompt) => (prompt, chosen, rejected),
        None => {
            let common = common_text(chosen, rejected);
            (&chosen[..common], &chosen[common..], &rejected[common..])
        }
    };
    let answered = |answer: &str| answered_text(prompt, answer, tokenizer);
    Ok(Pair { chosen: answered(chosen)?, rejected: answered(rejected)? })
}

/// Tokenizes a prompt and its answer. The tokenizer's prefix tokens are put in front and its end token
/// behind, even if the texts already spell them out.
///
/// # Errors
/// A text cannot be encoded, or the tokenizer has no end token.
pub(super) fn answered_text(prompt: &str, answer: &str, tokenizer: &Tokenizer) -> Result<Answered, String> {
    let special = tokenizer.special_tokens();
    let Some(end) = special.end else {
        return Err(format!(
            "no file of the tokenizer {} names the token with which answers end: \"eos_token\" in \
             tokenizer_config.json beside it does",
            tokenizer.name()
        ));
    };
    let mut answered = encoded(&format!("{prompt}{answer}"), prompt.len(), tokenizer)?;
    if !answered.tokens.starts_with(&special.before_text) {
        answered.answer += special.before_text.len();
        answered.tokens.splice(0..0, special.before_text.iter().copied());
    }
    if answered.tokens.last() != Some(&end) {
        answered.tokens.push(end);
    }
    Ok(answered)
}

/// Returns the length in bytes of the prompt with which two texts begin. A final space is left to the
/// answers.
fn common_text(one: &str, other: &str) -> usize {
    let same = one.chars().zip(other.chars()).take_while(|(one, other)| one == other);
    let common = same.map(|(character, _)| character.len_utf8()).sum();
    common - usize::from(common < one.len() && one[..common].ends_with(' '))
}

/// Checks a `prompt` beside two conversations. If it is a text, it must repeat a message with which both
/// begin, as in UltraFeedback.
///
/// # Errors
/// A sentence: no common message has this text, or `prompt` is messages and the answers also begin with
/// common messages.
fn check_prompt(prompt: Option<&Value>, answers: [&Vec<Value>; 2]) -> Result<(), String> {
    match prompt {
        Some(Value::String(text)) if !text.trim().is_empty() => {
            let is_text = |message: &Value| {
                let content = checked(1, message)
                    .ok()
                    .and_then(|message| message["content"].as_str().map(str::to_owned));
                content.is_some_and(|content| content.trim() == text.trim())
            };
            match answers[0][..common_messages(answers)].iter().any(is_text) {
                true => Ok(()),
                false => Err(
                    "its \"prompt\" is a text that is none of the messages with which both answers begin: \
                              write it as a list of messages"
                        .to_owned(),
                ),
            }
        }
        Some(Value::Array(prompt)) if !prompt.is_empty() => {
            match answers.iter().all(|answer| answer.starts_with(prompt)) {
                true => Err(
                    "its \"chosen\" and \"rejected\" begin with the messages of its \"prompt\", which would \
                             be there twice: leave out \"prompt\""
                        .to_owned(),
                ),
                false => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// Returns the number of messages with which both conversations begin.
fn common_messages([one, other]: [&Vec<Value>; 2]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// Returns a pair of messages, and the keys that the template ignores.
fn of_messages(
    prompt: Option<&Vec<Value>>,
    answers: [&Vec<Value>; 2],
    input: &TemplateInput,
    (template, tokenizer): (&ChatTemplate, &Tokenizer),
) -> Result<(Pair, Vec<String>), String> {
    let common = common_messages(answers);
    let (prompt, before) = match prompt {
        Some(prompt) => (&prompt[..], 0),
        None => (&answers[0][..common], common),
    };
    let answered = |answer: &[Value]| -> Result<Answered, String> {
        check_masks(prompt, false)?;
        check_masks(answer, true)?;
        let messages = (1..).zip(prompt.iter().chain(answer));
        let messages: Vec<Value> =
            messages.map(|(number, message)| checked(number, message)).collect::<Result<_, _>>()?;
        let (text, start) = template.answered(&messages, input, prompt.len())?;
        encoded(&text, start, tokenizer)
    };
    let pair = Pair { chosen: answered(&answers[0][before..])?, rejected: answered(&answers[1][before..])? };
    let messages = prompt.iter().chain(&answers[0][before..]).chain(&answers[1][before..]);
    Ok((pair, template.unread_keys(messages, input)))
}

/// Tokenizes a text whose answer begins at byte `start`.
fn encoded(text: &str, start: usize, tokenizer: &Tokenizer) -> Result<Answered, String> {
    let spans = tokenizer.encode_spans(text).map_err(|error| error.to_string())?;
    let answer = spans.iter().position(|(_, span)| span.end > start).unwrap_or(spans.len());
    Ok(Answered { tokens: spans.into_iter().map(|(token, _)| token).collect(), answer })
}

fn check_answers(pair: &Pair) -> Result<(), String> {
    for (name, Answered { tokens, answer }) in [("chosen", &pair.chosen), ("rejected", &pair.rejected)] {
        if *answer >= tokens.len() {
            return Err(format!("its \"{name}\" has no answer after the prompt"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn texts(object: &Value) -> Result<[(String, usize); 2], String> {
        let missing = Error::NoPaths;
        let values = object.as_object().unwrap().clone();
        let record = Record { line: 1, values, unreadable: Vec::new() };
        let (Pair { chosen, rejected }, _) = pair(&record, Err(&missing), &Tokenizer::Bytes)?;
        let text = |of: Answered| (Tokenizer::Bytes.decode(&of.tokens), of.answer);
        Ok([text(chosen), text(rejected)])
    }

    #[test]
    fn a_prompt_beside_conversations_is_there_once() {
        let [user, one, other] = [("user", "q"), ("assistant", "a"), ("assistant", "b")]
            .map(|(role, content)| json!({"role": role, "content": content}));
        let (long, short) =
            ([vec![user.clone(), one.clone()], vec![user.clone(), other.clone()]], [vec![one], vec![other]]);
        for (prompt, answers, expected) in [
            (json!("q\n"), &long, None),
            (json!(""), &short, None),
            (json!([user]), &short, None),
            (json!("r"), &long, Some("its \"prompt\" is a text that is none of the messages")),
            (json!("q"), &short, Some("its \"prompt\" is a text that is none of the messages")),
            (json!([user]), &long, Some("its \"chosen\" and \"rejected\" begin with the messages")),
        ] {
            let checked = check_prompt(Some(&prompt), [&answers[0], &answers[1]]);
            let refused = checked.err();
            assert_eq!(refused.is_some(), expected.is_some(), "{prompt}: {refused:?}");
            assert!(refused.unwrap_or_default().starts_with(expected.unwrap_or_default()), "{prompt}");
        }
    }

    #[test]
    fn prompts_are_named_or_what_both_answers_begin_with() {
        let expected = Ok([("2 + 2 = 4\0".to_owned(), 7), ("2 + 2 = five\0".to_owned(), 7)]);
        for object in [
            json!({"prompt": "2 + 2 =", "chosen": " 4", "rejected": " five"}),
            json!({"chosen": "2 + 2 = 4", "rejected": "2 + 2 = five"}),
            json!({"prompt": null, "chosen": "2 + 2 = 4", "rejected": "2 + 2 = five", "score": 1}),
        ] {
            assert_eq!(texts(&object), expected, "{object}");
        }
        for (object, refusal) in [
            (json!({"chosen": "a"}), "it has no text or list of messages \"rejected\""),
            (json!({"prompt": ["a"], "chosen": "a", "rejected": "b"}), "its \"prompt\", \"chosen\" and"),
            (json!({"chosen": [], "rejected": "b"}), "its \"prompt\", \"chosen\" and"),
            (json!({"chosen": [], "rejected": []}), "the corpus names no file"),
        ] {
            assert!(texts(&object).unwrap_err().starts_with(refusal), "{object}");
        }
    }
}
