//! Tests of conversation formats, detected from an object's keys or configured.

use data::{ChatFormat, ChatReading, Error, TrainOn, read_messages};
use serde_json::{Value, json};
use std::path::Path;

use super::{read, read_file, reading, template, texts};

const OPENAI: &str =
    r#"{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}"#;
const SHARE_GPT: &str =
    r#"{"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}"#;
const ALPACA: &str = r#"{"instruction": "hi", "input": "", "output": "ho"}"#;
const COMPLETION: &str = r#"{"prompt": [{"role": "user", "content": "hi"}], "completion": [{"role": "assistant", "content": "ho"}]}"#;

#[test]
fn every_format_is_the_same_conversation() {
    let expected = read(OPENAI).unwrap().remove(0);
    assert_eq!(texts(&expected), ("<user>hi</><assistant>ho</>".to_owned(), "ho</>".to_owned()));
    for text in [
        format!("{OPENAI}\n\n{SHARE_GPT}\n{ALPACA}\n{COMPLETION}"),
        format!("[{OPENAI},\n {SHARE_GPT}\n,{ALPACA},{COMPLETION}]\n"),
        format!("\n [\n{ALPACA}, {ALPACA}, {ALPACA}, {ALPACA}]"),
    ] {
        assert_eq!(read(&text).unwrap(), vec![expected.clone(); 4], "{text}");
    }
}

/// Each kind of object is read as its program writes it: text of the conversation, and trained parts.
#[test]
fn objects_are_read_as_their_programs_write_them() {
    let part = |text: &str| json!({"type": "text", "text": text});
    let user = json!({"role": "user", "content": "q"});
    let answer = json!({"role": "assistant", "content": "a"});
    for (object, text, learnt) in [
        // Null stands for an absent key, as in columns that other objects fill.
        (
            json!({"messages": [user, answer], "prompt": null, "instruction": "", "conversations": null}),
            "<user>q</><assistant>a</>",
            "a</>",
        ),
        (
            json!({"messages": [user, answer], "prompt": "q", "prompt_id": 7}),
            "<user>q</><assistant>a</>",
            "a</>",
        ),
        (
            json!({"messages": [{"role": "user", "content": [part("1"), part("2"), "3"]}, answer]}),
            "<user>123</><assistant>a</>",
            "a</>",
        ),
        (
            json!({"system": "s", "conversations": [user, answer]}),
            "<system>s</><user>q</><assistant>a</>",
            "a</>",
        ),
        (
            json!({"system": "s", "messages": [{"role": "system", "content": "s"}, user, answer]}),
            "<system>s</><user>q</><assistant>a</>",
            "a</>",
        ),
        (
            json!({"system": "s", "instruction": "q", "input": "i", "output": "a", "text": "whole"}),
            "<system>s</><user>q\n\ni</><assistant>a</>",
            "a</>",
        ),
        (
            json!({"instruction": "q", "output": "a", "history": [["1", "2"]]}),
            "<user>1</><assistant>2</><user>q</><assistant>a</>",
            "2</>a</>",
        ),
        (
            json!({"conversations": [{"from": "human", "value": "q"}, {"from": "bard", "value": "a"}, {"from": "observation", "value": "o"}, {"from": "chatgpt", "value": "b"}]}),
            "<user>q</><assistant>a</><tool>o</><assistant>b</>",
            "a</>b</>",
        ),
        // All of a completion is learnt, also what a user says in it.
        (
            json!({"prompt": [user, answer, user], "completion": [answer, user, answer]}),
            "<user>q</><assistant>a</><user>q</><assistant>a</><user>q</><assistant>a</>",
            "a</><user>q</><assistant>a</>",
        ),
        (json!({"prompt": "2 + 2 =", "completion": " 4"}), "2 + 2 = 4\0", " 4\0"),
        (json!({"prompt": "", "completion": "all", "label": null}), "all\0", "all\0"),
    ] {
        let read = read(&object.to_string()).unwrap_or_else(|error| panic!("{object}: {error}"));
        assert_eq!(texts(&read[0]), (text.to_owned(), learnt.to_owned()), "{object}");
    }
}

