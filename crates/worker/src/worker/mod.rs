//! One rank: its device, its model, its buffers, and its steps.

use std::rc::Rc;

use autograd::{Observer, Offload};
use checkpoint::LossScale;
use collective::{Axis, Communicator, RankGrid};
use config::OffloadPolicy;
use data::Prefetcher;
use device::{Category, DType, Device, HostCopy, Mark, Request, SharedEvent, StreamKind};
use nn::Model;
use optim::{NamedState, Optimizer, ScaleRule, Schedule};
use parallel::data::{ParameterShard, WeightUnits};
use parallel::pipeline::{Skipped, StagePart, TiedGradient};
use telemetry::GpuMonitor;
use telemetry::step_trace::RunPart;
use tensor::Tensor;

use crate::build;
use crate::calendar::Calendar;
use crate::engine::Engine;
use crate::engine::connections;
use crate::error::Result;
use crate::feed::{self, Marks};
use crate::graphs::StepGraphs;
use crate::graphs::refusals::never_captured;
use crate::observers::account::Account;
use crate::observers::hooks::Moments;
use crate::observers::ranges::OperatorRanges;
use crate::observers::tensor_hashes::TensorHashes;
use crate::phases::Phases;
use crate::setup::Setup;
use crate::setup::blueprint::Blueprint;
use crate::setup::preallocation;
use crate::setup::start::Start;
use crate::stages::optimizer;
use crate::stages::{self, ModelNorm};
use crate::verification::Verification;
use crate::watch::Watch;
use telemetry::status::Status;

mod counters;
mod hashes;
mod observed;
mod reference;
mod rehearsal;
mod replay;
mod rounding;
mod step;
mod validate;
mod verify;

pub use counters::StepMemory;
pub use step::StepScalars;

/// One rank of a run.
pub struct Worker {
    /// Declared first: groups are dropped before the memory that they share.
    engine: Engine,
    /// The stages of this rank.
    parts: Vec<StagePart>,
    /// Totals of the micro-batches that the executor has skipped.
    skipped: Skipped,
    /// Gradients that the optimizer reads, stage by stage.
    gradients: Vec<Tensor>,
    /// The gradients among them whose weight is tied to one on another rank.
    tied: Vec<TiedGradient>,
    norm: ModelNorm,
    optimizer: Optimizer,
    /// The host pool of what is offloaded, if something is.
    host: Option<Device>,
    schedule: Schedule,
    /// The rule of the loss scale, if there is one.
    scale_rule: Option<ScaleRule>,
    /// Micro-batches of training, which are read ahead.
    data: Prefetcher,
    /// The micro-batches of a step whose data this rank needs, in order.
    data_order: Vec<usize>,
    /// Loss, gradient norm and loss scale of the last two steps, by parity of the step.
    scalars: [Tensor; 2],
    /// Copies of `scalars` to the host that are in flight.
    reading: [Option<HostCopy<f32>>; 2],
    /// The ends of copies of the state to the host for which no update waits yet: of a checkpoint, and of a
    /// state in memory after the same step.
    copying: Vec<SharedEvent>,
    /// The driver's account of the device.
    account: Account,
    /// Times of the phases of steps.
    phases: Phases,
    /// Times at which the parts of the last step's actions began, if a benchmark asks for them.
    marks: Option<Marks>,
    /// The time at which the last of these parts ended.
    passes_ended: Option<Mark>,
    /// Calls the hook that sees every step.
    moments: Moments,
    /// Reads the load of the rank's GPU.
    gpu: Option<GpuMonitor>,
    /// The rank's status file.
    status: Status,
    /// Compares the run with its plan.
    watch: Watch,
    /// Observers of the operators of training steps.
    observers: Vec<Rc<dyn Observer>>,
    /// The step's CUDA graphs.
    graphs: StepGraphs,
    /// Hashes of the tensors of steps, if something looks at them.
    hashes: Option<TensorHashes>,
    /// Records micro-batches that are verified, if there are verifications.
    verification: Option<Verification>,
    /// Whether the next step is rehearsed before ranks communicate in it.
    rehearses_first: bool,
}

impl Worker {
    /// Allocates everything that a rank holds through a run: parameters, gradient buckets, optimizer state.
    ///
    /// # Errors
    /// Out of memory; a grid other than the communicator's.
    pub fn new(setup: &Setup, communicator: Communicator) -> Result<Self> {
        Self::on(setup.device(communicator.rank())?, setup, communicator)
    }

