//! Sources of micro-batches.

use crate::step_lengths::StepLengths;
use crate::{BatchShape, Error, IGNORED, MicroBatch, Normalisation};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Identifies a micro-batch of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MicroBatchId {
    /// Number of a micro-batch of [`Source::train`].
    Training(u64),
    /// Index of a micro-batch of [`Source::validation`].
    Validation(u64),
    /// Index of a micro-batch of [`Source::pairs_in_order`].
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

/// Reads a micro-batch, and returns how many of its targets are not [`IGNORED`].
pub(crate) fn read_targets<S: Source + ?Sized>(source: &S, id: MicroBatchId) -> Result<u64, Error> {
    let mut batch = MicroBatch::default();
    source.read(id, &mut batch)?;
    Ok(batch.targets.tokens()?.iter().filter(|target| **target != IGNORED).count() as u64)
}

/// Returns the shapes of micro-batch `id`, for a source of `shape` whose training sequences have these
/// lengths.
/// `is_pairs`: whether two sequences form one sample.
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
    /// micro-batch m of step s has the number s · (micro-batches per step) + m.
    fn train(&self, number: u64, out: &mut MicroBatch) -> Result<(), Error>;

    /// Fills `out` with validation micro-batch `index`, from data that training never sees. It is the same at
    /// every validation and for every seed.
    ///
    /// # Errors
    /// [`Error::NoSuchValidation`] if `index` is not below [`Source::validation_micro_batches`].
    fn validation(&self, index: u64, out: &mut MicroBatch) -> Result<(), Error>;

    /// Returns the number of preference pairs, training pairs first, then validation pairs; `None` for other
    /// data.
    fn pairs(&self) -> Option<u64> {
        None
    }

    /// Fills `out` with preference pairs in order of their numbers, from pair `index` · (pairs per
    /// micro-batch) on. After the last pair, it starts over with the first.
    ///
    /// # Errors
    /// The source has no pairs.
    fn pairs_in_order(&self, index: u64, out: &mut MicroBatch) -> Result<(), Error> {
        let _ = (index, out);
        Err(Error::NotOfPairs)
    }

    /// Fills `out` with a training, validation or pairs micro-batch.
    fn read(&self, id: MicroBatchId, out: &mut MicroBatch) -> Result<(), Error> {
        match id {
            MicroBatchId::Training(number) => self.train(number, out),
            MicroBatchId::Validation(index) => self.validation(index, out),
            MicroBatchId::Pairs(index) => self.pairs_in_order(index, out),
        }
    }

    /// Returns the number of targets in a micro-batch that are not [`IGNORED`](crate::IGNORED). Reads the
    /// micro-batch, unless the source knows the number.
    ///
    /// # Errors
    /// As for [`Source::read`], or the targets are not tokens.
    fn targets(&self, id: MicroBatchId) -> Result<u64, Error> {
        read_targets(self, id)
    }

    /// Returns the number of inputs in a micro-batch that are tokens instead of padding.
    fn tokens(&self, id: MicroBatchId) -> Result<u64, Error> {
        let mut batch = MicroBatch::default();
        self.read(id, &mut batch)?;
        let inputs = batch.inputs.tokens()?.len() as u64;
        match &batch.tokens {
            Some(marks) => Ok(marks.tokens()?.iter().map(|mark| u64::from(*mark)).sum()),
            None => Ok(inputs),
        }
    }

    /// Returns the file that contains the first token of a micro-batch; `None` if there are no files.
    fn file_of(&self, id: MicroBatchId) -> Option<PathBuf> {
        let _ = id;
        None
    }

    /// Returns whether reading a micro-batch takes time, so that prefetching is useful.
    fn takes_time(&self) -> bool {
        true
    }

    /// Returns whether micro-batches include the starts of documents ([`MicroBatch::documents`]).
    fn packs_documents(&self) -> bool {
        false
    }

    /// Returns the array shapes of every micro-batch. If the sequence length differs between training steps,
    /// returns the shapes for the longest. Reads no data.
    fn shape(&self) -> BatchShape;

    /// Returns the array shapes of a micro-batch.
    fn shape_of(&self, id: MicroBatchId) -> BatchShape {
        match self.lengths() {
            Some(lengths) => shape_in_step(self.shape(), lengths, id, self.pairs().is_some()),
            None => self.shape(),
        }
    }

    /// Returns the sequence length of each training step; `None` if all are equal.
    fn lengths(&self) -> Option<&Arc<StepLengths>> {
        None
    }

    /// Returns the number of sequences or images per training epoch; `None` if the data has no end.
    fn training_sequences(&self) -> Option<u64> {
        None
    }

    /// Returns the fraction of training positions that hold tokens instead of padding.
    fn token_share(&self) -> f64 {
        1.0
    }

    /// Returns the number of held-out sequences or images; `None` if unknown.
    fn held_out_sequences(&self) -> Option<u64> {
        None
    }

    /// Returns the number of classes if each target is the class of a sample, for which validation measures
    /// accuracy; otherwise `None`.
    fn classes(&self) -> Option<usize> {
        None
    }

    /// Returns the normalisation of pixel inputs; `None` for other inputs.
    fn normalisation(&self) -> Option<&Normalisation> {
        None
    }

    /// Returns the number of validation micro-batches.
    fn validation_micro_batches(&self) -> u64;
}
