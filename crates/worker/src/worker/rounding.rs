//! Rounds master weights to compute weights.

use device::{DType, StreamKind};
use parallel::data::gather_weights;
use parallel::pipeline::StagePart;

use super::Worker;
use crate::engine::Engine;
use crate::error::Result;

impl Worker {
    /// Returns the engine, for loading.
    pub(crate) fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Casts this rank's loaded master weights to compute weights. If masters are sharded and weights are
    /// not, ranks then gather the weights as after an update.
    pub(crate) fn round_weights(&mut self) -> Result<()> {
        self.update.optimizer.round_masters()?;
        self.outdate_weights();
        self.gather_at_once(|part| part.model.parameters().dtype() != DType::F32)
    }

    /// Gathers the weights of the stages that `chosen` accepts from the ranks that own them, unless passes
    /// gather them, and waits for their arrival.
    pub(super) fn gather_at_once(&mut self, chosen: impl Fn(&StagePart) -> bool) -> Result<()> {
        let is_gathered = |part: &&StagePart| part.weights.is_none() && chosen(part);
        for StagePart { model, reduction, .. } in self.stages.parts.iter().filter(is_gathered) {
            let group = self.engine.groups.divided(reduction.axis())?.within;
            gather_weights(&group, reduction, model.parameters(), ..)?;
            group.synchronize(StreamKind::Reduce)?;
        }
        Ok(())
    }
}
