//! The shapes of micro-batches whose data is not read, for plans.

use std::sync::Arc;

use crate::batch::checked_shape;
use crate::{ArrayShape, BatchShape, Error, HostType, MicroBatch, Normalisation, PairArrays, Source};

impl MicroBatch {
    /// Returns a micro-batch with the arrays of those of `source`, which have no values. Reads no data.
    fn of_shapes(source: &dyn Source) -> Self {
        let BatchShape { inputs, targets } = source.shape();
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

/// The micro-batches of a source by their shapes alone, whose arrays have no values. Reads no data.
#[derive(Clone)]
pub struct Shapes(pub Arc<dyn Source>);

impl Source for Shapes {
    fn train(&self, _: u64, out: &mut MicroBatch) -> Result<(), Error> {
        *out = MicroBatch::of_shapes(self);
        Ok(())
    }

    fn validation(&self, _: u64, out: &mut MicroBatch) -> Result<(), Error> {
        *out = MicroBatch::of_shapes(self);
        Ok(())
    }

    fn pairs_in_order(&self, _: u64, out: &mut MicroBatch) -> Result<(), Error> {
        *out = MicroBatch::of_shapes(self);
        Ok(())
    }

    fn takes_time(&self) -> bool {
        false
    }

    fn shape(&self) -> BatchShape {
        self.0.shape()
    }

    fn pairs(&self) -> Option<u64> {
        self.0.pairs()
    }

    fn packs_documents(&self) -> bool {
        self.0.packs_documents()
    }

    fn normalisation(&self) -> Option<&Normalisation> {
        self.0.normalisation()
    }

    fn validation_micro_batches(&self) -> u64 {
        self.0.validation_micro_batches()
    }
}

/// The shapes of micro-batches of tokens, of data that is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenShapes {
    micro_batch: usize,
    context: usize,
    validation_micro_batches: u64,
    masks: bool,
    pairs: Option<u64>,
}

impl TokenShapes {
    /// Micro-batches of `micro_batch` sequences of `context` tokens; `masks`: with the starts of documents.
    ///
    /// # Errors
    /// Sizes that are zero or too large.
    pub fn new(
        [micro_batch, context]: [usize; 2],
        validation_micro_batches: u64,
        masks: bool,
    ) -> Result<Self, Error> {
        checked_shape(micro_batch, context)?;
        Ok(Self { micro_batch, context, validation_micro_batches, masks, pairs: None })
    }

    /// Returns the same micro-batches as `pairs` pairs of answers.
    #[must_use]
    pub fn of_pairs(self, pairs: u64) -> Self {
        Self { pairs: Some(pairs), ..self }
    }
}

impl Source for TokenShapes {
    fn train(&self, _: u64, out: &mut MicroBatch) -> Result<(), Error> {
        *out = MicroBatch::of_shapes(self);
        Ok(())
    }

    fn validation(&self, _: u64, out: &mut MicroBatch) -> Result<(), Error> {
        *out = MicroBatch::of_shapes(self);
        Ok(())
    }

    fn shape(&self) -> BatchShape {
        let tokens = ArrayShape::of_u32([self.micro_batch, self.context]);
        BatchShape { inputs: tokens.clone(), targets: tokens }
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
