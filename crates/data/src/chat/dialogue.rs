//! A conversation before its rendering: messages, and what else a chat template is called with.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use system::quoted::shortened;

/// Names that a template is called with in any case.
const RESERVED: [&str; 4] = ["messages", "tools", "documents", "add_generation_prompt"];

/// Messages with the other arguments of their template.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dialogue {
    /// Objects with `role` and `content`.
    pub messages: Vec<Value>,
    /// The other arguments.
    pub input: TemplateInput,
}

/// Arguments of a chat template beside the messages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TemplateInput {
    /// Descriptions of the functions that an assistant may call.
    pub tools: Option<Vec<Value>>,
    /// Values of further variables, by name.
    pub variables: Map<String, Value>,
}

/// The part of a conversation that is learnt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Learnt {
    /// Messages: whether each is learnt, and `None` for those of roles that are not.
    Messages(Vec<Option<bool>>),
    /// All after so many first ones.
    After(usize),
}

impl TemplateInput {
    /// Reads `tools` and `chat_template_kwargs` of an object, which may be JSON in a string.
    ///
    /// # Errors
    /// Other values, in a sentence.
    pub(super) fn of(object: &Map<String, Value>) -> Result<Self, String> {
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

/// Refuses an object of texts with what only messages take.
///
/// # Errors
/// Tools or variables of a template, in a sentence.
pub(super) fn check_unused(object: &Map<String, Value>) -> Result<(), String> {
    match TemplateInput::of(object)? == TemplateInput::default() {
        true => Ok(()),
        false => {
            Err("its \"tools\" or \"chat_template_kwargs\" belong to messages, and it has texts".to_owned())
        }
    }
}

/// Returns the value of a key, parsed if it is a string; `None` if it is absent, null or empty text.
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
