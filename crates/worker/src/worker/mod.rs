//! One rank: its device, its model, its buffers, and its steps.

mod averages;
mod counters;
mod hashes;
mod observed;
mod records;
mod reduction;
mod reference;
mod rehearsal;
mod replay;
mod results;
mod rounding;
mod settings;
mod step;
mod update;
mod validate;
mod verify;

use std::cell::RefCell;
use std::rc::Rc;

use autograd::Offload;
use checkpoint::LossScale;
use collective::{Axis, Communicator, RankGrid};
use config::OffloadPolicy;
use device::{Device, SharedEvent, StreamKind};
use nn::Model;
use optim::NamedState;
use parallel::data::{ParameterShard, WeightUnits};
use parallel::pipeline::{StagePart, TiedGradient};
use telemetry::step_trace::RunPart;
use tensor::Tensor;

use crate::bookkeeping::Bookkeeping;
use crate::build;
use crate::engine::{Engine, connections};
use crate::error::Result;
use crate::feed::batches::MicroBatches;
use crate::feed::numbers::Numbers;
use crate::graphs::StepGraphs;
use crate::graphs::refusals::never_captured;
use crate::setup::Setup;
use crate::setup::blueprint::Blueprint;
use crate::setup::preallocation;
use crate::setup::start::Start;
use crate::stages;
use crate::step_results::StepResults;
use crate::update::Update;
pub use counters::StepMemory;

/// One rank of a run.
pub struct Worker {
    /// Declared first, because groups must be dropped before the memory that they share.
    engine: Engine,
    stages: Stages,
    update: Update,
    /// The micro-batches of training steps.
    batches: MicroBatches,
    results: StepResults,
    /// Events that end the copies of state to the host for which no update waits yet, for a checkpoint and a
    /// state in memory.
    copies: Rc<RefCell<Vec<SharedEvent>>>,
    records: Bookkeeping,
    /// The step's CUDA graphs.
    graphs: StepGraphs,
    /// Whether the next step is rehearsed before ranks communicate in it.
    rehearses_first: bool,
}

/// The stages of a rank, and the gradients of their weights.
struct Stages {
    parts: Vec<StagePart>,
    /// The gradients that the optimizer reads, stage by stage.
    gradients: Vec<Tensor>,
    /// The gradients whose weight is tied to a weight on another rank.
    tied: Vec<TiedGradient>,
}

impl Worker {
    /// Allocates everything that a rank holds throughout a run: parameters, gradient buckets, optimizer
    /// state.
    ///
    /// # Errors
    /// Memory runs out, or the grid's size differs from the communicator's.
    pub fn new(setup: &Setup, communicator: Communicator) -> Result<Self> {
        Self::on(setup.device(communicator.rank())?, setup, communicator)
    }

    /// Like [`Worker::new`], on a device that the caller opened.
    pub fn on(device: Device, setup: &Setup, communicator: Communicator) -> Result<Self> {
        let config = &setup.config;
        let mut engine = Engine::connect(device, setup, communicator)?;
        let device = engine.device.clone();
        let planned = setup.planned.get(&engine.grid.rank()).cloned();
        let preallocation = planned.as_ref().map_or(&*setup.preallocation, |planned| &planned.preallocation);
        preallocation::take(&device, preallocation)?;
        let events = usize::try_from(config.memory.history).unwrap_or(usize::MAX).max(setup.history);
        device.with_allocator(|allocator| {
            allocator.record_history(events);
            allocator.mark(RunPart::Start.name(), 0);
        });
        let host = build::host_pool(&device, config)?;
        let activations = host.as_ref().filter(|_| config.memory.offload == OffloadPolicy::Activations);
        engine.offload = activations.map(|host| Offload::new(&device, host));
        let stages = Stages::build(&mut engine, host.as_ref())?;
        let update = Update::new(&engine, &stages.parts, host)?;
        let results = StepResults::new(&device, config, update.norm.groups.len())?;
        let data = engine.prefetcher();
        engine.allocate_pixels()?;
        let mut worker = Worker {
            records: Bookkeeping::new(&engine, planned)?,
            stages,
            update,
            batches: MicroBatches::default(),
            results,
            copies: Rc::default(),
            graphs: StepGraphs::new("steps", config.train.graphs, &device, never_captured(config))?,
            rehearses_first: config.train.halves_micro_batches() && config.parallel.shards_gradients(),
            engine,
        };
        let order = worker.engine.data_order().into();
        worker.batches.begin(data, worker.numbers(setup.first_step()), &order);
        if !worker.rehearses_first {
            worker.rehearse(setup.first_step())?;
        }
        if let Start::Drawn = setup.start {
            worker.encode_drawn()?;
        }
        Ok(worker)
    }

