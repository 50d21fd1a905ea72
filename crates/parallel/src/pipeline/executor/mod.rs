//! The executor of a schedule, which enqueues the actions of this rank's list one after another.
//!
//! Passes run on the compute stream. Transfers run one by one in list order on the transfer stream. With
//! events, each waits only for its inputs. The host allocates and frees in list order, independent of the
//! device's progress:
//!
//! * A receive's buffer is allocated from the transfer stream's memory when the receive is enqueued, and
//!   freed after the passes that saved it. The transfer stream waits for these passes before it allocates
//!   again.
//! * A sent tensor is kept until the pass that follows its send has been enqueued. Compute then waits for the
//!   send, and the memory returns to the compute stream.
//!
//! On a single rank the list has no transfers.

mod boundary;
mod forward;
mod passes;
mod repeats;
mod transfers;
mod transit;
mod work;

use std::ops::Range;
use std::sync::Arc;

use autograd::{Mode, Pass, Tape, Var};
use collective::{Axis, GridGroups, RankGrid};
use device::Device;
use nn::{Model, Parameter};
use tensor::Tensor;

use crate::data::{GradientObserver, GradientReduction, ParameterShard, SinkPhase, WeightUnits};
use crate::error::{ParallelError, Result};
use crate::pipeline::action::{Action, ActionKind};
use crate::pipeline::schedule::Schedule;
pub use boundary::StageBoundary;
pub use repeats::{PlanWork, Skipped};
use repeats::{Repeats, Repetition};
use transit::{InTransit, Queues};
use work::Work;

/// A stage of the model on the rank that holds it.
pub struct StagePart {
    /// The stage's layers.
    pub model: Box<dyn Model>,
    /// Buffers that sum the stage's gradients.
    pub reduction: GradientReduction,
    /// The rank's shards of the weights, if the weights are sharded.
    pub weights: Option<WeightUnits>,
}

impl StagePart {
    /// Returns the part of a parameter's weights that the rank updates.
    ///
    /// # Errors
    /// The rank does not own this part.
    pub fn own_weight(&self, owned: &ParameterShard) -> Result<Tensor> {
        let Parameter { name, weight, .. } = &self.model.parameters().list()[owned.parameter];
        let Some(units) = &self.weights else { return owned.slice(&weight.tensor()?) };
        let missing = || ParallelError::Grid(format!("this rank has no part of {name}"));
        units.part(owned.parameter)?.map(|(_, part)| part).ok_or_else(missing)
    }
}

impl std::fmt::Debug for StagePart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StagePart").field("reduction", &self.reduction).finish_non_exhaustive()
    }
}

/// A part of an action, for timing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionPart {
    /// Copies a micro-batch to the device.
    Inputs,
    /// Compute waits for a tensor from another rank.
    Waiting,
    /// Runs the pass itself.
    Computing,
    /// Transfers a tensor: concurrently with compute on a GPU, between passes on the CPU.
    Moving,
}

/// Callbacks of an execution, which provide inputs, receive losses and follow the progress. Micro-batches are
/// numbered within this rank's replica, from 0.
pub trait Feed {
    /// Error of the callbacks.
    type Error: From<ParallelError>;

    /// Called before `part` of `action` is enqueued.
    fn enter(&mut self, action: Action, part: ActionPart) -> std::result::Result<(), Self::Error>;

    /// Called after the pass of `action` was enqueued.
    fn leave(&mut self, _action: Action) {}

    /// Returns the inputs of a micro-batch on the device. Called on the first stage's rank.
    fn inputs(&mut self, micro_batch: usize) -> std::result::Result<Tensor, Self::Error>;

    /// Returns the targets of a micro-batch on the device. Called on the last stage's rank.
    fn targets(&mut self, micro_batch: usize) -> std::result::Result<Tensor, Self::Error>;

    /// Returns the settings of a micro-batch's passes through the stage of the forward `action`. Except for
    /// observers, they must be equal on every stage.
    fn pass(&mut self, _action: Action) -> std::result::Result<Pass, Self::Error> {
        Ok(Pass::default())
    }

