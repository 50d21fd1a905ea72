//! Shapes of micro-batches whose data is not read, for plans.

use std::sync::Arc;

use crate::batch::checked_shape;
use crate::source::shape_in_step;
use crate::step_lengths::StepLengths;
use crate::{
    ArrayShape, BatchShape, Error, HostType, MicroBatch, MicroBatchId, Normalisation, PairArrays, Source,
};

impl MicroBatch {
    /// Returns a micro-batch with the array shapes of micro-batch `id` of `source`, without values. Reads no
    /// data.
    fn of_shapes(source: &dyn Source, id: MicroBatchId) -> Self {
        let BatchShape { inputs, targets } = source.shape_of(id);
        let marks = ArrayShape::of_u32(inputs.extents.clone());
        let sequences = inputs.extents.first().copied().unwrap_or_default();
        let pairs =
            || PairArrays { answers: ArrayShape::of_u32([sequences]).without_values(), numbers: Vec::new() };
        Self {
            documents: source.packs_documents().then(|| marks.without_values()),
            tokens: (inputs.values == HostType::U32).then(|| marks.without_values()),
            pairs: source.pairs().map(|_| pairs()),
            inputs: inputs.without_values(),
            targets: targets.without_values(),
        }
    }
}

/// A source that provides only the shapes of another source's micro-batches. Reads no data.
#[derive(Clone)]
pub struct Shapes {
    source: Arc<dyn Source>,
    lengths: Lengths,
}

/// Number of tokens in training sequences.
#[derive(Clone)]
enum Lengths {
    OfSource,
    One(usize),
    ByStep(Arc<StepLengths>),
}

impl Shapes {
    /// Returns a source with only the shapes of the micro-batches of `source`.
    #[must_use]
    pub fn new(source: Arc<dyn Source>) -> Self {
        Self { source, lengths: Lengths::OfSource }
    }

    /// Returns a source with only the shapes of `source`, in which all sequences have `length` tokens.
    #[must_use]
    pub fn of_length(source: Arc<dyn Source>, length: usize) -> Self {
        Self { source, lengths: Lengths::One(length) }
    }

    /// Returns a source with only the shapes of `source`, whose training sequences have `lengths` instead.
    #[must_use]
    pub fn of_lengths(source: Arc<dyn Source>, lengths: Arc<StepLengths>) -> Self {
        Self { source, lengths: Lengths::ByStep(lengths) }
    }
}

impl Source for Shapes {
    fn train(&self, number: u64, out: &mut MicroBatch) -> Result<(), Error> {
        *out = MicroBatch::of_shapes(self, MicroBatchId::Training(number));
        Ok(())
    }

    fn validation(&self, index: u64, out: &mut MicroBatch) -> Result<(), Error> {
        *out = MicroBatch::of_shapes(self, MicroBatchId::Validation(index));
        Ok(())
    }

    fn pairs_in_order(&self, index: u64, out: &mut MicroBatch) -> Result<(), Error> {
        *out = MicroBatch::of_shapes(self, MicroBatchId::Pairs(index));
        Ok(())
    }

    fn takes_time(&self) -> bool {
        false
    }

    fn shape(&self) -> BatchShape {
        let shape = self.source.shape();
        match (&self.lengths, shape.inputs.extents.first()) {
            (Lengths::One(length), Some(rows)) => BatchShape::of_tokens(*rows, *length),
            _ => shape,
        }
    }

    fn shape_of(&self, id: MicroBatchId) -> BatchShape {
        match &self.lengths {
            Lengths::OfSource => self.source.shape_of(id),
            Lengths::One(_) => self.shape(),
            Lengths::ByStep(lengths) => shape_in_step(self.shape(), lengths, id, self.pairs().is_some()),
        }
    }

    fn lengths(&self) -> Option<&Arc<StepLengths>> {
        match &self.lengths {
            Lengths::OfSource => self.source.lengths(),
            Lengths::One(_) => None,
            Lengths::ByStep(lengths) => Some(lengths),
        }
    }

    fn pairs(&self) -> Option<u64> {
        self.source.pairs()
    }

    fn packs_documents(&self) -> bool {
        self.source.packs_documents()
    }

    fn normalisation(&self) -> Option<&Normalisation> {
        self.source.normalisation()
    }

    fn validation_micro_batches(&self) -> u64 {
        self.source.validation_micro_batches()
    }
}

/// A source that provides only the shapes of token micro-batches, for data that is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenShapes {
    micro_batch: usize,
    context: usize,
    validation_micro_batches: u64,
    masks: bool,
    pairs: Option<u64>,
}

impl TokenShapes {
    /// Returns micro-batches of `micro_batch` sequences of `context` tokens. `masks`: whether they include
    /// the starts of documents.
    ///
    /// # Errors
    /// A size is zero or too large.
    pub fn new(
        [micro_batch, context]: [usize; 2],
        validation_micro_batches: u64,
        masks: bool,
    ) -> Result<Self, Error> {
        checked_shape(micro_batch, context)?;
        Ok(Self { micro_batch, context, validation_micro_batches, masks, pairs: None })
    }

    /// Returns the same micro-batches with `pairs` preference pairs.
    #[must_use]
    pub fn of_pairs(self, pairs: u64) -> Self {
        Self { pairs: Some(pairs), ..self }
    }
}

impl Source for TokenShapes {
    fn train(&self, number: u64, out: &mut MicroBatch) -> Result<(), Error> {
        *out = MicroBatch::of_shapes(self, MicroBatchId::Training(number));
        Ok(())
    }

    fn validation(&self, index: u64, out: &mut MicroBatch) -> Result<(), Error> {
        *out = MicroBatch::of_shapes(self, MicroBatchId::Validation(index));
        Ok(())
    }

    fn shape(&self) -> BatchShape {
        BatchShape::of_tokens(self.micro_batch, self.context)
    }

    fn pairs(&self) -> Option<u64> {
        self.pairs
    }

    fn packs_documents(&self) -> bool {
        self.masks
    }

    fn validation_micro_batches(&self) -> u64 {
        self.validation_micro_batches
    }
}
