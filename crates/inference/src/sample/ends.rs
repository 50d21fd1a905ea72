//! The tokens that end a text.

use data::{SpecialTokens, Tokenizer};
use run::{Result, RunError};

use crate::trained::Trained;

/// Files of a folder that may name end tokens, in order of precedence.
const FILES: [&str; 2] = ["generation_config.json", "config.json"];

/// Returns the end tokens named by the model's folder, or by the tokenizer's files, or else those that ended
/// texts in training. The byte tokenizer has none unless `data.separator` sets one.
///
/// # Errors
/// A file of the model's folder is not a JSON object, or its tokens are not numbers.
pub(super) fn end_tokens(trained: &Trained, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    for folder in trained.folders() {
        for file in FILES {
            let path = folder.join(file);
            let named = SpecialTokens::generation_ends_in(&path);
            let named = named.map_err(|error| RunError::Refused(error.to_string()))?;
            if !named.is_empty() {
                return Ok(named);
            }
        }
    }
    let own = &tokenizer.special_tokens().generation_ends;
    Ok(if own.is_empty() { trained.config.text_ends(tokenizer) } else { own.clone() })
}