    /// Returns an observer of a backward pass's gradients, if any. `reduces`: the gradients are reduced over
    /// ranks.
    fn gradients(&mut self, _reduces: bool) -> Option<Box<dyn GradientObserver + '_>> {
        None
    }

    /// Receives the prediction of an evaluated micro-batch before its loss is computed. Called on the last
    /// stage's rank.
    fn predicted(&mut self, _prediction: &Tensor, _targets: &Tensor) -> std::result::Result<(), Self::Error> {
        Ok(())
    }

    /// Receives the loss of an evaluated micro-batch. Called on the last stage's rank.
    fn loss(&mut self, micro_batch: usize, loss: &Tensor) -> std::result::Result<(), Self::Error>;

    /// Receives the last stage's output of [`Executor::generate`]. Called on the last stage's rank.
    fn output(
        &mut self,
        _model: &dyn Model,
        _tape: &Tape,
        _output: Var,
    ) -> std::result::Result<(), Self::Error> {
        Ok(())
    }
}

/// Runs this rank's action list of a schedule.
#[derive(Debug)]
pub struct Executor {
    device: Device,
    grid: RankGrid,
    schedule: Arc<Schedule>,
    boundaries: Vec<StageBoundary>,
    /// Limits on the work of a plan, if this is one.
    plan_work: Option<PlanWork>,
}

impl Executor {
    /// Creates the executor of a rank of `grid`, whose pipeline runs `schedule`. `boundaries` describes the
    /// tensors sent between each stage and the next.
    ///
    /// # Errors
    /// The schedule has another number of ranks or stages.
    pub fn new(
        device: &Device,
        grid: RankGrid,
        schedule: impl Into<Arc<Schedule>>,
        boundaries: Vec<StageBoundary>,
    ) -> Result<Self> {
        let schedule = schedule.into();
        if schedule.ranks != grid.size(Axis::Pipeline) || schedule.stages != boundaries.len() + 1 {
            return Err(ParallelError::Grid(format!(
                "a schedule of {} stages on {} ranks is not one for {} cuts on {}",
                schedule.stages,
                schedule.ranks,
                boundaries.len(),
                grid.size(Axis::Pipeline)
            )));
        }
        Ok(Executor { device: device.clone(), grid, schedule, boundaries, plan_work: None })
    }

    /// Limits the work of a plan: skips micro-batches that repeat earlier ones, and fails if the others
    /// allocate too often.
    pub fn limit_work(&mut self, work: PlanWork) {
        self.plan_work = Some(work);
    }

    /// The executed schedule.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// The stages of this rank, first to last.
    pub fn stages(&self) -> impl Iterator<Item = usize> {
        self.schedule.stages_of(self.grid.coordinate(Axis::Pipeline))
    }

    /// Returns the micro-batches of a step whose data this rank needs, in the order of its forward passes.
    /// The first stage needs inputs and the last stage targets; with `documents`, all stages need document
    /// borders.
    pub fn data_order(&self, documents: bool) -> Vec<usize> {
        self.data_order_of(&self.schedule.actions[self.grid.coordinate(Axis::Pipeline)], documents)
    }

    /// Returns [`Executor::data_order`] for a validation of `micro_batches` micro-batches.
    pub fn validation_data_order(&self, micro_batches: usize, documents: bool) -> Vec<usize> {
        let rank = self.grid.coordinate(Axis::Pipeline);
        self.data_order_of(&forward::actions(&self.schedule, rank, 0..micro_batches), documents)
    }

    fn data_order_of(&self, actions: &[Action], documents: bool) -> Vec<usize> {
        let needs_data = |action: &&Action| {
            let is_outer = action.stage == 0 || action.stage + 1 == self.schedule.stages;
            action.kind == ActionKind::Forward && (is_outer || documents)
        };
        let mut order: Vec<usize> =
            actions.iter().filter(needs_data).map(|action| action.micro_batch).collect();
        order.dedup();
        order
    }

