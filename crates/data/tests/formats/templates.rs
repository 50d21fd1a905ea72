//! Arguments of chat templates: tools, variables, and messages with calls. Texts equal those of
//! `apply_chat_template` of transformers 5.24.

use data::{ChatFormat, ChatTemplate, Tokenizer, read_messages};
use serde_json::{Value, json};

use super::{read_file, texts};

const TEMPLATE: &str = r#"{%- if tools %}{{- '<tools>' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{{- '</tools>\n' }}{%- endif %}
{%- for m in messages %}{{- '<' + m.role + '>' }}{%- if m.content %}{{- m.content }}{%- endif %}
{%- for call in m.tool_calls or [] %}{{- '[' + call.function.name + ' ' + (call.function.arguments | tojson) + ']' }}{%- endfor %}
{%- if style is defined %}{{- '~' + style }}{%- endif %}{{- '</>' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<assistant>' }}{%- endif %}"#;

/// Builds a conversation that calls a tool, with further keys.
fn conversation(keys: &Value) -> Value {
    let call = json!({"type": "function", "function": {"name": "sum", "arguments": {"b": 2, "a": 1}}});
    let mut object = json!({"messages": [
        {"role": "user", "content": "1+2?"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "It is 3."},
    ]});
    for (key, value) in keys.as_object().unwrap() {
        object[key] = value.clone();
    }
    object
}

#[test]
fn templates_take_tools_and_variables() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("t.jinja"), TEMPLATE).unwrap();
    let template = ChatTemplate::of_file(&at("t.jinja"), &Tokenizer::Bytes).unwrap();
    let properties = json!({"b": {"type": "number"}, "a": {"type": "number"}});
    let function = json!({"name": "sum", "parameters": {"type": "object", "properties": properties}});
    let tools = json!([{"type": "function", "function": function}]);
    let with_tools = "<tools>{\"type\": \"function\", \"function\": {\"name\": \"sum\", \"parameters\": {\"type\": \
                      \"object\", \"properties\": {\"b\": {\"type\": \"number\"}, \"a\": {\"type\": \
                      \"number\"}}}}}</tools>\n";
    let plain = "<user>1+2?</><assistant>[sum {\"b\": 2, \"a\": 1}]</><tool>3</><assistant>It is 3.</>";
    let turns = json!({"conversations": [
        {"from": "human", "value": "1+2?"},
        {"from": "function_call", "value": "{\"name\": \"sum\", \"arguments\": {\"b\": 2, \"a\": 1}}"},
        {"from": "observation", "value": "3"},
        {"from": "gpt", "value": "It is 3."},
    ], "tools": tools.to_string()});
    // Keys of messages in ShareGPT's layout, and the same text by two names.
    let call = json!({"type": "function", "function": {"name": "sum", "arguments": {"b": 2, "a": 1}}});
    let mixed_turns = json!({"conversations": [
        {"from": "human", "value": "1+2?", "content": "1+2?"},
        {"from": "gpt", "value": "", "tool_calls": [call], "role": "assistant"},
        {"from": "tool", "value": "3", "tool_calls": null},
        {"from": "gpt", "value": "It is 3.", "role": "gpt"},
    ], "tools": tools});
    let brief = plain.replace("</>", "~brief</>");
    for (object, expected) in [
        (conversation(&json!({"tools": tools})), format!("{with_tools}{plain}")),
        (conversation(&json!({"tools": tools.to_string()})), format!("{with_tools}{plain}")),
        (turns, format!("{with_tools}{plain}")),
        (mixed_turns, format!("{with_tools}{plain}")),
        (conversation(&json!({"tools": []})), plain.to_owned()),
        (conversation(&json!({"tools": "", "parallel_tool_calls": false})), plain.to_owned()),
        (conversation(&json!({"chat_template_kwargs": {"style": "brief"}})), brief.clone()),
    ] {
        std::fs::write(at("c.jsonl"), object.to_string()).unwrap();
        let read = read_file(&at("c.jsonl"), ChatFormat::Auto, &template).unwrap();
        let (text, learnt) = texts(&read[0]);
        assert_eq!(text, expected, "{object}");
        assert!(learnt.starts_with("[sum {") && learnt.contains("]") && learnt.ends_with("</>"), "{learnt}");
        // The same text, up to the last answer, when it is to be sampled.
        let dialogue = read_messages(&at("c.jsonl")).unwrap().remove(0);
        let question = template.question(&dialogue.messages[..3], &dialogue.input).unwrap();
        assert!(expected.starts_with(&question), "{object}: {question}");
    }
}
