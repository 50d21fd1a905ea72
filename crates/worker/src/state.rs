//! The state that steps change, as named arrays: the contents of a checkpoint, and the input of the weights'
//! hash.
//!
//! Pipeline ranks hold the arrays of their own stages, and data-parallel ranks may each hold a shard of an
//! array. Every rank writes and reads its own part of a checkpoint, and hashes its own part. Nothing is
//! allocated on a device.

mod gather;
mod snapshot;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use checkpoint::{Checkpoint, Target};
use collective::{Axis, RankGrid};
use device::DType;
use nn::{Division, Lora, Model, Run, Sharding};
use optim::StateArray;
use parallel::data::{WeightLayout, WeightUnits};
use system::numbers::megabytes_of;
use system::pace::Pace;
use tensor::{Shape, Tensor};

use crate::answering::Answers;
use crate::buffers::BufferEntry;
use crate::error::Result;
use crate::optimizer;
use crate::start::{Layered, Start, Weights};
use crate::worker::Worker;

/// Largest number of bytes in a message and in a copy to the host; a multiple of every element's size.
pub(crate) const PIECE: usize = 1 << 18;

/// Most elements that are read between two answers to other ranks.
const LOADED: usize = 1 << 22;

/// An array of a run's state, held by one or more ranks.
#[derive(Clone, Debug)]
pub struct Array {
    /// The array's name in checkpoints.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Shape of the whole array.
    pub shape: Shape,
    /// The ranks that hold the array, each with the runs of elements in its tensor.
    sources: Vec<(usize, Vec<Run>)>,
    /// Whether every rank of the stage holds the whole array, so that one source stands for all of them.
    replicated: bool,
    /// This rank's shard, if it has one.
    own: Option<Tensor>,
}

/// The tensors of this rank's optimizer, by stage and name.
type StateTensors = BTreeMap<(usize, String), Tensor>;

/// Returns every parameter's master weights under the parameter's name, in the order of the whole model. A
/// parameter that is frozen, or used in f32, is its own master.
pub fn masters(worker: &Worker) -> Result<Vec<Array>> {
    masters_among(worker, &state_tensors(worker))
}

fn masters_among(worker: &Worker, tensors: &StateTensors) -> Result<Vec<Array>> {
    let entries = worker.blueprint().parameters.iter().enumerate();
    let master = entries.map(|(position, entry)| match is_own_master(entry.trained, entry.dtype) {
        true => weight(worker, position),
        false => array(worker, position, StateArray::master(&entry.name), tensors),
    });
    master.collect()
}

/// Returns whether the compute weights are the ones that are saved.
fn is_own_master(trained: bool, dtype: DType) -> bool {
    !trained || dtype == DType::F32
}

/// Returns the masters, then the optimizer's other tensors.
pub(crate) fn arrays(worker: &Worker) -> Result<Vec<Array>> {
    let tensors = state_tensors(worker);
    let mut all = masters_among(worker, &tensors)?;
    let config = &worker.setup().config;
    let entries = worker.blueprint().parameters.iter().enumerate();
    for (position, entry) in entries.filter(|(_, entry)| entry.trained) {
        for state in optimizer::state_arrays(config, &entry.name, entry.shape()) {
            all.push(array(worker, position, state, &tensors)?);
        }
    }
    Ok(all)
}

fn state_tensors(worker: &Worker) -> StateTensors {
    let states = worker.optimizer_state();
    states.map(|(stage, _, state)| ((stage, state.array.name), state.tensor.clone())).collect()
}

/// Returns the stage whose copy of a parameter is saved, and the parameter's index there.
fn holder(worker: &Worker, position: usize) -> (usize, usize) {
    worker.blueprint().parameters[position].holders.first().copied().unwrap_or_default()
}

/// Returns the rank of the world that holds a stage in a replica.
fn rank_of(worker: &Worker, replica: usize, stage: usize) -> usize {
    let stage_rank = worker.blueprint().layout().rank_of(stage);
    worker.grid().rank_at(&[(Axis::Data, replica), (Axis::Pipeline, stage_rank)])
}

/// Returns the ranks of a stage's replica that hold different parts of a parameter.
fn part_holders(worker: &Worker, replica: usize, stage: usize, sharding: &Sharding) -> Result<Vec<RankGrid>> {
    let first = worker.grid().seen_from(rank_of(worker, replica, stage))?;
    let along = |holders: Vec<RankGrid>, division: &Division| {
        let at = |holder: RankGrid| {
            (0..division.parts).map(move |part| holder.seen_from(holder.rank_at(&[(division.axis, part)])))
        };
        holders.into_iter().flat_map(at).collect::<std::result::Result<Vec<_>, _>>()
    };
    Ok(sharding.divisions().iter().try_fold(vec![first], along)?)
}

