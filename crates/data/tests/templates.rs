//! Tests of chat templates: their texts equal those of transformers, and answers are found in them.

use std::fs;

use crate::common::{byte_level, tokenizer};
use data::{ChatTemplate, TemplateInput, Tokenizer};
use serde_json::{Value, json};

const CHATML: &str = "{% for message in messages %}\n{{ '<|im_start|>' + message['role'] + '\\n' + \
                      message['content'].strip() + '<|im_end|>' + '\\n' }}{% endfor %}\n{% if \
                      add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
/// Qwen3's own template, which writes only the reasoning of the last turn.
const QWEN3: &str = include_str!("templates/qwen3.jinja");
/// A template as of DeepSeek R1, which prompts for reasoning and drops it from earlier turns.
const REASONING: &str = "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<U>{{ m.content }}\
                         {% else %}<A>{{ m.content.split('</think>')[-1] }}{{ eos_token }}{% endif %}{% endfor %}\
                         {% if add_generation_prompt %}<A><think>\n{% endif %}";
/// A template as of newer Mistral models, which puts the system message into the user's last message.
const LAST: &str = "{{ bos_token }}{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}\
                    {% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}\
                    {% if m.role == 'user' %}[INST] {% if loop.index0 == ns.last %}Be brief.\n\n{% endif %}\
                    {{ m.content }}[/INST]{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}";

