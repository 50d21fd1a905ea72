//! The update of a step: gradient norm and clipping, the optimizer, and gathering the new weights.

use std::ops::RangeBounds;
use std::rc::Rc;

use collective::Axis;
use parallel::data::{gather_sums, gather_weights};
use parallel::pipeline::StagePart;
use telemetry::Phase;

use super::Worker;
use crate::error::Result;
use crate::stages::ModelNorm;
use crate::update::Update;

impl Worker {
    /// Sets the learning rate of the current step, and by how much averages of weights move. A replay sets
    /// the values of the replayed step.
    pub(super) fn set_rates(&self) -> Result<()> {
        let norm = Rc::clone(&self.update.norm);
        let schedule = self.update.schedule.clone();
        let average = self.update.average;
        let batches = self.batches.clone();
        self.engine.recorder.host(move || {
            let step = batches.numbers()?.pass_index();
            let state = norm.norm.state();
            state.set_learning_rate(schedule.rate(step))?;
            Ok(average.map_or(Ok(()), |average| state.set_average_fraction(average.fraction(step)))?)
        })
    }

    /// Sets the gradient norm above which the next step's update is skipped; 0: no limit.
    pub fn skip_above(&self, norm: f32) {
        self.update.norm.norm.skip_above(norm);
    }

    /// Computes the norm of the whole model's gradient, with which the update scales gradients.
    pub(super) fn clip_gradients(&mut self) -> Result<()> {
        let ModelNorm { norm, parts, counts, .. } = &*self.update.norm;
        let Some(parts) = parts else { return Ok(norm.measure(&self.stages.gradients)?) };
        let sums = norm.measure_parts(parts)?;
        if !counts {
            sums.zero()?;
        }
        // Ranks of all stages meet, of which some have waited for the last passes of others.
        let has_stages = self.engine.grid.size(Axis::Pipeline) > 1;
        self.records.phases.enter(if has_stages { Phase::Pipeline } else { Phase::Reduce })?;
        gather_sums(&self.engine.groups.world(), sums)?;
        self.records.phases.enter(Phase::Update)?;
        Ok(norm.finish()?)
    }

    /// Updates the parameters and gathers them. With sharded optimizer state, each rank updates its own
    /// shards.
    pub(super) fn update_parameters(&mut self) -> Result<()> {
        self.update.optimizer.update_first_slots(&self.stages.gradients, self.update.norm.norm.state())?;
        self.update_matrices()?;
        // The weights that the next forward pass needs first are gathered while the rest is updated.
        self.gather_weights(0, ..1)?;
        self.records.phases.enter(Phase::Update)?;
        self.update.optimizer.update_other_slots(&self.stages.gradients, self.update.norm.norm.state())?;
        self.outdate_weights();
        Ok(())
    }

    /// Updates the matrices that Muon orthogonalises, each on its owner.
    fn update_matrices(&self) -> Result<()> {
        let Update { optimizer, matrices, norm, .. } = &self.update;
        let world = self.engine.groups.world();
        optimizer.update_matrices(&self.stages.gradients, norm.norm.state(), |group, wave, directions| {
            Ok(matrices[group].owners.orthogonalise(&world, wave, directions)?)
        })
    }

    /// Starts gathering some groups of a stage's weights from the ranks that updated them.
    fn gather_weights(&mut self, part: usize, groups: impl RangeBounds<usize>) -> Result<()> {
        let StagePart { model, reduction, weights } = &self.stages.parts[part];
        if !reduction.shards().is_sharded() || weights.is_some() {
            return Ok(());
        }
        self.records.phases.enter(Phase::Reduce)?;
        Ok(gather_weights(
            &self.engine.groups.divided(reduction.axis())?.within,
            reduction,
            model.parameters(),
            groups,
        )?)
    }

    /// Starts gathering the updated weights that are not being gathered yet.
    pub(super) fn gather_other_weights(&mut self) -> Result<()> {
        (0..self.stages.parts.len()).try_for_each(|part| self.gather_weights(part, usize::from(part == 0)..))
    }
}
