//! Conversations in every layout, as lines and as a list.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests, a panic is the report of a failure")]

use std::fs;
use std::path::PathBuf;

use data::{ChatTemplate, Conversation, Error, Tokenizer, read_conversations, read_messages};

const OPENAI: &str =
    r#"{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}"#;
const SHARE_GPT: &str =
    r#"{"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}"#;
const ALPACA: &str = r#"{"instruction": "hi", "input": "", "output": "ho"}"#;

fn template() -> ChatTemplate {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    ChatTemplate::of_file(&root.join("launch/recipes/chat/template.jinja")).unwrap()
}

fn read(text: &str) -> Result<Vec<Conversation>, Error> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.json");
    fs::write(&path, text).unwrap();
    read_conversations(&[path], &template(), &Tokenizer::Bytes, 256)
}

#[test]
fn every_layout_is_the_same_conversation() {
    let expected = read(OPENAI).unwrap().remove(0);
    assert_eq!(Tokenizer::Bytes.decode(&expected.tokens), "<user>hi</><assistant>ho</>");
    assert_eq!(expected.answers.iter().filter(|is_answer| **is_answer).count(), "ho</>".len());
    for text in [
        format!("{OPENAI}\n\n{SHARE_GPT}\n{ALPACA}"),
        format!("[{OPENAI},\n {SHARE_GPT}\n,{ALPACA}]\n"),
        format!("\n [\n{ALPACA}, {ALPACA}, {ALPACA}]"),
    ] {
        assert_eq!(read(&text).unwrap(), vec![expected.clone(); 3], "{text}");
    }
}

#[test]
fn objects_that_are_no_conversation_are_refused_by_their_line() {
    for (text, expected) in [
        (format!("{OPENAI}\n{{\"text\": \"a\"}}"), "c.json:2: it has no list \"messages\" (OpenAI's layout)"),
        (format!("[{OPENAI},\n\n {{\"text\": \"a\"}}]"), "c.json:3: it has no list \"messages\""),
        (format!("[{OPENAI},\n{{]"), "c.json:2: the list has no end"),
        (format!("[{OPENAI}\n,oh]"), "c.json:2: it is no JSON"),
        (r#"{"instruction": "hi"}"#.to_owned(), "c.json:1: it has no answer of the assistant"),
        ("[]".to_owned(), "c.json has no conversation"),
    ] {
        let refused = read(&text).unwrap_err().to_string();
        assert!(refused.contains(expected), "{text}: {refused}");
    }
}

#[test]
fn messages_to_answer_need_no_answer() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.jsonl");
    fs::write(&path, format!("{OPENAI}\n{{\"instruction\": \"hi\"}}\n")).unwrap();
    let lengths: Vec<usize> = read_messages(&path).unwrap().iter().map(Vec::len).collect();
    assert_eq!(lengths, [2, 1]);
}
