//! Chat templates: Jinja templates that convert messages to the text a model is trained on.

use super::answers;
use super::dialogue::TemplateInput;
use super::marks::{unused, with_marks, without_marks};
use super::message::MASKS;
use super::renderer::{MessagePrefix, Renderer};
use crate::{Error, Tokenizer};
use serde_json::{Value, json};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// File name of a separate template.
const TEMPLATE: &str = "chat_template.jinja";
/// File name of a tokenizer's configuration, which may contain a template.
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// Folder name of further, named templates.
const NAMED: &str = "additional_chat_templates";
/// Name of the template for conversations with tools.
const TOOL_USE: &str = "tool_use";
/// Maximum size of these files in bytes.
const MOST_BYTES: u64 = 16 << 20;

/// A chat template, with the special tokens it may refer to. Rendering is limited in steps, time, memory and
/// text size.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    path: PathBuf,
    text: Arc<str>,
    renderer: Arc<Renderer>,
    /// Whether the template marks answers with `{% generation %}`.
    marks_answers: bool,
    /// Whether the template writes whole messages, including unknown keys.
    writes_all_keys: bool,
    /// Whether the folder has another template for conversations with tools.
    has_tool_use: bool,
}

impl ChatTemplate {
    /// Reads the template in `file`, which may refer to the special tokens of `tokenizer`.
    ///
    /// # Errors
    /// The file cannot be read, or is not a valid template.
    pub fn of_file(file: &Path, tokenizer: &Tokenizer) -> Result<Self, Error> {
        Self::new(file, &read(file)?, tokenizer)
    }

    /// Reads the template of the first folder that has one, in `chat_template.jinja` or in `chat_template` of
    /// `tokenizer_config.json`. It may refer to the special tokens of `tokenizer`.
    ///
    /// # Errors
    /// No folder has a template, or it cannot be read.
    pub fn of_folders(folders: &[&Path], tokenizer: &Tokenizer) -> Result<Self, Error> {
        for folder in folders {
            if let Some(template) = Self::of_folder(folder, tokenizer)? {
                return Ok(template);
            }
        }
        let reason = format!("it has no {TEMPLATE}, and no chat_template in {TOKENIZER_CONFIG}");
        let path = folders.first().map_or_else(PathBuf::new, |folder| folder.to_path_buf());
        Err(Error::Template { path, reason })
    }

    fn of_folder(folder: &Path, tokenizer: &Tokenizer) -> Result<Option<Self>, Error> {
        if folder.join(TEMPLATE).is_file() {
            let template = Self::of_file(&folder.join(TEMPLATE), tokenizer)?;
            let has_tool_use = folder.join(NAMED).join(format!("{TOOL_USE}.jinja")).is_file();
            return Ok(Some(Self { has_tool_use, ..template }));
        }
        let path = folder.join(TOKENIZER_CONFIG);
        let config = config(&path)?;
        let template = config.get("chat_template");
        // Some tokenizers have several, each with a name.
        let all = template.and_then(serde_json::Value::as_array);
        let named = |name: &str| all?.iter().find(|one| one["name"] == name).map(|one| &one["template"]);
        if all.is_some_and(|all| !all.is_empty()) && named("default").is_none() {
            let reason = "its chat_template is a list without a \"default\": data.chat_template names the \
                          file of one";
            return Err(Error::Template { path, reason: reason.to_owned() });
        }
        let text = named("default").or(template).and_then(serde_json::Value::as_str);
        let read = text.map(|text| Self::new(&path, text, tokenizer)).transpose()?;
        Ok(read.map(|read| Self { has_tool_use: named(TOOL_USE).is_some(), ..read }))
    }

