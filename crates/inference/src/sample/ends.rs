//! The tokens that end a text.

use data::{SpecialTokens, Tokenizer};
use run::{Result, RunError};

use crate::trained::Trained;

/// Files of a folder that name the tokens, the first that does so first.
const FILES: [&str; 2] = ["generation_config.json", "config.json"];

/// The tokens that the model's folder names, or the files of the tokenizer, or else those at the end of texts
/// of its training. Bytes have none unless `data.separator` states it.
///
/// # Errors
/// A file of the model's folder that is no JSON object, or whose tokens are no numbers.
pub(super) fn of(trained: &Trained, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
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
