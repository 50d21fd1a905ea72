//! The state that steps change, as named arrays: the contents of a checkpoint, and the input of the weights'
//! hash.
//!
//! Pipeline ranks hold the arrays of their own stages, and data-parallel ranks may each hold a shard of an
//! array. Every rank writes its own part of a checkpoint, and hashes its own part. Nothing is allocated on a
//! device.

mod gather;
mod snapshot;

use std::collections::BTreeMap;
use std::ops::Range;

use collective::{Axis, RankGrid};
use device::DType;
use nn::{Division, Run, Sharding};
use optim::StateArray;
use parallel::data::WeightLayout;
use tensor::{Shape, Tensor};

use crate::buffers::BufferEntry;
use crate::error::Result;
use crate::optimizer;
use crate::worker::Worker;

/// Largest number of bytes in a message and in a copy to the host; a multiple of every element's size.
pub(crate) const PIECE: usize = 1 << 18;

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
pub(crate) fn is_own_master(trained: bool, dtype: DType) -> bool {
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
pub(crate) fn state_shape(state: &StateArray, sharding: &Sharding) -> Shape {
    match state.per {
        1 => sharding.whole(),
        _ => [sharding.parts() * state.shape(sharding.shape()).elements()].into(),
    }
}

/// Returns the runs of the array `state` of a parameter that a rank holds for elements `range` of its part.
pub(crate) fn state_runs(
    state: &StateArray,
    sharding: &Sharding,
    holder: &RankGrid,
    range: Range<usize>,
) -> Vec<Run> {
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
pub(crate) fn part_runs(
    sharding: &Sharding,
    coordinate: impl Fn(Axis) -> usize,
    range: Range<usize>,
) -> Vec<Run> {
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