fn template(text: &str) -> Result<ChatTemplate, data::Error> {
    let special =
        json!({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"});
    let tokenizer = tokenizer(&byte_level(&[], &["<s>", "</s>"]), &[("tokenizer_config.json", special)]);
    read(text, &tokenizer)
}

fn read(text: &str, tokenizer: &Tokenizer) -> Result<ChatTemplate, data::Error> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("t.jinja");
    fs::write(&file, text).unwrap();
    ChatTemplate::of_file(&file, tokenizer)
}

/// Returns the text of a conversation, and its answers.
fn rendered(text: &str, messages: &Value) -> Result<(String, Vec<String>), String> {
    let (text, ranges) =
        template(text).unwrap().render(messages.as_array().unwrap(), &TemplateInput::default())?;
    let answers = ranges.into_iter().map(|range| text[range].to_owned()).collect();
    Ok((text, answers))
}

fn user(content: &str) -> Value {
    json!({"role": "user", "content": content})
}

fn assistant(content: &str) -> Value {
    json!({"role": "assistant", "content": content})
}

#[test]
fn answers_are_what_the_assistant_adds_or_what_the_template_marks() {
    let messages = json!([user(" 1+1? "), assistant("2"), user("2+2?"), assistant("4")]);
    let (text, answers) = rendered(CHATML, &messages).unwrap();
    assert!(text.starts_with("<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n"));
    assert_eq!(answers, ["2<|im_end|>\n", "4<|im_end|>\n"]);
    let marked = "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}[A]\
                  {%- generation -%}\n {{ m.content }}</s>\n{%- endgeneration %}\
                  {% else %}[U]{{ m.content | trim }}{% endif %}{% endfor %}";
    let (text, answers) = rendered(marked, &messages).unwrap();
    assert_eq!(text, "<s>[U]1+1?[A]2</s>[U]2+2?[A]4</s>");
    assert_eq!(answers, ["2</s>", "4</s>"]);
}

/// Marks also work in macros and loops, and never equal a character of the text.
#[test]
fn marks_are_none_of_the_characters_of_a_conversation() {
    let marked = "{% macro answer(text) %}{% generation %}{{ text }}!{% endgeneration %}{% endmacro %}\
                  {% for m in messages %}{% if m.role == 'assistant' %}A{{ answer(m.content) }}{% else %}\
                  U{{ m.content }}{% endif %}{% endfor %}\u{F0002}";
    for content in ["a\u{F0000}b", "\u{F0001}", "\u{F0000}\u{F0001}\u{F0003}", "\u{E000}\u{FFFF}\u{10FFFF}"] {
        let messages = json!([user(content), assistant(content), user("b"), assistant("c")]);
        let (text, answers) = rendered(marked, &messages).unwrap();
        assert_eq!(text, format!("U{content}A{content}!UbAc!\u{F0002}"));
        assert_eq!(answers, [format!("{content}!"), "c!".to_owned()]);
        let (text, answers) = rendered(CHATML, &messages).unwrap();
        assert!(text.contains(&format!("user\n{content}<|im_end|>")));
        assert_eq!(answers, [format!("{content}<|im_end|>\n"), "c<|im_end|>\n".to_owned()]);
    }
}

/// Answers are found even if templates write earlier messages differently from the last ones.
#[test]
fn answers_are_found_in_the_text_of_the_whole_conversation() {
    let call = json!({"role": "assistant", "content": "", "tool_calls": [
        {"type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": 2}}},
    ]});
    let tool = json!({"role": "tool", "content": "7"});
    let called = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": 2}}\n</tool_call>";
    let reasoned =
        |reason: &str, content: &str| assistant(&format!("<think>\n{reason}\n</think>\n\n{content}"));
    let table: Vec<(&str, Value, Vec<String>)> = vec![
        (
            QWEN3,
            json!([user("1+1?"), reasoned("one", "2"), user("2+2?"), reasoned("two", "4")]),
            vec!["2<|im_end|>\n".to_owned(), "<think>\ntwo\n</think>\n\n4<|im_end|>\n".to_owned()],
        ),
        (
            QWEN3,
            json!([user("1+1?"), assistant("2"), user("2+2?"), assistant("2"), user("2"), assistant("2")]),
            vec![
                "2<|im_end|>\n".to_owned(),
                "2<|im_end|>\n".to_owned(),
                "<think>\n\n</think>\n\n2<|im_end|>\n".to_owned(),
            ],
        ),
        (
            QWEN3,
            json!([user("f?"), call, tool, reasoned("ah", "7"), user("2+2?"), assistant("4")]),
            vec![
                format!("{called}<|im_end|>\n"),
                "7<|im_end|>\n".to_owned(),
                "<think>\n\n</think>\n\n4<|im_end|>\n".to_owned(),
            ],
        ),
        (
            QWEN3,
            json!([user("f?"), call, tool, reasoned("ah", "7")]),
            vec![format!("{called}<|im_end|>\n"), "<think>\nah\n</think>\n\n7<|im_end|>\n".to_owned()],
        ),
        (
            REASONING,
            json!([user("1+1?"), reasoned("one", "2"), user("2"), assistant("4")]),
            vec!["\n\n2</s>".to_owned(), "4</s>".to_owned()],
        ),
        (
            LAST,
            json!([user("1+1?"), assistant("2"), user("2+2?"), assistant("4")]),
            vec![" 2</s>".to_owned(), " 4</s>".to_owned()],
        ),
        // The number of all messages is before them.
        (
            "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}",
            json!([user("a"), assistant("b")]),
            vec!["b".to_owned()],
        ),
    ];
    for (text, messages, expected) in table {
        let (_, answers) = rendered(text, &messages).unwrap();
        assert_eq!(answers, expected, "{messages}");
    }
}

#[test]
fn what_a_template_refuses_and_answers_that_it_drops_are_errors() {
    let messages = json!([user("a"), assistant("b"), user("c"), assistant("d")]);
    let refusing = "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}";
    assert!(rendered(refusing, &messages).unwrap_err().ends_with("t.jinja: no system"));
    for text in [
        // Only the last answer is there.
        "{% for m in messages %}{% if m.role == 'user' or loop.last %}{{ m.content }};{% endif %}{% endfor %}",
        // The answers are there twice.
        "{{ messages | length }}{% for m in messages + messages %}{{ m.content }};{% endfor %}",
    ] {
        let refused = rendered(text, &messages).unwrap_err();
        assert!(
            refused.starts_with("message 2 (\"assistant\") changes the text before it and is not found"),
            "{text}: {refused}"
        );
    }
    // Text that a mark changes.
    let trimmed = "{% set x %}{% generation %} a {% endgeneration %}{% endset %}{{ x | trim }}";
    let refused = rendered(trimmed, &messages).unwrap_err();
    assert!(refused.contains("its {% generation %} cannot be followed"), "{refused}");
    assert!(template("{% for %}").is_err());
}