    /// Returns the keys of messages and other arguments that the template's text does not mention, so that
    /// they have no effect.
    pub(super) fn unread_keys<'a>(
        &self,
        messages: impl Iterator<Item = &'a Value>,
        input: &TemplateInput,
    ) -> Vec<String> {
        let mut unread = Vec::new();
        if !self.writes_all_keys {
            let keys = messages.filter_map(Value::as_object).flatten();
            let keys = keys.filter(|(key, value)| !value.is_null() && !is_read_before(key));
            let keys = keys.filter(|(key, _)| !self.text.contains(&**key));
            unread.extend(keys.map(|(key, _)| format!("messages.{key}")));
        }
        let has_tools = input.tools.as_ref().is_some_and(|tools| !tools.is_empty());
        unread.extend((has_tools && !self.text.contains("tools")).then(|| "tools".to_owned()));
        let variables = input.variables.keys().filter(|name| !self.text.contains(&***name));
        unread.extend(variables.map(|name| format!("chat_template_kwargs.{name}")));
        unread
    }

    fn new(path: &Path, text: &str, tokenizer: &Tokenizer) -> Result<Self, Error> {
        // As Jinja reads it.
        let text = &text.replace("\r\n", "\n").replace('\r', "\n");
        let special = tokenizer.special_tokens();
        for name in ["bos_token", "eos_token"] {
            if text.contains(name) && special.text(name).is_none() {
                tracing::warn!(
                    "{}: it writes {name}, and the tokenizer {} has none: it writes nothing there",
                    path.display(),
                    tokenizer.name()
                );
            }
        }
        let (marked, marks_answers) = with_marks(text);
        let wrong = |reason| Error::Template { path: path.to_path_buf(), reason };
        let renderer = Arc::new(Renderer::new(marked, special.named.clone()).map_err(wrong)?);
        Ok(Self {
            path: path.to_path_buf(),
            text: text.as_str().into(),
            renderer,
            marks_answers,
            writes_all_keys: writes_all_keys(text),
            has_tool_use: false,
        })
    }

    /// Renders a conversation. Returns its text and the byte ranges of its answers: those marked by `{%
    /// generation %}`, or else the text that the assistant's messages add.
    ///
    /// # Errors
    /// A sentence: the template refuses the messages, or answers are not found.
    pub fn render(
        &self,
        messages: &[serde_json::Value],
        input: &TemplateInput,
    ) -> Result<(String, Vec<Range<usize>>), String> {
        match self.marks_answers {
            true => self.marked(messages, input),
            false => {
                let is_answer = |index: &usize| messages[*index]["role"] == "assistant";
                let answers: Vec<usize> = (0..messages.len()).filter(is_answer).collect();
                let advice = "mark answers in the template by {% generation %}";
                self.find(messages, input, &answers, advice)
            }
        }
    }

    /// Renders a conversation. Returns its text and the byte ranges of the messages `chosen`: the text that
    /// each adds, whatever the template marks.
    ///
    /// # Errors
    /// A sentence: the template refuses the messages, or they are not found.
    pub(super) fn render_messages(
        &self,
        messages: &[serde_json::Value],
        input: &TemplateInput,
        chosen: &[usize],
    ) -> Result<(String, Vec<Range<usize>>), String> {
        self.find(messages, input, chosen, "choose other roles by data.train_on")
    }

    fn find(
        &self,
        messages: &[serde_json::Value],
        input: &TemplateInput,
        chosen: &[usize],
        advice: &str,
    ) -> Result<(String, Vec<Range<usize>>), String> {
        let render = |messages: &[Value], parts| self.texts(messages, input, parts);
        answers::find(&render, messages, chosen, advice)
    }

    /// Renders a conversation. Returns its text and the ranges that the template marks.
    fn marked(
        &self,
        messages: &[serde_json::Value],
        input: &TemplateInput,
    ) -> Result<(String, Vec<Range<usize>>), String> {
        let lost = || format!("{}: its {{% generation %}} cannot be followed", self.path.display());
        // Marks that no text has, and that change nothing else.
        let written = serde_json::to_string(&(messages, input)).map_err(|error| error.to_string())?;
        let marks = unused(&[&self.text, &written]).ok_or_else(lost)?;
        let plain = MessagePrefix::text(messages.len());
        let texts =
            self.texts(messages, input, vec![MessagePrefix { marks: Some(marks), ..plain }, plain])?;
        without_marks(&texts[0], marks).filter(|(text, _)| *text == texts[1]).ok_or_else(lost)
    }

    /// Renders messages of which the first `prompt` are the prompt. Returns the text and the byte at which
    /// the answer begins: where the text first differs from the rendered prompt.
    ///
    /// # Errors
    /// The template refuses the messages.
    pub(super) fn answered(
        &self,
        messages: &[serde_json::Value],
        input: &TemplateInput,
        prompt: usize,
    ) -> Result<(String, usize), String> {
        let question = if prompt > 0 { self.question(&messages[..prompt], input)? } else { String::new() };
        let text = self.one_text(messages, input, MessagePrefix::text(messages.len()))?;
        let same = text.chars().zip(question.chars()).take_while(|(one, other)| one == other);
        let start = same.map(|(character, _)| character.len_utf8()).sum();
        Ok((text, start))
    }

    /// Renders messages with the generation prompt, for the assistant to answer.
    pub fn question(&self, messages: &[serde_json::Value], input: &TemplateInput) -> Result<String, String> {
        self.one_text(messages, input, MessagePrefix::question(messages.len()))
    }

    /// Returns the white space before an answer, and the text after it without surrounding white space.
    /// `None` if the template refuses a short conversation.
    #[must_use]
    pub fn around_answer(&self) -> Option<[String; 2]> {
        const ANSWER: &str = "answer";
        let messages =
            [json!({"role": "user", "content": "question"}), json!({"role": "assistant", "content": ANSWER})];
        let input = TemplateInput::default();
        let question = self.one_text(&messages[..1], &input, MessagePrefix::question(1)).ok()?;
        let text = self.one_text(&messages, &input, MessagePrefix::text(2)).ok()?;
        let (start, end) = text.rsplit_once(ANSWER)?;
        let space = start.strip_prefix(&*question).filter(|space| space.trim().is_empty());
        Some([space.unwrap_or_default().to_owned(), end.trim().to_owned()])
    }

    fn one_text(
        &self,
        messages: &[serde_json::Value],
        input: &TemplateInput,
        part: MessagePrefix,
    ) -> Result<String, String> {
        self.texts(messages, input, vec![part]).map(|mut texts| texts.remove(0))
    }

    /// Renders each of `parts` of the messages.
    pub(super) fn texts(
        &self,
        messages: &[serde_json::Value],
        input: &TemplateInput,
        parts: Vec<MessagePrefix>,
    ) -> Result<Vec<String>, String> {
        if self.has_tool_use && input.tools.as_ref().is_some_and(|tools| !tools.is_empty()) {
            return Err(format!(
                "{}: another template is for conversations with tools, \"{TOOL_USE}\": data.chat_template \
                 names the file of one that is for all",
                self.path.display()
            ));
        }
        let texts = self.renderer.texts(messages, input, parts);
        texts.map_err(|reason| format!("{}: {reason}", self.path.display()))
    }
}

