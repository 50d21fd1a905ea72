//! Conversations in files, as tokens.

use super::dialogue::{Dialogue, Learnt};
use super::figures::Figures;
use super::format::{ChatFormat, Example, Parsed};
use super::pairs::{Answered, answered_text};
use super::template::ChatTemplate;
use crate::records::each_record;
use crate::{Error, Tokenizer};
use std::ops::Range;
use std::path::{Path, PathBuf};
use system::fail_point;
use system::numbers::grouped;
use system::pace::Pace;

/// The bytes of files from which reading may take so long that its first line comes at once.
const LONG: u64 = 1 << 20;

/// A conversation as tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversation {
    /// All tokens.
    pub tokens: Vec<u32>,
    /// Whether each token belongs to an answer, and so counts in the loss as a target.
    pub answers: Vec<bool>,
}

/// Options for reading conversations.
#[derive(Clone, Copy, Debug)]
pub struct ChatReading<'a> {
    /// The format of the files.
    pub format: ChatFormat,
    /// The template that gives messages their text, or the reason why there is none.
    pub template: Result<&'a ChatTemplate, &'a Error>,
    /// The tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// Number of tokens that the model has.
    pub vocabulary: usize,
}

impl ChatReading<'_> {
    /// Reads the conversations of `files`: objects of a [`ChatFormat`] in JSON lines, lists or Parquet, plain
    /// or compressed. Tokens are those of the whole text, special ones where the template writes them; one
    /// that joins an answer with the text around it belongs to the answer. Empty lines are skipped. Logs its
    /// progress, and at the end what it read and left out.
    ///
    /// # Errors
    /// A line that is no conversation or that the template refuses, by file and line; one without an answer;
    /// messages without a template; a token beyond the vocabulary; files without a conversation.
    pub fn read(&self, files: &[PathBuf]) -> Result<Vec<Conversation>, Error> {
        let (mut conversations, mut figures, pace) = (Vec::new(), Figures::default(), Pace::of_files());
        for path in files {
            if path.metadata().is_ok_and(|file| file.len() >= LONG) {
                tracing::info!("reading the conversations of {}", path.display());
            }
            each_record(path, |record| {
                if pace.is_due() {
                    let read = grouped(conversations.len() as u64);
                    tracing::info!("{}: read {read} conversations", path.display());
                }
                fail_point::reach("conversation about to be rendered");
                let refused =
                    |reason| Error::BadConversation { path: path.clone(), line: record.line, reason };
                let Parsed { example, format, unread } = self.format.parse(&record).map_err(refused)?;
                figures.add(format, &unread);
                let conversation = match &example {
                    Example::Dialogue(_, learnt) if figures.leaves_out(learnt) => return Ok(()),
                    Example::Dialogue(dialogue, learnt) => {
                        let template = self.template.map_err(missing)?;
                        figures.add_unread(&template.unread_keys(dialogue.messages.iter(), &dialogue.input));
                        rendered(dialogue, learnt, template, self.tokenizer)
                    }
                    Example::Texts { prompt, completion } => {
                        answered_text(prompt, completion, self.tokenizer).map(after)
                    }
                };
                let conversation = conversation.map_err(refused)?;
                self.check(&conversation).map_err(refused)?;
                conversations.push(conversation);
                Ok(())
            })?;
        }
        match conversations.is_empty() {
            true => Err(Error::NoConversations {
                path: files.first().cloned().unwrap_or_else(|| Path::new("").into()),
            }),
            false => {
                figures.log("conversations");
                Ok(conversations)
            }
        }
    }

    /// Checks that the model has all tokens, and that one of them is learnt.
    fn check(&self, conversation: &Conversation) -> Result<(), String> {
        if !conversation.answers.contains(&true) {
            return Err("it has no answer of the assistant".to_owned());
        }
        self.tokenizer.check_tokens(&conversation.tokens, self.vocabulary)
    }
}

/// Reads the conversations of a file before their rendering, as [`ChatReading`] does in any format.
///
/// # Errors
/// An object that is no conversation or has no messages, by file and line; a file without one.
pub fn read_messages(path: &Path) -> Result<Vec<Dialogue>, Error> {
    let mut conversations = Vec::new();
    each_record(path, |record| {
        let refused = |reason| Error::BadConversation { path: path.to_path_buf(), line: record.line, reason };
        match ChatFormat::Auto.parse(&record).map_err(refused)?.example {
            Example::Dialogue(dialogue, _) => conversations.push(dialogue),
            Example::Texts { .. } => {
                return Err(refused("its \"prompt\" is a text, and a conversation has messages".to_owned()));
            }
        }
        Ok(())
    })?;
    match conversations.is_empty() {
        true => Err(Error::NoConversations { path: path.to_path_buf() }),
        false => Ok(conversations),
    }
}

/// The error of messages without a template, which is the one of looking for it.
fn missing(error: &Error) -> Error {
    match error {
        Error::Template { path, reason } => Error::Template { path: path.clone(), reason: reason.clone() },
        other => Error::Template { path: PathBuf::new(), reason: other.to_string() },
    }
}

fn after(Answered { tokens, answer }: Answered) -> Conversation {
    Conversation { answers: (0..tokens.len()).map(|index| index >= answer).collect(), tokens }
}

/// Returns the tokens of messages in their template's text.
///
/// # Errors
/// Messages that the template refuses, or whose answers cannot be found in its text; none to learn.
fn rendered(
    dialogue: &Dialogue,
    learnt: &Learnt,
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
) -> Result<Conversation, String> {
    let Dialogue { messages, input } = dialogue;
    let (text, answers) = match learnt {
        Learnt::After(prompt) => {
            let (text, start) = template.answered(messages, input, *prompt)?;
            let answer = start..text.len();
            (text, vec![answer])
        }
        Learnt::Answers(learnt) => {
            let (text, answers) = template.render(messages, input)?;
            (text, learnt_answers(learnt, answers)?)
        }
    };
    let spans = tokenizer.encode_spans(&text).map_err(|error| error.to_string())?;
    let is_answer =
        |span: &Range<usize>| answers.iter().any(|answer| span.start < answer.end && answer.start < span.end);
    Ok(Conversation {
        answers: spans.iter().map(|(_, span)| is_answer(span)).collect(),
        tokens: spans.into_iter().map(|(token, _)| token).collect(),
    })
}

/// Returns the ranges of the answers that are learnt. A template's answers belong to the messages of the
/// assistant in their order.
///
/// # Errors
/// More or fewer answers than messages where some of these are not learnt.
fn learnt_answers(learnt: &[bool], answers: Vec<Range<usize>>) -> Result<Vec<Range<usize>>, String> {
    if !learnt.contains(&false) {
        return Ok(answers);
    }
    if learnt.len() != answers.len() {
        return Err(format!(
            "the template marks {} answers, and there are {} messages of the assistant, so it is not known which \
             of them are masked",
            answers.len(),
            learnt.len()
        ));
    }
    Ok(answers.into_iter().zip(learnt).filter(|(_, is_learnt)| **is_learnt).map(|(range, _)| range).collect())
}
