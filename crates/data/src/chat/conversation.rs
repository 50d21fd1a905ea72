//! Reads conversations from files as tokens.

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

/// Files of at least this many bytes log a first line at once, because reading may take long.
const LONG: u64 = 1 << 20;

/// A conversation as tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversation {
    /// All tokens.
    pub tokens: Vec<u32>,
    /// For each token, whether it is trained on, that is, part of the loss when it is the target.
    pub answers: Vec<bool>,
}

/// Options for reading conversations.
#[derive(Clone, Copy, Debug)]
pub struct ChatReading<'a> {
    /// The format of the files.
    pub format: ChatFormat,
    /// The chat template for messages, or the error that explains why there is none.
    pub template: Result<&'a ChatTemplate, &'a Error>,
    /// The tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// Vocabulary size of the model.
    pub vocabulary: usize,
    /// Selects the tokens to train on.
    pub train_on: &'a TrainOn,
    /// Whether to skip and count invalid lines instead of failing.
    pub skip_invalid: bool,
}

impl ChatReading<'_> {
    /// Reads the conversations of `files`: JSON lines, JSON lists or Parquet in a [`ChatFormat`], plain or
    /// compressed. The whole text is tokenized at once, and special tokens are recognised where the template
    /// writes them. A token that overlaps a range to train on belongs to it. Skips empty lines. Logs
    /// progress, and finally what was read and skipped. Returns the conversations of each file.
    ///
    /// # Errors
    /// A line, named with its file, is not a conversation, is refused by the template, or has nothing to
    /// train on (unless invalid lines are skipped). Or messages have no template, a token exceeds the
    /// vocabulary, or a file has no conversation.
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

    /// Returns the conversation of a record with its line; `None` if none of its answers is trained on.
    ///
    /// # Errors
    /// The record is not a conversation, is refused by the template or has nothing to train on; or its
    /// messages have no template.
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

/// Reads the conversations of a file, in any format, without rendering them.
///
/// # Errors
/// An object, named with file and line, is not a conversation or has no messages; or the file has none.
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

/// Converts the error of the search for a template, for messages that need one.
fn missing(error: &Error) -> Error {
    match error {
        Error::Template { path, reason } => Error::Template { path: path.clone(), reason: reason.clone() },
        other => Error::Template { path: PathBuf::new(), reason: other.to_string() },
    }
}

/// Returns a conversation of a prompt and its answer, in which only the answer is trained on, or everything
/// if `learns_all`.
fn after(Answered { tokens, answer }: Answered, learns_all: bool) -> Conversation {
    let first = if learns_all { 0 } else { answer };
    Conversation { answers: (0..tokens.len()).map(|index| index >= first).collect(), tokens }
}

/// Renders messages with their template and returns their tokens.
///
/// # Errors
/// The template refuses the messages, or they are not found in its text.
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
