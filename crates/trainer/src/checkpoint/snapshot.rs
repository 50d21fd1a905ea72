//! A run's state on the host: what goes into a checkpoint, and back.

use device::DType;
use nn::Parameters;

use super::format::Entry;
use super::reader::{Checkpoint, LOSSES, Target};
use crate::error::Result;
use crate::state;
use crate::worker::Worker;

/// A copy of a run's state. Its memory is used again for the next one.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) entries: Vec<Entry>,
    pub(super) values: Vec<f32>,
}

impl Snapshot {
    /// Copies the state to the host of rank 0, which this is, in pieces, and allocates nothing on the device. The other
    /// ranks call [`contribute`].
    pub(super) fn take(&mut self, worker: &mut Worker, losses: &[f32]) -> Result<()> {
        self.entries.clear();
        self.values.clear();
        for array in state::arrays(worker) {
            let start = self.values.len();
            self.values.resize(start + array.shape.elements(), 0.0);
            array.bring(worker, &mut self.values[start..])?;
            self.enter(array.name, array.shape.dims().to_vec(), start);
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

/// What a rank other than 0 does while rank 0 takes a snapshot.
pub(crate) fn contribute(worker: &mut Worker) -> Result<()> {
    if worker.device.is_meta() {
        return Ok(());
    }
    state::arrays(worker).iter().try_for_each(|array| array.bring(worker, &mut []))
}

/// Puts a worker where the checkpoint was taken. Every rank reads what it keeps.
pub(crate) fn restore(worker: &mut Worker, checkpoint: &Checkpoint) -> Result<()> {
    checkpoint.load(state::targets(worker).into_iter())?;
    // Weights that are not their own masters are their rounding.
    let parameters = worker.parts.iter().flat_map(|part| part.model.parameters().list());
    let rounded = parameters.filter(|parameter| parameter.tensor.dtype() != DType::F32);
    checkpoint.load(rounded.map(whole))?;
    worker.optimizer.resume_at(u32::try_from(checkpoint.step()).unwrap_or(u32::MAX));
    Ok(())
}

/// Gives parameters the values that they had when the checkpoint was taken.
pub(crate) fn load_parameters(parameters: &Parameters, checkpoint: &Checkpoint) -> Result<()> {
    checkpoint.load(parameters.list().iter().map(whole))
}

/// All of an array goes to the parameter of its name.
pub(crate) fn whole(parameter: &nn::Parameter) -> Target {
    let tensor = parameter.tensor.clone();
    Target { name: parameter.name.clone(), shape: tensor.shape(), first: 0, tensor }
}
