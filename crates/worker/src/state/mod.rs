//! The training state as named arrays, for checkpoints and for the weights' hash.
//!
//! Pipeline ranks hold the arrays of their own stages, and data-parallel ranks may each hold a shard of an
//! array. Every rank writes and hashes its own shards. Nothing is allocated on a device.

pub mod answering;
mod gather;
pub(crate) mod hash;
pub mod loading;
pub(crate) mod records;
mod snapshot;
pub(crate) mod targets;

use std::collections::BTreeMap;
use std::ops::Range;

use collective::{Axis, RankGrid};
use device::DType;
use nn::{Division, ElementRun, Sharding};
use optim::{NamedState, StateArray};
use parallel::data::{ParameterShard, WeightLayout};
use tensor::{Shape, Tensor};

use crate::error::Result;
use crate::setup::buffers::BufferEntry;
use crate::stages::optimizer;
use crate::worker::Worker;

/// Maximum bytes of a message and of a copy to the host; a multiple of every element's size.
pub(crate) const PIECE: usize = 1 << 18;

/// An array of the training state, held by one or more ranks.
#[derive(Clone, Debug)]
pub struct Array {
    /// The array's name in checkpoints.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Shape of the whole array.
    pub shape: Shape,
    /// The shards of the array on all ranks. Shards of one rank are in the order of its tensors.
    sources: Vec<Source>,
    /// Whether every rank of the stage holds the whole array, so that one source represents all of them.
    replicated: bool,
    /// This rank's tensors: one, or one for each tensor lane of a sharded parameter; `None` where the rank's
    /// shard is empty.
    own: Vec<Option<Tensor>>,
}

/// The elements of an array in one tensor of a rank.
#[derive(Clone, Debug)]
struct Source {
    /// The rank that holds the tensor.
    rank: usize,
    /// Index of the tensor among the rank's.
    lane: usize,
    /// The ranges of elements in the tensor.
    runs: Vec<ElementRun>,
}

/// The tensors of this rank's optimizer, by (stage, index of the parameter in the stage, name).
type StateTensors = BTreeMap<(usize, usize, String), Tensor>;

/// Returns every parameter's master weights under the parameter's name, in model order. A frozen or f32
/// parameter is its own master.
pub fn masters(worker: &Worker) -> Result<Vec<Array>> {
    masters_among(worker, &state_tensors(worker))
}

fn masters_among(worker: &Worker, tensors: &StateTensors) -> Result<Vec<Array>> {
    let master = worker.blueprint().wholes().iter().map(|parts| {
        let entry = &worker.blueprint().parameters[parts[0]];
        match is_own_master(entry.trained, entry.dtype) {
            true => weight(worker, parts),
            false => array(worker, parts, StateArray::master(&entry.name), tensors),
        }
    });
    master.collect()
}

/// Returns whether the compute weights themselves are saved, because there are no separate master weights.
pub(crate) fn is_own_master(trained: bool, dtype: DType) -> bool {
    !trained || dtype == DType::F32
}

/// Returns the master weights, followed by the other optimizer state.
pub(crate) fn arrays(worker: &Worker) -> Result<Vec<Array>> {
    let tensors = state_tensors(worker);
    let mut all = masters_among(worker, &tensors)?;
    let config = &worker.setup().config;
    for parts in worker.blueprint().wholes() {
        let entry = &worker.blueprint().parameters[parts[0]];
        let states = optimizer::state_arrays(config, entry).into_iter();
        for state in states.filter(|_| entry.trained) {
            all.push(array(worker, parts, state, &tensors)?);
        }
    }
    Ok(all)
}

fn state_tensors(worker: &Worker) -> StateTensors {
    let states = worker.optimizer_state();
    let named = |(stage, owned, state): (usize, &ParameterShard, NamedState<'_>)| {
        ((stage, owned.parameter, state.array.name), state.tensor.clone())
    };
    states.map(named).collect()
}

/// Returns the stage whose copy of a parameter is saved, and the parameter's index in that stage.
fn holder(worker: &Worker, position: usize) -> (usize, usize) {
    worker.blueprint().parameters[position].holders.first().copied().unwrap_or_default()
}

/// Returns the world rank that holds `stage` in `replica`.
fn rank_of(worker: &Worker, replica: usize, stage: usize) -> usize {
    let stage_rank = worker.blueprint().layout().rank_of(stage);
    let parts = worker.setup().config.parallel.gradient_parts();
    let at = [(Axis::Data, replica / parts), (Axis::Context, replica % parts)];
    worker.grid().rank_at(&[at, [(Axis::Pipeline, stage_rank), (Axis::Tensor, 0)]].concat())
}

