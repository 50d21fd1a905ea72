//! Prompts and conversations are encoded as by transformers. Skipped without Python's transformers.

use std::fs;
use std::path::Path;
use std::process::Command;

use data::{ChatFormat, ChatReading, ChatTemplate, TemplateInput, Tokenizer, TrainOn};
use serde_json::{Value, json};
use system::skipped::{self, Need};

/// Writes tokenizers, templates and expected tokens to `directory`, with Python. `None`, with a message,
/// without Python.
fn expected(directory: &Path, conversations: &Path) -> Option<Value> {
    let python = std::env::var("PLIMSOLL_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let lacks = |module: &&str| {
        let tried = Command::new(&python).args(["-c", &format!("import {module}")]).output();
        !tried.is_ok_and(|output| output.status.success())
    };
    let missing: Vec<_> = ["jinja2", "tokenizers", "transformers"].into_iter().filter(lacks).collect();
    if !missing.is_empty() {
        missing
            .iter()
            .for_each(|module| skipped::report(Need::Python(module), &format!("{python} lacks it")));
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers/make.py");
    let ran = Command::new(&python).arg(script).arg(conversations).arg(directory).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    Some(serde_json::from_slice(&fs::read(directory.join("expected.json")).unwrap()).unwrap())
}

fn conversations() -> Vec<Value> {
    let line = |turns: &[[&str; 2]]| {
        let messages = turns.iter().map(|[role, content]| json!({"role": role, "content": content}));
        json!({"messages": messages.collect::<Vec<_>>()})
    };
    vec![
        line(&[["user", "What is 1 + 1?"], ["assistant", "2"]]),
        line(&[
            ["system", "  Speak as a sailor.\n"],
            ["user", " Where is \"port\"? "],
            ["assistant", "On your left: h\u{E9}, \u{20AC}5, \u{1F600}!"],
            ["user", "And starboard\n\nthen? <b>&'"],
            ["assistant", "<think>left, or\nright?</think>\n\n  The other side. "],
        ]),
        line(&[["user", ""], ["assistant", "</s> is a token that a text may spell out."]]),
        line(&[["user", "x"], ["assistant", "y  z\tw"], ["user", "\u{4F60}\u{597D}"], ["assistant", " "]]),
    ]
}

fn tokens(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

#[test]
fn prompts_and_conversations_have_the_tokens_of_transformers() {
    let directory = tempfile::tempdir().unwrap();
    let lines = conversations();
    let file = directory.path().join("conversations.jsonl");
    fs::write(&file, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let Some(expected) = expected(directory.path(), &file) else { return };
    for (name, expected) in expected.as_object().unwrap() {
        let at = directory.path().join(name).join("tokenizer.json");
        let tokenizer = Tokenizer::from_name(at.to_str().unwrap()).unwrap();
        for prompt in expected["prompts"].as_array().unwrap() {
            let text = prompt[0].as_str().unwrap();
            assert_eq!(tokenizer.encode_prompt(text).unwrap(), tokens(&prompt[1]), "{name}: {text:?}");
        }
        for (title, chats) in expected["chats"].as_object().unwrap() {
            let at = directory.path().join(format!("{name}-{title}"));
            let template = ChatTemplate::of_folders(&[&at], &tokenizer).unwrap();
            let input = TemplateInput::default();
            let reading = ChatReading {
                format: ChatFormat::Auto,
                template: Ok(&template),
                tokenizer: &tokenizer,
                vocabulary: 1000,
                train_on: &TrainOn::Answers,
                skip_invalid: false,
            };
            let conversations = reading.read(std::slice::from_ref(&file)).unwrap().concat();
            for ((chat, line), expected) in conversations.iter().zip(&lines).zip(chats.as_array().unwrap()) {
                let messages = line["messages"].as_array().unwrap();
                let (text, answers) = template.render(messages, &input).unwrap();
                assert_eq!(text, expected["text"], "{name} {title}");
                assert_eq!(chat.tokens, tokens(&expected["tokens"]), "{name} {title}");
                let content = messages[messages.len() - 2]["content"].as_str().unwrap();
                let message = serde_json::json!({"role": "user", "content": content});
                let question = template.question(&[message], &input).unwrap();
                let spans = tokenizer.encode_spans(&question).unwrap();
                let question: Vec<u32> = spans.into_iter().map(|(token, _)| token).collect();
                assert_eq!(question, tokens(&expected["question"]), "{name} {title}");
                match expected["answers"].as_array() {
                    // Of several tokens of one character, transformers mark the first only.
                    Some(_) if name == "pieces" => {}
                    Some(marks) => {
                        let marks: Vec<bool> = marks.iter().map(|mark| mark == 1).collect();
                        assert_eq!(chat.answers, marks, "{name} {title}");
                    }
                    None => assert_eq!(
                        answers.len(),
                        messages.iter().filter(|m| m["role"] == "assistant").count()
                    ),
                }
            }
            let end = if title == "chatml" || title == "marked" { "<|end|>" } else { "</s>" };
            let space = if title == "instructions" { " " } else { "" };
            assert_eq!(template.around_answer().unwrap(), [space, end], "{title}");
        }
    }
}
