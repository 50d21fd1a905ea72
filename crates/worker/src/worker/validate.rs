//! One validation.

use telemetry::step_trace::RunPart;

use super::Worker;
use crate::error::Result;
use crate::feed::{self, WorkerFeed};
use crate::numbers::Numbers;
use crate::validation::{self, Losses, Validation};

impl Worker {
    /// Returns the mean loss over the validation micro-batches, which the data-parallel ranks share, and of
    /// images the accuracy; equal on every rank and every grid, since losses are added in order.
    pub fn validate(&mut self) -> Result<Validation> {
        self.begin_part(RunPart::Validation, self.device.step().into());
        self.phases.begin_validation();
        let own = self.validation_passes()?;
        let assignment = self.setup.config.validation_assignment();
        let all = validation::of_all(&mut self.planes, &own, &assignment)?;
        self.phases.end_validation();
        Ok(Validation::of(&all))
    }

    /// Returns the results of this rank's validation micro-batches on ranks with the last stage.
    pub(crate) fn validation_passes(&mut self) -> Result<Losses> {
        self.outdate_copies();
        let (config, dataset) = (&self.setup.config, &self.setup.dataset);
        let numbers = Numbers::validation(config, &self.grid);
        let own = numbers.count();
        // A prefetcher of its own: that of training goes on where it is.
        let mut data = feed::prefetcher(dataset, config, &mut self.planes);
        let order = self.executor.validation_data_order(own, dataset.source.packs_documents());
        let mut feed =
            WorkerFeed::new(&self.device, (config, dataset), numbers, (&mut data, &order), &mut self.phases);
        feed.pixels = self.pixels.as_mut();
        let scope = self.device.module("validation");
        let models = self.parts.iter().map(|part| &*part.model).collect();
        self.skipped += self.executor.validate(models, &mut self.planes, own, &mut feed)?;
        drop(scope);
        feed.results()
    }
}
