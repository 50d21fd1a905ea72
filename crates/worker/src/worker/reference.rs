//! Scores of answers by the reference model, which is the model before the first step.

use std::sync::Arc;

use collective::Axis;
use parallel::data::WorkKind;
use system::numbers::grouped;
use system::pace::Pace;
use telemetry::step_trace::RunPart;

use super::Worker;
use crate::build;
use crate::error::Result;
use crate::validation::results;

impl Worker {
    /// Returns whether the loss needs reference scores that have not been computed.
    pub fn lacks_reference(&self) -> bool {
        let objective = build::objective(&self.engine.setup.config);
        objective.is_some_and(|objective| objective.has_reference()) && self.engine.reference.is_none()
    }

    /// Computes the scores of all answers with the current model. The data-parallel ranks share the pairs.
    ///
    /// # Errors
    /// A pass, the data or the transport fails.
    pub fn score_reference(&mut self) -> Result<()> {
        self.begin_part(RunPart::Reference, 0);
        let own = self.reference_passes(None)?;
        self.outdate_weights();
        let rows = self.engine.setup.config.micro_batch_rows();
        let setup = &self.engine.setup;
        let assignment = setup.config.pairs_assignment(setup.pair_micro_batches());
        let own: Vec<u32> = own.iter().flatten().map(|score| score.to_bits()).collect();
        let all = results::gathered(&mut self.engine.groups, (&own, rows), &assignment)?;
        let pairs = self.engine.setup.dataset.source.pairs().unwrap_or_default();
        let scores = all.into_iter().take(2 * pairs as usize).map(f32::from_bits);
        self.engine.reference = Some(scores.collect::<Vec<_>>().into());
        Ok(())
    }

    /// Returns ln p of all answers under the reference model, two for each pair, training pairs first; `None`
    /// before they are computed.
    pub fn reference_scores(&self) -> Option<Arc<[f32]>> {
        self.engine.reference.clone()
    }

    /// Returns the scores of this rank's micro-batches of pairs, at most `most`; empty unless it has the last
    /// stage.
    pub(super) fn reference_passes(&mut self, most: Option<usize>) -> Result<Vec<Vec<f32>>> {
        self.gather_for(WorkKind::Forward)?;
        let _scope = self.engine.device.module("reference");
        let models = self.stages.parts.iter().map(|part| &*part.model).collect();
        let pace = Pace::of_files();
        let is_first = self.engine.grid.rank() == 0;
        let all = self.engine.setup.reference_micro_batches(self.engine.grid.coordinate(Axis::Data));
        let mut report = |done: usize| {
            if is_first && pace.is_due() {
                let [done, all] = [done, all].map(|count| grouped(count as u64));
                tracing::info!("scoring answers by the model as it is: {done} of {all} micro-batches");
            }
        };
        let (scores, skipped) = self.engine.scores(models, most, &mut report)?;
        self.records.skipped += skipped;
        Ok(scores)
    }
}
