//! Provides micro-batches of tokens.

mod figures;

use crate::batch::{checked_shape, mark_tokens};
use crate::identity::CorpusIdentity;
use crate::mixture::{Mixture, shares};
use crate::order::{OrderKind, Position};
use crate::packing::PackingFigures;
use crate::slice::{Slice, Split};
use crate::source::read_targets;
use crate::stream::{Stream, TokenRun};
use crate::token_options::{Documents, IGNORED, TokenOptions};
use crate::{ArrayShape, BatchShape, Error, MicroBatch, MicroBatchId, Source, Tokenizer};
use sha2::{Digest, Sha256};
use std::path::PathBuf;
use std::sync::OnceLock;
use system::numbers::hexadecimal;

/// Advice for a tokenizer with more tokens than the model.
const MORE_ROWS: &str = ": the tokenizer has more, for which model.resize_vocabulary = true adds rows to the embedding of model.from";
/// Number of tokens at the start of a corpus that are checked against the vocabulary when it is opened.
const LOOKED_AT: u64 = 4096;

/// One source of a mixture.
#[derive(Clone, Debug)]
pub struct Component {
    /// Training and validation tokens of the source.
    pub split: Split,
    /// Weight of the source relative to others.
    pub weight: f64,
}

/// Provides corpora as micro-batches. Inputs and targets are `u32` \[micro_batch, context\], and a target is
/// the token after its input.
#[derive(Debug)]
pub struct TokenSource {
    mixture: Mixture,
    components: Vec<Cut>,
    tokenizer: Tokenizer,
    options: TokenOptions,
    bytes_per_token: OnceLock<Option<f64>>,
    training_bytes_per_token: OnceLock<Option<f64>>,
}

/// A mixture's source, divided into sequences.
#[derive(Debug)]
struct Cut {
    split: Split,
    training: Stream,
    validation: Stream,
    /// Index of the source's first validation sequence, and their number.
    validated: (u64, u64),
}

impl TokenSource {
    /// Divides corpora into sequences. Packing reads all of them.
    ///
    /// # Errors
    /// There is no component, or a weight is invalid; a size is zero or too large; a split is too short for
    /// one sequence, or in sequential order for a micro-batch; a token near the start exceeds the vocabulary.
    pub fn new(
        components: Vec<Component>,
        tokenizer: Tokenizer,
        options: &TokenOptions,
    ) -> Result<Self, Error> {
        checked_shape(options.micro_batch, options.context)?;
        let weights: Vec<f64> = components.iter().map(|component| component.weight).collect();
        let mixture = Mixture::new(options.seed, &weights)?;
        let rows = options.validation_micro_batches.saturating_mul(options.micro_batch as u64);
        let mut before = 0;
        let cuts = components.into_iter().zip(shares(&weights, rows)).map(|(component, own)| {
            let first = before;
            before += own;
            Cut::new(component.split, (first, own), options)
        });
        let components = cuts.collect::<Result<Vec<_>, _>>()?;
        let options = *options;
        let bytes_per_token = OnceLock::new();
        let training_bytes_per_token = OnceLock::new();
        let source =
            Self { mixture, components, tokenizer, options, bytes_per_token, training_bytes_per_token };
        source.check_vocabulary()?;
        Ok(source)
    }

    /// Checks the first tokens of each split against the vocabulary. If the tokenizer has more tokens than
    /// the model, checks all, because the data may still use none of the others.
    fn check_vocabulary(&self) -> Result<(), Error> {
        let is_larger = self.tokenizer.vocabulary() > self.options.vocabulary;
        let mut tokens = vec![0; LOOKED_AT as usize];
        for slice in self.slices() {
            let end =
                if is_larger { slice.range.end } else { slice.range.end.min(slice.range.start + LOOKED_AT) };
            let mut start = slice.range.start;
            while start < end {
                let count = (end - start).min(LOOKED_AT) as usize;
                self.read_tokens(slice, start, &mut tokens[..count])?;
                start += count as u64;
            }
        }
        match self.options.documents {
            Some(documents) if documents.separator as usize >= self.options.vocabulary => {
                Err(Error::BadSeparator {
                    separator: documents.separator,
                    vocabulary: self.options.vocabulary,
                })
            }
            _ => Ok(()),
        }
    }

    /// Returns the tokenizer of the corpora.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Returns the training and validation tokens of each component.
    pub fn splits(&self) -> impl Iterator<Item = &Split> {
        self.components.iter().map(|cut| &cut.split)
    }

    fn slices(&self) -> impl Iterator<Item = &Slice> {
        self.splits().flat_map(|split| [&split.training, &split.validation])
    }

    /// Returns statistics of packing the training tokens, over all components; `None` if documents are not
    /// packed.
    #[must_use]
    pub fn packing(&self) -> Option<PackingFigures> {
        let figures = self.components.iter().map(|cut| cut.training.packing());
        figures.sum::<Option<PackingFigures>>()
    }

