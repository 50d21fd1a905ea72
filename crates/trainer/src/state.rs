//! What steps change, as arrays with names: what a checkpoint holds and the hash is of.
//!
//! Data-parallel ranks may each keep a part of an array. Then rank 0's host gets it from all of them, over the control
//! plane in messages of bounded length, and nothing is allocated on a device.

use collective::ControlPlane;
use device::DType;
use optim::{Kind, State};
use parallel::data::Shards;
use tensor::{Shape, Tensor};

use crate::build;
use crate::checkpoint::Target;
use crate::error::Result;
use crate::worker::Worker;

/// The most elements that a rank puts into a message, and that are copied to the host at a time.
pub(crate) const PIECE: usize = 1 << 16;

/// An f32 array of a run's state.
#[derive(Clone, Debug)]
pub(crate) struct Array {
    /// Its name in checkpoints.
    pub(crate) name: String,
    /// That of all of it.
    pub(crate) shape: Shape,
    parameter: usize,
    held: Held,
}

/// What this rank has of an array.
#[derive(Clone, Debug)]
enum Held {
    Whole(Tensor),
    /// Its part, if it has one.
    Part(Option<Tensor>),
}

/// Every parameter's master weights, by the name of the parameter.
pub(crate) fn masters(worker: &Worker) -> Vec<Array> {
    let list = worker.model.parameters().list().iter().enumerate();
    let master = |(parameter, p): (usize, &nn::Parameter)| {
        // Weights in f32 are their own masters and whole on every rank.
        let held = match p.tensor.dtype() {
            DType::F32 => Held::Whole(p.tensor.clone()),
            _ => held(worker, parameter, |state| Some(&state.master)),
        };
        Array { name: p.name.clone(), shape: p.tensor.shape(), parameter, held }
    };
    list.map(master).collect()
}

/// The masters, then the optimizer's other tensors.
pub(crate) fn arrays(worker: &Worker) -> Vec<Array> {
    type Which = fn(&State) -> Option<&Tensor>;
    let kept: &[(&str, Which)] = match build::optimizer_kind(&worker.setup.config).0 {
        Kind::AdamW { .. } => {
            &[("adamw.first", |state| state.first.as_ref()), ("adamw.second", |state| state.second.as_ref())]
        }
        Kind::Sgd { momentum: 0.0 } => &[],
        Kind::Sgd { .. } => &[("sgd.velocity", |state| state.first.as_ref())],
    };
    let mut all = masters(worker);
    for (parameter, p) in worker.model.parameters().list().iter().enumerate() {
        all.extend(kept.iter().map(|(prefix, which)| Array {
            name: format!("{prefix}.{}", p.name),
            shape: p.tensor.shape(),
            parameter,
            held: held(worker, parameter, which),
        }));
    }
    all
}

/// What the optimizer has of a parameter here.
fn held(worker: &Worker, parameter: usize, which: impl Fn(&State) -> Option<&Tensor>) -> Held {
    let shards = worker.reduction.shards();
    let index = shards.own().binary_search_by_key(&parameter, |piece| piece.parameter);
    let state = index.ok().and_then(|index| worker.optimizer.states().get(index));
    let tensor = state.and_then(which).cloned();
    match tensor {
        Some(tensor) if !shards.is_divided() => Held::Whole(tensor),
        tensor => Held::Part(tensor),
    }
}

impl Array {
    /// Whether each rank has a part of it only.
    pub(crate) fn is_divided(&self) -> bool {
        matches!(self.held, Held::Part(_))
    }

    /// The tensor, where this rank has all of it.
    pub(crate) fn whole(&self) -> Option<&Tensor> {
        match &self.held {
            Held::Whole(tensor) => Some(tensor),
            Held::Part(_) => None,
        }
    }

    /// Where a checkpoint's array of this name goes on this rank; none if it keeps nothing of it.
    pub(crate) fn target(&self, shards: &Shards, rank: usize) -> Option<Target> {
        let (first, tensor) = match &self.held {
            Held::Whole(tensor) => (0, Some(tensor)),
            Held::Part(tensor) => (shards.part(rank, self.parameter).start, tensor.as_ref()),
        };
        Some(Target { name: self.name.clone(), shape: self.shape, first, tensor: tensor?.clone() })
    }

    /// Brings all elements to the host of rank 0, into `whole`, which has room for them there and is not looked at
    /// elsewhere. All ranks do that with the same arrays in the same order.
    pub(crate) fn bring(&self, worker: &mut Worker, whole: &mut [f32]) -> Result<()> {
        let (rank, shards) = (worker.grid.rank(), worker.reduction.shards());
        match &self.held {
            Held::Whole(tensor) if rank == 0 => to_host(tensor, whole),
            Held::Whole(_) => Ok(()),
            Held::Part(part) if rank == 0 => {
                if let Some(tensor) = part {
                    to_host(tensor, &mut whole[shards.part(0, self.parameter)])?;
                }
                self.receive(&mut *worker.communicator.control, shards, whole)
            }
            Held::Part(part) => self.send(&mut *worker.communicator.control, shards, part.as_ref()),
        }
    }

    /// Rounds of messages that it takes until the longest part has been sent.
    fn rounds(&self, shards: &Shards) -> usize {
        let lengths = (1..shards.by_rank().len()).map(|rank| shards.part(rank, self.parameter).len());
        lengths.max().unwrap_or(0).div_ceil(PIECE)
    }

    fn send(&self, control: &mut dyn ControlPlane, shards: &Shards, part: Option<&Tensor>) -> Result<()> {
        let (mut values, mut message) = (Vec::new(), Vec::new());
        for round in 0..self.rounds(shards) {
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

    fn receive(&self, control: &mut dyn ControlPlane, shards: &Shards, whole: &mut [f32]) -> Result<()> {
        for round in 0..self.rounds(shards) {
            let messages = control.gather(0, &[])?.unwrap_or_default();
            for (rank, message) in messages.iter().enumerate() {
                let part = &mut whole[shards.part(rank, self.parameter)];
                let words = message.as_chunks::<4>().0;
                let places = part.iter_mut().skip(round * PIECE);
                places.zip(words).for_each(|(place, word)| *place = f32::from_le_bytes(*word));
            }
        }
        Ok(())
    }
}

/// Copies an f32 tensor to the host, in pieces.
fn to_host(tensor: &Tensor, values: &mut [f32]) -> Result<()> {
    for (index, values) in values.chunks_mut(PIECE).enumerate() {
        let piece = tensor.view(index * PIECE, [values.len()])?;
        piece.device().copy_to_host(piece.region(), values)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
