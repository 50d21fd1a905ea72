//! Chat templates: Jinja texts that turn messages into the text that a model is trained on.

use super::dialogue::TemplateInput;
use super::renderer::{Part, Renderer};
use crate::Error;
use serde_json::json;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file of a template alone.
const TEMPLATE: &str = "chat_template.jinja";
/// The configuration of a tokenizer, which may contain its template.
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// The most bytes of these files.
const MOST_BYTES: u64 = 16 << 20;
/// Private characters that mark an answer while a template is rendered.
const MARKS: [char; 2] = ['\u{F0000}', '\u{F0001}'];

/// A chat template with the special tokens that it may name. Rendering is bounded in steps, time, memory and
/// text.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    path: PathBuf,
    renderer: Arc<Renderer>,
    /// Whether the template itself marks answers, by `{% generation %}`.
    marks_answers: bool,
}

impl ChatTemplate {
    /// Reads the template in `file`; its special tokens come from a `tokenizer_config.json` beside it.
    ///
    /// # Errors
    /// A file that cannot be read, or whose text is no template.
    pub fn of_file(file: &Path) -> Result<Self, Error> {
        let folder = file.parent().unwrap_or(Path::new(""));
        Self::new(file, &read(file)?, special(&config(&folder.join(TOKENIZER_CONFIG))?))
    }

    /// Reads the template beside a tokenizer: `chat_template.jinja`, or `chat_template` of
    /// `tokenizer_config.json`.
    ///
    /// # Errors
    /// No template there; one that cannot be read.
    pub fn beside(tokenizer: &Path) -> Result<Self, Error> {
        let folder = tokenizer.parent().unwrap_or(Path::new(""));
        if folder.join(TEMPLATE).is_file() {
            return Self::of_file(&folder.join(TEMPLATE));
        }
        let path = folder.join(TOKENIZER_CONFIG);
        let config = config(&path)?;
        let template = config.get("chat_template");
        // Some tokenizers have several, each with a name.
        let named = template.and_then(|all| all.as_array()).and_then(|all| {
            let is_default = |one: &&serde_json::Value| one["name"] == "default";
            all.iter().find(is_default).or(all.first()).map(|one| &one["template"])
        });
        match named.or(template).and_then(serde_json::Value::as_str) {
            Some(text) => Self::new(&path, text, special(&config)),
            None => {
                let reason = format!("it has no {TEMPLATE}, and no chat_template in {TOKENIZER_CONFIG}");
                Err(Error::Template { path: folder.to_path_buf(), reason })
            }
        }
    }

    fn new(path: &Path, text: &str, special: Vec<(String, String)>) -> Result<Self, Error> {
        let (text, marks_answers) = with_marks(text);
        let wrong = |reason| Error::Template { path: path.to_path_buf(), reason };
        let renderer = Arc::new(Renderer::new(text, special).map_err(wrong)?);
        Ok(Self { path: path.to_path_buf(), renderer, marks_answers })
    }

    /// Returns the text of a conversation and the byte ranges of its answers: those that the template marks
    /// by `{% generation %}`, or else what each message of the assistant adds to the text before it.
    ///
    /// # Errors
    /// Messages that the template refuses; without marks, an answer that changes the text before it. The
    /// error is a sentence.
    pub fn render(
        &self,
        messages: &[serde_json::Value],
        input: &TemplateInput,
    ) -> Result<(String, Vec<Range<usize>>), String> {
        if self.marks_answers {
            return Ok(without_marks(&self.text(messages, input, false)?));
        }
        let assistant = || messages.iter().enumerate().filter(|(_, message)| message["role"] == "assistant");
        let parts = assistant().flat_map(|(index, _)| [(index, true), (index + 1, false)]);
        let mut texts = self.texts(messages, input, parts.chain([(messages.len(), false)]).collect())?;
        let text = texts.pop().unwrap_or_default();
        let mut answers = Vec::new();
        for ((index, message), texts) in assistant().zip(texts.chunks_exact(2)) {
            let (before, after) = (&texts[0], &texts[1]);
            if !after.starts_with(before) || !text.starts_with(after) {
                let (number, role) = (index + 1, &message["role"]);
                return Err(format!(
                    "message {number} ({role}) changes the text before it, so its answer cannot be found: \
                     mark answers in the template by {{% generation %}}"
                ));
            }
            answers.push(before.len()..after.len());
        }
        Ok((text, answers))
    }

