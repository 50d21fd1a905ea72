//! What runs a schedule: it walks this rank's list, and enqueues one action after the other.
//!
//! Passes go onto the compute stream and transfers, one by one in the list's order, onto the transfer stream;
//! events between the two make each wait for no more than what it needs. Whatever the device has done by
//! then, the host's order of allocating and freeing is that of the list:
//!
//! * a receive's buffer is taken at the receive's place from the transfer stream's memory, and goes when the
//!   passes that saved it have run; the transfer stream waits for them before it takes memory again;
//! * what is sent stays until the pass that follows its send has been enqueued; then compute waits for the
//!   send, and the memory is compute's again.
//!
//! A model on one rank is the same: a list without transfers.

mod forward;
mod passes;
mod transfers;
mod transit;

use autograd::Mode;
use device::{DType, Device};
use nn::Model;
use tensor::{Shape, Tensor};

use crate::data::{GradientReduction, MicroBatchSink};
use crate::error::{ParallelError, Result};
use crate::grid::{Axis, RankGrid};
use crate::pipeline::action::{Action, ActionKind};
use crate::pipeline::schedule::Schedule;
use crate::planes::Planes;
use transit::{InTransit, Queues};

/// One stage of the model, on the rank that holds it.
pub struct StagePart {
    /// Its layers.
    pub model: Box<dyn Model>,
    /// Where its gradients add up.
    pub reduction: GradientReduction,
}

impl std::fmt::Debug for StagePart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StagePart").field("reduction", &self.reduction).finish_non_exhaustive()
    }
}

/// The tensor that crosses from a stage to the next; its gradient, which crosses back, is like it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossing {
    /// Its sizes, for one micro-batch.
    pub shape: Shape,
    /// The type of its elements.
    pub dtype: DType,
}

/// What a part of an action is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionPart {
    /// Bringing the micro-batch to the device.
    Inputs,
    /// Compute waits for what another rank sends.
    Waiting,
    /// Compute computes.
    Computing,
    /// A transfer, beside compute; on a host, which does one thing at a time, in its place.
    Moving,
}

/// What the executor asks of whoever trains, and tells them. Micro-batches are those of this rank's replica,
/// from 0.
pub trait Feed {
    /// What can go wrong there.
    type Error: From<ParallelError>;

    /// What is enqueued from now on is this part of this action.
    fn enter(&mut self, action: Action, part: ActionPart) -> std::result::Result<(), Self::Error>;

    /// The inputs of a micro-batch, on the device: asked for where the first stage is.
    fn inputs(&mut self, micro_batch: usize) -> std::result::Result<Tensor, Self::Error>;

    /// Its targets, where the last stage is.
    fn targets(&mut self, micro_batch: usize) -> std::result::Result<Tensor, Self::Error>;

    /// The sink that backward is given; `reduces`: whether the gradients of this pass go to other ranks.
    fn sink<'a>(
        &'a mut self,
        sink: MicroBatchSink<'a>,
        reduces: bool,
    ) -> Box<dyn autograd::GradientSink + 'a>;

    /// The loss of a micro-batch of an evaluation, where the last stage is.
    fn loss(&mut self, micro_batch: usize, loss: &Tensor) -> std::result::Result<(), Self::Error>;
}

/// Runs this rank's list of a schedule.
#[derive(Debug)]
pub struct Executor {
    device: Device,
    grid: RankGrid,
    schedule: Schedule,
    crossings: Vec<Crossing>,
}

impl Executor {
    /// For a rank of `grid`, whose pipeline runs `schedule`; `crossings`: between each stage and the next.
    /// Errors: a schedule of another number of ranks, or with another number of cuts.
    pub fn new(
        device: &Device,
        grid: RankGrid,
        schedule: Schedule,
        crossings: Vec<Crossing>,
    ) -> Result<Self> {
        if schedule.ranks != grid.size(Axis::Pipeline) || schedule.stages != crossings.len() + 1 {
            return Err(ParallelError::Grid(format!(
                "a schedule of {} stages on {} ranks is not one for {} cuts on {}",
                schedule.stages,
                schedule.ranks,
                crossings.len(),
                grid.size(Axis::Pipeline)
            )));
        }
        Ok(Executor { device: device.clone(), grid, schedule, crossings })
    }

