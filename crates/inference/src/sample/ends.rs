//! The tokens that end a text.

use data::Tokenizer;
use serde_json::Value;

use crate::trained::Trained;

/// Files of a folder that name the tokens, the first that does so first.
const FILES: [&str; 2] = ["generation_config.json", "config.json"];
/// The most bytes of such a file.
const MOST_BYTES: u64 = 1 << 24;

/// The tokens that the model's folder names, or else the one between documents. Bytes have none unless
/// `data.separator` states it.
pub(super) fn of(trained: &Trained, tokenizer: &Tokenizer) -> Vec<u32> {
    let config = &trained.config;
    let named = trained.folders().into_iter().find_map(|folder| {
        FILES.iter().find_map(|file| {
            let text = system::input::read_text(&folder.join(file), MOST_BYTES).ok()?;
            tokens(&serde_json::from_str::<Value>(&text).ok()?["eos_token_id"])
        })
    });
    named.unwrap_or_else(|| config.text_end(tokenizer).into_iter().collect())
}

/// One number, or a list of them.
fn tokens(value: &Value) -> Option<Vec<u32>> {
    let token = |value: &Value| value.as_u64().and_then(|token| u32::try_from(token).ok());
    match value {
        Value::Array(all) => all.iter().map(token).collect(),
        one => token(one).map(|token| vec![token]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_token_or_several_end_a_text() {
        let table = [("2", Some(vec![2])), ("[2, 3]", Some(vec![2, 3])), ("null", None), ("[-1]", None)];
        for (text, expected) in table {
            assert_eq!(tokens(&serde_json::from_str(text).unwrap()), expected, "{text}");
        }
    }
}
