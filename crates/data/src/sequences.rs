//! All tokens of some slices as consecutive sequences, for evaluation. The last sequence of each file may be
//! shorter.

use std::ops::Range;

use crate::{ArrayShape, BatchShape, Error, IGNORED, MicroBatch, Slice, Source};

/// Slices of corpora as validation micro-batches of consecutive sequences. Short sequences are padded with
/// ignored targets.
#[derive(Clone, Debug)]
pub struct Sequences {
    slices: Vec<Slice>,
    /// For each row, the index of the slice and the positions of its inputs.
    rows: Vec<(usize, Range<u64>)>,
    micro_batch: usize,
    context: usize,
    vocabulary: usize,
}

impl Sequences {
    /// Returns sequences of `context` tokens, which are below `vocabulary`, with `micro_batch` sequences per
    /// micro-batch.
    ///
    /// # Errors
    /// A size is 0, or no slice has two tokens.
    pub fn new(
        slices: Vec<Slice>,
        micro_batch: usize,
        context: usize,
        vocabulary: usize,
    ) -> Result<Self, Error> {
        if micro_batch == 0 || context == 0 {
            return Err(Error::BadShape { rows: micro_batch, columns: context });
        }
        let of_slice = |(index, slice): (usize, &Slice)| {
            let of_file = move |file: Range<u64>| {
                // The last token is only a target.
                let end = file.end.max(file.start + 1) - 1;
                (file.start..end)
                    .step_by(context)
                    .map(move |start| (index, start..end.min(start + context as u64)))
            };
            slice.shards().into_iter().flat_map(of_file).collect::<Vec<_>>()
        };
        let rows: Vec<_> = slices.iter().enumerate().flat_map(of_slice).collect();
        if rows.is_empty() {
            let tokens = slices.iter().map(Slice::tokens).sum();
            let needed = 2;
            return Err(Error::TooShort { split: "validation", tokens, total: tokens, context: 1, needed });
        }
        Ok(Sequences { slices, rows, micro_batch, context, vocabulary })
    }
}

impl Source for Sequences {
    fn train(&self, number: u64, out: &mut MicroBatch) -> Result<(), Error> {
        self.validation(number % self.validation_micro_batches(), out)
    }

    fn validation(&self, index: u64, out: &mut MicroBatch) -> Result<(), Error> {
        let Sequences { micro_batch, context, vocabulary, .. } = *self;
        let count = self.validation_micro_batches();
        if index >= count {
            return Err(Error::NoSuchValidation { index, count });
        }
        let first = index as usize * micro_batch;
        let inputs = out.inputs.reset_u32(&[micro_batch, context]);
        let targets = out.targets.reset_u32(&[micro_batch, context]);
        inputs.fill(0);
        targets.fill(IGNORED);
        let mut window = vec![0; context + 1];
        let rows = inputs.chunks_exact_mut(context).zip(targets.chunks_exact_mut(context));
        for ((inputs, targets), (slice, range)) in rows.zip(&self.rows[first..]) {
            let length = (range.end - range.start) as usize;
            let corpus = &self.slices[*slice].corpus;
            let window = &mut window[..=length];
            corpus.read(range.start, window)?;
            if let Some(offset) = window.iter().position(|token| *token as usize >= vocabulary) {
                let (path, position) = corpus.locate(range.start + offset as u64);
                let token = window[offset];
                return Err(Error::BeyondVocabulary { path, position, token, vocabulary, advice: "" });
            }
            inputs[..length].copy_from_slice(&window[..length]);
            targets[..length].copy_from_slice(&window[1..]);
        }
        out.documents = None;
        Ok(())
    }

    fn shape(&self) -> BatchShape {
        let tokens = ArrayShape::of_u32([self.micro_batch, self.context]);
        BatchShape { inputs: tokens.clone(), targets: tokens }
    }

    fn validation_micro_batches(&self) -> u64 {
        self.rows.len().div_ceil(self.micro_batch) as u64
    }
}
