//! Sources of micro-batches.

use crate::{BatchShape, Error, MicroBatch};

/// A source of micro-batches, each a pure function of its number. Shared by the ranks of a process.
///
/// Every micro-batch of a source has the same shapes. The arrays of `out` are overwritten; if they have these
/// shapes already, nothing is allocated.
pub trait Source: Send + Sync {
    /// Fills `out` with training micro-batch `number`, counted from the start of training over all ranks:
    /// micro-batch m of step s is number s · (micro-batches in a step) + m.
    ///
    /// # Errors
    /// Data that cannot be read.
    fn train(&self, number: u64, out: &mut MicroBatch) -> Result<(), Error>;

    /// Fills `out` with validation micro-batch `index`: the same at every validation and for every seed, from
    /// data that training never sees.
    ///
    /// # Errors
    /// [`Error::NoSuchValidation`] if `index` is not below [`Source::validation_micro_batches`].
    fn validation(&self, index: u64, out: &mut MicroBatch) -> Result<(), Error>;

    /// Returns whether micro-batches contain the starts of documents ([`MicroBatch::documents`]).
    fn packs_documents(&self) -> bool {
        false
    }

    /// Shapes of every micro-batch, which a plan needs. Reads no data.
    fn shape(&self) -> BatchShape;

    /// Number of validation micro-batches.
    fn validation_micro_batches(&self) -> u64;
}
