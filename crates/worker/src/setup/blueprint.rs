//! Description of the whole model of a run, obtained by building every stage on Meta. Every rank knows all
//! stages, and holds only its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use collective::{Axis, RankGrid};
use device::{DType, Description, Device, DeviceOptions};
use nn::{Model, ParameterRole, Sharding, Shards, Stage};
use parallel::data::{BucketLayout, OptimizerShards, WeightLayout};
use parallel::pipeline::{Schedule, StageBoundary, StageLayout};
use tensor::Shape;

use crate::build;
use crate::dataset::Dataset;
use crate::error::{Result, WorkerError};
use crate::observers::hooks::ModelHook;
use crate::setup::buffers::{BufferEntry, BufferList};
use crate::setup::{boundaries, muon};
use config::{Optim, Precision, RunConfig};

/// A parameter of the whole model, or one of the shards that a rank holds of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The parameter's name.
    pub name: String,
    /// How the parameter is sharded over ranks.
    pub sharding: Sharding,
    /// Index of the shard among those of a rank. Each shard that a rank holds has its own entry.
    pub shard: usize,
    /// Type of the compute weights; U8 for a quantized parameter, which is stored as bytes.
    pub dtype: DType,
    /// Role in the model.
    pub role: ParameterRole,
    /// Number of elements of the whole parameter.
    pub elements: usize,
    /// Whether the parameter is trained.
    pub trained: bool,
    /// (stage, index in the stage) of every stage that holds the parameter. The hash, the norm and
    /// checkpoints use the first; the others are tied copies, with uses of their own.
    pub holders: Vec<(usize, usize)>,
}

impl Entry {
    /// Returns the shape of the whole parameter.
    pub fn shape(&self) -> Shape {
        self.sharding.whole()
    }

    /// Returns the number of elements in a shard's gradient: 0 for a frozen parameter.
    fn gradient_elements(&self) -> usize {
        if self.trained { self.sharding.shape().elements() } else { 0 }
    }
}

/// The whole model, divided into stages.
#[derive(Clone, Debug)]
pub struct Blueprint {
    /// The grid as seen by rank 0.
    grid: RankGrid,
    /// The layers of each stage.
    pub stages: Vec<Stage>,
    /// The actions of all pipeline ranks in a step, for the replica with the most micro-batches.
    pub schedule: Arc<Schedule>,
    /// Every parameter, in the order of the stages.
    pub parameters: Vec<Entry>,
    /// Every buffer, in the order of the stages.
    pub buffers: Vec<BufferEntry>,
    /// For each stage, the index in `parameters` of each of its parameters.
    indices: Vec<Vec<usize>>,
    layer_shards: Shards,
    /// For each whole parameter, the indices in `parameters` of all shards that a rank holds, in order.
    wholes: Vec<Vec<usize>>,
    /// For each entry of `parameters`, the index in `gradient_sizes` of the whole parameter's first shard.
    first_gradients: Vec<usize>,
    /// The activation that each stage sends to the next.
    pub boundaries: Vec<StageBoundary>,
    /// For each stage, how its optimizer state is sharded over data-parallel ranks.
    shards: Vec<OptimizerShards>,
    /// For each stage, the buckets of its gradients.
    buckets: Vec<BucketLayout>,
    /// For each stage, how its weights are sharded over data-parallel ranks; `None` if they are not.
    weights: Vec<Option<WeightLayout>>,
}