    /// Returns the number of sequences in one epoch of all components.
    #[must_use]
    pub fn windows(&self) -> u64 {
        self.components.iter().map(|cut| cut.training.sequences()).sum()
    }

    /// Returns the number of non-overlapping validation sequences of each component.
    #[must_use]
    pub fn validation_sequences(&self) -> Vec<u64> {
        self.components.iter().map(|cut| cut.validation.validation_sequences()).collect()
    }

    /// Returns (component, position in its training order) of row `row` in micro-batch `number`.
    #[must_use]
    pub fn position(&self, number: u64, row: usize) -> (usize, Position) {
        let (component, sequence) = self.locate(number, row);
        (component, self.components[component].training.training(sequence).0)
    }

    /// Returns (component, number of the sequence in it) of row `row` in micro-batch `number`.
    fn locate(&self, number: u64, row: usize) -> (usize, u128) {
        let sequence = u128::from(number) * self.options.micro_batch as u128 + row as u128;
        match self.options.order {
            OrderKind::Shuffled => self.mixture.locate(sequence),
            OrderKind::Sequential => self.mixture.place_in_order(sequence),
        }
    }

    /// Returns the identity of the training tokens.
    pub fn identity(&self) -> Result<CorpusIdentity, Error> {
        CorpusIdentity::of_all(self.splits().map(|split| &*split.training.corpus))
    }

    /// Reads all training tokens and returns their SHA-256.
    pub fn fingerprint(&self) -> Result<String, Error> {
        let each = self.splits().map(|split| split.training.corpus.fingerprint());
        let each = each.collect::<Result<Vec<_>, _>>()?;
        match each.as_slice() {
            [one] => Ok(one.clone()),
            all => Ok(hexadecimal(&Sha256::digest(all.join(" ")))),
        }
    }

    /// Returns (component, tokens) of row `row` in training micro-batch `number`.
    fn training_row(&self, number: u64, row: usize) -> (&Cut, TokenRun) {
        let (component, sequence) = self.locate(number, row);
        let cut = &self.components[component];
        (cut, cut.training.training(sequence).1)
    }

    /// Returns (component, tokens in its corpus) of validation sequence `row`, counted over all components.
    fn validation_row(&self, row: u64) -> (&Cut, TokenRun) {
        let own = self.components.partition_point(|cut| cut.validated.0 + cut.validated.1 <= row);
        let cut = &self.components[own.min(self.components.len() - 1)];
        let (before, count) = cut.validated;
        (cut, cut.validation.validation(row.saturating_sub(before), count))
    }

    /// Fills `out` with the tokens from `start` on.
    ///
    /// # Errors
    /// Reading fails, or a token exceeds the vocabulary.
    fn read_tokens(&self, slice: &Slice, start: u64, out: &mut [u32]) -> Result<(), Error> {
        slice.corpus.read(start, out)?;
        let vocabulary = self.options.vocabulary;
        match out.iter().position(|token| *token as usize >= vocabulary) {
            None => Ok(()),
            Some(index) => {
                let (path, position) = slice.corpus.locate(start + index as u64);
                let advice = match self.tokenizer.vocabulary() > vocabulary {
                    true => MORE_ROWS,
                    false => "",
                };
                Err(Error::BeyondVocabulary { path, position, token: out[index], vocabulary, advice })
            }
        }
    }

    /// Fills the window of one row with the tokens of `run` and the one after it, as far as they exist, and
    /// then with the separator. Returns the number of inputs read.
    fn window(&self, slice: &Slice, run: TokenRun, window: &mut [u32]) -> Result<usize, Error> {
        let inputs = run.tokens.min(window.len() - 1);
        let there = (inputs as u64 + 1).min(slice.range.end - run.start) as usize;
        self.read_tokens(slice, run.start, &mut window[..there])?;
        let padding = self.options.documents.map_or(0, |documents| documents.separator);
        window[there..].fill(padding);
        Ok(inputs)
    }

    /// Fills `out` with the runs that `run_of_row` returns for each row.
    fn fill<'a>(
        &self,
        out: &mut MicroBatch,
        run_of_row: impl Fn(usize) -> (&'a Slice, TokenRun),
    ) -> Result<(), Error> {
        let TokenOptions { context, micro_batch, ignored, .. } = self.options;
        let inputs = out.inputs.reset_u32(&[micro_batch, context]).chunks_exact_mut(context);
        let targets = out.targets.reset_u32(&[micro_batch, context]).chunks_exact_mut(context);
        let mut window = vec![0; context + 1];
        let mut lengths = Vec::with_capacity(micro_batch);
        for (row, (input, target)) in inputs.zip(targets).enumerate() {
            let (slice, run) = run_of_row(row);
            let count = self.window(slice, run, &mut window)?;
            lengths.push(count);
            input.copy_from_slice(&window[..context]);
            // The rest of a packed sequence is padding.
            input[count..].fill(window[context]);
            target[..count].copy_from_slice(&window[1..=count]);
            target[count..].fill(IGNORED);
            if let Some(ignored) = ignored {
                target.iter_mut().filter(|token| **token == ignored).for_each(|token| *token = IGNORED);
            }
        }
        if self.options.documents.is_some_and(|documents| documents.marks_tokens) {
            mark_tokens(&mut out.tokens, [micro_batch, context], lengths.into_iter());
        }
        self.mark_documents(out)
    }

