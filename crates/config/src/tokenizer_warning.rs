//! Compares the tokenizer with that of the model's folder.

use data::Tokenizer;
use nn::Examples;
use system::numbers::grouped;

use crate::choices::DataKind;
use crate::paths::TOKENIZER;
use crate::run_config::RunConfig;

/// Maximum number of padding tokens in a small vocabulary.
const MOST_PADDING: usize = 256;

impl RunConfig {
    /// Returns a warning if the model of `model.from` probably learnt other tokens: its folder has another
    /// tokenizer, or none and a much larger vocabulary.
    #[must_use]
    pub fn tokenizer_warning(&self) -> Option<String> {
        let makes_tokens = !matches!(self.data.kind, DataKind::Images | DataKind::Synthetic);
        let folder = self.model.folder().filter(|_| makes_tokens && self.tokenizer != Tokenizer::None)?;
        let name = self.tokenizer.name();
        let tokens = self.tokenizer.vocabulary();
        let file = folder.join(TOKENIZER);
        if !file.is_file() {
            let Examples::Tokens { vocabulary, .. } = self.model.examples() else { return None };
            // Vocabularies are padded, by little.
            let unused = vocabulary.saturating_sub(tokens);
            let is_other = unused > MOST_PADDING && unused > vocabulary / 8;
            return is_other.then(|| {
                format!(
                    "data.tokenizer = \"{name}\" has {} tokens and the model of {} has {}: its folder has no \
                     {TOKENIZER}, and other tokens mean nothing to it",
                    grouped(tokens as u64),
                    folder.display(),
                    grouped(vocabulary as u64)
                )
            });
        }
        let there = Tokenizer::from_name(&file.to_string_lossy()).ok()?;
        // Tokens that were added come after those of the model.
        let is_grown = self.model.resizes_vocabulary() && has_all(&self.tokenizer, &there);
        if is_grown || is_same(&there, &self.tokenizer) {
            return None;
        }
        let [here, of_model] = [tokens, there.vocabulary()].map(|tokens| grouped(tokens as u64));
        Some(format!(
            "data.tokenizer = \"{name}\", with {here} tokens, is not the tokenizer of the model, {}, with \
             {of_model}: the model has learnt other tokens",
            file.display()
        ))
    }
}

/// Returns whether two tokenizers come from the same file, or decode every token to the same text.
fn is_same(one: &Tokenizer, other: &Tokenizer) -> bool {
    one.identity() == other.identity() || one.vocabulary() == other.vocabulary() && has_all(one, other)
}

/// Returns whether `one` has every token of `other` under the same id.
fn has_all(one: &Tokenizer, other: &Tokenizer) -> bool {
    let spelling = |tokenizer: &Tokenizer, token: usize| tokenizer.decode(&[token as u32]);
    one.vocabulary() >= other.vocabulary()
        && (0..other.vocabulary()).all(|token| spelling(one, token) == spelling(other, token))
}
