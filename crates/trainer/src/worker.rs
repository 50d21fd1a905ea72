//! One rank: its device, its model, its buffers, and what it does in a step.

use std::sync::Arc;

use collective::Communicator;
use data::MicroBatch;
use device::{Category, DType, Device, DeviceOptions, HostCopy, Kind, Mark, Request};
use optim::{Optimizer, Schedule};
use parallel::RankGrid;
use parallel::data::Piece;
use parallel::pipeline::{Executor, StagePart};
use telemetry::step_trace::RunPart;
use tensor::Tensor;

use crate::account::Account;
use crate::blueprint::{self, Blueprint};
use crate::build::{self, Dataset};
use crate::connect::{self, DataPlaneOfStage};
use crate::error::{Result, TrainError};
use crate::expected::{Expected, UNPLANNED_EVENTS};
use crate::feed::Marks;
use crate::hook::ModelHook;
use crate::parts::{self, ModelNorm};
use crate::phases::Phases;
use crate::placement::Placement;
use crate::resume::ResumePoint;
use crate::status::Status;
use crate::watch::Watch;
use config::{Compute, RunConfig};

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
    /// The model's stages.
    pub(crate) blueprint: Arc<Blueprint>,
    /// Where the run goes on from, if it does not start at its beginning.
    pub(crate) resumed: Option<Arc<ResumePoint>>,
    /// Code around the model.
    pub(crate) hook: Option<ModelHook>,
    /// Events of the allocator that every rank keeps, at least.
    pub(crate) history: usize,
    /// By rank, what the run is held against.
    pub(crate) planned: Arc<Expected>,
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
        let blueprint = Arc::new(Blueprint::new(&config, &dataset, &placement.description())?);
        Ok(Setup {
            config: Arc::new(config),
            placement,
            reason: String::new(),
            device,
            dataset,
            blueprint,
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

    /// The same run, held against what is planned of ranks of this process.
    pub(crate) fn expecting(self, planned: Expected) -> Self {
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
    /// The ranks with the same stages, where those are not all.
    pub(crate) data_plane: DataPlaneOfStage,
    /// All stages of the model.
    pub(crate) blueprint: Arc<Blueprint>,
    /// Those of this rank.
    pub(crate) parts: Vec<StagePart>,
    pub(crate) executor: Executor,
    /// What the optimizer updates with, stage by stage.
    pub(crate) gradients: Vec<Tensor>,
    /// Of those, the gradients whose weight is tied to one on another rank, and which rank that is.
    pub(crate) tied: Vec<(usize, usize)>,
    pub(crate) norm: ModelNorm,
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
    /// When the parts of the last step's actions began, where a benchmark wants to know.
    pub(crate) marks: Option<Marks>,
    /// And when the last of them ended.
    pub(crate) passes_ended: Option<Mark>,
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
        let parallel = &config.parallel;
        let grid = RankGrid::new(parallel.data, parallel.pipeline, communicator.rank())?;
        if communicator.world_size() != grid.world_size() {
            return Err(TrainError::Refused(format!(
                "{} ranks were started, and the configuration has parallel.data × parallel.pipeline = {}",
                communicator.world_size(),
                grid.world_size()
            )));
        }
        let (mut communicator, mut data_plane) = connect::connect(communicator, &device, config, &grid)?;
        let events = usize::try_from(config.memory.history).unwrap_or(usize::MAX).max(setup.history);
        device.with_allocator(|allocator| {
            allocator.record_history(events);
            allocator.mark(RunPart::Start.name(), 0);
        });
        let blueprint = Arc::clone(&setup.blueprint);
        let stages: Vec<_> = blueprint.stages_of(grid.stage()).map(|s| blueprint.stages[s].clone()).collect();
        let mut parts = parts::build(&device, config, grid.data_rank(), &stages, setup.hook.as_ref())?;
        let plane = data_plane.as_mut().unwrap_or(&mut communicator.data);
        let direct = connect::share(&mut **plane, &device, &parts, config)?;
        parts.iter_mut().for_each(|part| part.reduction.reduce_from(parts::reduce_from(config, direct)));
        connect::warm_up(&mut communicator, &mut data_plane, &device, config, &grid, direct)?;
        let optimizer = parts::optimizer(&device, config, &parts)?;
        let norm = ModelNorm::new(&device, config, &grid, &blueprint, &parts)?;
        let gradients = parts.iter().flat_map(|part| part.reduction.gradients()).cloned().collect();
        let request = Request::new(Category::Other, "step_scalars");
        let scalars = [
            Tensor::zeros(&device, [SCALARS], DType::F32, request)?,
            Tensor::zeros(&device, [SCALARS], DType::F32, request)?,
        ];
        let planned = setup.planned.get(&grid.rank()).cloned();
        let mut worker = Worker {
            watch: Watch::new(planned, setup.first_step(), config.train.steps),
            setup: setup.clone(),
            grid,
            phases: Phases::new(&device),
            communicator,
            data_plane,
            tied: tied(&grid, &blueprint, &parts),
            executor: Executor::new(
                &device,
                grid,
                blueprint::schedule(config)?,
                blueprint.crossings.clone(),
            )?,
            blueprint,
            parts,
            gradients,
            norm,
            optimizer,
            schedule: build::schedule(config),
            batch: MicroBatch::default(),
            scalars,
            reading: [None, None],
            account: Account::default(),
            marks: None,
            passes_ended: None,
            status: Status::none(),
            device,
        };
        worker.rehearse()?;
        Ok(worker)
    }

    /// The rank's device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The rank's place.
    pub fn grid(&self) -> &RankGrid {
        &self.grid
    }

    /// A stage of the model, if it is on this rank.
    pub(crate) fn part(&self, stage: usize) -> Option<&StagePart> {
        let place = self.blueprint.stages_of(self.grid.stage()).position(|own| own == stage);
        self.parts.get(place?)
    }

    /// What the optimizer keeps a slot for: the stage, and the piece of its parameters.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (usize, &Piece)> {
        let stages = self.blueprint.stages_of(self.grid.stage()).zip(&self.parts);
        stages.flat_map(|(stage, part)| part.reduction.shards().own().iter().map(move |piece| (stage, piece)))
    }

    /// Parameters of the whole model, each counted once.
    pub fn parameters(&self) -> usize {
        self.blueprint.sizes().iter().sum()
    }

    /// The rank's ends of the transports.
    pub fn communicator(&mut self) -> &mut Communicator {
        &mut self.communicator
    }
}

/// Which of the gradients here are of weights that another rank has too, and that rank.
fn tied(grid: &RankGrid, blueprint: &Blueprint, parts: &[StagePart]) -> Vec<(usize, usize)> {
    let pieces = parts.iter().zip(blueprint.stages_of(grid.stage()));
    let pieces = pieces
        .flat_map(|(part, stage)| part.reduction.shards().own().iter().map(move |p| (stage, p.parameter)));
    let peer = |(stage, parameter): (usize, usize)| {
        let (place, _) = blueprint.find(stage, parameter)?;
        let holders = &blueprint.parameters[place].holders;
        let (other, _) = holders.iter().find(|(other, _)| *other != stage)?;
        Some(grid.rank_at(grid.data_rank(), other % grid.pipeline()))
    };
    pieces.enumerate().filter_map(|(index, piece)| Some((index, peer(piece)?))).collect()
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker")
            .field("grid", &self.grid)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}
