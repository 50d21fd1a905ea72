//! Formats of conversations, and the objects of each as one [`Example`].

use serde_json::{Map, Value, json};
use system::quoted::shortened;
use system::readers::{Reader, Treatment};

use super::dialogue::{Dialogue, Learnt, TemplateInput, check_unused};
use super::keys::{ALPACA, COMPLETION, MESSAGES, SHARE_GPT};
use super::layout::{alpaca, alpaca_prompt, list_of, text, turn};
use super::message::{check_masks, checked, learnt};
use crate::records::Record;

system::names! {
    /// A format of the objects in files of conversations.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum ChatFormat {
        /// The one that each object shows by its keys.
        Auto = "auto",
        /// OpenAI's: `messages` with `role` and `content`.
        Messages = "messages",
        /// ShareGPT's: `conversations` with `from` and `value`.
        ShareGpt = "sharegpt",
        /// Alpaca's: `instruction`, `input` and `output`, as messages.
        Alpaca = "alpaca",
        /// Alpaca's, as the text of its paper, which needs no chat template.
        AlpacaPrompt = "alpaca_prompt",
        /// TRL's: `prompt` and `completion`, texts or lists of messages.
        Completion = "completion",
    }
}

/// A conversation before its rendering.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Example {
    /// Messages for the chat template, and which of them are learnt.
    Dialogue(Dialogue, Learnt),
    /// A text, and the one that is learnt after it.
    Texts { prompt: String, completion: String },
}

/// An object that was read.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) example: Example,
    pub(super) format: ChatFormat,
    /// Names of keys that are not read.
    pub(super) unread: Vec<String>,
}

impl ChatFormat {
    /// Returns the format of an object by its keys.
    ///
    /// # Errors
    /// Keys of several formats or of none, in a sentence.
    pub(crate) fn detect(object: &Map<String, Value>) -> Result<Self, String> {
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

    /// Returns the conversation of an object.
    ///
    /// # Errors
    /// An object of another format, with a refused key, or with a value that is none of the format's; in a
    /// sentence.
    pub(super) fn parse(self, record: &Record) -> Result<Parsed, String> {
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
                of_messages(object, messages)?
            }
            Self::Alpaca => of_messages(object, alpaca(object)?)?,
            Self::AlpacaPrompt => {
                let (prompt, completion) = alpaca_prompt(object)?;
                of_texts(object, prompt, completion)?
            }
            Self::Completion => completion(object)?,
        };
        Ok(Parsed { example, format, unread })
    }
}

/// Checks the keys of an object, and returns those that are not read.
///
/// # Errors
/// A refused key; a number that is not finite, or half of a surrogate pair, in a key that is read.
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

/// Returns a conversation whose answers are learnt, after the `system` of its object.
fn of_messages(object: &Map<String, Value>, mut messages: Vec<Value>) -> Result<Example, String> {
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
    let learnt = learnt(&messages)?;
    Ok(Example::Dialogue(Dialogue { messages, input: TemplateInput::of(object)? }, learnt))
}

fn of_texts(object: &Map<String, Value>, prompt: String, completion: String) -> Result<Example, String> {
    check_unused(object)?;
    Ok(Example::Texts { prompt, completion })
}

fn completion(object: &Map<String, Value>) -> Result<Example, String> {
    match (object.get("prompt"), object.get("completion")) {
        (Some(Value::String(prompt)), Some(Value::String(completion))) => {
            of_texts(object, prompt.clone(), completion.clone())
        }
        (Some(Value::Array(prompt)), Some(Value::Array(completion))) => {
            check_masks(prompt, false)?;
            check_masks(completion, true)?;
            let messages = (1..).zip(prompt.iter().chain(completion));
            let messages =
                messages.map(|(number, message)| checked(number, message)).collect::<Result<_, _>>()?;
            let dialogue = Dialogue { messages, input: TemplateInput::of(object)? };
            Ok(Example::Dialogue(dialogue, Learnt::After(prompt.len())))
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

/// The sentence about an object of no format.
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
