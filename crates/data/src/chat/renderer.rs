//! Renders chat templates in a confined process, because templates come with downloaded models.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use system::confined::{Answers, Confined, Task};

use super::dialogue::TemplateInput;
use super::jinja::Jinja;
use super::marks::Marks;

/// The confined task that renders chat templates.
pub const CHAT_TASK: Task = Task { name: "chat-template", start: serve };

/// A text to render: the first messages of a conversation.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct MessagePrefix {
    /// Number of messages to render, from the first on.
    pub(super) messages: usize,
    /// Whether the generation prompt follows.
    pub(super) prompts: bool,
    /// Characters to put around answers, for a template with `{% generation %}`.
    pub(super) marks: Option<Marks>,
}

impl MessagePrefix {
    /// Returns a request for the first messages with the generation prompt.
    pub(super) fn question(messages: usize) -> Self {
        Self { messages, prompts: true, marks: None }
    }

    pub(super) fn text(messages: usize) -> Self {
        Self { messages, prompts: false, marks: None }
    }
}

/// Renders a template, in this or a confined process.
#[derive(Debug)]
pub(super) struct Renderer {
    opening: Opening,
    engine: Engine,
}

#[derive(Debug)]
enum Engine {
    /// Renders in this process, because this program starts no confined processes.
    Here(Jinja),
    /// A confined process that has compiled the template; `None` after one has ended.
    Confined(Mutex<Option<Confined>>),
}

/// The first message to a process: the template to compile.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Opening {
    template: String,
    special: Vec<(String, String)>,
}

#[derive(Serialize, Deserialize)]
enum Request {
    Open(Opening),
    Render(Vec<Value>, TemplateInput, Vec<MessagePrefix>),
}

/// The rendered texts, or why there are none.
type Answer = Result<Vec<String>, String>;

impl Renderer {
    /// Compiles a template.
    ///
    /// # Errors
    /// The text is not a valid template.
    pub(super) fn new(template: String, special: Vec<(String, String)>) -> Result<Self, String> {
        let opening = Opening { template, special };
        let engine = match open(&opening) {
            None => Engine::Here(Jinja::new(opening.template.clone(), opening.special.clone())?),
            Some(process) => Engine::Confined(Mutex::new(Some(process?))),
        };
        Ok(Self { opening, engine })
    }

    /// Renders the texts of `parts`.
    ///
    /// # Errors
    /// The template refuses the messages, or takes too much memory or time. The reason is a phrase about the
    /// template.
    pub(super) fn texts(
        &self,
        messages: &[Value],
        input: &TemplateInput,
        parts: Vec<MessagePrefix>,
    ) -> Answer {
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

/// Starts a process and compiles the template there; `None` if this program starts no confined processes.
fn open(opening: &Opening) -> Option<Result<Confined, String>> {
    let process = Confined::start(CHAT_TASK.name)?;
    let started = process.map_err(|error| format!("no process can be started to render it: {error}"));
    Some(started.and_then(|mut process| {
        ask(&mut process, &Request::Open(opening.clone()))??;
        Ok(process)
    }))
}

/// Sends a request to a process and returns its answer.
///
/// # Errors
/// The process has ended, for this reason.
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

fn texts(jinja: &Jinja, messages: &[Value], input: &TemplateInput, parts: &[MessagePrefix]) -> Answer {
    let first = |count: usize| &messages[..count.min(messages.len())];
    parts.iter().map(|part| jinja.render(first(part.messages), input, part.prompts, part.marks)).collect()
}