impl Blueprint {
    /// Builds the model of a run on devices like `description`, wrapped by `hook`.
    ///
    /// # Errors
    /// No model can be built with these sizes, data cannot be read, or buffers of one name have different
    /// types or shapes.
    pub fn new(
        config: &RunConfig,
        dataset: &Dataset,
        description: &Description,
        stages: Vec<Stage>,
        hook: Option<&ModelHook>,
    ) -> Result<Self> {
        let device = meta(description)?;
        let grid = config.parallel.grid().seen_from(0)?;
        let mut parameters = Vec::new();
        let mut shards = Vec::new();
        let mut boundaries = Vec::new();
        let mut buckets = Vec::new();
        let mut weights = Vec::new();
        let mut adapters = Vec::new();
        let mut linear_layers = Vec::new();
        let mut by_name = ByName::new();
        let mut hidden = None;
        let mut buffers = BufferList::default();
        for (number, stage) in stages.iter().enumerate() {
            let model = build::model(config, &device, grid, stage)?;
            weights.push(config.gathers_weights().then(|| build::weight_layout(config, model.parameters())));
            add(&mut parameters, &mut by_name, number, &*model);
            let layout = build::bucket_layout(config, model.parameters());
            shards.push(divide(config, &*model, &layout));
            buckets.push(layout);
            adapters.extend_from_slice(model.parameters().adapters().tensors());
            linear_layers.extend_from_slice(model.parameters().fp8().linear_layers());
            if !stage.is_last() {
                let outputs = boundaries::outputs(config, dataset, (grid, &*model), hidden.take())?;
                let gradient = parameters.iter().any(|entry: &Entry| entry.trained);
                let [trained, evaluated] = &outputs;
                let shape = trained.shape();
                let dtype = trained.dtype();
                let evaluated_dtype = evaluated.dtype();
                boundaries.push(StageBoundary { shape, dtype, evaluated_dtype, gradient });
                hidden = Some(outputs);
            }
            buffers.add(number, &*ModelHook::around(hook, model))?;
        }
        let names = parameters.iter().map(|entry: &Entry| entry.name.as_str());
        config.tuning.check(names, &adapters).map_err(|(key, reason)| {
            WorkerError::Refused(format!("{}: {key}: {reason}", config.origins.find(key)))
        })?;
        let names = parameters.iter().map(|entry| (entry.name.as_str(), entry.trained));
        config.optim.check_groups(names).map_err(|reason| {
            let key = Optim::groups;
            WorkerError::Refused(format!("{}: {key}: {reason}", config.origins.find(key)))
        })?;
        let trained = parameters.iter().filter(|entry| entry.trained);
        muon::check(config, trained.map(|entry| (entry.name.as_str(), entry.role))).map_err(|reason| {
            let key = Optim::kind;
            WorkerError::Refused(format!("{}: {reason}", config.origins.find(key)))
        })?;
        if let Some(fp8) = &config.fp8 {
            fp8.check(linear_layers.iter().map(String::as_str)).map_err(|reason| {
                let key = Precision::fp8_layers;
                WorkerError::Refused(format!("{}: {key}: {reason}", config.origins.find(key)))
            })?;
        }
        let buffers = buffers.finish(|name| by_name.contains_key(name))?;
        if let Some(entry) = parameters.iter().find(|entry: &&Entry| entry.holders.len() > 2) {
            let count = entry.holders.len();
            let text = format!("{} is held by {count} stages: a weight can be tied to one other", entry.name);
            return Err(WorkerError::Refused(text));
        }
        let mut indices = vec![Vec::new(); stages.len()];
        for (position, entry) in parameters.iter().enumerate() {
            entry.holders.iter().for_each(|(stage, number)| indices[*stage].push((*number, position)));
        }
        let in_order = |mut indices: Vec<(usize, usize)>| {
            indices.sort_unstable();
            indices.into_iter().map(|(_, position)| position).collect()
        };
        let indices = indices.into_iter().map(in_order).collect();
        let wholes = wholes(&parameters);
        let first_gradients = first_gradients(&parameters, &wholes);
        let schedule = Arc::new(schedule(config)?);
        Ok(Blueprint {
            grid,
            stages,
            schedule,
            parameters,
            buffers,
            indices,
            layer_shards: config.parallel.layer_shards(),
            wholes,
            first_gradients,
            boundaries,
            shards,
            buckets,
            weights,
        })
    }

    /// Returns the pipeline schedule of a replica of `config`.
    pub fn schedule_of(&self, config: &RunConfig, replica: usize) -> Result<Arc<Schedule>> {
        if config.pipeline_shape_of(replica) == config.pipeline_shape() {
            return Ok(Arc::clone(&self.schedule));
        }
        Ok(Arc::new(schedule_of(config, replica)?))
    }

    /// Returns the index in `parameters` of a stage's parameter, and whether this stage holds its first copy.
    pub fn find(&self, stage: usize, parameter: usize) -> Option<(usize, bool)> {
        let position = *self.indices.get(stage)?.get(parameter)?;
        Some((position, self.parameters.get(position)?.holders.first() == Some(&(stage, parameter))))
    }

    /// Returns the stages of pipeline rank `rank`, in order.
    pub fn stages_of(&self, rank: usize) -> impl Iterator<Item = usize> {
        self.layout().stages_of(rank)
    }

    /// Returns the assignment of stages to pipeline ranks.
    pub fn layout(&self) -> StageLayout {
        StageLayout { ranks: self.grid.size(Axis::Pipeline), stages: self.stages.len() }
    }

    /// Returns the stages of world rank `rank`, in order; empty for a rank outside the grid.
    fn stages_of_world_rank(&self, rank: usize) -> impl Iterator<Item = usize> {
        let grid = self.grid.seen_from(rank).ok();
        grid.into_iter().flat_map(|grid| self.stages_of(grid.coordinate(Axis::Pipeline)))
    }

