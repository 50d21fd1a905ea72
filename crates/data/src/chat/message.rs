//! Checks messages of a conversation: keys, text and masks.

use serde_json::{Map, Value};
use system::quoted::shortened;

use super::dialogue::Learnt;
use super::keys::MESSAGE;
use super::train_on::TrainOn;

/// Keys that decide whether a message is trained on, with the value that means yes.
pub(super) const MASKS: [(&str, bool); 7] = [
    ("weight", true),
    ("train", true),
    ("training", true),
    ("trainable", true),
    ("loss", true),
    ("loss_mask", true),
    ("masked", false),
];

/// Names that other programs use for the assistant's role, in lower case.
const OTHER_ANSWERERS: [&str; 8] = ["assistant", "gpt", "chatgpt", "model", "bot", "bard", "bing", "ai"];

/// Checks a message, and returns it with a single text as content; a list of texts is joined.
///
/// # Errors
/// A sentence about a missing role or text, or a refused key.
pub(super) fn checked(number: usize, message: &Value) -> Result<Value, String> {
    let wrong = |reason: String| format!("message {number}: {reason}");
    let Some(keys) = message.as_object() else { return Err(format!("message {number} is no object")) };
    MESSAGE.check(keys).map_err(wrong)?;
    let Some(role) = message["role"].as_str() else {
        return Err(format!("message {number} has no \"role\""));
    };
    if role != "assistant" && OTHER_ANSWERERS.contains(&&*role.to_lowercase()) {
        return Err(format!(
            "message {number} has the role \"{}\", and only messages of \"assistant\" are answers",
            shortened(role)
        ));
    }
    let calls_tools = message["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty());
    match &message["content"] {
        Value::String(_) => Ok(message.clone()),
        Value::Null if calls_tools => Ok(message.clone()),
        Value::Array(parts) => {
            let text = text_of(parts).map_err(wrong)?;
            Ok(Value::Object(with_content(keys, text)))
        }
        _ => Err(format!("message {number} has no text as its \"content\"")),
    }
}

fn with_content(message: &Map<String, Value>, text: String) -> Map<String, Value> {
    let mut message = message.clone();
    message.insert("content".to_owned(), text.into());
    message
}

/// Joins the texts of a content that is a list.
///
/// # Errors
/// A sentence about a part that is not a text.
fn text_of(parts: &[Value]) -> Result<String, String> {
    let text = |part: &Value| match (part, part["type"].as_str()) {
        (Value::String(text), _) => Ok(text.clone()),
        (Value::Object(_), None | Some("text" | "input_text" | "output_text")) => {
            if mask(part)? == Some(false) {
                return Err(PART_MASKED.to_owned());
            }
            let text = part["text"].as_str().map(str::to_owned);
            text.ok_or_else(|| "a part of its \"content\" has no \"text\"".to_owned())
        }
        (_, Some(kind)) => {
            let kind = shortened(kind);
            Err(format!("a part of its \"content\" is of type \"{kind}\", and only texts are learnt"))
        }
        (other, None) => {
            Err(format!("a part of its \"content\" is {}, no text", shortened(&other.to_string())))
        }
    };
    parts.iter().map(text).collect()
}

/// Error message for a mask within a message.
const PART_MASKED: &str =
    "a part of its \"content\" is not to be learnt, and a message is learnt whole or not: split it";

/// Returns whether a message's keys say that it is trained on; `None` if they do not say.
///
/// # Errors
/// A sentence about a value other than yes or no, or about contradictory keys.
fn mask(message: &Value) -> Result<Option<bool>, String> {
    let mut found: Option<(&str, bool)> = None;
    for (key, learns) in MASKS {
        let value = &message[key];
        let is_set = match (value, value.as_f64()) {
            (Value::Null, _) => continue,
            (Value::Bool(value), _) => *value,
            (_, Some(0.0)) => false,
            (_, Some(1.0)) => true,
            _ => {
                let value = shortened(&value.to_string()).into_owned();
                return Err(format!(
                    "\"{key}\" = {value}: a message is learnt or not, by 0 or 1, true or false"
                ));
            }
        };
        let mask = is_set == learns;
        match found.filter(|(_, other)| *other != mask) {
            Some((other, _)) => return Err(format!("\"{other}\" and \"{key}\" contradict each other")),
            None => found = Some((key, mask)),
        }
    }
    Ok(found.map(|(_, mask)| mask))
}

/// Returns which messages are trained on: messages of the trained roles, unless their keys say otherwise.
///
/// # Errors
/// Masks contradict each other, or a mask selects a message of another role.
pub(super) fn learnt(messages: &[Value], train_on: &TrainOn) -> Result<Learnt, String> {
    let mut learnt = Vec::new();
    for (number, message) in (1..).zip(messages) {
        let is_learnt = message["role"].as_str().is_some_and(|role| train_on.learns(role));
        match mask(message).map_err(|reason| format!("message {number}: {reason}"))? {
            Some(true) if !is_learnt => {
                let role = shortened(&message["role"].to_string()).into_owned();
                let learnt = match train_on {
                    TrainOn::Answers => "only answers of the assistant are".to_owned(),
                    others => format!("data.train_on = {others} leaves its role out"),
                };
                return Err(format!("message {number} ({role}) is to be learnt, and {learnt}"));
            }
            mask => learnt.push(is_learnt.then_some(mask != Some(false))),
        }
    }
    Ok(Learnt::Messages(learnt))
}

/// Refuses messages whose mask contradicts `is_learnt`, which applies to all of them.
///
/// # Errors
/// A sentence about the contradicting mask.
pub(super) fn check_masks(messages: &[Value], is_learnt: bool) -> Result<(), String> {
    for (number, message) in (1..).zip(messages) {
        let wrong = |reason: String| format!("message {number}: {reason}");
        if mask(message).map_err(wrong)?.is_some_and(|mask| mask != is_learnt) {
            let part =
                if is_learnt { "after the prompt all messages are learnt" } else { "a prompt is not learnt" };
            return Err(wrong(format!("its mask contradicts its format, in which {part}")));
        }
    }
    Ok(())
}
