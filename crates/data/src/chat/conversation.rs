//! Conversations in files of JSON, as tokens.

use super::layout::messages;
use super::objects::each_object;
use super::template::ChatTemplate;
use crate::{Error, Tokenizer};
use serde_json::Value;
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

/// Reads the conversations of `files`: JSON lines, or lists, of objects in the layout of OpenAI, ShareGPT or
/// Alpaca. Tokens are those of the whole text, special ones where the template writes them; one that joins
/// an answer with the text around it belongs to the answer. Empty lines are skipped. Logs its
/// progress.
///
/// # Errors
/// A line that is no conversation or that the template refuses, by file and line; one without an answer; a
/// token beyond `vocabulary`; files without a conversation.
pub fn read_conversations(
    files: &[PathBuf],
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    vocabulary: usize,
) -> Result<Vec<Conversation>, Error> {
    let (mut conversations, pace) = (Vec::new(), Pace::of_files());
    for path in files {
        if path.metadata().is_ok_and(|file| file.len() >= LONG) {
            tracing::info!("reading the conversations of {}", path.display());
        }
        each_object(path, |line, text| {
            if pace.is_due() {
                let read = grouped(conversations.len() as u64);
                tracing::info!("{}: read {read} conversations", path.display());
            }
            fail_point::reach("conversation about to be rendered");
            let refused = |reason| Error::BadConversation { path: path.clone(), line, reason };
            let conversation = conversation(text, template, tokenizer).map_err(refused)?;
            check(&conversation, vocabulary).map_err(refused)?;
            conversations.push(conversation);
            Ok(())
        })?;
    }
    match conversations.is_empty() {
        true => Err(Error::NoConversations {
            path: files.first().cloned().unwrap_or_else(|| Path::new("").into()),
        }),
        false => Ok(conversations),
    }
}

/// Reads the messages of the conversations in a file, as [`read_conversations`] does.
///
/// # Errors
/// An object that is no conversation, by file and line; a file without one.
pub fn read_messages(path: &Path) -> Result<Vec<Vec<Value>>, Error> {
    let mut conversations = Vec::new();
    each_object(path, |line, text| {
        let refused = |reason| Error::BadConversation { path: path.to_path_buf(), line, reason };
        conversations.push(checked_messages(text).map_err(refused)?);
        Ok(())
    })?;
    match conversations.is_empty() {
        true => Err(Error::NoConversations { path: path.to_path_buf() }),
        false => Ok(conversations),
    }
}

/// Returns the messages of an object.
///
/// # Errors
/// Text that is no JSON, and messages without role or content.
fn checked_messages(text: &[u8]) -> Result<Vec<Value>, String> {
    let value: Value = serde_json::from_slice(text).map_err(|error| format!("it is no JSON: {error}"))?;
    let messages = messages(&value)?;
    for (number, message) in (1..).zip(&messages) {
        if !message["role"].is_string() {
            return Err(format!("message {number} has no \"role\""));
        }
        if !message["content"].is_string() {
            return Err(format!("message {number} has no text as its \"content\""));
        }
    }
    Ok(messages)
}

fn conversation(text: &[u8], template: &ChatTemplate, tokenizer: &Tokenizer) -> Result<Conversation, String> {
    let (text, answers) = template.render(&checked_messages(text)?)?;
    let spans = tokenizer.encode_spans(&text).map_err(|error| error.to_string())?;
    let is_answer =
        |span: &Range<usize>| answers.iter().any(|answer| span.start < answer.end && answer.start < span.end);
    Ok(Conversation {
        answers: spans.iter().map(|(_, span)| is_answer(span)).collect(),
        tokens: spans.into_iter().map(|(token, _)| token).collect(),
    })
}

fn check(conversation: &Conversation, vocabulary: usize) -> Result<(), String> {
    if !conversation.answers.contains(&true) {
        return Err("it has no answer of the assistant".to_owned());
    }
    match conversation.tokens.iter().find(|token| **token as usize >= vocabulary) {
        Some(token) => Err(format!("token {token} is not among the {vocabulary} of the model")),
        None => Ok(()),
    }
}
