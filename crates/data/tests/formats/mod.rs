//! Conversations in every format, plain and compressed, with masks and with what a template is called with.

mod answers;
mod files;
mod masks;
mod templates;

use std::fs;
use std::path::{Path, PathBuf};

use data::{ChatFormat, ChatReading, ChatTemplate, Conversation, Error, Tokenizer};
use tempfile::TempDir;

/// The template of a recipe: `<role>content</>`.
fn template() -> ChatTemplate {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    ChatTemplate::of_file(&root.join("launch/recipes/chat/template.jinja"), &Tokenizer::Bytes).unwrap()
}

/// Reads a file in a format by a template.
fn read_file(path: &Path, format: ChatFormat, template: &ChatTemplate) -> Result<Vec<Conversation>, Error> {
    let reading =
        ChatReading { format, template: Ok(template), tokenizer: &Tokenizer::Bytes, vocabulary: 256 };
    reading.read(&[path.to_path_buf()])
}

/// Reads a file of these bytes.
fn read_named(name: &str, bytes: &[u8]) -> Result<Vec<Conversation>, Error> {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join(name);
    fs::write(&path, bytes).unwrap();
    read_file(&path, ChatFormat::Auto, &template())
}

fn read(text: &str) -> Result<Vec<Conversation>, Error> {
    read_named("c.json", text.as_bytes())
}

/// The text of a conversation, and what of it is learnt.
fn texts(conversation: &Conversation) -> (String, String) {
    let learnt = conversation.tokens.iter().zip(&conversation.answers).filter(|(_, is_answer)| **is_answer);
    let learnt: Vec<u32> = learnt.map(|(token, _)| *token).collect();
    (Tokenizer::Bytes.decode(&conversation.tokens), Tokenizer::Bytes.decode(&learnt))
}