    /// Returns the text of messages, the first `prompt` of which are answered by the others, and the byte at
    /// which the answer begins: where the text first differs from that of the prompt alone.
    ///
    /// # Errors
    /// Messages that the template refuses.
    pub(super) fn answered(
        &self,
        messages: &[serde_json::Value],
        input: &TemplateInput,
        prompt: usize,
    ) -> Result<(String, usize), String> {
        let question = if prompt > 0 { self.question(&messages[..prompt], input)? } else { String::new() };
        let text = without_marks(&self.text(messages, input, false)?).0;
        let same = text.chars().zip(question.chars()).take_while(|(one, other)| one == other);
        let start = same.map(|(character, _)| character.len_utf8()).sum();
        Ok((text, start))
    }

    /// Returns the text of messages, after which the assistant answers.
    ///
    /// # Errors
    /// As for [`ChatTemplate::render`].
    pub fn question(&self, messages: &[serde_json::Value], input: &TemplateInput) -> Result<String, String> {
        Ok(without_marks(&self.text(messages, input, true)?).0)
    }

    /// Returns the text that ends an answer, without the white space around it; `None` if the template writes
    /// nothing there, or refuses a short conversation.
    #[must_use]
    pub fn answer_end(&self) -> Option<String> {
        const ANSWER: &str = "answer";
        let user = json!({"role": "user", "content": "question"});
        let answer = json!({"role": "assistant", "content": ANSWER});
        let text = self.text(&[user, answer], &TemplateInput::default(), false).ok()?;
        let text = without_marks(&text).0;
        let end = text[text.rfind(ANSWER)? + ANSWER.len()..].trim();
        (!end.is_empty()).then(|| end.to_owned())
    }

    fn text(
        &self,
        messages: &[serde_json::Value],
        input: &TemplateInput,
        prompts: bool,
    ) -> Result<String, String> {
        self.texts(messages, input, vec![(messages.len(), prompts)]).map(|mut texts| texts.remove(0))
    }

    /// Returns the texts of `parts` of the messages, as many as `parts`.
    fn texts(
        &self,
        messages: &[serde_json::Value],
        input: &TemplateInput,
        parts: Vec<Part>,
    ) -> Result<Vec<String>, String> {
        let texts = self.renderer.texts(messages, input, parts);
        texts.map_err(|reason| format!("{}: {reason}", self.path.display()))
    }
}

/// Replaces `{% generation %}` and `{% endgeneration %}` by marks in the text, and returns whether there are
/// some.
fn with_marks(text: &str) -> (String, bool) {
    let mut rest = text;
    let mut marked = String::new();
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let end = start + length + 2;
        let tag = &rest[start + 2..end - 2];
        let words = tag.trim_matches(['-', '+']).trim();
        let mark = ["generation", "endgeneration"].iter().position(|name| *name == words);
        marked.push_str(&rest[..start]);
        match mark {
            None => marked.push_str(&rest[start..end]),
            Some(mark) => {
                // A statement keeps the tag's treatment of white space around it.
                let [open, close] = [("-", tag.starts_with('-')), ("-", tag.ends_with('-'))]
                    .map(|(sign, is_there)| if is_there { sign } else { "" });
                let print = format!("{{%{open} if true %}}{{{{ '{}' }}}}{{% endif {close}%}}", MARKS[mark]);
                marked.push_str(&print);
            }
        }
        rest = &rest[end..];
    }
    marked.push_str(rest);
    let is_marked = marked.contains(MARKS[0]);
    (marked, is_marked)
}

