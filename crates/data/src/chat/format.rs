//! Formats of conversations, which are all parsed to [`Example`].

use serde_json::{Map, Value, json};
use system::quoted::shortened;
use system::readers::{Reader, Treatment};

use super::dialogue::{Dialogue, Learnt, TemplateInput, check_unused};
use super::keys::{ALPACA, COMPLETION, MESSAGES, SHARE_GPT};
use super::layout::{alpaca, alpaca_prompt, list_of, text, turn};
use super::message::{check_masks, checked, learnt};
use super::train_on::{Role, TrainOn};
use crate::records::Record;

system::names! {
    /// The format of conversations in a file.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum ChatFormat {
        /// Detected from the keys of each object.
        Auto = "auto",
        /// OpenAI's: `messages` with `role` and `content`.
        Messages = "messages",
        /// ShareGPT's: `conversations` with `from` and `value`.
        ShareGpt = "sharegpt",
        /// Alpaca's: `instruction`, `input` and `output`, converted to messages.
        Alpaca = "alpaca",
        /// Alpaca's, formatted as the prompt text of its paper, without a chat template.
        AlpacaPrompt = "alpaca_prompt",
        /// TRL's: `prompt` and `completion`, as texts or lists of messages.
        Completion = "completion",
    }
}

/// A conversation before rendering.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Example {
    /// Messages for the chat template, and which of them are trained on.
    Dialogue(Dialogue, Learnt),
    /// A prompt, and the text to train on after it.
    Texts { prompt: String, completion: String },
}

/// A parsed object.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) example: Example,
    pub(super) format: ChatFormat,
    /// Names of ignored keys.
    pub(super) unread: Vec<String>,
}

impl ChatFormat {
    /// Detects the format of an object from its keys.
    ///
    /// # Errors
    /// A sentence about keys of several formats or of none.
    pub fn detect(object: &Map<String, Value>) -> Result<Self, String> {
        let has = |key: &str| object.get(key).is_some_and(|value| !value.is_null() && *value != json!(""));
        let mut found = Vec::new();
        if let Some((key, list)) = list_of(object)? {
            let is_turn = |message: &Value| message.get("from").is_some() && message.get("role").is_none();
            let format = if list.first().is_some_and(is_turn) { Self::ShareGpt } else { Self::Messages };
            found.push((format, key));
        }
        let is_there = |key: &str| object.get(key).is_some_and(|value| !value.is_null());
        let has_completion = has("completion") || (found.is_empty() && is_there("completion"));
        if has_completion && is_there("prompt") {
            found.push((Self::Completion, "completion"));
        }
        if has("instruction") || (found.is_empty() && object.contains_key("instruction")) {
            found.push((Self::Alpaca, "instruction"));
        }
        match found.as_slice() {
            [(format, _)] => Ok(*format),
            [(_, one), (_, other), ..] => Err(format!(
                "it has \"{one}\" and \"{other}\", which belong to two formats: data.format chooses one"
            )),
            [] => Err(no_format(object)),
        }
    }

    pub(crate) fn has_keys(object: &Map<String, Value>) -> bool {
        list_of(object).is_err() || Self::detect(object).is_ok()
    }

    fn reader(self) -> &'static Reader {
        match self {
            Self::Auto | Self::Messages => &MESSAGES,
            Self::ShareGpt => &SHARE_GPT,
            Self::Alpaca | Self::AlpacaPrompt => &ALPACA,
            Self::Completion => &COMPLETION,
        }
    }

    /// Parses an object to a conversation. `train_on` selects what is trained on.
    ///
    /// # Errors
    /// A sentence: the object has another format, a refused key or an invalid value, or nothing to train on.
    pub(super) fn parse(self, record: &Record, train_on: &TrainOn) -> Result<Parsed, String> {
        let object = &record.values;
        let format = if self == Self::Auto { Self::detect(object)? } else { self };
        let mut unread: Vec<String> = check_keys(format.reader(), record)?;
        let example = match format {
            Self::Auto | Self::Messages | Self::ShareGpt => {
                let (_, list) = list_of(object)?.ok_or_else(|| no_list(format))?;
                let numbered = (1..).zip(list);
                let messages = match format {
                    Self::ShareGpt => numbered
                        .map(|(number, message)| {
                            let (message, keys) = turn(number, message)?;
                            unread.extend(keys.into_iter().map(|key| format!("conversations.{key}")));
                            checked(number, &message)
                        })
                        .collect::<Result<_, _>>()?,
                    _ => numbered
                        .map(|(number, message)| checked(number, message))
                        .collect::<Result<_, _>>()?,
                };
                of_messages(object, messages, train_on)?
            }
            Self::Alpaca => of_messages(object, alpaca(object)?, train_on)?,
            Self::AlpacaPrompt => {
                let (prompt, completion) = alpaca_prompt(object)?;
                of_texts(object, prompt, completion, train_on)?
            }
            Self::Completion => completion(object, train_on)?,
        };
        Ok(Parsed { example, format, unread })
    }
}