/// Returns the ranks of a stage's replica that hold different shards of a parameter.
fn part_holders(worker: &Worker, replica: usize, stage: usize, sharding: &Sharding) -> Result<Vec<RankGrid>> {
    let first = worker.grid().seen_from(rank_of(worker, replica, stage))?;
    let along = |holders: Vec<RankGrid>, division: &Division| {
        let at = |holder: RankGrid| {
            let ranks = 0..holder.size(division.axis);
            ranks.map(move |rank| holder.seen_from(holder.rank_at(&[(division.axis, rank)])))
        };
        holders.into_iter().flat_map(at).collect::<std::result::Result<Vec<_>, _>>()
    };
    Ok(sharding.divisions().iter().try_fold(vec![first], along)?)
}

/// Returns the shape of the state array `state` for a whole parameter. For blockwise state, the blocks of all
/// shards are concatenated.
pub(crate) fn state_shape(state: &StateArray, sharding: &Sharding) -> Shape {
    match state.per {
        1 => sharding.whole(),
        _ => [sharding.parts() * state.shape(sharding.shape()).elements()].into(),
    }
}

/// Returns the ranges of the state array `state` that a rank holds for the elements `range` of its shard.
/// `coordinate` returns the rank's coordinate along an axis.
pub(crate) fn state_runs(
    state: &StateArray,
    sharding: &Sharding,
    coordinate: impl Fn(Axis) -> usize,
    range: Range<usize>,
) -> Vec<ElementRun> {
    if state.per == 1 {
        return part_runs(sharding, coordinate, range);
    }
    // The maxima of a part's blocks follow those of the parts before it.
    let elements = state.range(range);
    let before = sharding.part(coordinate) * state.shape(sharding.shape()).elements();
    vec![ElementRun { local: 0, whole: before + elements.start, elements: elements.len() }]
}

/// Returns the sources of an array: the shards `parts` of a parameter on `replicas` replicas of its stage.
/// `range` returns the elements of the shard for (replica, index of the parameter in the stage).
fn sources(
    worker: &Worker,
    parts: &[usize],
    replicas: usize,
    range: impl Fn(usize, usize) -> Range<usize>,
    runs: impl Fn(&Sharding, &dyn Fn(Axis) -> usize, Range<usize>) -> Vec<ElementRun>,
) -> Result<Vec<Source>> {
    let blueprint = worker.blueprint();
    let mut sources = Vec::new();
    for replica in 0..replicas {
        let (stage, _) = holder(worker, parts[0]);
        for rank in part_holders(worker, replica, stage, &blueprint.parameters[parts[0]].sharding)? {
            for (lane, index) in parts.iter().enumerate() {
                let own = range(replica, holder(worker, *index).1);
                if own.is_empty() {
                    continue;
                }
                let coordinate = |axis| blueprint.coordinate(*index, &rank, axis);
                let runs = runs(&blueprint.parameters[*index].sharding, &coordinate, own);
                sources.push(Source { rank: rank.rank(), lane, runs });
            }
        }
    }
    Ok(sources)
}

/// Returns a parameter's compute weights; a rank holds its shards `parts`.
fn weight(worker: &Worker, parts: &[usize]) -> Result<Array> {
    let entry = &worker.blueprint().parameters[parts[0]];
    let (stage, _) = holder(worker, parts[0]);
    let sharding = &entry.sharding;
    let layout = worker.blueprint().weights(stage);
    let all = 0..sharding.shape().elements();
    let range = |replica, parameter| layout.map_or(all.clone(), |layout| layout.range(replica, parameter));
    let sources = sources(
        worker,
        parts,
        layout.map_or(1, WeightLayout::ranks),
        range,
        |sharding, coordinate, range| part_runs(sharding, coordinate, range),
    )?;
    let own = |index: &usize| {
        let (_, parameter) = holder(worker, *index);
        Ok(match (worker.model(stage), worker.weight_units(stage)) {
            (_, Some(units)) => units.part(parameter)?.map(|(_, part)| part),
            (Some(model), None) => Some(model.parameters().list()[parameter].weight.tensor()?),
            (None, None) => None,
        })
    };
    let own = parts.iter().map(own).collect::<Result<_>>()?;
    let name = entry.name.clone();
    let shape = entry.shape();
    let replicated = layout.is_none_or(|layout| layout.ranks() == 1) && sharding.parts() == 1;
    Ok(Array { name, dtype: entry.dtype, shape, sources, replicated, own })
}

