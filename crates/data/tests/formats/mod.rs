//! Tests of conversations in every format, plain and compressed, with masks and template arguments.

mod answers;
mod files;
mod invalid;
mod masks;
mod templates;
mod trained;

use std::fs;
use std::path::{Path, PathBuf};

use data::{ChatFormat, ChatReading, ChatTemplate, Conversation, Error, Tokenizer, TrainOn};
use tempfile::TempDir;

/// Returns the template of a recipe: `<role>content</>`.
fn template() -> ChatTemplate {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    ChatTemplate::of_file(&root.join("launch/recipes/chat/template.jinja"), &Tokenizer::Bytes).unwrap()
}

/// Reads a file in a format with a template.
fn read_file(path: &Path, format: ChatFormat, template: &ChatTemplate) -> Result<Vec<Conversation>, Error> {
    let reading = ChatReading { format, ..reading(template, &TrainOn::Answers) };
    Ok(reading.read(&[path.to_path_buf()])?.concat())
}

/// Returns options for reading conversations in any format. `train_on` selects what is trained on.
fn reading<'a>(template: &'a ChatTemplate, train_on: &'a TrainOn) -> ChatReading<'a> {
    ChatReading {
        format: ChatFormat::Auto,
        template: Ok(template),
        tokenizer: &Tokenizer::Bytes,
        vocabulary: 256,
        train_on,
        skip_invalid: false,
    }
}

/// Writes a file with these bytes and reads it.
fn read_named(name: &str, bytes: &[u8]) -> Result<Vec<Conversation>, Error> {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join(name);
    fs::write(&path, bytes).unwrap();
    read_file(&path, ChatFormat::Auto, &template())
}

fn read(text: &str) -> Result<Vec<Conversation>, Error> {
    read_named("c.json", text.as_bytes())
}

/// Returns the text of a conversation, and the part of it that is trained on.
fn texts(conversation: &Conversation) -> (String, String) {
    let learnt = conversation.tokens.iter().zip(&conversation.answers).filter(|(_, is_answer)| **is_answer);
    let learnt: Vec<u32> = learnt.map(|(token, _)| *token).collect();
    (Tokenizer::Bytes.decode(&conversation.tokens), Tokenizer::Bytes.decode(&learnt))
}