/// Checks the keys of an object, and returns the ignored ones.
///
/// # Errors
/// A key is refused, or a key that is read has a non-finite number or half a surrogate pair.
pub(crate) fn check_keys(reader: &Reader, record: &Record) -> Result<Vec<String>, String> {
    let is_read =
        |key: &&String| reader.key(key).is_some_and(|listed| listed.treatment() != Treatment::Ignored);
    if let Some(key) = record.unreadable.iter().find(is_read) {
        return Err(format!(
            "its \"{key}\" has NaN, Infinity or half of a surrogate pair, which no text and no template can have"
        ));
    }
    Ok(reader.check(&record.values)?.into_iter().map(str::to_owned).collect())
}

/// Returns a conversation of messages. The object's `system`, if any, is put in front.
fn of_messages(
    object: &Map<String, Value>,
    mut messages: Vec<Value>,
    train_on: &TrainOn,
) -> Result<Example, String> {
    let system = text(object, "system")?;
    if !system.is_empty() {
        let system = json!({"role": "system", "content": system});
        match messages.first() {
            Some(first) if first["role"] == "system" => {
                if first["content"] != system["content"] {
                    return Err(
                        "its \"system\" is not its first message, which is one of the system".to_owned()
                    );
                }
            }
            _ => messages.insert(0, system),
        }
    }
    let learnt = learnt(&messages, train_on)?;
    Ok(Example::Dialogue(Dialogue { messages, input: TemplateInput::from_object(object)? }, learnt))
}

/// Returns a conversation of a prompt and its completion, which is treated as the assistant's.
///
/// # Errors
/// The object has template arguments, or `train_on` excludes the assistant.
fn of_texts(
    object: &Map<String, Value>,
    prompt: String,
    completion: String,
    train_on: &TrainOn,
) -> Result<Example, String> {
    check_unused(object)?;
    if !train_on.learns(Role::Assistant.name()) {
        return Err(format!(
            "its prompt and completion are texts, whose completion is the assistant's, and data.train_on = \
             {train_on} leaves that role out"
        ));
    }
    Ok(Example::Texts { prompt, completion })
}

fn completion(object: &Map<String, Value>, train_on: &TrainOn) -> Result<Example, String> {
    match (object.get("prompt"), object.get("completion")) {
        (Some(Value::String(prompt)), Some(Value::String(completion))) => {
            of_texts(object, prompt.clone(), completion.clone(), train_on)
        }
        (Some(Value::Array(prompt)), Some(Value::Array(completion))) => {
            if *train_on == TrainOn::Answers {
                check_masks(prompt, false)?;
                check_masks(completion, true)?;
            }
            let messages = (1..).zip(prompt.iter().chain(completion));
            let messages: Vec<Value> =
                messages.map(|(number, message)| checked(number, message)).collect::<Result<_, _>>()?;
            let learnt = match train_on {
                TrainOn::Answers => Learnt::After(prompt.len()),
                _ => learnt(&messages, train_on)?,
            };
            Ok(Example::Dialogue(Dialogue { messages, input: TemplateInput::from_object(object)? }, learnt))
        }
        _ => Err("its \"prompt\" and \"completion\" are not both texts or both lists of messages".to_owned()),
    }
}

fn no_list(format: ChatFormat) -> String {
    format!(
        "it has no list \"messages\" or \"conversations\", of which data.format = \"{}\" is",
        format.name()
    )
}

/// Returns the error message for an object without a known format.
fn no_format(object: &Map<String, Value>) -> String {
    const MOST: usize = 8;
    let mut keys: Vec<String> =
        object.keys().take(MOST).map(|key| format!("\"{}\"", shortened(key))).collect();
    if object.len() > MOST {
        keys.push("…".to_owned());
    }
    let keys = if keys.is_empty() { "no key".to_owned() } else { keys.join(", ") };
    format!(
        "it has no list \"messages\" (OpenAI's layout) or \"conversations\" (ShareGPT's), no \"instruction\" \
         (Alpaca's), and not both \"prompt\" and \"completion\" (TRL's), but {keys}"
    )
}