    /// What it runs.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// The stages of this rank, first to last.
    pub fn stages(&self) -> impl Iterator<Item = usize> {
        self.schedule.stages_of(self.grid.coordinate(Axis::Pipeline))
    }

    /// The forward and backward passes of a step: `parts` are this rank's stages, and the loss of each
    /// micro-batch is multiplied by `scale`. `mode` is [`Mode::Train`] or [`Mode::Rehearse`]. Sums of
    /// gradients over ranks have begun where it returns, and [`GradientReduction::finish`] completes them.
    pub fn train<'a, F: Feed>(
        &'a self,
        parts: &'a mut [StagePart],
        planes: &'a mut Planes,
        mode: Mode,
        scale: f32,
        feed: &'a mut F,
    ) -> std::result::Result<(), F::Error> {
        let mut walk = Walk::new(self, parts, planes, feed, scale, mode)?;
        self.schedule.actions[self.grid.coordinate(Axis::Pipeline)]
            .iter()
            .try_for_each(|action| walk.perform(*action))?;
        walk.transit.let_go().map_err(F::Error::from)
    }

    /// The losses of `micro_batches` micro-batches, in [`Mode::Evaluate`].
    pub fn validate<'a, F: Feed>(
        &'a self,
        parts: &'a mut [StagePart],
        planes: &'a mut Planes,
        micro_batches: usize,
        feed: &'a mut F,
    ) -> std::result::Result<(), F::Error> {
        let actions = forward::actions(&self.schedule, self.grid.coordinate(Axis::Pipeline), micro_batches);
        let mut walk = Walk::new(self, parts, planes, feed, 1.0, Mode::Evaluate)?;
        actions.into_iter().try_for_each(|action| walk.perform(action))?;
        walk.transit.let_go().map_err(F::Error::from)
    }
}

/// One walk down a list.
struct Walk<'a, F> {
    executor: &'a Executor,
    parts: &'a mut [StagePart],
    planes: &'a mut Planes,
    feed: &'a mut F,
    scale: f32,
    mode: Mode,
    /// By stage of this rank.
    queues: Vec<Queues>,
    transit: InTransit,
}

impl<'a, F: Feed> Walk<'a, F> {
    fn new(
        executor: &'a Executor,
        parts: &'a mut [StagePart],
        planes: &'a mut Planes,
        feed: &'a mut F,
        scale: f32,
        mode: Mode,
    ) -> Result<Self> {
        let queues = parts.iter().map(|_| Queues::default()).collect();
        let transit = InTransit::new(&executor.device, executor.schedule.ranks > 1)?;
        Ok(Walk { executor, parts, planes, feed, scale, mode, queues, transit })
    }

    fn perform(&mut self, action: Action) -> std::result::Result<(), F::Error> {
        match action.kind {
            ActionKind::Forward => self.forward(action)?,
            ActionKind::Backward | ActionKind::BackwardInput => self.backward(action)?,
            ActionKind::BackwardWeight => self.backward_weight(action)?,
            ActionKind::ReceiveForward | ActionKind::ReceiveBackward => return self.receive(action),
            ActionKind::SendForward | ActionKind::SendBackward => return self.send(action),
            ActionKind::Reduce => {
                let place = self.place(action)?;
                return Ok(self.parts[place].reduction.check_complete()?);
            }
        }
        self.transit.note_release()?;
        self.let_go(action)
    }

    /// Gives up what was sent before the pass that has just been enqueued: compute waits until it has been.
    fn let_go(&mut self, action: Action) -> std::result::Result<(), F::Error> {
        if self.transit.is_sending() {
            self.feed.enter(action, ActionPart::Waiting)?;
            self.transit.let_go()?;
        }
        Ok(())
    }

    /// Where a stage is among this rank's.
    fn place(&self, action: Action) -> Result<usize> {
        let place = self.executor.schedule.layout().chunk_of(action.stage);
        let here =
            self.executor.schedule.rank_of(action.stage) == self.executor.grid.coordinate(Axis::Pipeline);
        if here && place < self.parts.len() { Ok(place) } else { Err(ParallelError::Unsound { action }) }
    }
}