    /// Returns the numbers of the micro-batches of step `step`.
    fn numbers(&self, step: u64) -> Numbers {
        let setup = &self.engine.setup;
        Numbers::training(&setup.config, &self.engine.grid, step, &setup.left_out)
    }

    /// Returns this rank's device.
    pub fn device(&self) -> &Device {
        &self.engine.device
    }

    /// Returns the host pool for offloaded data; `None` if nothing is offloaded.
    pub fn host(&self) -> Option<&Device> {
        self.update.host.as_ref()
    }

    /// Returns the grid, with this rank's coordinates.
    pub fn grid(&self) -> &RankGrid {
        &self.engine.grid
    }

    /// Returns the model of a stage; `None` if this rank does not have it.
    pub(crate) fn model(&self, stage: usize) -> Option<&dyn Model> {
        let index = self.engine.stages().position(|own| own == stage);
        self.models().nth(index?)
    }

    /// Returns the setup shared by all ranks.
    pub fn setup(&self) -> &Setup {
        &self.engine.setup
    }

    /// Returns the description of the whole model.
    pub fn blueprint(&self) -> &Blueprint {
        &self.engine.setup.blueprint
    }

    /// Returns the models of this rank's stages, in the order of [`Blueprint::stages_of`].
    pub(crate) fn models(&self) -> impl Iterator<Item = &dyn Model> {
        self.stages.parts.iter().map(|part| &*part.model)
    }

    /// Returns this rank's shards of a stage's weights; `None` if it has none.
    pub(crate) fn weight_units(&self, stage: usize) -> Option<&WeightUnits> {
        let index = self.engine.stages().position(|own| own == stage);
        self.stages.parts.get(index?)?.weights.as_ref()
    }

    /// Returns the models of this rank's stages, each with its shards of the weights if weights are sharded.
    pub(crate) fn stage_weights(&self) -> impl Iterator<Item = (&dyn Model, Option<&WeightUnits>)> {
        self.stages.parts.iter().map(|part| (&*part.model, part.weights.as_ref()))
    }

