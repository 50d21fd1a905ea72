//! Layouts of conversations: OpenAI's, ShareGPT's and Alpaca's.

use serde_json::{Value, json};

/// Keys of the lists of messages, of OpenAI and of ShareGPT.
const LISTS: [&str; 3] = ["messages", "conversations", "conversation"];
/// Names of speakers in ShareGPT's layout, with their roles.
const SPEAKERS: &[(&str, &str)] = &[
    ("human", "user"),
    ("user", "user"),
    ("gpt", "assistant"),
    ("assistant", "assistant"),
    ("chatgpt", "assistant"),
    ("model", "assistant"),
    ("bot", "assistant"),
    ("system", "system"),
    ("tool", "tool"),
    ("function", "tool"),
    ("observation", "tool"),
];

/// Returns the messages of an object, each with `role` and `content`: of OpenAI's layout as they are, of
/// ShareGPT's (`conversations` of `from` and `value`) and of Alpaca's (`instruction`, `input` and `output`)
/// as what they correspond to. A `system` beside the latter two comes first.
///
/// # Errors
/// An object of another layout, in a sentence.
pub(super) fn messages(object: &Value) -> Result<Vec<Value>, String> {
    let list = LISTS.iter().find_map(|key| Some((*key, object.get(key)?.as_array()?)));
    let list = match list {
        Some((key, list)) if list.is_empty() => return Err(format!("its list \"{key}\" has no message")),
        list => list.map(|(_, list)| list),
    };
    let messages = match (list, object.get("instruction")) {
        (Some(list), _) => list.iter().enumerate().map(message).collect::<Result<_, _>>()?,
        (None, Some(_)) => exchange(object)?,
        (None, None) => {
            return Err(
                "it has no list \"messages\" (OpenAI's layout) or \"conversations\" (ShareGPT's), and \
                        no \"instruction\" (Alpaca's)"
                    .to_owned(),
            );
        }
    };
    let system = object["system"].as_str().filter(|text| !text.is_empty());
    let system = system.map(|text| json!({"role": "system", "content": text}));
    Ok(system.into_iter().chain(messages).collect())
}

/// Returns a message with `role` and `content`; one that has a `role` or no `from` is unchanged.
fn message((index, message): (usize, &Value)) -> Result<Value, String> {
    let Some(speaker) = message.get("from").filter(|_| message.get("role").is_none()) else {
        return Ok(message.clone());
    };
    let role = SPEAKERS.iter().find(|(name, _)| speaker.as_str() == Some(name)).map(|(_, role)| *role);
    let Some(role) = role else {
        return Err(format!(
            "message {} is from {speaker}, which is none of \"human\", \"gpt\", \"system\" and \"tool\"",
            index + 1
        ));
    };
    Ok(json!({"role": role, "content": message["value"]}))
}

/// Returns the two messages of an instruction, or one without an `output`.
fn exchange(object: &Value) -> Result<Vec<Value>, String> {
    let text = |key: &str| match object.get(key) {
        None | Some(Value::Null) => Ok(""),
        Some(value) => value.as_str().ok_or_else(|| format!("its \"{key}\" is no text")),
    };
    let (instruction, input, output) = (text("instruction")?, text("input")?, text("output")?);
    let gap = if instruction.is_empty() || input.is_empty() { "" } else { "\n\n" };
    let user = json!({"role": "user", "content": format!("{instruction}{gap}{input}")});
    let answer = (!output.is_empty()).then(|| json!({"role": "assistant", "content": output}));
    Ok(std::iter::once(user).chain(answer).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layout_gives_the_same_messages() {
        let expected = json!([
            {"role": "system", "content": "s"},
            {"role": "user", "content": "q\n\ni"},
            {"role": "assistant", "content": "a"},
        ]);
        for object in [
            json!({"messages": expected}),
            json!({"conversations": expected, "id": 1}),
            json!({"conversations": [
                {"from": "system", "value": "s"},
                {"from": "human", "value": "q\n\ni"},
                {"from": "gpt", "value": "a"},
            ]}),
            json!({"system": "s", "conversations": [
                {"from": "user", "value": "q\n\ni"}, {"from": "assistant", "value": "a"},
            ]}),
            json!({"system": "s", "instruction": "q", "input": "i", "output": "a"}),
            json!({"system": "s", "instruction": "q\n\ni", "input": "", "output": "a"}),
            json!({"system": "s", "instruction": "q\n\ni", "input": null, "output": "a"}),
        ] {
            assert_eq!(json!(messages(&object).unwrap()), expected, "{object}");
        }
        assert_eq!(
            messages(&json!({"instruction": "q"})).unwrap(),
            [json!({"role": "user", "content": "q"})]
        );
    }

    #[test]
    fn other_layouts_are_refused_with_the_known_ones() {
        for (object, expected) in [
            (json!({"text": "a"}), "it has no list \"messages\" (OpenAI's layout)"),
            (json!({"messages": []}), "its list \"messages\" has no message"),
            (json!([1]), "it has no list \"messages\""),
            (
                json!({"conversations": [{"from": "dog", "value": "a"}]}),
                "message 1 is from \"dog\", which is",
            ),
            (json!({"instruction": 3}), "its \"instruction\" is no text"),
        ] {
            let refused = messages(&object).unwrap_err();
            assert!(refused.starts_with(expected), "{object}: {refused}");
        }
    }
}
