//! Micro-batches of tokens.

use crate::batch::checked_shape;
use crate::bigram::Bigrams;
use crate::identity::{CorpusIdentity, pieces};
use crate::order::{OrderKind, Position};
use crate::stream::{Order, Slice, Split, validated_at};
use crate::{ArrayShape, BatchShape, Error, MicroBatch, Source, Tokenizer};

/// Tokens at the start of a corpus that are held against the vocabulary when it is opened.
const LOOKED_AT: u64 = 4096;

/// Pieces of the training split that the bigram model counts, and the tokens in each: a megabyte in all.
const COUNTED: (u64, u64) = (64, 16_384);
/// Most validation tokens that the bigram model is judged on.
const JUDGED: u64 = 4 << 20;

/// Options for cutting tokens into micro-batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenOptions {
    /// Input tokens in a sequence.
    pub context: usize,
    /// Sequences in a micro-batch.
    pub micro_batch: usize,
    /// Seed of the order of training.
    pub seed: u64,
    /// The order of training.
    pub order: OrderKind,
    /// Validation micro-batches, spread over what is held out; more than fit once overlap.
    pub validation_micro_batches: u64,
    /// Number of tokens that exist; all that are read are below.
    pub vocabulary: usize,
}

/// A corpus as micro-batches: inputs and targets are `u32` of shape \[micro_batch, context\], a target being
/// the token after its input.
#[derive(Debug)]
pub struct TokenSource {
    split: Split,
    tokenizer: Tokenizer,
    options: TokenOptions,
    order: Order,
}

impl TokenSource {
    /// Cuts a corpus.
    ///
    /// # Errors
    /// A size that is zero or too large; a part too short for one sequence, or in sequential order for a
    /// micro-batch; a token beyond the vocabulary near the start.
    pub fn new(split: Split, tokenizer: Tokenizer, options: &TokenOptions) -> Result<Self, Error> {
        let TokenOptions { context, micro_batch, seed, order, .. } = *options;
        checked_shape(micro_batch, context)?;
        split.check(context)?;
        let order = Order::of(order, &split.training, seed, context, micro_batch)?;
        let source = Self { split, tokenizer, options: *options, order };
        for slice in [&source.split.training, &source.split.validation] {
            let mut tokens = vec![0; slice.tokens().min(LOOKED_AT) as usize];
            source.read(slice, slice.range.start, &mut tokens)?;
        }
        Ok(source)
    }

    /// Tokenizer of the corpus.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The tokens of training and of validation.
    #[must_use]
    pub fn split(&self) -> &Split {
        &self.split
    }

    /// Sequences in one epoch.
    #[must_use]
    pub fn windows(&self) -> u64 {
        self.order.windows()
    }

    /// Place in training of row `row` of micro-batch `number`.
    #[must_use]
    pub fn position(&self, number: u64, row: usize) -> Position {
        let sequence = u128::from(number) * self.options.micro_batch as u128 + row as u128;
        self.order.position(&self.split.training, sequence)
    }

    /// The identity of what is trained on.
    ///
    /// # Errors
    /// A file that was changed or cannot be read.
    pub fn identity(&self) -> Result<CorpusIdentity, Error> {
        CorpusIdentity::of(&self.split.training.corpus)
    }

    /// The SHA-256 of what is trained on. Reads all of it.
    ///
    /// # Errors
    /// A file that was changed or cannot be read.
    pub fn fingerprint(&self) -> Result<String, Error> {
        self.split.training.corpus.fingerprint()
    }

    /// The entropy of the validation targets under a bigram model of the training split ([`Bigrams`]), in
    /// nats a byte: what a model reaches that looks at one byte only, on the very targets that validation
    /// uses. It counts the training split, or of a long one a megabyte spread evenly. `None` unless tokens
    /// are bytes, and where validation reads more than four megabytes.
    ///
    /// # Errors
    /// A file that was changed or cannot be read.
    pub fn bigram_entropy(&self) -> Result<Option<f64>, Error> {
        let judged = self.validation_rows().saturating_mul(self.options.context as u64);
        if self.tokenizer != Tokenizer::Bytes || judged > JUDGED {
            return Ok(None);
        }
        let mut model = Bigrams::default();
        let Slice { corpus, range } = &self.split.training;
        for (start, count) in pieces(range.end - range.start, COUNTED.0, COUNTED.1) {
            let piece = range.start + start..range.start + start + count;
            corpus.scan(piece, |tokens| model.count(tokens.iter().map(|token| *token as u8)))?;
        }
        let mut window = vec![0; self.options.context + 1];
        let (mut sum, mut count) = (0.0, 0_u64);
        for row in 0..self.validation_rows() {
            self.read(&self.split.validation, self.validation_start(row), &mut window)?;
            let bytes: Vec<u8> = window.iter().map(|token| *token as u8).collect();
            sum += model.surprise(&bytes);
            count += bytes.len() as u64 - 1;
        }
        Ok(Some(sum / count as f64))
    }

    fn validation_rows(&self) -> u64 {
        self.options.validation_micro_batches.saturating_mul(self.options.micro_batch as u64)
    }

    /// Start in its corpus of validation row `row`.
    fn validation_start(&self, row: u64) -> u64 {
        let TokenOptions { order, context, .. } = self.options;
        validated_at(order, &self.split.validation, row, self.validation_rows(), context)
    }

    /// Fills `out` with the tokens from `start`. Errors: those of reading, and a token that does not exist.
    fn read(&self, slice: &Slice, start: u64, out: &mut [u32]) -> Result<(), Error> {
        slice.corpus.read(start, out)?;
        let vocabulary = self.options.vocabulary;
        match out.iter().position(|token| *token as usize >= vocabulary) {
            None => Ok(()),
            Some(index) => {
                let (path, position) = slice.corpus.locate(start + index as u64);
                Err(Error::BeyondVocabulary { path, position, token: out[index], vocabulary })
            }
        }
    }

    fn fill(
        &self,
        slice: &Slice,
        out: &mut MicroBatch,
        start_of_row: impl Fn(usize) -> u64,
    ) -> Result<(), Error> {
        let TokenOptions { context, micro_batch, .. } = self.options;
        let inputs = out.inputs.reset_u32(micro_batch, context).chunks_exact_mut(context);
        let targets = out.targets.reset_u32(micro_batch, context).chunks_exact_mut(context);
        let mut window = vec![0; context + 1];
        for (row, (input, target)) in inputs.zip(targets).enumerate() {
            self.read(slice, start_of_row(row), &mut window)?;
            input.copy_from_slice(&window[..context]);
            target.copy_from_slice(&window[1..]);
        }
        Ok(())
    }
}

impl Source for TokenSource {
    fn train(&self, number: u64, out: &mut MicroBatch) -> Result<(), Error> {
        self.fill(&self.split.training, out, |row| self.position(number, row).start)
    }

    fn validation(&self, index: u64, out: &mut MicroBatch) -> Result<(), Error> {
        let count = self.options.validation_micro_batches;
        if index >= count {
            return Err(Error::NoSuchValidation { index, count });
        }
        let first = index.saturating_mul(self.options.micro_batch as u64);
        self.fill(&self.split.validation, out, |row| self.validation_start(first.saturating_add(row as u64)))
    }

    fn shape(&self) -> BatchShape {
        let TokenOptions { context: columns, micro_batch: rows, .. } = self.options;
        let tokens = ArrayShape { rows, columns, floats: false };
        BatchShape { inputs: tokens, targets: tokens }
    }

    fn validation_micro_batches(&self) -> u64 {
        self.options.validation_micro_batches
    }
}
