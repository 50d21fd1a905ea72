//! Averages of weights: where they begin, and validations that compute with them.

use optim::ComputeValues;

use super::Worker;
use crate::error::Result;
use crate::validation::results::Losses;

impl Worker {
    /// Copies the master weights to their averages, if averages are kept.
    pub(crate) fn begin_averages(&self) -> Result<()> {
        Ok(self.update.optimizer.begin_averages()?)
    }

    /// Returns the results of this rank's validation micro-batches, with averages instead of the weights if
    /// `train.validate_ema` is set. Afterwards the weights have the same bits as before.
    pub(super) fn validation_losses(&mut self) -> Result<Losses> {
        if !self.engine.setup.config.train.validate_ema {
            return self.validation_passes();
        }
        self.compute_with(ComputeValues::Averages)?;
        let losses = self.validation_passes();
        let restored = self.compute_with(ComputeValues::Masters);
        let losses = losses?;
        restored?;
        Ok(losses)
    }

    /// Makes this rank's passes compute with the weights or with their averages, and gathers these values.
    /// Every rank must call this.
    fn compute_with(&mut self, values: ComputeValues) -> Result<()> {
        self.await_snapshot()?;
        // Another rank may still read this rank's shards.
        self.engine.settle()?;
        self.update.optimizer.compute_with(values)?;
        self.outdate_weights();
        self.gather_at_once(|_| true)
    }
}