/// Removes the marks of a rendered text, and returns the ranges between them.
fn without_marks(text: &str) -> (String, Vec<Range<usize>>) {
    let (mut plain, mut answers, mut start) = (String::with_capacity(text.len()), Vec::new(), None);
    for character in text.chars() {
        match MARKS.iter().position(|mark| *mark == character) {
            Some(0) => start = Some(plain.len()),
            Some(_) => answers.extend(start.take().map(|start| start..plain.len())),
            None => plain.push(character),
        }
    }
    (plain, answers)
}

fn read(path: &Path) -> Result<String, Error> {
    let unreadable = |source| Error::Unreadable { path: path.to_path_buf(), source };
    system::input::read_text(path, MOST_BYTES).map_err(unreadable)
}

/// The contents of a `tokenizer_config.json`; nothing where there is none.
fn config(path: &Path) -> Result<serde_json::Value, Error> {
    if !path.is_file() {
        return Ok(serde_json::Value::Null);
    }
    let wrong =
        |error: serde_json::Error| Error::Template { path: path.to_path_buf(), reason: error.to_string() };
    serde_json::from_str(&read(path)?).map_err(wrong)
}

/// The special tokens that a tokenizer's configuration names, such as `bos_token`.
fn special(config: &serde_json::Value) -> Vec<(String, String)> {
    let text = |value: &serde_json::Value| {
        let own = value.as_str().or_else(|| value["content"].as_str());
        own.map(str::to_owned)
    };
    let entries = config.as_object().into_iter().flatten();
    entries
        .filter(|(name, _)| name.ends_with("_token"))
        .filter_map(|(name, value)| Some((name.clone(), text(value)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{ChatTemplate, TemplateInput};
    use serde_json::json;
    use std::path::Path;

    const CHATML: &str = "{% for message in messages %}\n{{ '<|im_start|>' + message['role'] + '\\n' + \
                          message['content'].strip() + '<|im_end|>' + '\\n' }}{% endfor %}\n{% if \
                          add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

    fn template(text: &str) -> ChatTemplate {
        let special = vec![("bos_token".to_owned(), "<s>".to_owned())];
        ChatTemplate::new(Path::new("t.jinja"), text, special).unwrap()
    }

    fn answers(
        template: &ChatTemplate,
        messages: &serde_json::Value,
    ) -> Result<(String, Vec<String>), String> {
        let (text, ranges) = template.render(messages.as_array().unwrap(), &TemplateInput::default())?;
        let answers = ranges.into_iter().map(|range| text[range].to_owned()).collect();
        Ok((text, answers))
    }

    #[test]
    fn answers_are_what_the_assistant_adds_or_what_the_template_marks() {
        let messages = json!([
            {"role": "user", "content": " 1+1? "},
            {"role": "assistant", "content": "2"},
            {"role": "user", "content": "2+2?"},
            {"role": "assistant", "content": "4"},
        ]);
        let (text, actual) = answers(&template(CHATML), &messages).unwrap();
        assert!(text.starts_with("<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n"));
        assert_eq!(actual, ["2<|im_end|>\n", "4<|im_end|>\n"]);
        let marked = "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}[A]\
                      {%- generation -%}\n {{ m.content }}</s>\n{%- endgeneration %}\
                      {% else %}[U]{{ m.content | trim }}{% endif %}{% endfor %}";
        let (text, actual) = answers(&template(marked), &messages).unwrap();
        assert_eq!(text, "<s>[U]1+1?[A]2</s>[U]2+2?[A]4</s>");
        assert_eq!(actual, ["2</s>", "4</s>"]);
    }

    #[test]
    fn what_a_template_refuses_is_said() {
        let messages = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]);
        let refusing =
            template("{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}");
        assert_eq!(answers(&refusing, &messages).unwrap_err(), "t.jinja: no system");
        let counting = template("{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}");
        assert!(answers(&counting, &messages).unwrap_err().contains("changes the text before it"));
        assert!(ChatTemplate::new(Path::new("t.jinja"), "{% for %}", Vec::new()).is_err());
    }
}