/// Returns the shape of the array `state` of a whole parameter. Blocks are those of its parts.
fn state_shape(state: &StateArray, sharding: &Sharding) -> Shape {
    match state.per {
        1 => sharding.whole(),
        _ => [sharding.parts() * state.shape(sharding.shape()).elements()].into(),
    }
}

/// Returns the runs of the array `state` of a parameter that a rank holds for elements `range` of its part.
fn state_runs(state: &StateArray, sharding: &Sharding, holder: &RankGrid, range: Range<usize>) -> Vec<Run> {
    let coordinate = |axis| holder.coordinate(axis);
    if state.per == 1 {
        return part_runs(sharding, coordinate, range);
    }
    // The maxima of a part's blocks follow those of the parts before it.
    let elements = state.range(range);
    let before = sharding.part(coordinate) * state.shape(sharding.shape()).elements();
    vec![Run { local: 0, whole: before + elements.start, elements: elements.len() }]
}

/// Returns the weights that compute with a parameter.
fn weight(worker: &Worker, position: usize) -> Result<Array> {
    let (entry, (stage, parameter)) = (&worker.blueprint().parameters[position], holder(worker, position));
    let (sharding, layout) = (&entry.sharding, worker.blueprint().weights(stage));
    let mut sources = Vec::new();
    for replica in 0..layout.map_or(1, WeightLayout::ranks) {
        let all = 0..sharding.shape().elements();
        let range = layout.map_or(all, |layout| layout.range(replica, parameter));
        for holder in part_holders(worker, replica, stage, sharding)?.iter().filter(|_| !range.is_empty()) {
            sources.push((holder.rank(), part_runs(sharding, |axis| holder.coordinate(axis), range.clone())));
        }
    }
    let own = match (worker.model(stage), worker.weight_units(stage)) {
        (_, Some(units)) => units.part(parameter)?.map(|(_, part)| part),
        (Some(model), None) => Some(model.parameters().list()[parameter].weight.tensor()?),
        (None, None) => None,
    };
    let (name, shape) = (entry.name.clone(), entry.shape());
    let replicated = layout.is_none() && sharding.parts() == 1;
    Ok(Array { name, dtype: entry.dtype, shape, sources, replicated, own })
}

/// Returns the runs of elements `range` of a part of a parameter, counted in the range.
fn part_runs(sharding: &Sharding, coordinate: impl Fn(Axis) -> usize, range: Range<usize>) -> Vec<Run> {
    let first = range.start;
    let runs = sharding.runs(coordinate, range).into_iter();
    runs.map(|run| Run { local: run.local - first, ..run }).collect()
}

/// Returns an array that optimizers keep for a parameter.
fn array(worker: &Worker, position: usize, state: StateArray, tensors: &StateTensors) -> Result<Array> {
    let (entry, (stage, parameter)) = (&worker.blueprint().parameters[position], holder(worker, position));
    let (shards, sharding) = (worker.blueprint().shards(stage), &entry.sharding);
    let mut sources = Vec::new();
    for replica in 0..shards.ranks() {
        let range = shards.range(replica, parameter);
        for holder in part_holders(worker, replica, stage, sharding)?.iter().filter(|_| !range.is_empty()) {
            sources.push((holder.rank(), state_runs(&state, sharding, holder, range.clone())));
        }
    }
    let (shape, dtype) = (state_shape(&state, sharding), state.dtype);
    let key = (stage, state.name);
    let own = tensors.get(&key).cloned();
    let replicated = !shards.is_sharded() && sharding.parts() == 1;
    Ok(Array { name: key.1, dtype, shape, sources, replicated, own })
}

/// Returns the tensors of this rank into which a checkpoint is read: everything that the rank holds, copies
/// of tied weights included.
fn targets(worker: &Worker) -> Result<Vec<Target>> {
    let mut targets = Vec::new();
    for (model, units) in worker.stage_weights() {
        targets.extend(parameter_targets(model, units, |of| is_own_master(of.trained, of.weight.dtype()))?);
    }
    for (stage, owned, state) in worker.optimizer_state() {
        let Some(model) = worker.model(stage) else { continue };
        let sharding = &model.parameters().list()[owned.parameter].sharding;
        let runs = state_runs(&state.array, sharding, worker.grid(), owned.shard.range.clone());
        let shape = state_shape(&state.array, sharding);
        let StateArray { name, dtype, .. } = state.array;
        targets.extend(run_targets(&name, dtype, shape, state.tensor, runs)?);
    }
    targets.extend(worker.models().flat_map(|model| model.buffers()).map(whole_buffer));
    Ok(targets)
}

