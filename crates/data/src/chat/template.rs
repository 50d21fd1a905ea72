//! Chat templates: Jinja texts that turn messages into the text that a model is trained on.

use super::answers;
use super::dialogue::TemplateInput;
use super::marks::{unused, with_marks, without_marks};
use super::renderer::{Part, Renderer};
use crate::{Error, Tokenizer};
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

/// A chat template with the special tokens that it may name. Rendering is bounded in steps, time, memory and
/// text.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    path: PathBuf,
    text: Arc<str>,
    renderer: Arc<Renderer>,
    /// Whether the template itself marks answers, by `{% generation %}`.
    marks_answers: bool,
}

impl ChatTemplate {
    /// Reads the template in `file`, which may name the special tokens of `tokenizer`.
    ///
    /// # Errors
    /// A file that cannot be read, or whose text is no template.
    pub fn of_file(file: &Path, tokenizer: &Tokenizer) -> Result<Self, Error> {
        Self::new(file, &read(file)?, tokenizer)
    }

    /// Reads the template in the first of some folders that has one, which may name the special tokens of
    /// `tokenizer`: `chat_template.jinja`, or `chat_template` of `tokenizer_config.json`.
    ///
    /// # Errors
    /// No template there; one that cannot be read.
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
            return Self::of_file(&folder.join(TEMPLATE), tokenizer).map(Some);
        }
        let path = folder.join(TOKENIZER_CONFIG);
        let config = config(&path)?;
        let template = config.get("chat_template");
        // Some tokenizers have several, each with a name.
        let named = template.and_then(|all| all.as_array()).and_then(|all| {
            let is_default = |one: &&serde_json::Value| one["name"] == "default";
            all.iter().find(is_default).or(all.first()).map(|one| &one["template"])
        });
        let text = named.or(template).and_then(serde_json::Value::as_str);
        text.map(|text| Self::new(&path, text, tokenizer)).transpose()
    }

    fn new(path: &Path, text: &str, tokenizer: &Tokenizer) -> Result<Self, Error> {
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
        Ok(Self { path: path.to_path_buf(), text: text.into(), renderer, marks_answers })
    }

    /// Returns the text of a conversation and the byte ranges of its answers: those that the template marks
    /// by `{% generation %}`, or else what the messages of the assistant add to the text.
    ///
    /// # Errors
    /// Messages that the template refuses; answers that are not found. The error is a sentence.
    pub fn render(
        &self,
        messages: &[serde_json::Value],
        input: &TemplateInput,
    ) -> Result<(String, Vec<Range<usize>>), String> {
        match self.marks_answers {
            true => self.marked(messages, input),
            false => answers::find(&|messages, parts| self.texts(messages, input, parts), messages),
        }
    }

    /// Returns the text of a conversation and the ranges that the template marks.
    fn marked(
        &self,
        messages: &[serde_json::Value],
        input: &TemplateInput,
    ) -> Result<(String, Vec<Range<usize>>), String> {
        let lost = || format!("{}: its {{% generation %}} cannot be followed", self.path.display());
        // Marks that no text has, and that change nothing else.
        let written = serde_json::to_string(&(messages, input)).map_err(|error| error.to_string())?;
        let marks = unused(&[&self.text, &written]).ok_or_else(lost)?;
        let plain = Part::text(messages.len());
        let texts = self.texts(messages, input, vec![Part { marks: Some(marks), ..plain }, plain])?;
        without_marks(&texts[0], marks).filter(|(text, _)| *text == texts[1]).ok_or_else(lost)
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
        let text = self.one_text(messages, input, Part::text(messages.len()))?;
        let same = text.chars().zip(question.chars()).take_while(|(one, other)| one == other);
        let start = same.map(|(character, _)| character.len_utf8()).sum();
        Ok((text, start))
    }

    /// Returns the text of messages, after which the assistant answers.
    ///
    /// # Errors
    /// As for [`ChatTemplate::render`].
    pub fn question(&self, messages: &[serde_json::Value], input: &TemplateInput) -> Result<String, String> {
        self.one_text(messages, input, Part::question(messages.len()))
    }

    /// Returns the white space before an answer and the text after it, without the white space around that;
    /// `None` if the template refuses a short conversation.
    #[must_use]
    pub fn around_answer(&self) -> Option<[String; 2]> {
        const ANSWER: &str = "answer";
        let messages =
            [json!({"role": "user", "content": "question"}), json!({"role": "assistant", "content": ANSWER})];
        let input = TemplateInput::default();
        let question = self.one_text(&messages[..1], &input, Part::question(1)).ok()?;
        let text = self.one_text(&messages, &input, Part::text(2)).ok()?;
        let (start, end) = text.rsplit_once(ANSWER)?;
        let space = start.strip_prefix(&*question).filter(|space| space.trim().is_empty());
        Some([space.unwrap_or_default().to_owned(), end.trim().to_owned()])
    }

    fn one_text(
        &self,
        messages: &[serde_json::Value],
        input: &TemplateInput,
        part: Part,
    ) -> Result<String, String> {
        self.texts(messages, input, vec![part]).map(|mut texts| texts.remove(0))
    }

    /// Returns the texts of `parts` of the messages, as many as `parts`.
    pub(super) fn texts(
        &self,
        messages: &[serde_json::Value],
        input: &TemplateInput,
        parts: Vec<Part>,
    ) -> Result<Vec<String>, String> {
        let texts = self.renderer.texts(messages, input, parts);
        texts.map_err(|reason| format!("{}: {reason}", self.path.display()))
    }
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