#[test]
fn a_named_format_takes_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.jsonl");
    let two = json!({"instruction": "q", "input": "i", "output": "a", "messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]});
    std::fs::write(&path, two.to_string()).unwrap();
    let read = |format| read_file(&path, format, &template()).map(|all| texts(&all[0]).0);
    let good = |text: &str| Ok::<_, String>(text.to_owned());
    let read_text = |format| read(format).map_err(|error| error.to_string());
    assert_eq!(read_text(ChatFormat::Messages), good("<user>1</><assistant>2</>"));
    assert_eq!(read_text(ChatFormat::Alpaca), good("<user>q\n\ni</><assistant>a</>"));
    let prompt = "Below is an instruction that describes a task, paired with an input that provides further context. \
                  Write a response that appropriately completes the request.\n\n### Instruction:\nq\n\n### \
                  Input:\ni\n\n### Response:\na\0";
    assert_eq!(read_text(ChatFormat::AlpacaPrompt), good(prompt));
    for (format, expected) in [
        (
            ChatFormat::Auto,
            "it has \"messages\" and \"instruction\", which belong to two formats: data.format",
        ),
        (ChatFormat::ShareGpt, "message 1 has no \"from\""),
        (ChatFormat::Completion, "its \"prompt\" and \"completion\" are not both texts or both lists"),
    ] {
        let refused = read_text(format).unwrap_err();
        assert!(refused.contains(&format!("c.jsonl:1: {expected}")), "{format:?}: {refused}");
    }
}

#[test]
fn texts_need_no_template() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.jsonl");
    let missing = Error::Template { path: "m".into(), reason: "it has no template".to_owned() };
    let read = |object: Value, format| {
        std::fs::write(&path, object.to_string()).unwrap();
        let template = template();
        let reading =
            ChatReading { format, template: Err(&missing), ..reading(&template, &TrainOn::Answers) };
        reading.read(std::slice::from_ref(&path)).map(|all| texts(&all[0][0]).1)
    };
    let completion = json!({"prompt": "q", "completion": "a"});
    assert_eq!(read(completion, ChatFormat::Auto).unwrap(), "a\0");
    let alpaca = json!({"instruction": "q", "output": "a", "system": "s"});
    assert_eq!(read(alpaca.clone(), ChatFormat::AlpacaPrompt).unwrap(), "a\0");
    let refused = read(alpaca, ChatFormat::Auto).unwrap_err();
    assert!(matches!(refused, Error::Template { .. }), "{refused}");
}