    /// Formats the stages of world rank `rank`; empty if the model is one stage.
    pub fn in_words(&self, rank: usize) -> String {
        let own: Vec<_> = self.stages_of_world_rank(rank).map(|stage| stage.to_string()).collect();
        match (&*own, self.stages.len()) {
            (_, 1) => String::new(),
            ([only], of) => format!("stage {only} of {of}"),
            (several, of) => format!("stages {} of {of}", several.join(", ")),
        }
    }

    /// Formats the stages of world rank `rank` with their layers, counted from 0, such as `0: 0-5, 2: 12-17`.
    pub fn layers_in_words(&self, rank: usize) -> String {
        let stage = |number: usize| {
            let layers = &self.stages[number].layers;
            format!("{number}: {}-{}", layers.start, layers.end.saturating_sub(1))
        };
        self.stages_of_world_rank(rank).map(stage).collect::<Vec<_>>().join(", ")
    }

    /// Formats the number of layers of each stage, such as `13, 12, 12, 11`.
    pub fn layers_of_stages(&self) -> String {
        let counts = self.stages.iter().map(|stage| stage.layers.len().to_string());
        counts.collect::<Vec<_>>().join(", ")
    }

    /// Returns, for each whole parameter, the indices in `parameters` of all shards that a rank holds.
    pub fn wholes(&self) -> &[Vec<usize>] {
        &self.wholes
    }

    /// Returns the first entry of each whole parameter, in order.
    fn first_parts(&self) -> impl Iterator<Item = &Entry> {
        self.wholes.iter().map(|parts| &self.parameters[parts[0]])
    }

    /// Returns the number of elements of each whole parameter, in order.
    pub fn sizes(&self) -> Vec<usize> {
        self.first_parts().map(|entry| entry.elements).collect()
    }

    /// Returns the number of elements in each shard of each parameter's gradient, in order; 0 for frozen
    /// parameters. The gradient norm adds in this order.
    pub fn gradient_sizes(&self) -> Vec<usize> {
        let parts = |entry: &Entry| vec![entry.gradient_elements(); entry.sharding.parts()];
        self.first_parts().flat_map(parts).collect()
    }

    /// Returns the index in [`Blueprint::gradient_sizes`] of the shard of parameter `index` that a rank of
    /// `grid` holds.
    pub fn gradient_index(&self, index: usize, grid: &RankGrid) -> usize {
        self.first_gradients[index] + self.part(index, grid)
    }

    /// Returns the index of the shard of parameter `index` that a rank of `grid` holds, among all its shards.
    pub fn part(&self, index: usize, grid: &RankGrid) -> usize {
        self.parameters[index].sharding.part(|axis| self.coordinate(index, grid, axis))
    }

    /// Returns the coordinate along `axis` of the shard of parameter `index` that a rank of `grid` holds.
    pub fn coordinate(&self, index: usize, grid: &RankGrid, axis: Axis) -> usize {
        self.layer_shards.coordinate(grid, self.parameters[index].shard, axis)
    }

    /// Returns the name of the shard of parameter `index` on a rank of `grid`. It includes the shard's number
    /// if there are several.
    pub fn part_name(&self, index: usize, grid: &RankGrid) -> String {
        let entry = &self.parameters[index];
        match entry.sharding.parts() {
            1 => entry.name.clone(),
            parts => format!("{}[{} of {parts}]", entry.name, self.part(index, grid)),
        }
    }

    /// Returns how a stage's weights are sharded over data-parallel ranks; `None` if every rank has all of
    /// them.
    pub fn weights(&self, stage: usize) -> Option<&WeightLayout> {
        self.weights[stage].as_ref()
    }

    /// Returns the buckets of a stage's gradients.
    pub fn buckets(&self, stage: usize) -> &BucketLayout {
        &self.buckets[stage]
    }

    /// Returns how a stage's optimizer state is sharded over data-parallel ranks.
    pub fn shards(&self, stage: usize) -> &OptimizerShards {
        &self.shards[stage]
    }
}

/// Memory limit in bytes that no model reaches, because building the description must not fail for lack of
/// memory.
const PLENTY: u64 = 1 << 60;

/// Returns a Meta device like `description`, with practically unlimited memory.
pub fn meta(description: &Description) -> Result<Device> {
    let description = Description { total_bytes: PLENTY, ..description.clone() };
    Ok(Device::meta(0, description, &DeviceOptions::default())?)
}

/// Adds a stage's parameters to the list.
fn add(parameters: &mut Vec<Entry>, by_name: &mut ByName, stage: usize, model: &dyn Model) {
    for (number, parameter) in model.parameters().list().iter().enumerate() {
        let shards = by_name.entry(parameter.name.clone()).or_default();
        let position = *shards.entry(parameter.shard).or_insert(parameters.len());
        if position == parameters.len() {
            let (name, sharding, shard) =
                (parameter.name.clone(), parameter.sharding.clone(), parameter.shard);
            let dtype = parameter.weight.dtype();
            let trained = parameter.trained;
            let elements = parameter.elements() * sharding.parts();
            let role = parameter.role;
            let holders = Vec::new();
            parameters.push(Entry { name, sharding, shard, dtype, role, elements, trained, holders });
        }
        parameters[position].holders.push((stage, number));
    }
}

