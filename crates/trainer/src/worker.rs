//! One rank: its device, its model, its buffers, and what it does in a step.

use std::sync::Arc;

use collective::Communicator;
use data::{HostArray, HostData, MicroBatch};
use device::{Category, DType, Description, Device, DeviceOptions, Request};
use nn::Model;
use optim::{GradientNorm, Optimizer, Schedule, Slot};
use parallel::RankGrid;
use parallel::data::{GradientReduction, Lanes, ReductionOptions};
use tensor::Tensor;

use crate::build::{self, Dataset};
use crate::config::RunConfig;
use crate::error::{Result, TrainError};
use crate::resume::ResumePoint;
use crate::status::Status;

/// What a worker's device is.
#[derive(Clone, Debug)]
pub enum Placement {
    /// The host.
    Cpu,
    /// Nothing, counting as the described device would.
    Meta(Description),
}

/// What all ranks of a run have in common.
#[derive(Clone)]
pub struct Setup {
    /// The configuration.
    pub config: Arc<RunConfig>,
    /// Where ranks compute.
    pub placement: Placement,
    /// The allocator's settings and limit.
    pub device: DeviceOptions,
    pub(crate) dataset: Dataset,
    /// Where the run goes on from, if it does not start at its beginning.
    pub(crate) resumed: Option<Arc<ResumePoint>>,
}

impl Setup {
    /// Opens the data of a configuration. Where that says nothing of the allocator, the environment may
    /// ([`memory::ENVIRONMENT`]). Errors: data or allocator settings that are wrong, by name.
    pub fn new(mut config: RunConfig, placement: Placement) -> Result<Self> {
        let dataset = build::dataset(&config)?;
        let settings = allocator_settings(&config, |name| std::env::var(name).ok())?;
        settings.text().clone_into(&mut config.memory.allocator);
        let limit_bytes = Some(config.memory.limit_bytes).filter(|limit| *limit > 0);
        let device = DeviceOptions { settings, limit_bytes };
        Ok(Setup { config: Arc::new(config), placement, device, dataset, resumed: None })
    }

    /// The first step that is run, counted from 0.
    pub(crate) fn first_step(&self) -> u64 {
        self.resumed.as_ref().map_or(0, |point| point.checkpoint.step())
    }

    /// The device of a rank. Errors: settings that the allocator refuses.
    pub(crate) fn device(&self, rank: usize) -> Result<Device> {
        Ok(match &self.placement {
            Placement::Cpu => Device::cpu(rank, &self.device)?,
            Placement::Meta(description) => Device::meta(rank, description.clone(), &self.device)?,
        })
    }

    /// The same run on Meta, imitating what it would run on.
    pub fn on_meta(&self) -> Self {
        Setup { placement: Placement::Meta(self.placement.description()), ..self.clone() }
    }
}

fn allocator_settings(
    config: &RunConfig,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<memory::Settings> {
    let text = &config.memory.allocator;
    if !text.is_empty() {
        return memory::Settings::parse(text)
            .map_err(|error| TrainError::Refused(format!("memory.allocator: {error}")));
    }
    let name = memory::ENVIRONMENT.into_iter().find(|name| variable(name).is_some()).unwrap_or_default();
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
    /// Says to others where this rank is.
    pub(crate) status: Status,
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
        let events = if device.is_meta() { 0 } else { config.memory.history };
        device.with_allocator(|allocator| {
            allocator.record_history(usize::try_from(events).unwrap_or(usize::MAX))
        });
        let model = build::model(config, &device)?;
        let lanes = Lanes::new(parallel.lanes, train.micro_batches, parallel.data)?;
        let bucket_bytes = usize::try_from(parallel.bucket_bytes).unwrap_or(usize::MAX);
        let options = ReductionOptions { lanes, data: parallel.data, bucket_bytes };
        let reduction = GradientReduction::new(&device, model.parameters(), options)?;
        let slot =
            |p: &nn::Parameter| Slot { name: p.name.clone(), weight: p.tensor.clone(), decay: p.decay };
        let slots: Vec<_> = model.parameters().list().iter().map(slot).collect();
        let (kind, weight_decay) = build::optimizer_kind(config);
        let optimizer = Optimizer::new(&device, &slots, kind, weight_decay)?;
        let norm = GradientNorm::new(&device, &slots, config.optim.clip_norm as f32)?;
        let request = Request::new(Category::Other, "step_scalars");
        let scalars = [
            Tensor::zeros(&device, [SCALARS], DType::F32, request)?,
            Tensor::zeros(&device, [SCALARS], DType::F32, request)?,
        ];
        Ok(Worker {
            setup: setup.clone(),
            grid,
            device,
            communicator,
            model,
            reduction,
            norm,
            optimizer,
            schedule: build::schedule(config),
            batch: MicroBatch::default(),
            scalars,
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
            HostData::F32(values) => Tensor::from_host(&self.device, values, shape, Category::Input)?,
        })
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker")
            .field("grid", &self.grid)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}
