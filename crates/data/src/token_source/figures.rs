//! Reference figures for losses: the entropy of a bigram model, and bytes per token.

use super::TokenSource;
use crate::bigram::Bigrams;
use crate::identity::pieces;
use crate::slice::Slice;
use crate::token_options::IGNORED;
use crate::{Error, MicroBatch, MicroBatchId, Source, Tokenizer};
use std::sync::OnceLock;

/// (number of samples, tokens per sample) of the training split that the bigram model counts: a megabyte in
/// all.
const COUNTED: (u64, u64) = (64, 16_384);
/// Maximum number of validation tokens on which the bigram model is evaluated.
const JUDGED: u64 = 4 << 20;
/// Number of training tokens from which the mean length of a token is estimated.
const SAMPLED: usize = 1 << 20;
const MOST_SAMPLES: usize = 256;

impl TokenSource {
    /// Returns the entropy of the validation targets under a bigram model of the training split
    /// ([`Bigrams`]), in nats per byte. This is the loss of a model that sees only one byte. The model counts
    /// the training split, or a megabyte spread evenly over a long one. `None` unless tokens are bytes of a
    /// single text, or if validation reads more than four megabytes.
    pub fn bigram_entropy(&self) -> Result<Option<f64>, Error> {
        let ([cut], Tokenizer::Bytes, None) =
            (self.components.as_slice(), &self.tokenizer, self.options.documents)
        else {
            return Ok(None);
        };
        if cut.validated.1.saturating_mul(self.options.context as u64) > JUDGED {
            return Ok(None);
        }
        let mut model = Bigrams::default();
        let Slice { corpus, range } = &cut.split.training;
        for (start, count) in pieces(range.end - range.start, COUNTED.0, COUNTED.1) {
            let piece = range.start + start..range.start + start + count;
            corpus.scan(piece, |tokens| model.count(tokens.iter().map(|token| *token as u8)))?;
        }
        let mut window = vec![0; self.options.context + 1];
        let (mut sum, mut count) = (0.0, 0_u64);
        for row in 0..cut.validated.1 {
            let run = cut.validation.validation(row, cut.validated.1);
            self.read_tokens(&cut.split.validation, run.start, &mut window)?;
            let bytes: Vec<u8> = window.iter().map(|token| *token as u8).collect();
            sum += model.surprise(&bytes);
            count += bytes.len() as u64 - 1;
        }
        Ok(Some(sum / count as f64))
    }

    /// Returns the mean bytes of text per validation target that is not ignored; `None` if tokens do not
    /// consist of bytes. The first call reads the validation data.
    pub fn bytes_per_token(&self) -> Result<Option<f64>, Error> {
        let all = 0..self.options.validation_micro_batches;
        self.bytes_per_target(&self.bytes_per_token, all.map(MicroBatchId::Validation))
    }

    /// Returns the mean bytes of text per training target that is not ignored, over about the first million
    /// tokens; `None` if tokens do not consist of bytes. The first call reads them.
    pub fn training_bytes_per_token(&self) -> Result<Option<f64>, Error> {
        let tokens = self.options.micro_batch.saturating_mul(self.options.context);
        let count = (SAMPLED / tokens).clamp(1, MOST_SAMPLES) as u64;
        self.bytes_per_target(&self.training_bytes_per_token, (0..count).map(MicroBatchId::Training))
    }

    /// Returns the mean bytes of text per target of `ids` that is not ignored. `cell` caches the result.
    fn bytes_per_target(
        &self,
        cell: &OnceLock<Option<f64>>,
        ids: impl Iterator<Item = MicroBatchId>,
    ) -> Result<Option<f64>, Error> {
        if let Some(mean) = cell.get() {
            return Ok(*mean);
        }
        let Some(lengths) = self.tokenizer.byte_lengths() else { return Ok(None) };
        let mut batch = MicroBatch::default();
        let mut bytes = 0_u64;
        let mut count = 0_u64;
        for id in ids {
            self.read(id, &mut batch)?;
            for target in batch.targets.tokens()?.iter().filter(|target| **target != IGNORED) {
                // Shards may be of another tokenizer than the configuration names.
                let Some(length) = lengths.get(*target as usize) else {
                    return Ok(*cell.get_or_init(|| None));
                };
                bytes += u64::from(*length);
                count += 1;
            }
        }
        Ok(*cell.get_or_init(|| (bytes > 0).then(|| bytes as f64 / count as f64)))
    }
}