/// Returns whether a template writes whole messages, including unknown keys.
fn writes_all_keys(text: &str) -> bool {
    let text: String = text.split_whitespace().collect();
    [".items()", "|items", "message|tojson", "messages|tojson"].iter().any(|part| text.contains(part))
}

/// Returns whether a key of a message is always read, whatever the template mentions.
fn is_read_before(key: &str) -> bool {
    matches!(key, "role" | "content") || MASKS.iter().any(|(name, _)| *name == key)
}

fn read(path: &Path) -> Result<String, Error> {
    let unreadable = |source| Error::Unreadable { path: path.to_path_buf(), source };
    system::input::read_text(path, MOST_BYTES).map_err(unreadable)
}

/// Reads a `tokenizer_config.json`; null if there is none.
fn config(path: &Path) -> Result<serde_json::Value, Error> {
    if !path.is_file() {
        return Ok(serde_json::Value::Null);
    }
    let wrong =
        |error: serde_json::Error| Error::Template { path: path.to_path_buf(), reason: error.to_string() };
    serde_json::from_str(&read(path)?).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_the_text_does_not_name_are_unread() {
        let call = json!([{"function": {"name": "f"}}]);
        let messages = [
            json!({"role": "user", "content": "q", "weight": 0, "name": null}),
            json!({"role": "assistant", "content": "", "tool_calls": call, "reasoning": "r"}),
        ];
        let variables = json!({"thinks": false}).as_object().unwrap().clone();
        let input = TemplateInput { tools: Some(vec![json!({})]), variables };
        for (text, expected) in [
            ("{{ m.content }}", "messages.reasoning messages.tool_calls tools chat_template_kwargs.thinks"),
            ("{{ m.tool_calls }}{{ thinks }}", "messages.reasoning tools"),
            ("{{ message | tojson }}{{ tools }}{{ thinks }}", ""),
        ] {
            let template = ChatTemplate::new(Path::new("t"), text, &Tokenizer::Bytes).unwrap();
            let mut unread = template.unread_keys(messages.iter(), &input);
            let mut words: Vec<&str> = expected.split_whitespace().collect();
            unread.sort_unstable();
            words.sort_unstable();
            assert_eq!(unread, words, "{text}");
        }
    }
}
