//! Activations sent between the stages of a pipeline.

use autograd::{Mode, Tape};
use collective::{Communicator, GridGroups, RankGrid};
use config::RunConfig;
use nn::{Input, Model};
use tensor::Tensor;

use crate::dataset::Dataset;
use crate::error::Result;
use crate::feed::first_batch;

/// Computes the outputs of a stage other than the last, in training and in evaluation, from the previous
/// stage's outputs `before`.
pub(crate) fn outputs(
    config: &RunConfig,
    dataset: &Dataset,
    model: (RankGrid, &dyn Model),
    before: Option<[Tensor; 2]>,
) -> Result<[Tensor; 2]> {
    let [trained, evaluated] = before.map_or([None, None], |before| before.map(Some));
    let evaluated = forward(config, dataset, model, (Mode::Evaluate, evaluated))?;
    // With all values in one type, both modes have outputs of it.
    if !config.precision.is_autocast() {
        return Ok([evaluated.clone(), evaluated]);
    }
    Ok([forward(config, dataset, model, (Mode::Rehearse, trained))?, evaluated])
}

fn forward(
    config: &RunConfig,
    dataset: &Dataset,
    (grid, model): (RankGrid, &dyn Model),
    (mode, before): (Mode, Option<Tensor>),
) -> Result<Tensor> {
    let device = model.parameters().device().clone();
    let first_batch::Uploaded { inputs, mut pass, .. } =
        first_batch::first(config, &dataset.longest_shapes(), &device)?;
    let counted = Communicator::counted(grid.rank(), grid.world_size());
    pass.groups = GridGroups::new(counted, grid)?.handles();
    let tape = Tape::new(&device, mode).with_pass(pass);
    let input = match before {
        Some(hidden) => Input::Hidden(tape.constant(hidden)),
        None => Input::Batch(inputs),
    };
    Ok(model.forward_stage(&tape, input)?.into_tensor())
}
