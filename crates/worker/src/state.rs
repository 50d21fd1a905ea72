//! The state that steps change, as named arrays: the contents of a checkpoint, and the input of the weights'
//! hash.
//!
//! Pipeline ranks hold the arrays of their own stages, and data-parallel ranks may each hold a part of an
//! array. Rank 0 collects arrays on its host over the control plane, in messages of bounded length; nothing
//! is allocated on a device.

use std::collections::BTreeMap;
use std::ops::Range;

use checkpoint::{Checkpoint, Snapshot, Target};
use collective::ControlPlane;
use device::DType;
use nn::Parameters;
use parallel::Axis;
use tensor::{Shape, Tensor};

use crate::build;
use crate::error::{Result, WorkerError};
use crate::worker::Worker;

/// Largest number of elements in a message and in a copy to the host.
pub(crate) const PIECE: usize = 1 << 16;

/// An f32 array of a run's state, held by one or more ranks.
#[derive(Clone, Debug)]
pub struct Array {
    /// The array's name in checkpoints.
    pub name: String,
    /// Shape of the whole array.
    pub shape: Shape,
    /// The ranks that hold the array, each with its range of elements.
    sources: Vec<(usize, Range<usize>)>,
    /// This rank's part, if it has one.
    own: Option<Tensor>,
}

/// The tensors that this rank's optimizer keeps, by stage and name.
type Kept = BTreeMap<(usize, String), Tensor>;

/// Returns every parameter's master weights under the parameter's name, in the order of the whole model.
pub fn masters(worker: &Worker) -> Vec<Array> {
    masters_among(worker, &kept(worker))
}

fn masters_among(worker: &Worker, kept: &Kept) -> Vec<Array> {
    let whole = worker.setup().config.precision.compute == DType::F32;
    let entries = worker.blueprint().parameters.iter().enumerate();
    // Weights in f32 are their own masters and whole on every rank of the stage.
    let master = entries.map(|(place, entry)| match whole {
        true => whole_weight(worker, place),
        false => array(worker, place, entry.name.clone(), kept),
    });
    master.collect()
}

/// The masters, then the optimizer's other tensors.
pub(crate) fn arrays(worker: &Worker) -> Vec<Array> {
    let kept = kept(worker);
    let mut all = masters_among(worker, &kept);
    let rule = build::update_rule(&worker.setup().config);
    for (place, entry) in worker.blueprint().parameters.iter().enumerate() {
        let names = rule.states().iter().map(|state| optim::state_name(state, &entry.name));
        all.extend(names.map(|name| array(worker, place, name, &kept)));
    }
    all
}

fn kept(worker: &Worker) -> Kept {
    let states = worker.optimizer_state();
    states.map(|(stage, _, state)| ((stage, state.name), state.tensor.clone())).collect()
}

/// Returns the stage whose copy of a parameter is saved, and the parameter's index there.
fn holder(worker: &Worker, place: usize) -> (usize, usize) {
    worker.blueprint().parameters[place].holders.first().copied().unwrap_or_default()
}

/// The rank of the world that holds a stage in a replica.
fn rank_of(worker: &Worker, replica: usize, stage: usize) -> usize {
    let stage_rank = worker.blueprint().layout().rank_of(stage);
    worker.grid().rank_at(&[(Axis::Data, replica), (Axis::Pipeline, stage_rank)])
}

fn whole_weight(worker: &Worker, place: usize) -> Array {
    let (entry, (stage, parameter)) = (&worker.blueprint().parameters[place], holder(worker, place));
    let own = worker.model(stage).map(|model| model.parameters().list()[parameter].tensor.clone());
    let sources = vec![(rank_of(worker, 0, stage), 0..entry.shape.elements())];
    Array { name: entry.name.clone(), shape: entry.shape, sources, own }
}

/// The array `name` that optimizers keep for a parameter.
fn array(worker: &Worker, place: usize, name: String, kept: &Kept) -> Array {
    let (entry, (stage, parameter)) = (&worker.blueprint().parameters[place], holder(worker, place));
    let shards = worker.blueprint().shards(stage);
    let source = |replica| (rank_of(worker, replica, stage), shards.range(replica, parameter));
    let sources = (0..shards.by_rank().len()).map(source).filter(|(_, part)| !part.is_empty());
    let (sources, key) = (sources.collect(), (stage, name));
    let own = kept.get(&key).cloned();
    Array { name: key.1, shape: entry.shape, sources, own }
}

/// Returns the tensors of this rank that a checkpoint is read into: everything that the rank holds, copies of
/// tied weights included.
pub(crate) fn targets(worker: &Worker) -> Vec<Target> {
    let whole = worker.setup().config.precision.compute == DType::F32;
    let mut targets = Vec::new();
    for model in worker.models().filter(|_| whole) {
        targets.extend(model.parameters().list().iter().map(whole_parameter));
    }
    targets.extend(worker.optimizer_state().filter_map(|(stage, owned, state)| {
        let parameter = &worker.model(stage)?.parameters().list()[owned.parameter];
        let (shape, first) = (parameter.tensor.shape(), owned.shard.range.start);
        Some(Target { name: state.name, shape, first, tensor: state.tensor.clone() })
    }));
    targets
}

