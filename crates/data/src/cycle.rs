//! Repeats a few micro-batches, for benchmarks that should not measure the data source.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use crate::{BatchShape, Error, MicroBatch, MicroBatchId, Normalisation, Source};

/// Cycles through the first micro-batches of a source, for training and for validation. Each is read once.
pub struct CycledSource {
    source: Arc<dyn Source>,
    training: Vec<OnceLock<MicroBatch>>,
    validation: Vec<OnceLock<MicroBatch>>,
}

impl CycledSource {
    /// Returns a source that cycles through the first `count` micro-batches of `source`, at least one.
    #[must_use]
    pub fn new(source: Arc<dyn Source>, count: usize) -> Self {
        let none = vec![OnceLock::new(); count.max(1)];
        let held_out = source.validation_micro_batches().clamp(1, none.len() as u64) as usize;
        Self { source, validation: none[..held_out].to_vec(), training: none }
    }
}

/// Fills `out` with micro-batch `number` of the cycle. `read` reads it the first time.
fn read_cycled(
    first: &[OnceLock<MicroBatch>],
    number: u64,
    out: &mut MicroBatch,
    read: impl FnOnce(u64, &mut MicroBatch) -> Result<(), Error>,
) -> Result<(), Error> {
    let position = number % first.len() as u64;
    let slot = &first[position as usize];
    if let Some(batch) = slot.get() {
        out.clone_from(batch);
        return Ok(());
    }
    read(position, out)?;
    // Another rank may have read the same one meanwhile.
    slot.get_or_init(|| out.clone());
    Ok(())
}

impl Source for CycledSource {
    fn train(&self, number: u64, out: &mut MicroBatch) -> Result<(), Error> {
        read_cycled(&self.training, number, out, |number, out| self.source.train(number, out))
    }

    fn validation(&self, index: u64, out: &mut MicroBatch) -> Result<(), Error> {
        let count = self.validation_micro_batches();
        if index >= count {
            return Err(Error::NoSuchValidation { index, count });
        }
        read_cycled(&self.validation, index, out, |index, out| self.source.validation(index, out))
    }

    fn file_of(&self, id: MicroBatchId) -> Option<PathBuf> {
        self.source.file_of(id)
    }

    fn packs_documents(&self) -> bool {
        self.source.packs_documents()
    }

    fn shape(&self) -> BatchShape {
        self.source.shape()
    }

    fn shape_of(&self, id: MicroBatchId) -> BatchShape {
        match id {
            MicroBatchId::Training(number) => {
                self.source.shape_of(MicroBatchId::Training(number % self.training.len() as u64))
            }
            _ => self.shape(),
        }
    }

    fn held_out_sequences(&self) -> Option<u64> {
        self.source.held_out_sequences()
    }

    fn classes(&self) -> Option<usize> {
        self.source.classes()
    }

    fn normalisation(&self) -> Option<&Normalisation> {
        self.source.normalisation()
    }

    fn validation_micro_batches(&self) -> u64 {
        self.source.validation_micro_batches()
    }
}
