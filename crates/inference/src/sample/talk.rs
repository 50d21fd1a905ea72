//! Conversations: user messages, each followed by an answer.

use std::path::Path;

use data::{ChatTemplate, Dialogue, TemplateInput, Tokenizer};
use generation::{Generator, GeneratorOptions};
use serde_json::{Value, json};

use super::generate::{Job, generate};
use super::messages::Messages;
use super::options::SampleOptions;
use super::prompts::Prompt;
use super::shown::TextEvent;
use super::text::Text;
use run::{Result, RunError};

/// Tokens reserved for a conversation with unknown messages, unless the model's context is shorter.
const ROOM: usize = 8192;
/// Tokens that a template may add around a message and its answer.
const AROUND: usize = 64;

/// Simultaneous conversations with one model.
pub(super) struct Talk {
    template: ChatTemplate,
    /// Messages of each conversation so far; the last one is to be answered.
    histories: Vec<Dialogue>,
    /// Further user messages for every conversation.
    turns: Vec<String>,
    messages: Option<Messages>,
}

impl Talk {
    /// Returns the conversations in the options; `texts` are their first messages.
    ///
    /// # Errors
    /// A conversation file cannot be read or has no message to answer, or there are no messages.
    pub(super) fn new(options: &SampleOptions, texts: &[String], template: ChatTemplate) -> Result<Self> {
        let system = options.system.iter().map(|text| message("system", text));
        let alone = |messages| Dialogue { messages, input: TemplateInput::default() };
        let first = |text: &String| alone(system.clone().chain([message("user", text)]).collect());
        let mut histories: Vec<Dialogue> = texts.iter().map(first).collect();
        for path in &options.conversations {
            for (index, mut dialogue) in messages_of(path)?.into_iter().enumerate() {
                let history = &mut dialogue.messages;
                // The message to answer may already have an answer.
                while history.last().is_some_and(|last| last["role"] == "assistant") {
                    history.pop();
                }
                if history.last().is_none_or(|last| last["role"] == "system") {
                    let text =
                        format!("{}: conversation {} has no message to answer", path.display(), index + 1);
                    return Err(RunError::Refused(text));
                }
                if history[0]["role"] != "system" {
                    history.splice(0..0, system.clone());
                }
                histories.push(dialogue);
            }
        }
        let messages = options.messages.clone().filter(|_| histories.is_empty());
        if let Some(messages) = &messages {
            let first = if options.plan_only { Some(String::new()) } else { read(messages, 0)? };
            histories.extend(first.map(|text| alone(system.chain([message("user", &text)]).collect())));
        }
        if histories.is_empty() {
            let text = "--chat: it needs a message: --prompt, --conversations, or a line of standard input";
            return Err(RunError::Refused(text.to_owned()));
        }
        Ok(Talk { template, histories, turns: options.turns.clone(), messages })
    }

    /// Returns the white space before an answer, and the string that ends it.
    pub(super) fn around_answer(&self) -> [String; 2] {
        self.template.around_answer().unwrap_or_default()
    }

    /// Returns the last message of each conversation, with the tokens of the whole conversation.
    ///
    /// # Errors
    /// The template refuses the messages.
    pub(super) fn prompts(&self, tokenizer: &Tokenizer) -> Result<Vec<(String, Vec<u32>)>> {
        let prompt = |history: &Dialogue| Ok((last_of(history), self.tokens(history, tokenizer)?));
        self.histories.iter().map(prompt).collect()
    }

    /// Returns the number of tokens to reserve for the conversations; `None` if they end after the first
    /// answer. `longest` is the longest prompt's tokens; each answer has at most `answer`.
    ///
    /// # Errors
    /// A message cannot be encoded.
    pub(super) fn room(&self, longest: usize, answer: usize, tokenizer: &Tokenizer) -> Result<Option<usize>> {
        if self.messages.is_some() {
            return Ok(Some(ROOM.max(longest + answer)));
        }
        let mut room = longest + answer;
        for turn in &self.turns {
            room += tokenizer.encode(turn)?.len() + AROUND + answer;
        }
        Ok((!self.turns.is_empty()).then_some(room))
    }