/// Returns the [`targets`] that are master weights or buffers.
fn weight_targets(worker: &Worker) -> Result<Vec<Target>> {
    let parameters = worker.models().flat_map(|model| model.parameters().list());
    let buffers = worker.models().flat_map(|model| model.buffers());
    let names = parameters.map(|parameter| parameter.name.clone());
    let names: BTreeSet<_> = names.chain(buffers.map(|buffer| buffer.name().to_owned())).collect();
    let mut all = targets(worker)?;
    all.retain(|target| names.contains(&target.name));
    Ok(all)
}

/// Returns the weights of this rank that are rounded copies of their masters, as targets of the masters.
fn rounded_targets(worker: &Worker) -> Result<Vec<Target>> {
    let mut targets = Vec::new();
    for (model, units) in worker.stage_weights() {
        targets.extend(parameter_targets(model, units, |of| !is_own_master(of.trained, of.weight.dtype()))?);
    }
    Ok(targets)
}

/// Returns targets that read what `target` does, part by part.
fn pieces(target: &Target) -> Result<Vec<Target>> {
    let elements = target.tensor.elements();
    let piece = |at: usize| {
        let tensor = target.tensor.view(at, [LOADED.min(elements - at)])?;
        Ok(Target { first: target.first + at, tensor, ..target.clone() })
    };
    (0..elements).step_by(LOADED).map(piece).collect()
}

/// Returns targets that read this rank's parts of arrays of master weights into the parameters of their names
/// that `chosen` accepts.
fn parameter_targets(
    model: &dyn Model,
    units: Option<&WeightUnits>,
    chosen: impl Fn(&nn::Parameter) -> bool,
) -> Result<Vec<Target>> {
    let parameters = model.parameters();
    let mut targets = Vec::new();
    for (number, parameter) in parameters.list().iter().enumerate().filter(|(_, of)| chosen(of)) {
        let nn::Parameter { name, weight, sharding, .. } = parameter;
        let part = match units {
            Some(units) => units.part(number)?,
            None => Some((0, weight.tensor()?)),
        };
        let Some((first, tensor)) = part else { continue };
        let range = first..first + tensor.elements();
        let runs = part_runs(sharding, |axis| parameters.coordinate(axis), range);
        targets.extend(run_targets(name, DType::F32, sharding.whole(), &tensor, runs)?);
    }
    Ok(targets)
}

/// Returns a target for each of the `runs` of an array of this name, type and shape into `tensor`.
fn run_targets(
    name: &str,
    dtype: DType,
    shape: Shape,
    tensor: &Tensor,
    runs: Vec<Run>,
) -> Result<Vec<Target>> {
    let target = |run: Run| {
        let tensor = match run.elements == tensor.elements() {
            true => tensor.clone(),
            false => tensor.view(run.local, [run.elements])?,
        };
        Ok(Target { name: name.to_owned(), dtype, shape, first: run.whole, tensor })
    };
    runs.into_iter().map(target).collect()
}

/// Returns a target that reads a whole array into the buffer of its name.
fn whole_buffer(buffer: &nn::ModelBuffer) -> Target {
    let tensor = buffer.tensor().clone();
    Target::whole(buffer.name().to_owned(), tensor.dtype(), tensor)
}

/// Returns the model's buffers, each held by the first data-parallel rank of the first stage that has it.
pub fn buffers(worker: &Worker) -> Vec<Array> {
    let array = |entry: &BufferEntry| {
        let (stage, number) = entry.holder;
        let own = worker.model(stage).map(|model| model.buffers()[number].tensor().clone());
        let runs = vec![Run { local: 0, whole: 0, elements: entry.shape.elements() }];
        let sources = vec![(rank_of(worker, 0, stage), runs)];
        Array {
            name: entry.name.clone(),
            dtype: entry.dtype,
            shape: entry.shape,
            sources,
            replicated: true,
            own,
        }
    };
    worker.blueprint().buffers.iter().map(array).collect()
}

/// Reads a model's buffers and parameters, or this rank's parts of them.
///
/// # Errors
/// Weights that cannot be read or belong to another model.
pub fn load_model(model: &dyn Model, units: Option<&WeightUnits>, weights: &dyn Weights) -> Result<()> {
    let mut all = parameter_targets(model, units, |_| true)?;
    all.extend(model.buffers().iter().map(whole_buffer));
    weights.load(&mut with_progress(all, weights.path()))
}

