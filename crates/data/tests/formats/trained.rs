//! Tests of which tokens are trained on: answers, all, or the messages of some roles.

use data::{ChatFormat, ChatReading, ChatTemplate, Tokenizer, TrainOn};
use serde_json::{Value, json};
use std::fs;

use super::{reading, template, texts};

/// A template that writes several tool results as one turn, as Qwen's templates do.
const TOOLS: &str = "{% for m in messages %}{% if m.role == 'tool' %}\
                     {% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<user>{% endif %}\
                     [{{ m.content }}]{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}</>{% endif %}\
                     {% else %}<{{ m.role }}>{{ m.content }}</>{% endif %}{% endfor %}\
                     {% if add_generation_prompt %}<assistant>{% endif %}";
/// A template that marks answers without their end token.
const MARKED: &str = "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}\
                      {{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}</>{% endfor %}\
                      {% if add_generation_prompt %}<assistant>{% endif %}";

fn roles(names: &[&str]) -> TrainOn {
    TrainOn::of_roles(names.iter().copied()).unwrap()
}

fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

/// Reads one object, and returns the text that is trained on.
fn learnt_by(object: &Value, reading: ChatReading<'_>) -> Result<String, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.jsonl");
    fs::write(&path, object.to_string()).unwrap();
    let read = reading.read(&[path]).map_err(|error| error.to_string())?;
    Ok(texts(&read[0][0]).1)
}

fn learnt(object: &Value, train_on: &TrainOn) -> Result<String, String> {
    learnt_by(object, reading(&template(), train_on))
}

fn by(text: &str, object: &Value, train_on: &TrainOn) -> Result<String, String> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("t.jinja");
    fs::write(&file, text).unwrap();
    let template = ChatTemplate::of_file(&file, &Tokenizer::Bytes).unwrap();
    learnt_by(object, reading(&template, train_on))
}

#[test]
fn messages_of_chosen_roles_are_learnt() {
    let all = [message("system", "s"), message("user", "q"), message("assistant", "a"), message("tool", "t")];
    let all = [&all[..], &[message("assistant", "b")]].concat();
    let object = json!({"messages": all});
    for (train_on, expected) in [
        (TrainOn::Answers, "a</>b</>"),
        (roles(&["assistant"]), "a</>b</>"),
        // The first token has nothing before it.
        (TrainOn::All, "system>s</><user>q</><assistant>a</><tool>t</><assistant>b</>"),
        (roles(&["system"]), "system>s</>"),
        (roles(&["user"]), "<user>q</>"),
        (roles(&["tool", "assistant"]), "a</><tool>t</>b</>"),
        (roles(&["assistant", "tool", "tool"]), "a</><tool>t</>b</>"),
        (roles(&["system", "user", "assistant", "tool"]), "system>s</><user>q</>a</><tool>t</>b</>"),
    ] {
        assert_eq!(learnt(&object, &train_on).unwrap(), expected, "{train_on}");
    }
    let questions = json!({"messages": [message("user", "q")]});
    for (train_on, expected) in [
        (TrainOn::Answers, Err("c.jsonl:1: it has no answer of the assistant")),
        (roles(&["tool"]), Err("c.jsonl:1: it has nothing that is learnt: data.train_on = [\"tool\"]")),
        (roles(&["user"]), Ok("user>q</>")),
        (TrainOn::All, Ok("user>q</>")),
    ] {
        let read = learnt(&questions, &train_on);
        match expected {
            Ok(expected) => assert_eq!(read.unwrap(), expected, "{train_on}"),
            Err(expected) => assert!(read.clone().unwrap_err().ends_with(expected), "{train_on}: {read:?}"),
        }
    }
}

