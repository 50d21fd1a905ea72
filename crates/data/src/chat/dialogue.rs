//! A conversation before rendering: messages, and the other arguments of a chat template.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use system::quoted::shortened;

/// Names of variables that every template receives.
const RESERVED: [&str; 4] = ["messages", "tools", "documents", "add_generation_prompt"];

/// Messages, with the other arguments of a chat template.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dialogue {
    /// JSON objects with `role` and `content`.
    pub messages: Vec<Value>,
    /// The other arguments of the template.
    pub input: TemplateInput,
}

/// Arguments of a chat template other than the messages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TemplateInput {
    /// Descriptions of the functions that an assistant may call.
    pub tools: Option<Vec<Value>>,
    /// Further variables, by name.
    pub variables: Map<String, Value>,
}

/// Selects the part of a conversation to train on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Learnt {
    /// For each message, whether it is trained on; `None` for roles that never are.
    Messages(Vec<Option<bool>>),
    /// All messages after this number of first messages.
    After(usize),
}

impl TemplateInput {
    /// Reads `tools` and `chat_template_kwargs` of an object. Both may be JSON within a string.
    ///
    /// # Errors
    /// A sentence about an invalid value.
    pub(super) fn from_object(object: &Map<String, Value>) -> Result<Self, String> {
        let tools = match unpacked(object, "tools")? {
            None => None,
            Some(Value::Array(tools)) if tools.iter().all(Value::is_object) => Some(tools),
            Some(other) => return Err(wrong("tools", &other, "a list of objects")),
        };
        let variables = match unpacked(object, "chat_template_kwargs")? {
            None => Map::new(),
            Some(Value::Object(variables)) => variables,
            Some(other) => return Err(wrong("chat_template_kwargs", &other, "an object")),
        };
        match RESERVED.iter().find(|name| variables.contains_key(**name)) {
            Some(name) => {
                Err(format!("its \"chat_template_kwargs\" has \"{name}\", which templates have anyway"))
            }
            None => Ok(Self { tools, variables }),
        }
    }
}

/// Checks that a JSON object with texts has no tools or template variables, which only messages can have.
///
/// # Errors
/// A sentence about tools or template variables.
pub(super) fn check_unused(object: &Map<String, Value>) -> Result<(), String> {
    match TemplateInput::from_object(object)? == TemplateInput::default() {
        true => Ok(()),
        false => {
            Err("its \"tools\" or \"chat_template_kwargs\" belong to messages, and it has texts".to_owned())
        }
    }
}

/// Returns the value at a key, parsed if it is a string; `None` if it is absent, null or an empty string.
fn unpacked(object: &Map<String, Value>, key: &str) -> Result<Option<Value>, String> {
    match object.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.trim().is_empty() => Ok(None),
        Some(Value::String(text)) => {
            serde_json::from_str(text).map(Some).map_err(|error| format!("its \"{key}\" is no JSON: {error}"))
        }
        Some(value) => Ok(Some(value.clone())),
    }
}

fn wrong(key: &str, value: &Value, wanted: &str) -> String {
    format!("its \"{key}\" = {} is not {wanted}", shortened(&value.to_string()))
}
