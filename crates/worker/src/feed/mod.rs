//! A rank's input to the pipeline executor: micro-batches on the device, pass settings, and observers.

pub(crate) mod arrays;
pub(crate) mod batch_arrays;
pub(crate) mod batches;
pub mod first_batch;
pub(crate) mod later_tokens;
pub(crate) mod numbers;
pub(crate) mod observation;
pub(crate) mod pairs;
pub(crate) mod pieces;
pub(crate) mod pixels;
pub(crate) mod results;
pub(crate) mod settings;

use autograd::Pass;
use parallel::data::GradientObserver;
use parallel::pipeline::{Action, ActionPart, Feed};
use tensor::Tensor;

use crate::error::{Result, WorkerError};
use batch_arrays::BatchArrays;
use observation::Observation;
use results::Results;
use settings::PassSettings;

/// The input of one pass over the schedule.
pub(crate) struct WorkerFeed<'a> {
    pub(crate) arrays: BatchArrays,
    pub(crate) settings: PassSettings,
    pub(crate) observation: Observation,
    /// Collects the results of evaluated micro-batches.
    pub(crate) results: Results<'a>,
}

impl Feed for WorkerFeed<'_> {
    type Error = WorkerError;

    fn enter(&mut self, action: Action, part: ActionPart) -> Result<()> {
        self.observation.enter(action, part)
    }

    fn leave(&mut self, action: Action) {
        self.observation.leave(action);
    }

    fn inputs(&mut self, micro_batch: usize) -> Result<Tensor> {
        self.arrays.inputs(micro_batch)
    }

    fn targets(&mut self, micro_batch: usize) -> Result<Tensor> {
        self.arrays.targets(micro_batch)
    }

    fn pass(&mut self, action: Action) -> Result<Pass> {
        let numbers = self.arrays.batches.numbers()?;
        let (micro_batch, is_padding) =
            (numbers.number(action.micro_batch), !numbers.is_own(action.micro_batch));
        let pass = self.arrays.pass(action, self.settings.token_count.as_ref())?;
        let observers = self.observation.of_pass(action.stage, micro_batch);
        Ok(self.settings.of_pass(Pass { micro_batch, observers, is_padding, ..pass }))
    }

    fn gradients(&mut self, reduces: bool) -> Option<Box<dyn GradientObserver + '_>> {
        let number = |index| self.arrays.batches.numbers().ok().map(|numbers| numbers.number(index));
        self.observation.of_gradients(number, reduces)
    }

    fn predicted(&mut self, prediction: &Tensor, targets: &Tensor) -> Result<()> {
        self.results.predicted(prediction, targets)
    }

    fn loss(&mut self, _micro_batch: usize, loss: &Tensor) -> Result<()> {
        self.results.loss(loss)
    }
}