    /// Runs the forward and backward passes of a step. `parts` are this rank's stages. `scale` multiplies the
    /// loss of each micro-batch. `mode` is [`Mode::Train`] or [`Mode::Rehearse`]. Gradient sums over ranks
    /// have started on return; [`GradientReduction::finish`] completes them. Returns the totals of skipped
    /// repetitions.
    pub fn train<'a, F: Feed>(
        &'a self,
        parts: &'a mut [StagePart],
        groups: &'a mut GridGroups,
        mode: Mode,
        scale: f32,
        feed: &'a mut F,
    ) -> std::result::Result<Skipped, F::Error> {
        let (models, reductions) = parts.iter_mut().map(|part| (&*part.model, &mut part.reduction)).unzip();
        let execution = Execution::new(self, models, reductions, (groups, feed), Work::Step { scale, mode })?;
        execution.run(&self.schedule.actions[self.grid.coordinate(Axis::Pipeline)])
    }

    /// Computes losses in [`Mode::Evaluate`] with this rank's stages `models`. Returns the totals of skipped
    /// repetitions.
    pub fn validate<'a, F: Feed>(
        &'a self,
        models: Vec<&'a dyn Model>,
        groups: &'a mut GridGroups,
        micro_batches: Range<usize>,
        feed: &'a mut F,
    ) -> std::result::Result<Skipped, F::Error> {
        let actions = forward::actions(&self.schedule, self.grid.coordinate(Axis::Pipeline), micro_batches);
        Execution::new(self, models, Vec::new(), (groups, feed), Work::Validation)?.run(&actions)
    }

    /// Runs the forward and backward passes of this replica's micro-batch `micro_batch` between steps, in
    /// [`Mode::Rehearse`]. Discards the gradients and leaves the step's sums unchanged. `scale` multiplies
    /// the loss.
    pub fn repeat<'a, F: Feed>(
        &'a self,
        parts: &'a mut [StagePart],
        groups: &'a mut GridGroups,
        (micro_batch, scale): (usize, f32),
        feed: &'a mut F,
    ) -> std::result::Result<Skipped, F::Error> {
        let (models, reductions) = parts.iter_mut().map(|part| (&*part.model, &mut part.reduction)).unzip();
        let rank = self.grid.coordinate(Axis::Pipeline);
        let actions = forward::both_directions(&self.schedule, rank, micro_batch);
        Execution::new(self, models, reductions, (groups, feed), Work::Repetition { scale })?.run(&actions)
    }

    /// Runs one forward pass of sequences `[rows, time]` (`extents`) through all stages, in
    /// [`Mode::Evaluate`]. `models` are this rank's stages. Transfers run on the compute stream, because the
    /// next pass needs this one's result.
    pub fn generate<'a, F: Feed>(
        &'a self,
        models: Vec<&'a dyn Model>,
        groups: &'a mut GridGroups,
        extents: [usize; 2],
        feed: &'a mut F,
    ) -> std::result::Result<(), F::Error> {
        let actions = forward::actions(&self.schedule, self.grid.coordinate(Axis::Pipeline), 0..1);
        Execution::new(self, models, Vec::new(), (groups, feed), Work::Generation { extents })?
            .run(&actions)?;
        Ok(())
    }
}

/// One execution of a list of actions.
struct Execution<'a, F> {
    executor: &'a Executor,
    models: Vec<&'a dyn Model>,
    /// Gradient sums by stage; empty if the work has no backward.
    reductions: Vec<&'a mut GradientReduction>,
    groups: &'a mut GridGroups,
    feed: &'a mut F,
    work: Work,
    /// Queues of each of this rank's stages.
    queues: Vec<Queues>,
    transit: InTransit,
}

impl<'a, F: Feed> Execution<'a, F> {
    fn new(
        executor: &'a Executor,
        models: Vec<&'a dyn Model>,
        reductions: Vec<&'a mut GradientReduction>,
        (groups, feed): (&'a mut GridGroups, &'a mut F),
        work: Work,
    ) -> Result<Self> {
        let queues = models.iter().map(|_| Queues::default()).collect();
        let transit = InTransit::new(&executor.device, executor.schedule.ranks > 1, work.transfer_stream())?;
        Ok(Execution { executor, models, reductions, groups, feed, work, queues, transit })
    }

