//! Rendering of chat templates in a confined process: templates come with downloaded models.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use system::confined::{Answers, Confined, Task};

use super::dialogue::TemplateInput;
use super::jinja::Jinja;
use super::marks::Marks;

/// The task of confined processes that render chat templates.
pub const CHAT_TASK: Task = Task { name: "chat-template", start: serve };

/// A text that is asked for.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Part {
    /// The number of first messages.
    pub(super) messages: usize,
    /// Whether the words follow after which the assistant answers.
    pub(super) prompts: bool,
    /// Marks around the answers, if the template has `{% generation %}`.
    pub(super) marks: Option<Marks>,
}

impl Part {
    /// The text of the first messages, with the words after which the assistant answers.
    pub(super) fn question(messages: usize) -> Self {
        Self { messages, prompts: true, marks: None }
    }

    pub(super) fn text(messages: usize) -> Self {
        Self { messages, prompts: false, marks: None }
    }
}

/// A template, its special tokens, and where it is rendered.
#[derive(Debug)]
pub(super) struct Renderer {
    opening: Opening,
    engine: Engine,
}

#[derive(Debug)]
enum Engine {
    /// In this process, which starts no others.
    Here(Jinja),
    /// In a process that has compiled the template; `None` after the end of one.
    Confined(Mutex<Option<Confined>>),
}

/// The first request to a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Opening {
    template: String,
    special: Vec<(String, String)>,
}

#[derive(Serialize, Deserialize)]
enum Request {
    Open(Opening),
    Render(Vec<Value>, TemplateInput, Vec<Part>),
}

/// The answer: the texts of a request, or the reason why there are none.
type Answer = Result<Vec<String>, String>;

impl Renderer {
    /// Compiles a template.
    ///
    /// # Errors
    /// The reason why the text is no template.
    pub(super) fn new(template: String, special: Vec<(String, String)>) -> Result<Self, String> {
        let opening = Opening { template, special };
        let engine = match open(&opening) {
            None => Engine::Here(Jinja::new(opening.template.clone(), opening.special.clone())?),
            Some(process) => Engine::Confined(Mutex::new(Some(process?))),
        };
        Ok(Self { opening, engine })
    }

    /// Returns the texts of `parts`.
    ///
    /// # Errors
    /// Messages that the template refuses, or a template that takes too much memory or time; the reason, in
    /// words whose subject is the template.
    pub(super) fn texts(&self, messages: &[Value], input: &TemplateInput, parts: Vec<Part>) -> Answer {
        let process = match &self.engine {
            Engine::Here(jinja) => return texts(jinja, messages, input, &parts),
            Engine::Confined(process) => process,
        };
        let mut held = process.lock().unwrap_or_else(PoisonError::into_inner);
        let mut process = match held.take() {
            Some(process) => process,
            None => open(&self.opening).unwrap_or_else(|| Err("no process can be started".to_owned()))?,
        };
        let answer = ask(&mut process, &Request::Render(messages.to_vec(), input.clone(), parts))?;
        *held = Some(process);
        answer
    }
}

/// Starts a process that has compiled a template; `None` if this program starts none.
fn open(opening: &Opening) -> Option<Result<Confined, String>> {
    let process = Confined::start(CHAT_TASK.name)?;
    let started = process.map_err(|error| format!("no process can be started to render it: {error}"));
    Some(started.and_then(|mut process| {
        ask(&mut process, &Request::Open(opening.clone()))??;
        Ok(process)
    }))
}

/// Returns a process's answer.
///
/// # Errors
/// The reason why the process has ended.
fn ask(process: &mut Confined, request: &Request) -> Result<Answer, String> {
    let request = serde_json::to_vec(request).map_err(|error| error.to_string())?;
    let answer = process.ask(&request)?;
    serde_json::from_slice(&answer).map_err(|error| error.to_string())
}

fn serve() -> Answers {
    let mut jinja = None;
    Box::new(move |request| {
        let answered = catch_unwind(AssertUnwindSafe(|| answer(&mut jinja, request)));
        let answer: Answer = answered.unwrap_or_else(|_| Err("its engine has failed on it".to_owned()));
        serde_json::to_vec(&answer).unwrap_or_default()
    })
}

fn answer(jinja: &mut Option<Jinja>, request: &[u8]) -> Answer {
    match (serde_json::from_slice(request).map_err(|error| error.to_string())?, jinja) {
        (Request::Open(Opening { template, special }), jinja) => {
            *jinja = Some(Jinja::new(template, special)?);
            Ok(Vec::new())
        }
        (Request::Render(messages, input, parts), Some(jinja)) => texts(jinja, &messages, &input, &parts),
        (Request::Render(..), None) => Err("it is not compiled yet".to_owned()),
    }
}

fn texts(jinja: &Jinja, messages: &[Value], input: &TemplateInput, parts: &[Part]) -> Answer {
    let first = |count: usize| &messages[..count.min(messages.len())];
    parts.iter().map(|part| jinja.render(first(part.messages), input, part.prompts, part.marks)).collect()
}
