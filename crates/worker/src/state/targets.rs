//! The tensors into which a rank's state is read, grouped by the ranks that hold the same elements.

use std::collections::BTreeSet;

use checkpoint::Target;
use device::DType;
use nn::{ElementRun, Model, ParameterId};
use optim::StateArray;
use parallel::data::WeightUnits;
use tensor::{Shape, Tensor};

use crate::error::Result;
use crate::setup::start::Weights;
use crate::state::records::RecordTarget;
use crate::state::{is_own_master, part_runs, state_runs, state_shape};
use crate::worker::Worker;

/// The tensors into which a rank's state is read. All ranks that hold the same elements have them in the same
/// order.
#[derive(Debug, Default)]
pub(crate) struct Targets {
    /// Tensors that all data-parallel ranks hold.
    pub(crate) everywhere: Vec<Target>,
    /// Shards, which ranks with the same index in other groups also hold.
    pub(crate) in_groups: Vec<Target>,
    /// Shards of quantized weights.
    pub(crate) records: Vec<RecordTarget>,
}

impl Targets {
    /// Returns everything that a rank holds, including copies of tied weights. Weights that are rounded
    /// copies of master weights are left out.
    pub(crate) fn from_worker(worker: &Worker) -> Result<Self> {
        let mut targets = Targets::default();
        for (model, units) in worker.stage_weights() {
            targets.add_parameters(model, units, |of| is_own_master(of.trained, of.weight.dtype()))?;
            targets.add_buffers(model);
        }
        for (stage, owned, state) in worker.optimizer_state() {
            let Some(model) = worker.model(stage) else { continue };
            let nn::Parameter { sharding, shard, .. } = &model.parameters().list()[owned.parameter];
            let coordinate = |axis| model.parameters().coordinate(axis, *shard);
            let runs = state_runs(&state.array, sharding, coordinate, owned.shard.range.clone());
            let shape = state_shape(&state.array, sharding);
            let StateArray { name, dtype, .. } = state.array;
            let is_whole = owned.shard.axis.is_none();
            targets.holders(is_whole).extend(run_targets(&name, dtype, shape, state.tensor, runs)?);
        }
        Ok(targets)
    }

    /// Returns only the master weights and buffers of a rank.
    pub(crate) fn of_weights(worker: &Worker) -> Result<Self> {
        let parameters = worker.models().flat_map(|model| model.parameters().list());
        let buffers = worker.models().flat_map(|model| model.buffers());
        let names = parameters.map(|parameter| parameter.name.clone());
        let names: BTreeSet<_> = names.chain(buffers.map(|buffer| buffer.name().to_owned())).collect();
        let mut targets = Self::from_worker(worker)?;
        targets.retain(|name| names.contains(name));
        Ok(targets)
    }

    /// Adds the compute weights and buffers of a model that is not trained.
    pub(crate) fn add_model(&mut self, model: &dyn Model, units: Option<&WeightUnits>) -> Result<()> {
        self.add_parameters(model, units, |_| true)?;
        self.add_buffers(model);
        Ok(())
    }

    /// Keeps the arrays whose names `keeps` accepts.
    pub(crate) fn retain(&mut self, keeps: impl Fn(&str) -> bool) {
        for targets in [&mut self.everywhere, &mut self.in_groups] {
            targets.retain(|target| keeps(&target.name));
        }
        self.records.retain(|record| keeps(&record.target.name));
    }

    /// Moves records that `weights` stores encoded to the other targets. Returns the records that must be
    /// encoded.
    pub(crate) fn take_records(&mut self, weights: &dyn Weights) -> Vec<RecordTarget> {
        let records = std::mem::take(&mut self.records).into_iter();
        let (read, encoded): (Vec<_>, Vec<_>) =
            records.partition(|record| weights.has_record(&record.target.name));
        read.into_iter().for_each(|record| self.holders(record.is_whole).push(record.target));
        encoded
    }

    fn holders(&mut self, is_whole: bool) -> &mut Vec<Target> {
        if is_whole { &mut self.everywhere } else { &mut self.in_groups }
    }

    /// Adds this rank's shards of the parameters that `chosen` accepts, as targets of master weights.
    fn add_parameters(
        &mut self,
        model: &dyn Model,
        units: Option<&WeightUnits>,
        chosen: impl Fn(&nn::Parameter) -> bool,
    ) -> Result<()> {
        let parameters = model.parameters();
        for (number, parameter) in parameters.list().iter().enumerate().filter(|(_, of)| chosen(of)) {
            let nn::Parameter { name, weight, sharding, shard, .. } = parameter;
            let part = match units {
                Some(units) => units.part(number)?,
                None => Some((0, weight.tensor()?)),
            };
            let Some((first, tensor)) = part else { continue };
            let range = first..first + tensor.elements();
            let runs = part_runs(sharding, |axis| parameters.coordinate(axis, *shard), range);
            let Some(values) = parameters.coded_values(ParameterId(number)) else {
                let targets = run_targets(name, DType::F32, sharding.whole(), &tensor, runs)?;
                self.holders(units.is_none()).extend(targets);
                continue;
            };
            // A record is one run of the records of all parts.
            for target in run_targets(name, DType::U8, sharding.whole(), &tensor, runs)? {
                let is_whole = units.is_none();
                let values = values.clone();
                self.records.push(RecordTarget { target, first, is_whole, values });
            }
        }
        Ok(())
    }

    /// Adds whole buffers.
    fn add_buffers(&mut self, model: &dyn Model) {
        let whole = |buffer: &nn::ModelBuffer| {
            let tensor = buffer.tensor().clone();
            Target::whole(buffer.name().to_owned(), tensor.dtype(), tensor)
        };
        self.everywhere.extend(model.buffers().iter().map(whole));
    }
}

/// Returns one target for each range in `runs`, which read an array of this name, type and shape into
/// `tensor`.
fn run_targets(
    name: &str,
    dtype: DType,
    shape: Shape,
    tensor: &Tensor,
    runs: Vec<ElementRun>,
) -> Result<Vec<Target>> {
    let target = |run: ElementRun| {
        let tensor = match run.elements == tensor.elements() {
            true => tensor.clone(),
            false => tensor.view(run.local, [run.elements])?,
        };
        Ok(Target { name: name.to_owned(), dtype, shape, first: run.whole, tensor })
    };
    runs.into_iter().map(target).collect()
}