/// Reads a whole array into the parameter of its name.
fn whole_parameter(parameter: &nn::Parameter) -> Target {
    Target::whole(parameter.name.clone(), parameter.tensor.clone())
}

/// Reads parameters from a checkpoint. Errors: the checkpoint cannot be read, or belongs to another model.
pub fn load_parameters(parameters: &Parameters, checkpoint: &Checkpoint) -> Result<()> {
    checkpoint.load::<WorkerError>(parameters.list().iter().map(whole_parameter))
}

impl Worker {
    /// Copies the state to the host of rank 0, which this is, piece by piece; allocates nothing on the
    /// device. The other ranks call [`Worker::contribute`]. Errors: those of the device and the transport.
    pub fn take_snapshot(&mut self, snapshot: &mut Snapshot, losses: &[f32]) -> Result<()> {
        for array in arrays(self) {
            let values = snapshot.add(array.name.clone(), array.shape.dims());
            array.bring(self, values)?;
        }
        snapshot.add_losses(losses);
        snapshot.set_updates(self.updates()?);
        Ok(())
    }

    /// Sends this rank's parts while rank 0 takes a snapshot. Errors: as for [`Worker::take_snapshot`].
    pub fn contribute(&mut self) -> Result<()> {
        if self.device().is_meta() {
            return Ok(());
        }
        arrays(self).iter().try_for_each(|array| array.bring(self, &mut []))
    }

    /// Reads the state of this rank from a checkpoint. Errors: the checkpoint cannot be read, or belongs to
    /// another model.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        checkpoint.load::<WorkerError>(targets(self).into_iter())?;
        // Weights that are not their own masters are their rounding.
        let parameters = self.models().flat_map(|model| model.parameters().list());
        let rounded = parameters.filter(|parameter| parameter.tensor.dtype() != DType::F32);
        checkpoint.load::<WorkerError>(rounded.map(whole_parameter))?;
        self.set_updates(checkpoint.updates())
    }
}

impl Array {
    /// Returns whether every rank holds the whole array.
    pub(crate) fn is_whole(&self) -> bool {
        self.sources.iter().all(|(rank, part)| *rank == 0 && part.len() == self.shape.elements())
    }

    /// The tensor, if this rank holds the whole array.
    pub(crate) fn whole(&self) -> Option<&Tensor> {
        self.own.as_ref().filter(|own| own.elements() == self.shape.elements())
    }

    /// Collects all elements on the host of rank 0, in `whole`, which is not read or written on other ranks.
    /// All ranks call this with the same arrays in the same order.
    pub fn bring(&self, worker: &mut Worker, whole: &mut [f32]) -> Result<()> {
        let rank = worker.grid().rank();
        let part = self.sources.iter().find(|(source, _)| *source == rank);
        let own = part.and(self.own.as_ref());
        if rank == 0 {
            if let (Some(own), Some((_, part))) = (own, part) {
                to_host(own, &mut whole[part.clone()])?;
            }
            return self.receive(worker.control(), whole);
        }
        self.send(worker.control(), own)
    }

    /// Number of messages until the longest part has been sent.
    fn rounds(&self) -> usize {
        let others = self.sources.iter().filter(|(rank, _)| *rank != 0);
        others.map(|(_, part)| part.len()).max().unwrap_or(0).div_ceil(PIECE)
    }

    fn send(&self, control: &mut dyn ControlPlane, part: Option<&Tensor>) -> Result<()> {
        let (mut values, mut message) = (Vec::new(), Vec::new());
        for round in 0..self.rounds() {
            message.clear();
            let elements = part.map_or(0, Tensor::elements);
            let len = elements.saturating_sub(round * PIECE).min(PIECE);
            if let Some(part) = part.filter(|_| len > 0) {
                values.resize(len, 0.0);
                to_host(&part.view(round * PIECE, [len])?, &mut values)?;
                message.extend(values.iter().flat_map(|value: &f32| value.to_le_bytes()));
            }
            control.gather(0, &message)?;
        }
        Ok(())
    }

    fn receive(&self, control: &mut dyn ControlPlane, whole: &mut [f32]) -> Result<()> {
        for round in 0..self.rounds() {
            let messages = control.gather(0, &[])?.unwrap_or_default();
            for (rank, part) in self.sources.iter().filter(|(rank, _)| *rank != 0) {
                let words = messages.get(*rank).map_or(&[][..], |message| message.as_chunks::<4>().0);
                let places = whole[part.clone()].iter_mut().skip(round * PIECE);
                places.zip(words).for_each(|(place, word)| *place = f32::from_le_bytes(*word));
            }
        }
        Ok(())
    }
}

/// Copies an f32 tensor to the host, piece by piece.
fn to_host(tensor: &Tensor, values: &mut [f32]) -> Result<()> {
    for (index, values) in values.chunks_mut(PIECE).enumerate() {
        let piece = tensor.view(index * PIECE, [values.len()])?;
        piece.device().copy_to_host(piece.region(), values)?;
    }
    Ok(())
}