/// Returns the ranges of the whole parameter for the elements `range` of a shard. Local offsets are relative
/// to the start of `range`.
pub(crate) fn part_runs(
    sharding: &Sharding,
    coordinate: impl Fn(Axis) -> usize,
    range: Range<usize>,
) -> Vec<ElementRun> {
    let first = range.start;
    let runs = sharding.runs(coordinate, range).into_iter();
    runs.map(|run| ElementRun { local: run.local - first, ..run }).collect()
}

/// Returns a state array that the optimizer keeps for a parameter; a rank holds its shards `parts`.
fn array(worker: &Worker, parts: &[usize], state: StateArray, tensors: &StateTensors) -> Result<Array> {
    let entry = &worker.blueprint().parameters[parts[0]];
    let (stage, _) = holder(worker, parts[0]);
    let shards = worker.blueprint().shards(stage);
    let sharding = &entry.sharding;
    let range = |replica, parameter| shards.range(replica, parameter);
    let sources = sources(worker, parts, shards.ranks(), range, |sharding, coordinate, range| {
        state_runs(&state, sharding, coordinate, range)
    })?;
    let shape = state_shape(&state, sharding);
    let dtype = state.dtype;
    let own = |index: &usize| tensors.get(&(stage, holder(worker, *index).1, state.name.clone())).cloned();
    let own = parts.iter().map(own).collect();
    let replicated = !shards.is_sharded() && sharding.parts() == 1;
    Ok(Array { name: state.name, dtype, shape, sources, replicated, own })
}

/// Returns the model's buffers. The first data-parallel rank of the first stage with a buffer holds it.
pub fn buffers(worker: &Worker) -> Vec<Array> {
    let array = |entry: &BufferEntry| {
        let (stage, number) = entry.holder;
        let own = worker.model(stage).map(|model| model.buffers()[number].tensor().clone());
        let runs = vec![ElementRun { local: 0, whole: 0, elements: entry.shape.elements() }];
        let sources = vec![Source { rank: rank_of(worker, 0, stage), lane: 0, runs }];
        Array {
            name: entry.name.clone(),
            dtype: entry.dtype,
            shape: entry.shape,
            sources,
            replicated: true,
            own: vec![own],
        }
    };
    worker.blueprint().buffers.iter().map(array).collect()
}

impl Array {
    /// Returns whether every rank of the array's stage holds the whole array.
    pub(crate) fn is_replicated(&self) -> bool {
        self.replicated
    }

    /// Returns the tensor if this rank holds the whole array in one; otherwise `None`.
    pub(crate) fn whole(&self) -> Option<&Tensor> {
        let [own] = &*self.own else { return None };
        own.as_ref().filter(|own| own.elements() == self.shape.elements())
    }

    /// Returns the number of shards over all ranks.
    pub(crate) fn parts_count(&self) -> usize {
        self.sources.len()
    }

    /// Returns the ranges of all elements in array order, as (rank, index of its tensor, range). An array
    /// without elements has one empty range.
    pub(crate) fn runs_in_order(&self) -> Vec<(usize, usize, ElementRun)> {
        let source_runs = |Source { rank, lane, runs }: &'_ Source| {
            let rank = *rank;
            let lane = *lane;
            runs.clone().into_iter().filter(|run| run.elements > 0).map(move |run| (rank, lane, run))
        };
        let mut all: Vec<_> = self.sources.iter().flat_map(source_runs).collect();
        all.sort_by_key(|(_, _, run)| run.whole);
        if all.is_empty() {
            all.push((0, 0, ElementRun { local: 0, whole: 0, elements: 0 }));
        }
        all
    }

    /// Reads a range of this rank's tensor `lane`, and passes its bytes to `take`, up to `most` elements at a
    /// time. `bytes` is a scratch buffer.
    pub(crate) fn read_run(
        &self,
        (lane, run): (usize, ElementRun),
        most: usize,
        bytes: &mut Vec<u8>,
        mut take: impl FnMut(&[u8]),
    ) -> Result<()> {
        let Some(Some(own)) = self.own.get(lane) else { return Ok(()) };
        for first in (0..run.elements).step_by(most) {
            let piece = own.view(run.local + first, [most.min(run.elements - first)])?;
            bytes.resize(piece.bytes(), 0);
            piece.read_bytes(bytes)?;
            take(bytes);
        }
        Ok(())
    }

    /// Returns the bytes of all elements.
    pub fn bytes(&self) -> usize {
        self.dtype.bytes() * self.shape.elements()
    }

    /// Returns the byte range of `elements` elements starting at `first`.
    fn bytes_of(&self, first: usize, elements: usize) -> Range<usize> {
        let size = self.dtype.bytes();
        size * first..size * (first + elements)
    }
}