#[test]
fn one_of_several_templates_is_taken_by_its_name() {
    let named = |name: &str| json!({"name": name, "template": format!("{name}\r\n-")});
    let tools = TemplateInput { tools: Some(vec![json!({"name": "f"})]), ..TemplateInput::default() };
    let [without, other] = [TemplateInput::default(), tools];
    for (templates, input, expected) in [
        (json!([named("tool_use"), named("default")]), &without, Ok("default\n-")),
        (json!([named("rag"), named("default")]), &other, Ok("default\n-")),
        (json!([named("tool_use"), named("default")]), &other, Err("is for conversations with tools")),
        (json!([named("rag")]), &without, Err("is a list without a \"default\"")),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let config = json!({"chat_template": templates}).to_string();
        fs::write(directory.path().join("tokenizer_config.json"), config).unwrap();
        let read = ChatTemplate::of_folders(&[directory.path()], &tokenizer(&byte_level(&[], &[]), &[]));
        let rendered = read.map_err(|error| error.to_string());
        let rendered = rendered.and_then(|template| template.question(&[user("a")], input));
        match (rendered, expected) {
            (Ok(text), Ok(expected)) => assert_eq!(text, expected, "{templates}"),
            (Err(refused), Err(expected)) => assert!(refused.contains(expected), "{refused}"),
            (read, _) => panic!("{templates}: {read:?}"),
        }
    }
}

/// Values are formatted as by `apply_chat_template` of transformers 5.24.
#[test]
fn values_are_written_as_python_writes_them() {
    let messages = json!([{
        "role": "user", "content": "\u{E9}'<&", "call": {"unit": "C", "city": "Ulm", "days": [1, 2.0, null]},
    }]);
    for (text, expected) in [
        ("{{ m.call | tojson }}", "{\"unit\": \"C\", \"city\": \"Ulm\", \"days\": [1, 2.0, null]}"),
        (
            "{{ m.call | tojson(sort_keys=True, separators=(',', ':')) }}",
            "{\"city\":\"Ulm\",\"days\":[1,2.0,null],\"unit\":\"C\"}",
        ),
        ("{{ m.call.days | tojson(indent=2) }}", "[\n  1,\n  2.0,\n  null\n]"),
        ("{{ m.call.days | tojson(indent='\\t', separators=(';', ':')) }}", "[\n\t1;\n\t2.0;\n\tnull\n]"),
        (
            "{{ m.content | tojson }} {{ m.content | tojson(ensure_ascii=True) }}",
            "\"\u{E9}'<&\" \"\\u00e9'<&\"",
        ),
        ("{{ m.content | tojson(true, none, none, true) }}", "\"\\u00e9'<&\""),
        ("{{ [] | tojson(indent=4) }} {{ {} | tojson }} {{ [true, none] | tojson }}", "[] {} [true, null]"),
        (
            "{{ m.call }} {{ true }} {{ none }} {{ 2.0 }}",
            "{'unit': 'C', 'city': 'Ulm', 'days': [1, 2.0, None]} True None 2.0",
        ),
        ("{{ m.call.days | string }}", "[1, 2.0, None]"),
        (
            "{% for key, value in m.call.items() %}{{ key }}={{ value }};{% endfor %}",
            "unit=C;city=Ulm;days=[1, 2.0, None];",
        ),
        ("{{ bos_token }}{{ eos_token }}{{ pad_token }}", "<s></s>"),
    ] {
        let whole = format!("{{% set m = messages[0] %}}{text}");
        assert_eq!(rendered(&whole, &messages).unwrap().0, expected, "{text}");
    }
    for (text, expected) in [
        ("{{ 1 | tojson(nonsense=1) }}", "nonsense"),
        ("{{ 1 | tojson(separators=1) }}", "not iterable"),
        ("{{ 1 | tojson(separators=(',',)) }}", "two texts"),
        ("{{ undefined | tojson }}", "a value is no JSON"),
    ] {
        let refused = rendered(text, &messages).unwrap_err();
        assert!(refused.contains(expected), "{text}: {refused}");
    }
}
