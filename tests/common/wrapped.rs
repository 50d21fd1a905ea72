//! Hooks that wrap a run's model.

use std::sync::Arc;

use autograd::{Tape, Var};
use nn::{Input, Model, NnError, Parameters};
use tensor::Tensor;
use worker::ModelHook;

type Result<T> = std::result::Result<T, NnError>;
type Forward = dyn Fn(&dyn Model, &Tape, Input) -> Result<Var> + Send + Sync;
type Change = dyn Fn(&Tape, Var) -> Result<Var> + Send + Sync;

struct Wrapped {
    inner: Box<dyn Model>,
    forward: Arc<Forward>,
    change: Arc<Change>,
}

impl Model for Wrapped {
    fn parameters(&self) -> &Parameters {
        self.inner.parameters()
    }

    fn forward(&self, tape: &Tape, input: Input) -> Result<Var> {
        (self.forward)(&*self.inner, tape, input)
    }

    fn loss(&self, tape: &Tape, prediction: Var, targets: &Tensor, scale: f32) -> Result<Var> {
        let prediction = (self.change)(tape, prediction)?;
        self.inner.loss(tape, prediction, targets, scale)
    }
}

fn hook(forward: Arc<Forward>, change: Arc<Change>) -> ModelHook {
    ModelHook::new(move |inner| {
        let forward = Arc::clone(&forward);
        let change = Arc::clone(&change);
        Box::new(Wrapped { inner, forward, change })
    })
}

/// Returns a hook that computes `forward(model, …)` instead of `model.forward(…)`.
pub(crate) fn with_forward(
    forward: impl Fn(&dyn Model, &Tape, Input) -> Result<Var> + Send + Sync + 'static,
) -> ModelHook {
    hook(Arc::new(forward), Arc::new(|_: &Tape, prediction: Var| Ok(prediction)))
}

/// Returns a hook that applies `change` to each prediction before the loss.
pub(crate) fn with_prediction(
    change: impl Fn(&Tape, Var) -> Result<Var> + Send + Sync + 'static,
) -> ModelHook {
    let forward = |model: &dyn Model, tape: &Tape, input: Input| model.forward(tape, input);
    hook(Arc::new(forward), Arc::new(change))
}