#[test]
fn objects_that_are_no_conversation_are_refused_by_their_line() {
    let one = |object: Value| object.to_string();
    let messages = |key: &str, value: Value| {
        let mut answer = json!({"role": "assistant", "content": "a"});
        answer[key] = value;
        json!({"messages": [{"role": "user", "content": "q"}, answer]}).to_string()
    };
    let beside = |key: &str, value: Value| {
        let mut object: Value = serde_json::from_str(OPENAI).unwrap();
        object[key] = value;
        object.to_string()
    };
    for (text, expected) in [
        (format!("{OPENAI}\n{{\"text\": \"a\"}}"), "c.json:2: it has no list \"messages\" (OpenAI's layout)"),
        (format!("[{OPENAI},\n\n {{\"text\": \"a\"}}]"), "c.json:3: it has no list \"messages\""),
        (format!("[{OPENAI},\n{{]"), "c.json:2: the list has no end"),
        (format!("[{OPENAI}\n,oh]"), "c.json:2: it is no JSON"),
        (OPENAI.replace(", ", ",\n"), "c.json:1: it is no JSON object: it does not end on its line"),
        (r#"{"instruction": "hi"}"#.to_owned(), "c.json:1: it has no answer of the assistant"),
        ("[]".to_owned(), "c.json has no conversation"),
        (one(json!({"prompt": "q", "response": "a"})), "but \"prompt\", \"response\""),
        (
            one(json!({"instruction": "q", "response": "a"})),
            "\"response\" = \"a\" is not supported: the answer's",
        ),
        (
            one(json!({"instruction": "q", "output": "a", "context": "c"})),
            "\"context\" = \"c\" is not supported",
        ),
        (one(json!({"instruction": 3})), "its \"instruction\" is no text"),
        (
            one(json!({"instruction": "q", "output": "a", "history": "h"})),
            "its \"history\" is no list of pairs",
        ),
        (
            one(json!({"prompt": "q", "completion": ["a"]})),
            "its \"prompt\" and \"completion\" are not both texts",
        ),
        (
            one(json!({"prompt": "q", "completion": "a", "label": false})),
            "\"label\" = false is not supported",
        ),
        (
            one(json!({"prompt": "q", "completion": "a", "tools": [{}]})),
            "its \"tools\" or \"chat_template_kwargs\"",
        ),
        (one(json!({"messages": []})), "its list \"messages\" has no message"),
        (one(json!({"messages": [{"content": "a"}]})), "message 1 has no \"role\""),
        (one(json!({"messages": ["a"]})), "message 1 is no object"),
        (
            one(json!({"conversations": [{"from": "dog", "value": "a"}]})),
            "message 1 is from \"dog\", which is",
        ),
        (
            one(json!({"conversations": [{"from": "function_call", "value": "a"}]})),
            "message 1 is from \"function_call\", and its \"value\" is no JSON of a call",
        ),
        (messages("content", json!(null)), "message 2 has no text as its \"content\""),
        (messages("content", json!({"a": 1})), "message 2 has no text as its \"content\""),
        (
            messages("content", json!([{"type": "image_url", "image_url": {"url": "x"}}])),
            "message 2: a part of its \"content\" is of type \"image_url\", and only texts are learnt",
        ),
        (
            messages("content", json!([{"type": "text"}])),
            "message 2: a part of its \"content\" has no \"text\"",
        ),
        (
            messages("content", json!([{"type": "text", "text": "a", "weight": 0}])),
            "message 2: a part of its \"content\" is not to be learnt",
        ),
        (messages("role", json!("model")), "message 2 has the role \"model\", and only messages of"),
        (messages("role", json!("Assistant")), "message 2 has the role \"Assistant\", and only"),
        (
            one(json!({"conversations": [{"from": "gpt", "value": "a", "content": "b"}]})),
            "message 1: its \"content\" contradicts its \"from\" and \"value\"",
        ),
        (
            one(json!({"instruction": "s", "question": "q", "output": "a"})),
            "\"question\" = \"q\" is not supported",
        ),
        (
            one(json!({"prompt": "q", "completion": "a", "suffix": "s"})),
            "\"suffix\" = \"s\" is not supported",
        ),
        (beside("system_prompt", json!("s")), "\"system_prompt\" = \"s\" is not supported: write it as"),
        (beside("documents", json!([{}])), "\"documents\" = [{}] is not supported"),
        (
            messages("function_call", json!({"name": "f"})),
            "message 2: \"function_call\" = {\"name\":\"f\"} is not",
        ),
        (beside("images", json!(["a.png"])), "\"images\" = [\"a.png\"] is not supported: only texts"),
        (beside("weight", json!(0.5)), "\"weight\" = 0.5 is not supported: all records weigh the same"),
        (beside("input_ids", json!([1])), "\"input_ids\" = [1] is not supported: tokens of another program"),
        (beside("functions", json!([{"name": "f"}])), "is not supported: write them as \"tools\""),
        (beside("system", json!(3)), "its \"system\" is no text"),
        (beside("tools", json!("{")), "its \"tools\" is no JSON"),
        (beside("tools", json!(["a"])), "its \"tools\" = [\"a\"] is not a list of objects"),
        (beside("chosen", json!("a")), "\"chosen\" = \"a\" is not supported: these are pairs of answers"),
        (beside("conversations", json!([{"from": "human"}])), "it has both a list \"messages\" and a list"),
        (
            beside("instruction", json!("a")),
            "it has \"messages\" and \"instruction\", which belong to two formats",
        ),
    ] {
        let refused = read(&text).unwrap_err().to_string();
        assert!(refused.contains(expected), "{text}: {refused}");
    }
}

#[test]
fn messages_to_answer_need_no_answer() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.jsonl");
    let lengths = |path: &Path| -> Vec<usize> {
        read_messages(path).unwrap().iter().map(|dialogue| dialogue.messages.len()).collect()
    };
    std::fs::write(&path, format!("{OPENAI}\n{{\"instruction\": \"hi\"}}\n{COMPLETION}")).unwrap();
    assert_eq!(lengths(&path), [2, 1, 2]);
    std::fs::write(&path, "{\"prompt\": \"q\", \"completion\": \"a\"}").unwrap();
    assert!(read_messages(&path).unwrap_err().to_string().ends_with("a conversation has messages"));
}
