//! One rank: its device, its model, its buffers, and what it does in a step.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use collective::{Communicator, Gather, PeerOptions, Sharing};
use data::{HostArray, HostData, MicroBatch};
use device::{Backend, Category, DType, Device, DeviceOptions, HostCopy, Kind, Request};
use half::bf16;
use nn::{Model, ParameterId, Parameters};
use optim::{GradientNorm, Optimizer, Schedule, Slot};
use parallel::RankGrid;
use parallel::data::{GradientReduction, Lanes, Reduction, ReductionOptions, Shards, uses};
use telemetry::step_trace::Part;
use tensor::Tensor;

use crate::account::Account;
use crate::build::{self, Dataset};
use crate::config::{self, Compute, Peers, RunConfig};
use crate::error::{Result, TrainError};
use crate::expected::{PlannedParts, UNPLANNED_EVENTS};
use crate::hook::ModelHook;
use crate::phases::Phases;
use crate::placement::Placement;
use crate::plan::Plan;
use crate::resume::ResumePoint;
use crate::status::Status;
use crate::watch::Watch;

/// What all ranks of a run have in common.
#[derive(Clone)]
pub struct Setup {
    /// The configuration.
    pub config: Arc<RunConfig>,
    /// Where ranks compute.
    pub placement: Placement,
    /// How that came about.
    pub(crate) reason: String,
    /// The allocator's settings and limit.
    pub device: DeviceOptions,
    pub(crate) dataset: Dataset,
    /// Where the run goes on from, if it does not start at its beginning.
    pub(crate) resumed: Option<Arc<ResumePoint>>,
    /// Code around the model.
    pub(crate) hook: Option<ModelHook>,
    /// Events of the allocator that every rank keeps, at least.
    pub(crate) history: usize,
    /// By rank, what the run is held against.
    pub(crate) planned: Arc<BTreeMap<usize, Arc<PlannedParts>>>,
}

impl Setup {
    /// Opens the data of a configuration. Where that says nothing of the allocator, the environment may
    /// ([`memory::ENVIRONMENT`]). Errors: data or allocator settings that are wrong, by name.
    pub fn new(mut config: RunConfig, placement: Placement) -> Result<Self> {
        if config.precision.compute == Compute::Bf16 && placement.description().kind != Kind::Cuda {
            let place = config.places.of("precision.compute");
            let text = "precision.compute = \"bf16\" needs a GPU: use \"f32\" on the CPU";
            return Err(TrainError::Refused(format!("{place}: {text}")));
        }
        let dataset = build::dataset(&config)?;
        let settings = allocator_settings(&config, |name| std::env::var(name).ok())?;
        settings.text().clone_into(&mut config.memory.allocator);
        let limit_bytes = Some(config.memory.limit_bytes).filter(|limit| *limit > 0);
        let device = DeviceOptions { settings, limit_bytes };
        Ok(Setup {
            config: Arc::new(config),
            placement,
            reason: String::new(),
            device,
            dataset,
            resumed: None,
            hook: None,
            history: 0,
            planned: Arc::default(),
        })
    }

    /// The same run with code around its model.
    #[must_use]
    pub fn with_hook(self, hook: ModelHook) -> Self {
        Setup { hook: Some(hook), ..self }
    }

    /// The same run, held against `plans` of ranks of this process.
    pub(crate) fn expecting(self, plans: &[Plan]) -> Self {
        let planned: BTreeMap<_, _> = plans.iter().map(|plan| (plan.rank, Arc::clone(&plan.parts))).collect();
        let events = planned.values().map(|parts| parts.events_to_keep()).max();
        Setup { history: events.unwrap_or(UNPLANNED_EVENTS), planned: Arc::new(planned), ..self }
    }

    /// The first step that is run, counted from 0.
    pub(crate) fn first_step(&self) -> u64 {
        self.resumed.as_ref().map_or(0, |point| point.checkpoint.step())
    }

    /// The device of a rank. Errors: settings that the allocator refuses.
    pub(crate) fn device(&self, rank: usize) -> Result<Device> {
        self.placement.device(rank, &self.device)
    }

    /// The same run on Meta, imitating what it would run on.
    pub fn on_meta(&self) -> Self {
        Setup { placement: Placement::Meta(self.placement.description()), ..self.clone() }
    }
}

/// The allocator's settings where nobody says otherwise: the least that is reserved beyond what is allocated, on every
/// device alike (see `benches/NOTES.md`).
pub const DEFAULT_ALLOCATOR: &str = "expandable_segments:True";

