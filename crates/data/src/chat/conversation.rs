//! Conversations in files, as tokens.

use super::dialogue::{Dialogue, Learnt};
use super::figures::Figures;
use super::format::{ChatFormat, Example, Parsed};
use super::invalid::{InvalidLines, bad_line};
use super::learnt;
use super::pairs::{Answered, answered_text};
use super::template::ChatTemplate;
use super::train_on::TrainOn;
use crate::records::{Record, each_line, each_record};
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
    /// Whether each token is learnt, as those of answers are, and so counts in the loss as a target.
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
    /// The tokens that are learnt.
    pub train_on: &'a TrainOn,
    /// Whether invalid lines are counted and left out.
    pub skip_invalid: bool,
}

impl ChatReading<'_> {
    /// Reads the conversations of `files`: objects of a [`ChatFormat`] in JSON lines, lists or Parquet, plain
    /// or compressed. Tokens are those of the whole text, special ones where the template writes them; one
    /// that joins a range that is learnt with the text around it is learnt. Empty lines are skipped. Logs its
    /// progress, and at the end what it read and left out. Returns the conversations of each file.
    ///
    /// # Errors
    /// A line that is no conversation, that the template refuses or of which nothing is learnt, by file and
    /// line, unless such lines are left out; messages without a template; a token beyond the vocabulary;
    /// files without a conversation.
    pub fn read(&self, files: &[PathBuf]) -> Result<Vec<Vec<Conversation>>, Error> {
        let mut figures = Figures::default();
        let mut invalid = InvalidLines::new(self.skip_invalid);
        let pace = Pace::of_files();
        let mut all = Vec::new();
        let mut count = 0;
        for path in files {
            if path.metadata().is_ok_and(|file| file.len() >= LONG) {
                tracing::info!("reading the conversations of {}", path.display());
            }
            let mut conversations = Vec::new();
            each_line(path, |record| {
                if pace.is_due() {
                    let read = grouped((count + conversations.len()) as u64);
                    tracing::info!("{}: read {read} conversations", path.display());
                }
                fail_point::reach("conversation about to be rendered");
                let read = record.and_then(|record| self.conversation(path, &record, &mut figures));
                if let Some((line, conversation)) = invalid.pass(read)?.flatten() {
                    let checked = self.tokenizer.check_tokens(&conversation.tokens, self.vocabulary);
                    checked.map_err(|reason| bad_line(path, line, reason))?;
                    conversations.push(conversation);
                }
                Ok(())
            })?;
            invalid.end_file(path, conversations.len())?;
            count += conversations.len();
            all.push(conversations);
        }
        match count {
            0 => Err(Error::NoConversations {
                path: files.first().cloned().unwrap_or_else(|| Path::new("").into()),
            }),
            _ => {
                figures.log("conversations");
                invalid.log("conversations");
                Ok(all)
            }
        }
    }

    /// Returns the conversation of a record with its line; `None` if its masks leave it out.
    ///
    /// # Errors
    /// A record that is no conversation, that the template refuses or of which nothing is learnt; messages
    /// without a template.
    fn conversation(
        &self,
        path: &Path,
        record: &Record,
        figures: &mut Figures,
    ) -> Result<Option<(u64, Conversation)>, Error> {
        let refused = |reason| bad_line(path, record.line, reason);
        let Parsed { example, format, unread } = self.format.parse(record, self.train_on).map_err(refused)?;
        figures.add(format, &unread);
        let conversation = match &example {
            Example::Dialogue(_, learnt) if figures.leaves_out(learnt) => return Ok(None),
            Example::Dialogue(dialogue, learnt) => {
                let template = self.template.map_err(missing)?;
                figures.add_unread(&template.unread_keys(dialogue.messages.iter(), &dialogue.input));
                rendered(dialogue, learnt, self.train_on, template, self.tokenizer)
            }
            Example::Texts { prompt, completion } => {
                let answered = answered_text(prompt, completion, self.tokenizer);
                let learns_all = *self.train_on == TrainOn::All;
                answered.map(|answered| after(answered, learns_all))
            }
        };
        let mut conversation = conversation.map_err(refused)?;
        if *self.train_on != TrainOn::Answers {
            // Nothing is before it, unless another conversation is in its sequence.
            conversation.answers.iter_mut().take(1).for_each(|is_learnt| *is_learnt = false);
        }
        match conversation.answers.contains(&true) {
            true => Ok(Some((record.line, conversation))),
            false => Err(refused(match self.train_on {
                TrainOn::Answers => "it has no answer of the assistant".to_owned(),
                others => format!("it has nothing that is learnt: data.train_on = {others}"),
            })),
        }
    }
}

/// Reads the conversations of a file before their rendering, as [`ChatReading`] does in any format.
///
/// # Errors
/// An object that is no conversation or has no messages, by file and line; a file without one.
pub fn read_messages(path: &Path) -> Result<Vec<Dialogue>, Error> {
    let mut conversations = Vec::new();
    each_record(path, |record| {
        let refused = |reason| bad_line(path, record.line, reason);
        match ChatFormat::Auto.parse(&record, &TrainOn::Answers).map_err(refused)?.example {
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

/// Returns a text of which the answer is learnt, or all.
fn after(Answered { tokens, answer }: Answered, learns_all: bool) -> Conversation {
    let first = if learns_all { 0 } else { answer };
    Conversation { answers: (0..tokens.len()).map(|index| index >= first).collect(), tokens }
}

/// Returns the tokens of messages in their template's text.
///
/// # Errors
/// Messages that the template refuses, or that cannot be found in its text.
fn rendered(
    dialogue: &Dialogue,
    learnt: &Learnt,
    train_on: &TrainOn,
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
) -> Result<Conversation, String> {
    let (text, ranges) = learnt::render(dialogue, learnt, train_on, template)?;
    let spans = tokenizer.encode_spans(&text).map_err(|error| error.to_string())?;
    let is_learnt =
        |span: &Range<usize>| ranges.iter().any(|range| span.start < range.end && range.start < span.end);
    Ok(Conversation {
        answers: spans.iter().map(|(_, span)| is_learnt(span)).collect(),
        tokens: spans.into_iter().map(|(token, _)| token).collect(),
    })
}