    /// [`Worker::new`] on a device of which the caller keeps a handle.
    ///
    /// # Errors
    /// As for [`Worker::new`].
    pub fn on(device: Device, setup: &Setup, communicator: Communicator) -> Result<Self> {
        let config = &setup.config;
        let mut engine = Engine::connect(device, setup, communicator)?;
        let (device, grid) = (engine.device.clone(), engine.grid);
        let planned = setup.planned.get(&grid.rank()).cloned();
        let preallocation = planned.as_ref().map_or(&*setup.preallocation, |planned| &planned.preallocation);
        preallocation::take(&device, preallocation)?;
        let events = usize::try_from(config.memory.history).unwrap_or(usize::MAX).max(setup.history);
        device.with_allocator(|allocator| {
            allocator.record_history(events);
            allocator.mark(RunPart::Start.name(), 0);
        });
        let stages: Vec<_> = engine.stages().map(|stage| setup.blueprint.stages[stage].clone()).collect();
        let host = build::host_pool(&device, config)?;
        let activations = host.as_ref().filter(|_| config.memory.offload == OffloadPolicy::Activations);
        engine.offload = activations.map(|host| Offload::new(&device, host));
        let mut parts = stages::build((&device, host.as_ref()), config, grid, &stages, setup.hook.as_ref())?;
        let peer_access = connections::share(&mut engine.groups, &device, &parts, config)?;
        parts
            .iter_mut()
            .for_each(|part| part.reduction.reduce_from(stages::reduce_from(config, peer_access)));
        engine.has_peers = connections::warm_up(&mut engine.groups, &device, config, &parts, peer_access)?;
        let optimizer = optimizer::build((&device, host.as_ref()), config, &parts)?;
        let norm = ModelNorm::new(&device, config, &grid, &setup.blueprint, &parts)?;
        let gradients = parts.iter().flat_map(|part| part.reduction.gradients()).cloned().collect();
        let scale_rule = build::scale_rule(config);
        if scale_rule.is_some() {
            norm.norm.state().set_loss_scale(config.scaler.init_scale as f32, 0)?;
        }
        // The values of the loss, the norm, and with a loss scale also that.
        let count = build::loss_values(config) + 1 + usize::from(scale_rule.is_some());
        let scalars = scalars(&device, count)?;
        let data = feed::prefetcher(&setup.dataset, config, &mut engine.groups);
        engine.allocate_pixels()?;
        let mut worker = Worker {
            watch: Watch::new(planned, setup.first_step(), Calendar::new(config)),
            phases: Phases::new(&device),
            tied: tied(&grid, &setup.blueprint, &parts),
            skipped: Skipped::default(),
            parts,
            gradients,
            norm,
            optimizer,
            host,
            schedule: build::schedule(config),
            scale_rule,
            data,
            data_order: engine
                .executor
                .data_order(setup.dataset.source.packs_documents() || config.masks_padding()),
            scalars,
            reading: [None, None],
            copying: Vec::new(),
            account: Account::default(),
            marks: None,
            passes_ended: None,
            moments: Moments::new(setup.step_hook.clone(), &device),
            gpu: device.uuid().and_then(|uuid| GpuMonitor::start(&uuid)),
            status: Status::none(),
            observers: ranges(),
            graphs: StepGraphs::new("steps", config.train.graphs, &device, never_captured(config))?,
            hashes: TensorHashes::new((&device, &grid), config.telemetry.hashes, setup.tensor_hook.clone()),
            verification: Verification::new(&device, config.train.verify_every)?,
            rehearses_first: config.train.halves_micro_batches() && config.parallel.shards_gradients(),
            engine,
        };
        if !worker.rehearses_first {
            worker.rehearse(setup.first_step())?;
        }
        if let Start::Drawn = setup.start {
            worker.encode_drawn()?;
        }
        Ok(worker)
    }

    /// The rank's device.
    pub fn device(&self) -> &Device {
        &self.engine.device
    }

    /// The host pool of what is offloaded, if something is.
    pub fn host(&self) -> Option<&Device> {
        self.host.as_ref()
    }

    /// The grid, with the rank's coordinates.
    pub fn grid(&self) -> &RankGrid {
        &self.engine.grid
    }

    /// The model of a stage, if this rank has it.
    pub(crate) fn model(&self, stage: usize) -> Option<&dyn Model> {
        let index = self.engine.stages().position(|own| own == stage);
        self.models().nth(index?)
    }