    /// Generates answers turn by turn. Returns them grouped by conversation. If a conversation with its
    /// answer exceeds the context, its earliest messages are dropped.
    ///
    /// # Errors
    /// Generation fails, or a message cannot be read or is too long.
    pub(super) fn hold(
        &self,
        generator: &mut Generator,
        options: GeneratorOptions,
        job: &Job,
        show: &dyn Fn(TextEvent<'_>) -> std::io::Result<()>,
    ) -> Result<Vec<Text>> {
        let most = options.capacity - job.tokens.min(options.capacity / 2);
        let mut histories = self.histories.clone();
        let mut answered: Vec<(usize, Text)> = Vec::new();
        let mut texts = generate(generator, options, job, show)?;
        for turn in 1.. {
            let next = match &self.messages {
                Some(messages) => read(messages, turn)?,
                None => self.turns.get(turn - 1).cloned(),
            };
            let Some(next) = next else { break };
            let mut prompts = Vec::with_capacity(texts.len());
            for (history, text) in histories.iter_mut().zip(&texts) {
                history.messages.extend([message("assistant", text.certain()), message("user", &next)]);
                let tokens = self.shortened(history, &job.tokenizer, most)?;
                prompts.push(Prompt { text: next.clone(), tokens, seed: text.prompt.seed, turn });
            }
            answered.extend(texts.into_iter().enumerate());
            texts = generate(generator, options, &Job { prompts, ..job.clone() }, show)?;
        }
        answered.extend(texts.into_iter().enumerate());
        answered.sort_by_key(|(conversation, _)| *conversation);
        Ok(answered.into_iter().map(|(_, text)| text).collect())
    }

    /// Drops the earliest exchanges, each up to the next user message, until at most `most` tokens remain.
    /// The last message is kept. Returns the tokens.
    ///
    /// # Errors
    /// The last message is too long.
    fn shortened(&self, history: &mut Dialogue, tokenizer: &Tokenizer, most: usize) -> Result<Vec<u32>> {
        let is_user = |message: &Value| message["role"] == "user";
        loop {
            let tokens = self.tokens(history, tokenizer)?;
            if tokens.len() <= most {
                return Ok(tokens);
            }
            let messages = &mut history.messages;
            let mut users = (0..messages.len()).filter(|index| is_user(&messages[*index]));
            let (Some(first), Some(next)) = (users.next(), users.next()) else {
                return Err(RunError::Refused(format!(
                    "--chat: the last message has {} tokens, and with an answer {most} fit",
                    tokens.len()
                )));
            };
            messages.drain(first..next);
        }
    }

    fn tokens(&self, history: &Dialogue, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
        let text = self.template.question(&history.messages, &history.input).map_err(RunError::Refused)?;
        Ok(tokenizer.encode_spans(&text)?.into_iter().map(|(token, _)| token).collect())
    }
}

fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

/// Returns the content of the last message.
fn last_of(history: &Dialogue) -> String {
    history.messages.last().and_then(|last| last["content"].as_str()).unwrap_or_default().to_owned()
}

fn read(messages: &Messages, turn: usize) -> Result<Option<String>> {
    let unreadable = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::InvalidData => RunError::Refused(format!("standard input: {error}")),
        _ => RunError::File { path: "standard input".into(), source: error },
    };
    messages.of_turn(turn).map_err(unreadable)
}

/// Reads the conversations of a file.
///
/// # Errors
/// The file cannot be read or has no conversations.
fn messages_of(path: &Path) -> Result<Vec<Dialogue>> {
    data::read_messages(path).map_err(|error| RunError::Refused(format!("--conversations: {error}")))
}