fn allocator_settings(
    config: &RunConfig,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<memory::Settings> {
    let text = &config.memory.allocator;
    if !text.is_empty() {
        return memory::Settings::parse(text)
            .map_err(|error| TrainError::Refused(format!("memory.allocator: {error}")));
    }
    let Some(name) = memory::ENVIRONMENT.into_iter().find(|name| variable(name).is_some()) else {
        return memory::Settings::parse(DEFAULT_ALLOCATOR)
            .map_err(|error| TrainError::Refused(format!("{DEFAULT_ALLOCATOR}: {error}")));
    };
    memory::Settings::from_environment(variable)
        .map_err(|error| TrainError::Refused(format!("{name}: {error}")))
}

impl std::fmt::Debug for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup").field("config", &self.config).field("placement", &self.placement).finish()
    }
}

/// Loss and norm of a step, kept on the device until a step later.
const SCALARS: usize = 2;

/// One rank of a run.
pub struct Worker {
    pub(crate) setup: Setup,
    pub(crate) grid: RankGrid,
    pub(crate) device: Device,
    pub(crate) communicator: Communicator,
    pub(crate) model: Box<dyn Model>,
    pub(crate) reduction: GradientReduction,
    pub(crate) norm: GradientNorm,
    pub(crate) optimizer: Optimizer,
    pub(crate) schedule: Schedule,
    pub(crate) batch: MicroBatch,
    /// Of the last two steps, by parity: the loss, then the gradient norm.
    pub(crate) scalars: [Tensor; 2],
    /// The same on their way to the host.
    pub(crate) reading: [Option<HostCopy<f32>>; 2],
    /// What the driver says is used.
    pub(crate) account: Account,
    /// What the phases of a step take.
    pub(crate) phases: Phases,
    /// Says to others where this rank is.
    pub(crate) status: Status,
    /// Holds the run against its plan.
    pub(crate) watch: Watch,
}

impl Worker {
    /// Takes everything that a rank keeps through a run: parameters, gradient buckets, optimizer state.
    /// Errors: out of memory, a grid that is not the communicator's.
    pub fn new(setup: &Setup, communicator: Communicator) -> Result<Self> {
        Self::on(setup.device(communicator.rank())?, setup, communicator)
    }

    /// The same on a device that the caller has a handle of.
    pub(crate) fn on(device: Device, setup: &Setup, communicator: Communicator) -> Result<Self> {
        let config = &setup.config;
        let (parallel, train) = (&config.parallel, &config.train);
        let grid = RankGrid::new(parallel.data, parallel.pipeline, communicator.rank())?;
        if communicator.world_size() != grid.world_size() {
            return Err(TrainError::Refused(format!(
                "{} ranks were started, and the configuration has parallel.data × parallel.pipeline = {}",
                communicator.world_size(),
                grid.world_size()
            )));
        }
        let mut communicator = connect(communicator, &device, config)?;
        let events = usize::try_from(config.memory.history).unwrap_or(usize::MAX).max(setup.history);
        device.with_allocator(|allocator| {
            allocator.record_history(events);
            allocator.mark(Part::Start.name(), 0);
        });
        let mut model = build::model(config, &device, build::compute_dtype(config))?;
        if let Some(hook) = &setup.hook {
            model = hook.wrap(model);
        }
        let options = ReductionOptions {
            lanes: Lanes::new(parallel.lanes, train.micro_batches, parallel.data)?,
            data: parallel.data,
            rank: grid.data_rank(),
            dtype: build::gradient_dtype(config),
            bucket_bytes: bucket_bytes(config),
            reduction: reduction(config),
            sharded: parallel.shard_optimizer,
        };
        let reduction = GradientReduction::new(&device, model.parameters(), options)?;
        share(&mut communicator, &device, &reduction, model.parameters(), config)?;
        let (optimizer, norm) = optimizer(&device, config, model.parameters(), reduction.shards())?;
        let request = Request::new(Category::Other, "step_scalars");
        let scalars = [
            Tensor::zeros(&device, [SCALARS], DType::F32, request)?,
            Tensor::zeros(&device, [SCALARS], DType::F32, request)?,
        ];
        let planned = setup.planned.get(&grid.rank()).cloned();
        Ok(Worker {
            watch: Watch::new(planned, setup.first_step(), train.steps),
            setup: setup.clone(),
            grid,
            phases: Phases::new(&device),
            device,
            communicator,
            model,
            reduction,
            norm,
            optimizer,
            schedule: build::schedule(config),
            batch: MicroBatch::default(),
            scalars,
            reading: [None, None],
            account: Account::default(),
            status: Status::none(),
        })
    }

    /// The rank's device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The rank's place.
    pub fn grid(&self) -> &RankGrid {
        &self.grid
    }

    /// The rank's model.
    pub fn model(&self) -> &dyn Model {
        &*self.model
    }

    /// The rank's ends of the transports.
    pub fn communicator(&mut self) -> &mut Communicator {
        &mut self.communicator
    }