    /// Executes `actions` in order.
    fn run(mut self, actions: &[Action]) -> std::result::Result<Skipped, F::Error> {
        let executor = self.executor;
        let mut repeats = executor
            .plan_work
            .map(|work| Repeats::new(&executor.device, work, actions, |action| self.phase(action)));
        let mut done = 0;
        let mut skipped = Skipped::default();
        while let Some(action) = actions.get(done) {
            self.perform(*action)?;
            done += 1;
            let Some(repeats) = repeats.as_mut().filter(|_| action.kind.is_compute()) else { continue };
            let traffic = self.groups.traffic_by_axis();
            if let Some(repetition) = repeats.note(&executor.device, done, traffic)? {
                done += repetition.actions;
                self.skip(&repetition)?;
                skipped += repetition.totals;
            }
        }
        self.transit.release()?;
        Ok(skipped)
    }

    /// Returns the phase of an action's gradients; the default if the action has none.
    fn phase(&self, action: &Action) -> SinkPhase {
        let reduction = self.local_stage(*action).ok().and_then(|stage| self.reductions.get(stage));
        reduction.map_or_else(SinkPhase::default, |reduction| reduction.phase(action.micro_batch))
    }

    /// Advances as if the actions of a repetition had been executed. The rank's other stages are unchanged.
    fn skip(&mut self, repetition: &Repetition) -> Result<()> {
        let (calls, times) = &repetition.calls;
        self.executor.device.log_repetition(calls.clone(), *times);
        for action in &repetition.stages {
            let stage = self.local_stage(*action)?;
            self.queues[stage].skip(repetition.micro_batches);
            if let Some(reduction) = self.reductions.get_mut(stage) {
                reduction.skip(repetition.micro_batches);
            }
        }
        Ok(())
    }

    /// Returns whether gradients are sent back across the boundary after `stage`.
    fn passes_gradient(&self, stage: Option<usize>) -> bool {
        let boundary = stage.and_then(|stage| self.executor.boundaries.get(stage));
        boundary.is_some_and(|boundary| boundary.gradient)
    }

    fn perform(&mut self, action: Action) -> std::result::Result<(), F::Error> {
        match action.kind {
            ActionKind::Forward => self.forward(action)?,
            ActionKind::Backward | ActionKind::BackwardInput => self.backward(action)?,
            ActionKind::BackwardWeight => self.backward_weight(action)?,
            // No stage before the boundary is trained.
            ActionKind::ReceiveBackward if !self.passes_gradient(Some(action.stage)) => return Ok(()),
            ActionKind::SendBackward if !self.passes_gradient(action.stage.checked_sub(1)) => return Ok(()),
            ActionKind::ReceiveForward | ActionKind::ReceiveBackward => return self.receive(action),
            ActionKind::SendForward | ActionKind::SendBackward => return self.send(action),
        }
        self.feed.leave(action);
        self.transit.note_release()?;
        self.release_sent(action)
    }

    /// Makes compute wait for the sends before the latest pass, and releases the sent tensors.
    fn release_sent(&mut self, action: Action) -> std::result::Result<(), F::Error> {
        if self.transit.is_sending() {
            self.feed.enter(action, ActionPart::Waiting)?;
            self.transit.release()?;
        }
        Ok(())
    }

    /// Index of an action's stage among this rank's stages.
    fn local_stage(&self, action: Action) -> Result<usize> {
        let schedule = &self.executor.schedule;
        let stage = schedule.layout().chunk_of(action.stage);
        let is_local = schedule.rank_of(action.stage) == self.executor.grid.coordinate(Axis::Pipeline);
        if is_local && stage < self.models.len() { Ok(stage) } else { Err(ParallelError::Unsound { action }) }
    }
}
