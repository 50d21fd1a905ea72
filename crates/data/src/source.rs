//! Sources of micro-batches.

use crate::step_lengths::StepLengths;
use crate::{BatchShape, Error, IGNORED, MicroBatch, Normalisation};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// The number of a micro-batch of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MicroBatchId {
    /// One of [`Source::train`].
    Training(u64),
    /// One of [`Source::validation`].
    Validation(u64),
    /// One of [`Source::pairs_in_order`].
    Pairs(u64),
}

impl fmt::Display for MicroBatchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Training(number) => write!(f, "micro-batch {number} of training"),
            Self::Validation(number) => write!(f, "micro-batch {number} of validation"),
            Self::Pairs(number) => write!(f, "micro-batch {number} of all pairs"),
        }
    }
}

/// Reads a micro-batch, and returns the number of its targets that are not [`IGNORED`].
pub(crate) fn read_targets<S: Source + ?Sized>(source: &S, id: MicroBatchId) -> Result<u64, Error> {
    let mut batch = MicroBatch::default();
    source.read(id, &mut batch)?;
    Ok(batch.targets.tokens()?.iter().filter(|target| **target != IGNORED).count() as u64)
}

/// Returns the shapes of micro-batch `id` of a source of `shape` whose training sequences have these lengths.
/// `is_pairs`: whether two sequences are one sample.
pub(crate) fn shape_in_step(
    shape: BatchShape,
    lengths: &StepLengths,
    id: MicroBatchId,
    is_pairs: bool,
) -> BatchShape {
    let MicroBatchId::Training(number) = id else { return shape };
    let rows = shape.inputs.extents.first().copied().unwrap_or_default();
    let samples = if is_pairs { rows / 2 } else { rows };
    BatchShape::of_tokens(rows, lengths.length_of(number, samples))
}

/// A source of micro-batches, each a pure function of its number. Shared by the ranks of a process.
///
/// Every micro-batch of a source has the same shapes, unless its training sequences have
/// [lengths by step](Source::lengths). The arrays of `out` are overwritten; if they have these
/// shapes already, nothing is allocated.
pub trait Source: Send + Sync {
    /// Fills `out` with training micro-batch `number`, counted from the start of training over all ranks:
    /// micro-batch m of step s is number s · (micro-batches in a step) + m.
    fn train(&self, number: u64, out: &mut MicroBatch) -> Result<(), Error>;

    /// Fills `out` with validation micro-batch `index`: the same at every validation and for every seed, from
    /// data that training never sees.
    ///
    /// # Errors
    /// [`Error::NoSuchValidation`] if `index` is not below [`Source::validation_micro_batches`].
    fn validation(&self, index: u64, out: &mut MicroBatch) -> Result<(), Error>;

    /// Number of pairs of answers, if sequences are pairs: of training, then of validation.
    fn pairs(&self) -> Option<u64> {
        None
    }

    /// Fills `out` with the pairs of answers from `index` times those of a micro-batch on, in the order of
    /// their numbers; after the last comes the first.
    ///
    /// # Errors
    /// A source without pairs.
    fn pairs_in_order(&self, index: u64, out: &mut MicroBatch) -> Result<(), Error> {
        let _ = (index, out);
        Err(Error::NotOfPairs)
    }

    /// Fills `out` with a micro-batch of training, of validation or of all pairs.
    fn read(&self, id: MicroBatchId, out: &mut MicroBatch) -> Result<(), Error> {
        match id {
            MicroBatchId::Training(number) => self.train(number, out),
            MicroBatchId::Validation(index) => self.validation(index, out),
            MicroBatchId::Pairs(index) => self.pairs_in_order(index, out),
        }
    }

    /// Number of targets of a micro-batch over whose losses a mean is made: those that are not
    /// [`IGNORED`](crate::IGNORED). Reads the micro-batch, unless the source knows their number.
    ///
    /// # Errors
    /// As for [`Source::read`]; targets that are no tokens.
    fn targets(&self, id: MicroBatchId) -> Result<u64, Error> {
        read_targets(self, id)
    }

    /// Number of inputs of a micro-batch that are tokens, and not padding.
    fn tokens(&self, id: MicroBatchId) -> Result<u64, Error> {
        let mut batch = MicroBatch::default();
        self.read(id, &mut batch)?;
        let inputs = batch.inputs.tokens()?.len() as u64;
        match &batch.tokens {
            Some(marks) => Ok(marks.tokens()?.iter().map(|mark| u64::from(*mark)).sum()),
            None => Ok(inputs),
        }
    }

    /// Returns the file that holds the first token of a micro-batch, if there are files.
    fn file_of(&self, id: MicroBatchId) -> Option<PathBuf> {
        let _ = id;
        None
    }

    /// Returns whether reading a micro-batch takes time, so that reading ahead pays.
    fn takes_time(&self) -> bool {
        true
    }

    /// Returns whether micro-batches contain the starts of documents ([`MicroBatch::documents`]).
    fn packs_documents(&self) -> bool {
        false
    }

    /// Shapes of every micro-batch, which a plan needs; of training with lengths by step, of its longest
    /// sequences. Reads no data.
    fn shape(&self) -> BatchShape;

    /// Shapes of a micro-batch.
    fn shape_of(&self, id: MicroBatchId) -> BatchShape {
        match self.lengths() {
            Some(lengths) => shape_in_step(self.shape(), lengths, id, self.pairs().is_some()),
            None => self.shape(),
        }
    }

    /// The lengths of training sequences by step, if they differ.
    fn lengths(&self) -> Option<&Arc<StepLengths>> {
        None
    }

    /// Sequences or images of an epoch of training; `None` if the data has no end.
    fn training_sequences(&self) -> Option<u64> {
        None
    }

    /// The part of the positions of training sequences that holds tokens, and not padding.
    fn token_share(&self) -> f64 {
        1.0
    }

    /// Sequences or images of the held-out data; `None` if they are not counted.
    fn held_out_sequences(&self) -> Option<u64> {
        None
    }

    /// Returns the number of classes if each target is the class of a whole sample, whose share of correct
    /// predictions validation counts.
    fn classes(&self) -> Option<usize> {
        None
    }

    /// Returns the normalisation of inputs that are pixels.
    fn normalisation(&self) -> Option<&Normalisation> {
        None
    }

    /// Number of validation micro-batches.
    fn validation_micro_batches(&self) -> u64;
}
