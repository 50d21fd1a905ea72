//! A rank's state on the host: what goes into a checkpoint, and back.

use nn::Parameters;
use optim::Kind;
use tensor::{Tensor, ops};

use super::format::{Entry, PIECE};
use super::reader::{Checkpoint, LOSSES};
use crate::build;
use crate::error::Result;
use crate::worker::Worker;

/// Everything of a worker that steps change, by the names that it has in checkpoints: master weights by those of their
/// parameters, and the optimizer's state.
///
/// Data-parallel ranks hold all of it, and the same; so rank 0 writes, and every rank reads.
fn named(worker: &Worker) -> Vec<(String, Tensor)> {
    let (first, second) = match build::optimizer_kind(&worker.setup.config).0 {
        Kind::AdamW { .. } => ("adamw.first", "adamw.second"),
        Kind::Sgd { .. } => ("sgd.velocity", ""),
    };
    let states = || worker.optimizer.slots().iter().zip(worker.optimizer.states());
    let mut all: Vec<_> = states().map(|(slot, state)| (slot.name.clone(), state.master.clone())).collect();
    for (slot, state) in states() {
        for (prefix, tensor) in [(first, &state.first), (second, &state.second)] {
            all.extend(tensor.iter().map(|tensor| (format!("{prefix}.{}", slot.name), tensor.clone())));
        }
    }
    all
}

/// A copy of a rank's state. Its memory is used again for the next one.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) entries: Vec<Entry>,
    pub(super) values: Vec<f32>,
}

impl Snapshot {
    /// Copies the state to the host, in pieces, and allocates nothing on the device.
    pub(super) fn take(&mut self, worker: &Worker, losses: &[f32]) -> Result<()> {
        self.entries.clear();
        self.values.clear();
        for (name, tensor) in named(worker) {
            let (start, elements) = (self.values.len(), tensor.elements());
            self.values.resize(start + elements, 0.0);
            for first in (0..elements).step_by(PIECE) {
                let len = PIECE.min(elements - first);
                let piece = tensor.view(first, [len])?;
                let target = &mut self.values[start + first..start + first + len];
                worker.device.copy_to_host(piece.region(), target)?;
            }
            self.enter(name, tensor.shape().dims().to_vec(), start);
        }
        let start = self.values.len();
        self.values.extend_from_slice(losses);
        self.enter(LOSSES.to_owned(), vec![losses.len()], start);
        Ok(())
    }

    fn enter(&mut self, name: String, shape: Vec<usize>, start: usize) {
        let bytes = 4 * start as u64..4 * self.values.len() as u64;
        self.entries.push(Entry { name, shape, bytes });
    }
}

/// Puts a worker where the checkpoint was taken.
pub(crate) fn restore(worker: &mut Worker, checkpoint: &Checkpoint) -> Result<()> {
    checkpoint.load(&named(worker))?;
    for (slot, state) in worker.optimizer.slots().iter().zip(worker.optimizer.states()) {
        if !state.master.shares_storage(&slot.weight) {
            ops::cast::into(&state.master, &slot.weight)?;
        }
    }
    worker.optimizer.resume_at(u32::try_from(checkpoint.step()).unwrap_or(u32::MAX));
    Ok(())
}

/// Gives parameters the values that they had when the checkpoint was taken.
pub(crate) fn load_parameters(parameters: &Parameters, checkpoint: &Checkpoint) -> Result<()> {
    let named = parameters.list().iter().map(|p| (p.name.clone(), p.tensor.clone()));
    checkpoint.load(&named.collect::<Vec<_>>())
}
