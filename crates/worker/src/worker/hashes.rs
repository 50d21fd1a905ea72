//! Hashes of a rank's weights, optimizer state and gradients.

use parallel::data::ParameterShard;
use telemetry::hashes::{HashedStep, Section};

use super::Worker;
use crate::error::Result;

/// Number of positions in the order of hashes reserved for each parameter.
const ARRAYS_PER_PARAMETER: usize = 16;

impl Worker {
    /// Returns, on rank 0, the hashes of the step that has just run; `None` if `telemetry.hashes` does not
    /// select it. Every rank must call this.
    pub fn take_hashes(&mut self) -> Result<Option<HashedStep>> {
        match self.records.hashes.clone() {
            Some(hashes) => hashes.gather(self.engine.groups.control()),
            None => Ok(None),
        }
    }

    /// Hashes weights and optimizer state before step `step`, counted from 1, if it is a hashed step.
    pub(super) fn hash_state(&self, step: u64) -> Result<()> {
        let Some(hashes) = &self.records.hashes else { return Ok(()) };
        hashes.begin(step);
        for (part, stage) in self.stages.parts.iter().zip(self.engine.stages()) {
            for (parameter, weight) in part.model.parameters().list().iter().enumerate() {
                let Some((index, _)) = self.engine.setup.blueprint.find(stage, parameter) else { continue };
                let own = match &part.weights {
                    Some(units) => units.part(parameter)?,
                    None => Some((0, weight.weight.tensor()?)),
                };
                let Some((start, tensor)) = own else { continue };
                let name = self.part_name(index);
                let named = (self.array_order(index, 0), name.as_str(), name.as_str());
                hashes.array(Section::Weights, named, start, &tensor)?;
            }
        }
        let mut number = 0;
        let mut last = None;
        for (stage, owned, state) in self.optimizer_state() {
            let Some((index, _)) = self.engine.setup.blueprint.find(stage, owned.parameter) else { continue };
            number = if last.replace((stage, index)) == Some((stage, index)) { number + 1 } else { 0 };
            let weight = self.model(stage).map(|model| &model.parameters().list()[owned.parameter]);
            let parameter = weight.map_or(String::new(), |_| self.part_name(index));
            let named = (self.array_order(index, number), state.array.name.as_str(), parameter.as_str());
            let start = state.array.range(owned.shard.range.clone()).start;
            hashes.array(Section::OptimizerState, named, start, state.tensor)?;
        }
        Ok(())
    }

    /// Returns the index of this rank's shard of parameter `index`, and the position of the parameter's array
    /// `number` in the order of hashes.
    fn array_order(&self, index: usize, number: usize) -> [usize; 2] {
        let part = self.engine.setup.blueprint.part(index, &self.engine.grid);
        [part, ARRAYS_PER_PARAMETER * index + number]
    }

    /// Returns the name of this rank's shard of parameter `index`.
    fn part_name(&self, index: usize) -> String {
        self.engine.setup.blueprint.part_name(index, &self.engine.grid)
    }

    /// Hashes the summed gradients that this rank owns, if the step is a hashed step.
    pub(super) fn hash_gradients(&self) -> Result<()> {
        let Some(hashes) = &self.records.hashes else { return Ok(()) };
        let shards = self.stages.parts.iter().zip(self.engine.stages()).flat_map(|(part, stage)| {
            let own = part.reduction.shards().own().iter();
            own.map(move |owned: &ParameterShard| (stage, owned))
        });
        for ((stage, owned), gradient) in shards.zip(&self.stages.gradients) {
            let Some((index, _)) = self.engine.setup.blueprint.find(stage, owned.parameter) else { continue };
            let name = &*self.part_name(index);
            let start = owned.shard.range.start;
            hashes.array(Section::Gradients, (self.array_order(index, 0), name, name), start, gradient)?;
        }
        Ok(())
    }
}
