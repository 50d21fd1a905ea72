//! Detects errors in a `tokenizer.json` that the library accepts.

use serde_json::Value;

/// Maximum number of token ids. The largest vocabularies have some hundred thousand.
const MOST_TOKENS: usize = 1 << 24;

/// Checks for parts of a `tokenizer.json` that would make the library return random tokens or panic.
pub(super) fn check(described: &Value) -> Result<(), String> {
    let dropout = &described["model"]["dropout"];
    if dropout.as_f64().is_some_and(|dropout| dropout != 0.0) {
        return Err(format!("its model has \"dropout\" = {dropout}, so that tokens are random: write null"));
    }
    match missing_token(&described["post_processor"]) {
        Some(token) => {
            Err(format!("its post_processor names the token \"{token}\", which it does not describe"))
        }
        None => Ok(()),
    }
}

/// Checks the largest token id.
///
/// # Errors
/// A sentence about an id beyond any vocabulary.
pub(super) fn check_number(largest: u32) -> Result<(), String> {
    match (largest as usize) < MOST_TOKENS {
        true => Ok(()),
        false => Err(format!("its largest token has the number {largest}, beyond any vocabulary")),
    }
}

/// Returns a special token that a post-processor uses but does not define; `None` if there is none.
fn missing_token(processor: &Value) -> Option<&str> {
    if let Some(processors) = processor["processors"].as_array() {
        return processors.iter().find_map(missing_token);
    }
    let pieces = ["single", "pair"].into_iter().filter_map(|key| processor[key].as_array()).flatten();
    let mut named = pieces.filter_map(|piece| piece["SpecialToken"]["id"].as_str());
    named.find(|token| processor["special_tokens"].get(token).is_none())
}
