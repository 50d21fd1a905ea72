//! Runs a validation.

use parallel::data::WorkKind;
use telemetry::step_trace::RunPart;

use super::Worker;
use crate::error::Result;
use crate::validation::results::{self, Losses, Validation};

impl Worker {
    /// Returns the mean loss over the validation micro-batches, and for images the accuracy, of the
    /// weights or of their averages (`train.validate_ema`). The data-parallel ranks share the
    /// micro-batches. The result is equal on every rank and grid, because losses are added in order.
    pub fn validate(&mut self) -> Result<Validation> {
        self.begin_part(RunPart::Validation, self.engine.device.step().into());
        self.records.phases.begin_validation();
        let own = self.validation_losses()?;
        let assignment = self.engine.setup.config.validation_assignment();
        let all = results::of_all(&mut self.engine.groups, &own, &assignment)?;
        self.records.phases.end_validation();
        Ok(Validation::from_losses(&all))
    }

    /// Returns the results of this rank's validation micro-batches; empty unless it has the last stage.
    pub(crate) fn validation_passes(&mut self) -> Result<Losses> {
        self.gather_for(WorkKind::Forward)?;
        let _scope = self.engine.device.module("validation");
        let models = self.stages.parts.iter().map(|part| &*part.model).collect();
        let (losses, skipped) = self.engine.losses(models, None, None)?;
        self.records.skipped += skipped;
        Ok(losses)
    }
}