    /// The setup that all ranks of the run share.
    pub fn setup(&self) -> &Setup {
        &self.engine.setup
    }

    /// All stages of the model.
    pub fn blueprint(&self) -> &Blueprint {
        &self.engine.setup.blueprint
    }

    /// The models of the rank's stages, in the order of [`Blueprint::stages_of`].
    pub(crate) fn models(&self) -> impl Iterator<Item = &dyn Model> {
        self.parts.iter().map(|part| &*part.model)
    }

    /// The rank's parts of a stage's weights, if it has some.
    pub(crate) fn weight_units(&self, stage: usize) -> Option<&WeightUnits> {
        let index = self.engine.stages().position(|own| own == stage);
        self.parts.get(index?)?.weights.as_ref()
    }

    /// The models of the rank's stages, each with the rank's parts of its weights if those are sharded.
    pub(crate) fn stage_weights(&self) -> impl Iterator<Item = (&dyn Model, Option<&WeightUnits>)> {
        self.parts.iter().map(|part| (&*part.model, part.weights.as_ref()))
    }

    /// The tensors that the optimizer keeps, each with the shard that it updates and the shard's stage.
    pub(crate) fn optimizer_state<'a>(
        &'a self,
    ) -> impl Iterator<Item = (usize, &'a ParameterShard, NamedState<'a>)> {
        let stages = self.engine.stages().zip(&self.parts);
        let own = |(stage, part): (usize, &'a StagePart)| {
            part.reduction.shards().own().iter().map(move |owned| (stage, owned))
        };
        let shards: Vec<_> = stages.flat_map(own).collect();
        self.optimizer.named_state().map(move |state| {
            let (stage, owned) = shards[state.slot];
            (stage, owned, state)
        })
    }

    /// The number of updates that the optimizer has made, one for each step that was not skipped, and the
    /// loss scale ([`tensor::ops::StepState::counters_tensor`]).
    pub(crate) fn counters_tensor(&self) -> Result<Tensor> {
        Ok(self.norm.norm.state().counters_tensor()?)
    }

    /// Returns whether there is a loss scale.
    pub(crate) fn has_loss_scale(&self) -> bool {
        self.scale_rule.is_some()
    }

    /// Makes the next update wait for `copied`, the end of copies of the state, too.
    pub(crate) fn add_copying(&mut self, copied: SharedEvent) {
        self.copying.push(copied);
    }

    /// Makes the device's work from now on, which may change the state, start after the copies of
    /// snapshots.
    ///
    /// # Errors
    /// Errors of the device.
    fn await_snapshot(&mut self) -> Result<()> {
        let copying = std::mem::take(&mut self.copying);
        copying.iter().try_for_each(|copied| Ok(self.device().wait_shared(StreamKind::Compute, copied)?))
    }

    /// Sets the number of updates, from a checkpoint.
    pub(crate) fn set_updates(&self, updates: u32) -> Result<()> {
        Ok(self.norm.norm.state().set_updates(updates)?)
    }

    /// Sets the loss scale, from a checkpoint.
    pub(crate) fn set_loss_scale(&self, of: LossScale) -> Result<()> {
        let scale = f32::from_bits(of.scale_bits);
        Ok(self.norm.norm.state().set_loss_scale(scale, of.good_steps)?)
    }

    /// Parameters of the whole model, each counted once.
    pub fn parameters(&self) -> usize {
        self.engine.setup.blueprint.sizes().iter().sum()
    }

    /// The rank's endpoints of the transports.
    pub fn communicator(&mut self) -> &mut Communicator {
        self.engine.groups.communicator()
    }
}

/// Allocates `count` scalars of a step, for two steps in turn.
///
/// # Errors
/// Out of memory.
fn scalars(device: &Device, count: usize) -> Result<[Tensor; 2]> {
    let zeros = || Tensor::zeros(device, [count], DType::F32, Request::new(Category::Other, "step_scalars"));
    Ok([zeros()?, zeros()?])
}

/// Returns the observer that makes operators ranges of a tool, if one is attached.
fn ranges() -> Vec<Rc<dyn Observer>> {
    let ranges = device::nvtx::is_attached().then(|| Rc::new(OperatorRanges) as Rc<dyn Observer>);
    ranges.into_iter().collect()
}

/// The gradients of this rank whose weight another stage has too.
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