    /// Returns the tensors that the optimizer keeps, each with its stage and the parameter shard it belongs
    /// to.
    pub(crate) fn optimizer_state<'a>(
        &'a self,
    ) -> impl Iterator<Item = (usize, &'a ParameterShard, NamedState<'a>)> {
        let stages = self.engine.stages().zip(&self.stages.parts);
        let own = |(stage, part): (usize, &'a StagePart)| {
            part.reduction.shards().own().iter().map(move |owned| (stage, owned))
        };
        let shards: Vec<_> = stages.flat_map(own).collect();
        self.update.optimizer.named_state().map(move |state| {
            let (stage, owned) = shards[state.slot];
            (stage, owned, state)
        })
    }

    /// Returns a tensor with the number of updates, one for each step that was not skipped, and the loss
    /// scale ([`tensor::ops::StepState::counters_tensor`]).
    pub(crate) fn counters_tensor(&self) -> Result<Tensor> {
        Ok(self.update.norm.norm.state().counters_tensor()?)
    }

    /// Returns whether there is a loss scale.
    pub(crate) fn has_loss_scale(&self) -> bool {
        self.update.scale_rule.is_some()
    }

    /// Makes the next update also wait for `copied`, the end of copies of the state.
    pub(crate) fn add_copying(&mut self, copied: SharedEvent) {
        self.copies.borrow_mut().push(copied);
    }

    /// Makes later work on the device, which may change the state, wait for the copies of snapshots.
    fn await_snapshot(&self) -> Result<()> {
        let device = self.engine.device.clone();
        let copies = Rc::clone(&self.copies);
        self.engine.recorder.host(move || {
            let copies = copies.take();
            copies.iter().try_for_each(|copied| Ok(device.wait_shared(StreamKind::Compute, copied)?))
        })
    }

    /// Sets the number of updates, read from a checkpoint.
    pub(crate) fn set_updates(&self, updates: u32) -> Result<()> {
        Ok(self.update.norm.norm.state().set_updates(updates)?)
    }

    /// Sets the loss scale, read from a checkpoint.
    pub(crate) fn set_loss_scale(&self, of: LossScale) -> Result<()> {
        let scale = f32::from_bits(of.scale_bits);
        Ok(self.update.norm.norm.state().set_loss_scale(scale, of.good_steps)?)
    }

    /// Returns the number of parameters of the whole model. Tied parameters are counted once.
    pub fn parameters(&self) -> usize {
        self.engine.setup.blueprint.sizes().iter().sum()
    }

    /// Returns this rank's communicator.
    pub fn communicator(&mut self) -> &mut Communicator {
        self.engine.groups.communicator()
    }
}

impl Stages {
    /// Builds the stages of a rank, and connects it to others for summing their gradients.
    fn build(engine: &mut Engine, host: Option<&Device>) -> Result<Self> {
        let Engine { setup, grid, device, groups, .. } = engine;
        let config = &setup.config;
        let blueprint = &setup.blueprint;
        let own = blueprint.stages_of(grid.coordinate(Axis::Pipeline));
        let own: Vec<_> = own.map(|stage| blueprint.stages[stage].clone()).collect();
        let mut parts = stages::build(
            (device, host),
            config,
            *grid,
            (&own, &setup.read_at_start()),
            setup.hook.as_ref(),
        )?;
        let peer_access = connections::share(groups, device, &parts, config)?;
        let from = stages::reduce_from(config, peer_access);
        parts.iter_mut().for_each(|part| part.reduction.reduce_from(from));
        engine.has_peers = connections::warm_up(groups, device, config, &parts, peer_access)?;
        let gradients = parts.iter().flat_map(|part| part.reduction.gradients()).cloned().collect();
        Ok(Stages { tied: tied(grid, blueprint, &parts), parts, gradients })
    }
}

/// Returns this rank's gradients whose weight is tied to a weight in another stage.
fn tied(grid: &RankGrid, blueprint: &Blueprint, parts: &[StagePart]) -> Vec<TiedGradient> {
    let parts = parts.iter().zip(blueprint.stages_of(grid.coordinate(Axis::Pipeline)));
    let owned = parts
        .flat_map(|(part, stage)| part.reduction.shards().own().iter().map(move |o| (stage, o.parameter)));
    let peer = |(stage, parameter): (usize, usize)| {
        let (index, _) = blueprint.find(stage, parameter)?;
        let holders = &blueprint.parameters[index].holders;
        let (other, _) = holders.iter().find(|(other, _)| *other != stage)?;
        Some(blueprint.layout().rank_of(*other))
    };
    let tied = |(gradient, owned)| Some(TiedGradient { gradient, axis: Axis::Pipeline, peer: peer(owned)? });
    owned.enumerate().filter_map(tied).collect()
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker")
            .field("grid", &self.engine.grid)
            .field("device", &self.engine.device)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
