//! Conversations in files of JSON lines, as tokens.

use super::template::ChatTemplate;
use crate::{Error, Tokenizer};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use system::numbers::grouped;
use system::pace::Pace;
use system::{fail_point, input};

/// The most bytes of a line.
const MOST_LINE: u64 = 64 << 20;
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

/// Reads the conversations of `files`: each line is a JSON object whose `messages` each have a `role` and a
/// `content`. Tokens are those of the whole text, special ones where the template writes them; one that joins
/// an answer with the text around it belongs to the answer. Empty lines are skipped. Logs its progress.
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
        let unreadable = |source| Error::Unreadable { path: path.clone(), source };
        let file = input::open(path).map_err(unreadable)?;
        if file.metadata().is_ok_and(|file| file.len() >= LONG) {
            tracing::info!("reading the conversations of {}", path.display());
        }
        let mut lines = BufReader::new(file);
        for number in 1_u64.. {
            let mut line = Vec::new();
            let read = lines.by_ref().take(MOST_LINE).read_until(b'\n', &mut line).map_err(unreadable)?;
            if read == 0 {
                break;
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            if pace.is_due() {
                tracing::info!(
                    "{}: read {} conversations",
                    path.display(),
                    grouped(conversations.len() as u64)
                );
            }
            fail_point::reach("conversation about to be rendered");
            let refused = |reason| Error::BadConversation { path: path.clone(), line: number, reason };
            let conversation = conversation(&line, template, tokenizer).map_err(refused)?;
            check(&conversation, vocabulary).map_err(refused)?;
            conversations.push(conversation);
        }
    }
    match conversations.is_empty() {
        true => Err(Error::NoConversations {
            path: files.first().cloned().unwrap_or_else(|| Path::new("").into()),
        }),
        false => Ok(conversations),
    }
}

fn conversation(line: &[u8], template: &ChatTemplate, tokenizer: &Tokenizer) -> Result<Conversation, String> {
    let value: Value = serde_json::from_slice(line).map_err(|error| format!("it is no JSON: {error}"))?;
    let Some(messages) = value.get("messages").and_then(Value::as_array).filter(|all| !all.is_empty()) else {
        return Err("it has no list \"messages\"".to_owned());
    };
    for (number, message) in (1..).zip(messages) {
        if !message["role"].is_string() {
            return Err(format!("message {number} has no \"role\""));
        }
        if !message["content"].is_string() {
            return Err(format!("message {number} has no text as its \"content\""));
        }
    }
    let (text, answers) = template.render(messages)?;
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
