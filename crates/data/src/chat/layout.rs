//! Converts formats of conversations to messages: ShareGPT's, Alpaca's, and lists in OpenAI's format.

use serde_json::{Map, Value, json};
use system::quoted::shortened;
use system::readers::Treatment;

use super::keys::{MESSAGE, TURN};

/// Keys whose value is a list of messages.
pub(super) const LISTS: [&str; 3] = ["messages", "conversations", "conversation"];
/// Names of speakers in ShareGPT's format, with their roles.
const SPEAKERS: &[(&str, &str)] = &[
    ("human", "user"),
    ("user", "user"),
    ("gpt", "assistant"),
    ("assistant", "assistant"),
    ("chatgpt", "assistant"),
    ("model", "assistant"),
    ("bot", "assistant"),
    ("bing", "assistant"),
    ("bard", "assistant"),
    (CALL, "assistant"),
    ("system", "system"),
    ("tool", "tool"),
    ("function", "tool"),
    ("observation", "tool"),
];
/// Speaker of an answer that calls a function.
const CALL: &str = "function_call";
/// Introductory sentences in Alpaca's paper for an instruction without and with an input.
const PREFACES: [&str; 2] = [
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.",
    "Below is an instruction that describes a task, paired with an input that provides further context. Write a \
     response that appropriately completes the request.",
];

/// Returns the list of messages in an object with the key that holds it; `None` without such a key.
///
/// # Errors
/// There are several lists, or the list is empty.
pub(super) fn list_of(object: &Map<String, Value>) -> Result<Option<(&'static str, &[Value])>, String> {
    let mut lists = LISTS.into_iter().filter_map(|key| Some((key, object.get(key)?.as_array()?)));
    let Some((key, list)) = lists.next() else { return Ok(None) };
    match lists.next() {
        Some((other, _)) => Err(format!("it has both a list \"{key}\" and a list \"{other}\"")),
        None if list.is_empty() => Err(format!("its list \"{key}\" has no message")),
        None => Ok(Some((key, list))),
    }
}

/// Converts a message of ShareGPT's format to `role` and `content`. Also returns its ignored keys.
///
/// # Errors
/// A sentence about an unknown speaker, a refused key or an invalid function call.
pub(super) fn turn(number: usize, turn: &Value) -> Result<(Value, Vec<&str>), String> {
    let Some(keys) = turn.as_object() else { return Err(format!("message {number} is no object")) };
    let unread = TURN.check(keys).map_err(|reason| format!("message {number}: {reason}"))?;
    let Some(speaker) = turn["from"].as_str() else {
        return Err(format!("message {number} has no \"from\" and \"value\", as others of its conversation"));
    };
    let Some((_, role)) = SPEAKERS.iter().find(|(name, _)| *name == speaker) else {
        return Err(format!(
            "message {number} is from \"{}\", which is none of \"human\", \"gpt\", \"system\" and \"tool\"",
            shortened(speaker)
        ));
    };
    let mut message =
        Map::from_iter([("role".to_owned(), json!(role)), ("content".to_owned(), turn["value"].clone())]);
    if speaker == CALL {
        message.insert("content".to_owned(), json!(""));
        message.insert("tool_calls".to_owned(), calls(number, &turn["value"])?);
    }
    for (key, value) in keys.iter().filter(|(_, value)| !value.is_null()) {
        let is_of_message = MESSAGE.key(key).is_some_and(|listed| listed.treatment() == Treatment::Known);
        match message.get(key) {
            Some(own) if own != value && *value != turn["from"] && *value != turn["value"] => {
                return Err(format!(
                    "message {number}: its \"{key}\" contradicts its \"from\" and \"value\""
                ));
            }
            None if is_of_message => drop(message.insert(key.clone(), value.clone())),
            _ => {}
        }
    }
    Ok((Value::Object(message), unread))
}

/// Parses the function calls in a text: an object with `name` and `arguments`, or a list of them.
fn calls(number: usize, value: &Value) -> Result<Value, String> {
    let parsed = value.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    let calls = match parsed {
        Some(Value::Array(calls)) => calls,
        Some(call @ Value::Object(_)) => vec![call],
        _ => Vec::new(),
    };
    let is_call = |call: &Value| call["name"].is_string() && call.get("arguments").is_some();
    match !calls.is_empty() && calls.iter().all(is_call) {
        true => Ok(calls.into_iter().map(|call| json!({"type": "function", "function": call})).collect()),
        false => Err(format!(
            "message {number} is from \"{CALL}\", and its \"value\" is no JSON of a call with \"name\" and \"arguments\""
        )),
    }
}

/// Returns the messages of an Alpaca record, with its earlier exchanges.
///
/// # Errors
/// A sentence about a value that is not a text.
pub(super) fn alpaca(object: &Map<String, Value>) -> Result<Vec<Value>, String> {
    let [instruction, input, output] = ["instruction", "input", "output"].map(|key| text(object, key));
    let instruction = instruction?;
    let input = input?;
    let output = output?;
    let mut messages = Vec::new();
    let exchange = |question: &str, answer: &str| {
        [json!({"role": "user", "content": question}), json!({"role": "assistant", "content": answer})]
    };
    match object.get("history") {
        None | Some(Value::Null) => {}
        Some(Value::Array(earlier)) => {
            for pair in earlier {
                match pair.as_array().map(Vec::as_slice) {
                    Some([Value::String(question), Value::String(answer)]) => {
                        messages.extend(exchange(question, answer));
                    }
                    _ => return Err(HISTORY.to_owned()),
                }
            }
        }
        Some(_) => return Err(HISTORY.to_owned()),
    }
    let gap = if instruction.is_empty() || input.is_empty() { "" } else { "\n\n" };
    let [question, answer] = exchange(&format!("{instruction}{gap}{input}"), output);
    messages.push(question);
    messages.extend((!output.is_empty()).then_some(answer));
    Ok(messages)
}

/// Error message for an invalid history.
const HISTORY: &str = "its \"history\" is no list of pairs of texts, [[question, answer], …]";

/// Returns the prompt of Alpaca's paper for an instruction, and the answer.
///
/// # Errors
/// A sentence about a value that is not a text, or about earlier exchanges.
pub(super) fn alpaca_prompt(object: &Map<String, Value>) -> Result<(String, String), String> {
    if object.get("history").is_some_and(|history| !history.is_null() && *history != json!([])) {
        return Err("its \"history\" has no form in a prompt: data.format = \"alpaca\" takes it".to_owned());
    }
    let [instruction, input] = ["instruction", "input"].map(|key| text(object, key));
    let instruction = instruction?;
    let input = input?;
    let system = text(object, "system")?;
    let preface = if system.is_empty() { PREFACES[usize::from(!input.is_empty())] } else { system };
    let input = if input.is_empty() { String::new() } else { format!("### Input:\n{input}\n\n") };
    let prompt = format!("{preface}\n\n### Instruction:\n{instruction}\n\n{input}### Response:\n");
    Ok((prompt, text(object, "output")?.to_owned()))
}

/// Returns the text at a key; empty if it is absent or null.
///
/// # Errors
/// A sentence about a value that is not a text.
pub(super) fn text<'a>(object: &'a Map<String, Value>, key: &str) -> Result<&'a str, String> {
    match object.get(key) {
        None | Some(Value::Null) => Ok(""),
        Some(value) => value.as_str().ok_or_else(|| format!("its \"{key}\" is no text")),
    }
}