/// Index of each entry in `parameters`, by name and shard.
type ByName = BTreeMap<String, BTreeMap<usize, usize>>;

/// Groups the entries by whole parameter, in the order of their first shards.
fn wholes(parameters: &[Entry]) -> Vec<Vec<usize>> {
    let mut wholes = Vec::<Vec<usize>>::new();
    let mut by_name = BTreeMap::new();
    for (index, entry) in parameters.iter().enumerate() {
        let whole = *by_name.entry(entry.name.as_str()).or_insert(wholes.len());
        match wholes.get_mut(whole) {
            Some(parts) => parts.push(index),
            None => wholes.push(vec![index]),
        }
    }
    wholes
}

/// Returns, for each entry, the number of shards of all whole parameters before its own.
fn first_gradients(parameters: &[Entry], wholes: &[Vec<usize>]) -> Vec<usize> {
    let mut firsts = vec![0; parameters.len()];
    let mut before = 0;
    for parts in wholes {
        parts.iter().for_each(|index| firsts[*index] = before);
        before += parts.first().map_or(0, |index| parameters[*index].sharding.parts());
    }
    firsts
}

fn divide(config: &RunConfig, model: &dyn Model, layout: &BucketLayout) -> OptimizerShards {
    let stage = config.parallel.sharding_stage();
    let owners = config.parallel.owners();
    OptimizerShards::new(stage, model.parameters(), layout, owners, 0)
}

/// Returns the pipeline schedule of the first replica, which runs the most micro-batches.
pub fn schedule(config: &RunConfig) -> Result<Schedule> {
    schedule_of(config, 0)
}

/// Returns the pipeline schedule of a replica.
fn schedule_of(config: &RunConfig, replica: usize) -> Result<Schedule> {
    let schedule = Schedule::new(config.schedule_kind(), config.pipeline_shape_of(replica));
    schedule.map_err(|error| WorkerError::Refused(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::dataset::DataScope;
    use crate::setup::Setup;
    use crate::setup::placement::Placement;

    fn blueprint(sets: &[&str]) -> Blueprint {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        let text = "[model]\nlayers = 4\n[data]\nkind = \"synthetic\"\n";
        vision::register().unwrap();
        let config = RunConfig::parse(text, "test.toml", Path::new("/"), &sets).unwrap();
        let equal = |config: &RunConfig| {
            let model_layers = config.layers();
            let stages = config.stages();
            let stage = |stage| Stage {
                layers: stage * model_layers / stages..(stage + 1) * model_layers / stages,
                model_layers,
            };
            (0..stages).map(stage).collect()
        };
        let setup = Setup::new(config, Placement::Cpu, DataScope::All, |config, _, _| {
            Ok::<_, WorkerError>(equal(config))
        })
        .unwrap();
        setup.blueprint.as_ref().clone()
    }

    #[test]
    fn stages_have_the_parameters_of_the_whole_model_in_order() {
        let mlp = ["model.kind=mlp", "model.sizes=[3, 30, 30, 20, 7]"];
        for model in [&["model.width=32"][..], &mlp] {
            let whole = blueprint(model);
            assert!(whole.parameters.iter().all(|entry| entry.holders.len() == 1));
            for grid in [
                &["parallel.pipeline=2"][..],
                &["parallel.pipeline=4"],
                &["parallel.pipeline=2", "parallel.schedule=interleaved"],
            ] {
                let divided = blueprint(&[model, grid].concat());
                let names = |of: &Blueprint| {
                    of.parameters.iter().map(|p| (p.name.clone(), p.shape())).collect::<Vec<_>>()
                };
                assert_eq!(names(&divided), names(&whole), "{grid:?}");
                assert_eq!(divided.boundaries.len() + 1, divided.stages.len());
                for (position, entry) in divided.parameters.iter().enumerate() {
                    for (index, (stage, number)) in entry.holders.iter().enumerate() {
                        assert_eq!(divided.find(*stage, *number), Some((position, index == 0)));
                    }
                    // The tied token table is also in the last stage.
                    let last = divided.stages.len() - 1;
                    let tied = entry.name == "wte.weight";
                    assert_eq!(entry.holders.len(), if tied { 2 } else { 1 }, "{}", entry.name);
                    assert!(!tied || entry.holders[1].0 == last);
                }
            }
        }
    }
}