    /// The current micro-batch on the device.
    pub(crate) fn upload(&self) -> Result<(Tensor, Tensor)> {
        Ok((self.upload_array(&self.batch.inputs)?, self.upload_array(&self.batch.targets)?))
    }

    fn upload_array(&self, array: &HostArray) -> Result<Tensor> {
        let shape = [array.shape.first().copied().unwrap_or(0), array.shape.get(1).copied().unwrap_or(1)];
        Ok(match &array.data {
            HostData::U32(values) => Tensor::from_host(&self.device, values, shape, Category::Input)?,
            HostData::F32(values) if self.model.parameters().dtype() == DType::Bf16 => {
                let rounded: Vec<bf16> = values.iter().map(|value| bf16::from_f32(*value)).collect();
                Tensor::from_host(&self.device, &rounded, shape, Category::Input)?
            }
            HostData::F32(values) => Tensor::from_host(&self.device, values, shape, Category::Input)?,
        })
    }
}

/// Connects GPUs for everything that a step does between ranks, so that nothing is connected or loaded later, and notes
/// what that takes of the device. Ranks on the host are connected already.
fn connect(communicator: Communicator, device: &Device, config: &RunConfig) -> Result<Communicator> {
    if !device.is_cuda_like() {
        return Ok(communicator);
    }
    let parallel = &config.parallel;
    let timeout = Duration::from_secs(parallel.timeout_seconds);
    let mut communicator = communicator.over_nccl(device, timeout)?;
    let uses =
        uses(reduction(config), parallel.shard_optimizer, build::gradient_dtype(config), parallel.data);
    communicator.data.warm_up(&uses)?;
    device.note_communicators()?;
    Ok(communicator)
}

/// Who adds gradients over ranks.
fn reduction(config: &RunConfig) -> Reduction {
    match config.parallel.reduction {
        config::Reduction::Tree => Reduction::Tree,
        config::Reduction::Library => Reduction::Library,
    }
}

/// Lets GPUs of one host sum and gather in each other's memory, and notes what that takes of the device; says why not where
/// they cannot.
fn share(
    communicator: &mut Communicator,
    device: &Device,
    reduction: &GradientReduction,
    parameters: &Parameters,
    config: &RunConfig,
) -> Result<()> {
    let gather = match config.parallel.peers {
        Peers::Kernel => Gather::Kernel,
        Peers::Copies => Gather::Copies,
        Peers::Off => return Ok(()),
    };
    if device.backend() != Backend::Cuda {
        return Ok(());
    }
    let options = PeerOptions { blocks: config.parallel.peer_blocks, gather };
    // Mapping must not meet work under way.
    device.synchronize()?;
    match reduction.share(&mut *communicator.data, parameters, options)? {
        Some(Sharing::Apart(why)) if communicator.rank() == 0 => {
            tracing::info!("gradients go over NCCL: GPUs do not reach each other's memory ({why})");
        }
        Some(Sharing::Direct) => tracing::debug!("GPUs sum gradients in each other's memory"),
        Some(Sharing::Apart(_)) | None => {}
    }
    Ok(device.note_communicators()?)
}

/// Bytes at which a bucket of gradients is closed.
pub(crate) fn bucket_bytes(config: &RunConfig) -> usize {
    usize::try_from(config.parallel.bucket_bytes).unwrap_or(usize::MAX)
}

/// What updates this rank's pieces of the parameters, with their masters' initial values, and what clips their
/// gradients.
fn optimizer(
    device: &Device,
    config: &RunConfig,
    parameters: &Parameters,
    shards: &Shards,
) -> Result<(Optimizer, GradientNorm)> {
    let mut slots = Vec::new();
    for piece in shards.own() {
        let nn::Parameter { name, tensor, decay, .. } = &parameters.list()[piece.parameter];
        slots.push(Slot { name: name.clone(), weight: piece.of(tensor)?, decay: *decay });
    }
    let (kind, weight_decay) = build::optimizer_kind(config);
    let optimizer = Optimizer::new(device, &slots, kind, weight_decay)?;
    for (piece, (slot, state)) in shards.own().iter().zip(slots.iter().zip(optimizer.states())) {
        if !state.master.shares_storage(&slot.weight) {
            let parameter = ParameterId(piece.parameter);
            parameters.fill_initial(parameter, piece.elements.start, &state.master)?;
        }
    }
    let max_norm = config.optim.clip_norm as f32;
    let norm = if shards.is_divided() {
        let sizes: Vec<_> = parameters.list().iter().map(|p| p.tensor.elements()).collect();
        let parts: Vec<_> =
            shards.own().iter().map(|piece| (piece.parameter, piece.elements.start)).collect();
        GradientNorm::of_parts(device, &sizes, &parts, max_norm)?
    } else {
        GradientNorm::new(device, &slots, max_norm)?
    };
    Ok((optimizer, norm))
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker")
            .field("grid", &self.grid)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}
