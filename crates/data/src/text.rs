//! Micro-batches of text.

use crate::batch::checked_shape;
use crate::bigram::Bigrams;
use crate::order::validation_start;
use crate::{Corpus, Error, MicroBatch, Order, Position, Source, Split, Tokenizer};
use sha2::{Digest, Sha256};

/// Options for cutting a text into micro-batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TextOptions {
    /// Input tokens in a sequence.
    pub context: usize,
    /// Sequences in a micro-batch.
    pub micro_batch: usize,
    /// Seed of the order of training.
    pub seed: u64,
    /// The part of the tokens that is held out at the end, inside (0, 1).
    pub validation_fraction: f64,
    /// Validation micro-batches, spread over what is held out; more than fit once overlap.
    pub validation_micro_batches: u64,
}

/// A corpus as micro-batches: inputs and targets are `u32` of shape \[micro_batch, context\], a target being
/// the token after its input.
#[derive(Debug)]
pub struct TextSource {
    corpus: Corpus,
    tokenizer: Tokenizer,
    options: TextOptions,
    split: Split,
    order: Order,
}

impl TextSource {
    /// Cuts a corpus.
    ///
    /// # Errors
    /// A size that is zero or too large; a fraction that is none; a split too short for one sequence.
    pub fn new(corpus: Corpus, tokenizer: Tokenizer, options: &TextOptions) -> Result<Self, Error> {
        checked_shape(options.micro_batch, options.context)?;
        let tokens = match tokenizer {
            Tokenizer::Bytes => corpus.len(),
        };
        let split = Split::new(tokens, options.validation_fraction, options.context)?;
        let order = Order::new(options.seed, split.train.end, options.context as u64);
        Ok(Self { corpus, tokenizer, options: *options, split, order })
    }

    /// The text itself.
    #[must_use]
    pub fn corpus(&self) -> &Corpus {
        &self.corpus
    }

    /// Tokenizer of the text.
    #[must_use]
    pub fn tokenizer(&self) -> Tokenizer {
        self.tokenizer
    }

    /// Token positions of training and of validation.
    #[must_use]
    pub fn split(&self) -> &Split {
        &self.split
    }

    /// Windows of text in one epoch.
    #[must_use]
    pub fn windows(&self) -> u64 {
        self.order.windows()
    }

    /// Place in training of row `row` of micro-batch `number`.
    #[must_use]
    pub fn position(&self, number: u64, row: usize) -> Position {
        self.order.position(u128::from(number) * self.options.micro_batch as u128 + row as u128)
    }

    /// The entropy of the validation targets under a bigram model of the training split ([`Bigrams`]), in
    /// nats a byte: what a model reaches that looks at one byte only, on the very targets that validation
    /// uses. Reads the whole training split once.
    #[must_use]
    pub fn bigram_entropy(&self) -> f64 {
        match self.tokenizer {
            Tokenizer::Bytes => {
                let model = Bigrams::count(self.corpus.pieces(self.split.train.clone()));
                let rows = self.validation_rows();
                model
                    .entropy((0..rows).map(|row| self.corpus.pieces(self.window(self.validation_start(row)))))
            }
        }
    }

    fn validation_rows(&self) -> u64 {
        self.options.validation_micro_batches.saturating_mul(self.options.micro_batch as u64)
    }

    /// Start in the corpus of validation row `row`.
    fn validation_start(&self, row: u64) -> u64 {
        let held_out = &self.split.validation;
        let tokens = held_out.end - held_out.start;
        held_out.start + validation_start(row, self.validation_rows(), tokens, self.options.context as u64)
    }

    /// The `context` + 1 tokens from `start`.
    fn window(&self, start: u64) -> std::ops::Range<u64> {
        start..start.saturating_add(self.options.context as u64 + 1)
    }

    fn fill(&self, out: &mut MicroBatch, start_of_row: impl Fn(usize) -> u64) -> Result<(), Error> {
        let TextOptions { context, micro_batch, .. } = self.options;
        let inputs = out.inputs.reset_u32(micro_batch, context).chunks_exact_mut(context);
        let targets = out.targets.reset_u32(micro_batch, context).chunks_exact_mut(context);
        for (row, (input, target)) in inputs.zip(targets).enumerate() {
            let window = self.window(start_of_row(row));
            self.corpus.check(window.clone())?;
            let bytes = self.corpus.pieces(window).flatten().copied();
            // The window is one longer than a row: token i is input i and target i − 1.
            for (index, byte) in bytes.enumerate() {
                let token = u32::from(byte);
                if let Some(slot) = input.get_mut(index) {
                    *slot = token;
                }
                if let Some(slot) = index.checked_sub(1).and_then(|before| target.get_mut(before)) {
                    *slot = token;
                }
            }
        }
        Ok(())
    }
}

impl Source for TextSource {
    fn train(&self, number: u64, out: &mut MicroBatch) -> Result<(), Error> {
        self.fill(out, |row| self.split.train.start + self.position(number, row).start)
    }

    fn validation(&self, index: u64, out: &mut MicroBatch) -> Result<(), Error> {
        let count = self.options.validation_micro_batches;
        if index >= count {
            return Err(Error::NoSuchValidation { index, count });
        }
        let first = index.saturating_mul(self.options.micro_batch as u64);
        self.fill(out, |row| self.validation_start(first.saturating_add(row as u64)))
    }

    fn validation_micro_batches(&self) -> u64 {
        self.options.validation_micro_batches
    }

    fn fingerprint(&self) -> String {
        let text = format!("{} {:?} {}", self.tokenizer.name(), self.options, self.corpus.fingerprint());
        format!("{:x}", Sha256::digest(text))
    }
}