    /// Writes the start of each token's document, if requested.
    fn mark_documents(&self, out: &mut MicroBatch) -> Result<(), Error> {
        let TokenOptions { context, micro_batch, documents, .. } = self.options;
        let Some(Documents { separator, masks: true, .. }) = documents else {
            out.documents = None;
            return Ok(());
        };
        let starts = out.documents.get_or_insert_default().reset_u32(&[micro_batch, context]);
        let rows = out.inputs.tokens()?.chunks_exact(context);
        for (input, starts) in rows.zip(starts.chunks_exact_mut(context)) {
            let mut first = 0;
            for (position, (token, start)) in input.iter().zip(starts).enumerate() {
                if *token == separator {
                    first = position as u32;
                }
                *start = first;
            }
        }
        Ok(())
    }
}

impl Cut {
    fn new(split: Split, validated: (u64, u64), options: &TokenOptions) -> Result<Self, Error> {
        split.check(options.context)?;
        let training = Stream::new(&split.training, options)?;
        // Validation needs no whole micro-batch of one shard.
        let validation = Stream::new(&split.validation, &TokenOptions { micro_batch: 1, ..*options })?;
        Ok(Self { split, training, validation, validated })
    }
}

impl Source for TokenSource {
    fn token_share(&self) -> f64 {
        let context = self.options.context as u64;
        let share = |figures: PackingFigures| figures.tokens as f64 / (figures.sequences * context) as f64;
        self.packing().map_or(1.0, share)
    }

    fn train(&self, number: u64, out: &mut MicroBatch) -> Result<(), Error> {
        self.fill(out, |row| {
            let (cut, run) = self.training_row(number, row);
            (&cut.split.training, run)
        })
    }

    fn validation(&self, index: u64, out: &mut MicroBatch) -> Result<(), Error> {
        let count = self.options.validation_micro_batches;
        if index >= count {
            return Err(Error::NoSuchValidation { index, count });
        }
        let first = index.saturating_mul(self.options.micro_batch as u64);
        self.fill(out, |row| {
            let (cut, run) = self.validation_row(first.saturating_add(row as u64));
            (&cut.split.validation, run)
        })
    }

    fn targets(&self, id: MicroBatchId) -> Result<u64, Error> {
        if self.options.ignored.is_some() {
            return read_targets(self, id);
        }
        // Only the padding at the end of a packed sequence is ignored.
        let TokenOptions { context, micro_batch, .. } = self.options;
        let tokens = |row: usize| match id {
            MicroBatchId::Training(number) => Ok(self.training_row(number, row).1.tokens),
            MicroBatchId::Validation(index) => {
                let first = index.saturating_mul(micro_batch as u64);
                Ok(self.validation_row(first.saturating_add(row as u64)).1.tokens)
            }
            MicroBatchId::Pairs(_) => Err(Error::NotOfPairs),
        };
        (0..micro_batch).map(|row| Ok(tokens(row)?.min(context) as u64)).sum()
    }

    fn training_sequences(&self) -> Option<u64> {
        Some(self.windows())
    }

    fn file_of(&self, id: MicroBatchId) -> Option<PathBuf> {
        let (slice, run) = match id {
            MicroBatchId::Training(number) => {
                let (cut, run) = self.training_row(number, 0);
                (&cut.split.training, run)
            }
            MicroBatchId::Validation(index) => {
                let (cut, run) = self.validation_row(index.saturating_mul(self.options.micro_batch as u64));
                (&cut.split.validation, run)
            }
            MicroBatchId::Pairs(_) => return None,
        };
        Some(slice.corpus.locate(run.start).0)
    }

    fn shape(&self) -> BatchShape {
        let TokenOptions { context: columns, micro_batch: rows, .. } = self.options;
        let tokens = ArrayShape::of_u32([rows, columns]);
        BatchShape { inputs: tokens.clone(), targets: tokens }
    }

    fn packs_documents(&self) -> bool {
        self.options.documents.is_some_and(|documents| documents.masks)
    }

    fn validation_micro_batches(&self) -> u64 {
        self.options.validation_micro_batches
    }
}
