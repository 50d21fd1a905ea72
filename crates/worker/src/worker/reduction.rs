//! Reduces gradients, statistics and expert loads over ranks.

use collective::Axis;
use parallel::data::{gather_counts, gather_rows};
use parallel::pipeline::add_tied;
use telemetry::Phase;

use super::Worker;
use crate::error::Result;

impl Worker {
    /// Reduces gradients, statistics and expert loads over ranks. The gradients of step `step` are verified
    /// before the state changes.
    ///
    /// # Errors
    /// A rank or the transport fails, or verification finds a difference.
    pub(super) fn reduce(&mut self, step: u64) -> Result<()> {
        self.records.phases.enter(Phase::Reduce)?;
        self.reduce_gradients()?;
        if !self.stages.tied.is_empty() {
            self.records.phases.enter(Phase::Pipeline)?;
            self.add_tied_gradients()?;
            self.records.phases.enter(Phase::Reduce)?;
        }
        self.compare_verified(step)?;
        self.await_snapshot()?;
        self.reduce_statistics()?;
        self.reduce_loads()?;
        self.hash_gradients()
    }

    /// Completes the sums of gradients over ranks.
    pub(crate) fn reduce_gradients(&mut self) -> Result<()> {
        for part in &mut self.stages.parts {
            part.reduction.finish(&self.engine.groups.divided(part.reduction.axis())?)?;
        }
        Ok(())
    }

    /// Completes the gradients of weights that are tied to another stage's.
    pub(crate) fn add_tied_gradients(&mut self) -> Result<()> {
        for tied in &self.stages.tied {
            add_tied(&self.engine.groups, *tied, &self.stages.gradients[tied.gradient])?;
        }
        Ok(())
    }

    /// Adds the statistics of all micro-batches on all ranks to the running averages, in micro-batch order.
    fn reduce_statistics(&mut self) -> Result<()> {
        let runs = self.engine.setup.config.training_assignment();
        for part in &self.stages.parts {
            let statistics = part.model.parameters().statistics();
            if let Some(records) = statistics.records() {
                gather_rows(&self.engine.groups.along(Axis::Data)?, &records, &runs)?;
                statistics.fold()?;
            }
        }
        Ok(())
    }

    /// Adds up the expert loads of all ranks, and adjusts the experts' bias corrections.
    fn reduce_loads(&mut self) -> Result<()> {
        let rate = self.engine.setup.config.train.correction_rate as f32;
        for part in &self.stages.parts {
            let loads = part.model.parameters().expert_loads();
            if let Some(counts) = loads.counts() {
                gather_counts(&self.engine.groups, &counts)?;
                loads.finish(rate)?;
            }
        }
        Ok(())
    }
}