/// Returns `targets` one by one, and logs at times how much of them has been read from `path`.
fn with_progress(targets: Vec<Target>, path: &Path) -> impl Iterator<Item = Target> {
    let bytes = |target: &Target| (target.dtype.bytes() * target.tensor.elements()) as u64;
    let all = targets.iter().map(bytes).sum();
    let (pace, mut done) = (Pace::of_files(), 0);
    targets.into_iter().inspect(move |target| {
        if pace.is_due() {
            tracing::info!("reading {}: {}", path.display(), megabytes_of(done, all));
        }
        done += bytes(target);
    })
}

impl Worker {
    /// Loads the state with which the run starts. Every rank reads its own part.
    ///
    /// # Errors
    /// Weights that cannot be read or belong to another model.
    pub fn begin(&mut self) -> Result<()> {
        match self.setup().start.clone() {
            Start::Drawn => Ok(()),
            Start::Weights(weights) => {
                // Adapters that are not there start as in any run.
                let mut targets = weight_targets(self)?;
                targets.retain(|target| weights.has(&target.name) || !Lora::is_adapter(&target.name));
                self.take(&*weights, targets)
            }
            Start::Resumed(point) => self.restore(&point.checkpoint),
        }
    }

    /// Restores all state from a checkpoint.
    ///
    /// # Errors
    /// As for [`Worker::begin`].
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let weights = Layered::new(Arc::new(checkpoint.clone()), self.setup().base.clone());
        self.take(&weights, targets(self)?)?;
        checkpoint.loss_scale().map_or(Ok(()), |scale| self.set_loss_scale(scale))?;
        self.set_updates(checkpoint.updates())
    }

    /// Reads `targets`, and the compute weights that are rounded copies of their masters. Answers the other
    /// ranks meanwhile, whose disks may be faster.
    fn take(&mut self, weights: &dyn Weights, mut targets: Vec<Target>) -> Result<()> {
        let rounded = rounded_targets(self)?.into_iter();
        targets.extend(rounded.filter(|target| weights.has(&target.name) || !Lora::is_adapter(&target.name)));
        let pieces = targets.iter().map(pieces).collect::<Result<Vec<_>>>()?.concat();
        let mut answers = Answers::new(self.control());
        weights.load(&mut with_progress(pieces, weights.path()).inspect(|_| answers.answer()))?;
        answers.finish()?;
        self.outdate_weights();
        Ok(())
    }
}

impl Array {
    /// Returns whether every rank of the array's stage holds the whole array.
    pub(crate) fn is_replicated(&self) -> bool {
        self.replicated
    }

    /// The tensor, if this rank holds the whole array.
    pub(crate) fn whole(&self) -> Option<&Tensor> {
        self.own.as_ref().filter(|own| own.elements() == self.shape.elements())
    }

    /// Returns the runs of all elements in the order of the whole array, each with the rank that holds it. An
    /// array without elements has an empty run.
    pub(crate) fn runs_in_order(&self) -> Vec<(usize, Run)> {
        let of_rank = |(rank, runs): &'_ (usize, Vec<Run>)| {
            let rank = *rank;
            runs.clone().into_iter().filter(|run| run.elements > 0).map(move |run| (rank, run))
        };
        let mut all: Vec<_> = self.sources.iter().flat_map(of_rank).collect();
        all.sort_by_key(|(_, run)| run.whole);
        if all.is_empty() {
            all.push((0, Run { local: 0, whole: 0, elements: 0 }));
        }
        all
    }

    /// Passes the bytes of a run of this rank to `take`, up to `most` elements at a time, by way of `bytes`.
    pub(crate) fn read_run(
        &self,
        run: Run,
        most: usize,
        bytes: &mut Vec<u8>,
        mut take: impl FnMut(&[u8]),
    ) -> Result<()> {
        let Some(own) = &self.own else { return Ok(()) };
        for first in (0..run.elements).step_by(most) {
            let piece = own.view(run.local + first, [most.min(run.elements - first)])?;
            bytes.resize(piece.bytes(), 0);
            piece.read_bytes(bytes)?;
            take(bytes);
        }
        Ok(())
    }

    /// Bytes of all elements.
    pub fn bytes(&self) -> usize {
        self.dtype.bytes() * self.shape.elements()
    }

    /// Byte range of `elements` elements from `first` on.
    fn bytes_of(&self, first: usize, elements: usize) -> Range<usize> {
        let size = self.dtype.bytes();
        size * first..size * (first + elements)
    }
}

/// Copies the bytes of a tensor from element `first` on to the host, piece by piece.
fn to_host(tensor: &Tensor, first: usize, bytes: &mut [u8]) -> Result<()> {
    let size = tensor.dtype().bytes();
    for (index, bytes) in bytes.chunks_mut(PIECE).enumerate() {
        tensor.view(first + index * PIECE / size, [bytes.len() / size])?.read_bytes(bytes)?;
    }
    Ok(())
}
