//! Tests of messages that are masked from training.

use serde_json::{Value, json};

use super::{read, texts};

/// Builds a conversation whose first and second answers have these keys.
fn masked(first: &Value, second: &Value) -> String {
    let message = |role: &str, content: &str, keys: &Value| {
        let mut message = json!({"role": role, "content": content});
        for (key, value) in keys.as_object().unwrap() {
            message[key] = value.clone();
        }
        message
    };
    let messages = [
        message("user", "1", &json!({})),
        message("assistant", "one", first),
        message("user", "2", &json!({})),
        message("assistant", "two", second),
    ];
    json!({"messages": messages}).to_string()
}

#[test]
fn an_answer_is_learnt_unless_its_keys_say_otherwise() {
    let (one, two, both) = ("one</>", "two</>", "one</>two</>");
    for (first, second, expected) in [
        (json!({"weight": 0}), json!({"weight": 1}), two),
        (json!({"weight": 0.0}), json!({}), two),
        (json!({"weight": 1}), json!({"weight": null}), both),
        (json!({"train": false}), json!({"train": true}), two),
        (json!({"training": true}), json!({"training": false}), one),
        (json!({"trainable": false}), json!({}), two),
        (json!({"loss": 0}), json!({"loss": true}), two),
        (json!({"loss_mask": 1}), json!({"loss_mask": 0}), one),
        (json!({"masked": true}), json!({"masked": false}), two),
        (json!({"weight": 0, "train": false, "masked": 1}), json!({}), two),
    ] {
        let text = masked(&first, &second);
        assert_eq!(texts(&read(&text).unwrap()[0]).1, expected, "{text}");
    }
    let turns = json!([
        {"from": "human", "value": "1"}, {"from": "gpt", "value": "one", "weight": 0},
        {"from": "human", "value": "2", "train": false}, {"from": "gpt", "value": "two"},
    ]);
    assert_eq!(texts(&read(&json!({"conversations": turns}).to_string()).unwrap()[0]).1, two);
}

#[test]
fn masks_that_are_not_understood_are_refused() {
    for (first, expected) in [
        (json!({"weight": 0.5}), "message 2: \"weight\" = 0.5: a message is learnt or not"),
        (json!({"train": "no"}), "message 2: \"train\" = \"no\": a message is learnt or not"),
        (json!({"loss_mask": [0, 1]}), "message 2: \"loss_mask\" = [0,1]: a message is learnt or not"),
        (json!({"mask": 1}), "message 2: \"mask\" = 1 is not supported: in some programs"),
        (json!({"loss_scale": 0.0}), "message 2: \"loss_scale\" = 0.0 is not supported: write \"weight\": 0"),
        (json!({"train_on_turn": false}), "message 2: \"train_on_turn\" = false is not supported"),
        (json!({"ignore_loss": true}), "message 2: \"ignore_loss\" = true is not supported"),
        (json!({"training_detail": [{}]}), "message 2: \"training_detail\" = [{}] is not supported"),
        (json!({"weight": 0, "train": true}), "message 2: \"weight\" and \"train\" contradict each other"),
        (json!({"weight": 0, "masked": false}), "message 2: \"weight\" and \"masked\" contradict each other"),
    ] {
        let refused = read(&masked(&first, &json!({}))).unwrap_err().to_string();
        assert!(refused.contains(expected), "{first}: {refused}");
    }
    let user = json!({"role": "user", "content": "1", "weight": 1});
    let answer = json!({"role": "assistant", "content": "one", "weight": 0});
    for (object, expected) in [
        (json!({"messages": [user, answer]}), "message 1 (\"user\") is to be learnt, and only answers"),
        (json!({"prompt": [user], "completion": [answer]}), "message 1: its mask contradicts its format"),
        (json!({"prompt": [], "completion": [answer]}), "message 1: its mask contradicts its format"),
    ] {
        let refused = read(&object.to_string()).unwrap_err().to_string();
        assert!(refused.contains(expected), "{object}: {refused}");
    }
}

#[test]
fn conversations_without_an_answer_that_is_learnt_are_left_out() {
    let none = masked(&json!({"weight": 0}), &json!({"weight": 0}));
    let some = masked(&json!({}), &json!({}));
    assert_eq!(read(&format!("{none}\n{some}\n{none}")).unwrap().len(), 1);
    assert!(read(&none).unwrap_err().to_string().ends_with("has no conversation"));
}