/// Formats without messages are trained on by their answers, or whole.
#[test]
fn texts_are_learnt_as_answers_or_whole() {
    let texts = json!({"prompt": "qr", "completion": "a"});
    let lists = json!({"prompt": [message("user", "q")], "completion": [message("assistant", "a")]});
    let alpaca = json!({"instruction": "q", "output": "a", "system": "s"});
    let prompt = ChatFormat::AlpacaPrompt;
    let refused = "its prompt and completion are texts, whose completion is the assistant's, and data.train_on = \
                   [\"user\"] leaves that role out";
    for (object, format, train_on, expected) in [
        (&texts, ChatFormat::Auto, TrainOn::Answers, Ok("a\0")),
        (&texts, ChatFormat::Auto, TrainOn::All, Ok("ra\0")),
        (&texts, ChatFormat::Auto, roles(&["user", "assistant"]), Ok("a\0")),
        (&texts, ChatFormat::Auto, roles(&["user"]), Err(refused)),
        (&lists, ChatFormat::Auto, TrainOn::Answers, Ok("a</>")),
        (&lists, ChatFormat::Auto, TrainOn::All, Ok("user>q</><assistant>a</>")),
        (&lists, ChatFormat::Auto, roles(&["user"]), Ok("user>q</>")),
        (&alpaca, ChatFormat::Auto, roles(&["system", "assistant"]), Ok("system>s</>a</>")),
        (&alpaca, prompt, TrainOn::Answers, Ok("a\0")),
        (&alpaca, prompt, TrainOn::All, Ok("\n\n### Instruction:\nq\n\n### Response:\na\0")),
        (&alpaca, prompt, roles(&["user"]), Err(refused)),
    ] {
        let template = template();
        let read = learnt_by(object, ChatReading { format, ..reading(&template, &train_on) });
        match expected {
            Ok(expected) => assert_eq!(read.unwrap(), expected, "{object} {train_on}"),
            Err(expected) => assert!(read.clone().unwrap_err().ends_with(expected), "{object}: {read:?}"),
        }
    }
}

#[test]
fn masks_hold_for_the_messages_that_are_learnt() {
    let masked =
        |role: &str, content: &str, weight: u32| json!({"role": role, "content": content, "weight": weight});
    let object = json!({"messages": [
        masked("user", "p", 0), message("assistant", "a"), masked("user", "q", 1), masked("assistant", "b", 0),
    ]});
    for (train_on, expected) in [
        (
            TrainOn::Answers,
            Err("message 3 (\"user\") is to be learnt, and only answers of the assistant are"),
        ),
        (
            roles(&["assistant"]),
            Err(
                "message 3 (\"user\") is to be learnt, and data.train_on = [\"assistant\"] leaves its role out",
            ),
        ),
        (roles(&["user"]), Ok("<user>q</>")),
        (roles(&["user", "assistant"]), Ok("a</><user>q</>")),
        (TrainOn::All, Ok("<assistant>a</><user>q</><assistant>")),
    ] {
        let read = learnt(&object, &train_on);
        match expected {
            Ok(expected) => assert_eq!(read.unwrap(), expected, "{train_on}"),
            Err(expected) => assert!(read.clone().unwrap_err().ends_with(expected), "{train_on}: {read:?}"),
        }
    }
    // All that is learnt is masked, so the conversation is left out.
    let none = json!({"messages": [masked("user", "p", 0), message("assistant", "a")]});
    assert!(learnt(&none, &roles(&["user"])).unwrap_err().ends_with("has no conversation"));
}

#[test]
fn messages_are_found_in_templates_that_join_or_mark_them() {
    let tools = json!({"messages": [
        message("user", "q"), message("assistant", "a"), message("tool", "1"), message("tool", "2"),
        message("assistant", "b"),
    ]});
    let talk = json!({"messages": [message("user", "q"), message("assistant", "a")]});
    for (text, object, train_on, expected) in [
        (TOOLS, &tools, TrainOn::Answers, Ok("a</>b</>")),
        (TOOLS, &tools, TrainOn::All, Ok("user>q</><assistant>a</><user>[1][2]</><assistant>b</>")),
        (TOOLS, &tools, roles(&["tool"]), Ok("<user>[1]2]</>")),
        // Marks are those of answers alone.
        (MARKED, &talk, TrainOn::Answers, Ok("a")),
        (MARKED, &talk, roles(&["assistant"]), Ok("a</>")),
        (MARKED, &talk, TrainOn::All, Ok("user>q</><assistant>a</>")),
        // Only the last message is there.
        (
            "{% for m in messages %}{% if loop.last %}{{ m.content }};{% endif %}{% endfor %}",
            &talk,
            roles(&["user"]),
            Err("message 1 (\"user\") changes the text before it and is not found in the text of all \
                 messages: choose other roles by data.train_on"),
        ),
    ] {
        let read = by(text, object, &train_on);
        match expected {
            Ok(expected) => assert_eq!(read.unwrap(), expected, "{train_on}"),
            Err(expected) => assert!(read.clone().unwrap_err().ends_with(expected), "{train_on}: {read:?}"),
        }
    }
}
