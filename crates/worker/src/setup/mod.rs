//! The setup that all ranks of a run share.

pub mod blueprint;
pub(crate) mod boundaries;
pub(crate) mod buffers;
mod muon;
pub mod placement;
pub mod preallocation;
pub(crate) mod start;

use std::collections::BTreeSet;
use std::sync::Arc;

use checkpoint::ResumePoint;
use config::{Optim, Parallel, Precision, RunConfig};
use data::Source;
use device::host::{AddressLimit, HostCapacity};
use device::{Backend, DType, Description, Device, DeviceError, DeviceOptions, Kind, cuda};
use nn::Stage;
use system::numbers::grouped;

use crate::build;
use crate::dataset::{self, DataScope, Dataset};
use crate::error::{Result, WorkerError};
use crate::observers::hooks::{ModelHook, StepHook};
use crate::observers::tensor_hashes::TensorHook;
use crate::setup::blueprint::Blueprint;
use crate::setup::placement::Placement;
use crate::setup::start::{Layered, Start, Weights};
use parallel::pipeline::PlanWork;
use planned::{Calendar, Expected, Preallocation, UNPLANNED_EVENTS};

/// The setup that all ranks of a run share.
#[derive(Clone)]
pub struct Setup {
    /// The configuration.
    pub config: Arc<RunConfig>,
    /// The devices of the ranks.
    pub placement: Placement,
    /// A sentence that explains the choice of devices.
    pub reason: String,
    /// The allocator's settings and limit.
    pub device: DeviceOptions,
    /// The data.
    pub dataset: Dataset,
    /// The model's stages.
    pub blueprint: Arc<Blueprint>,
    /// The initial state: drawn, from weights, or from a checkpoint.
    pub start: Start,
    /// The weights of frozen parameters that checkpoints omit. `None` if checkpoints include them, and in
    /// plans, which open no folder.
    pub base: Option<Arc<dyn Weights>>,
    /// Whether checkpoints omit frozen weights. Always false in a run that starts from a checkpoint's
    /// weights.
    pub leaves_out_frozen: bool,
    /// ln p of all answers under the reference model, two for each pair, if known at the start.
    pub reference: Option<Arc<[f32]>>,
    /// Steps whose samples are skipped, as indices in data order, ascending.
    pub left_out: Arc<Vec<u64>>,
    /// The hook that wraps the model.
    pub hook: Option<ModelHook>,
    /// The hook that sees tensors.
    pub tensor_hook: Option<TensorHook>,
    /// The hook called at moments of every step.
    pub step_hook: Option<StepHook>,
    /// Minimum number of allocator events that every rank records.
    pub history: usize,
    /// Limits on the work of planning; `None` in a run.
    pub plan_work: Option<PlanWork>,
    /// In a plan, the segments that a rank reserves before anything else.
    pub preallocation: Arc<Vec<Preallocation>>,
    /// The plans with which the ranks are compared.
    pub planned: Arc<Expected>,
}

impl Setup {
    /// Opens the data of a configuration as far as `scope` requires, and calls `divide` to partition the
    /// layers into stages. Allocator settings come from the configuration, or else from the environment
    /// ([`memory::ENVIRONMENT`]).
    ///
    /// # Errors
    /// Data or allocator settings are invalid, or `divide` fails. The message names the key.
    pub fn new<E: From<WorkerError>>(
        config: RunConfig,
        placement: Placement,
        scope: DataScope,
        divide: impl FnOnce(&RunConfig, &Dataset, &Description) -> std::result::Result<Vec<Stage>, E>,
    ) -> std::result::Result<Self, E> {
        let capability = placement.description().compute_capability;
        let is_old = placement.description().kind == Kind::Cuda && capability < (8, 0);
        if is_old && config.precision.compute == DType::Bf16 {
            let origin = config.origins.find("precision.compute");
            let (major, minor) = capability;
            let text = format!(
                "precision.compute = \"bf16\" needs a GPU of compute capability 8.0 or more, and this one \
                 has {major}.{minor}: use \"f16\""
            );
            return Err(WorkerError::Refused(format!("{origin}: {text}")).into());
        }
        if is_old && config.optim.uses_muon() {
            let origin = config.origins.find(Optim::kind);
            let (major, minor) = capability;
            let text = format!(
                "{} = \"muon\" computes in bf16, which needs a GPU of compute capability 8.0 or more, and this \
                 one has {major}.{minor}",
                Optim::kind
            );
            return Err(WorkerError::Refused(format!("{origin}: {text}")).into());
        }
        check_fp8(&config, &placement.description())?;
        check_sharing(&config, &placement.description())?;
        if config.model.convolves() && placement.backend() == Backend::Cuda && !cuda::has_convolutions() {
            return Err(WorkerError::Refused(DeviceError::NoCudnn.to_string()).into());
        }
        let dataset = dataset::open(&config, scope)?;
        let config = match dataset.source.training_sequences() {
            Some(sequences) => config.with_epoch_of(sequences),
            None => config,
        };
        if let Some(reason) = config.overlapping_decay() {
            let origin = config.origins.find("optim.decay_steps");
            return Err(WorkerError::Refused(format!("{origin}: {reason}")).into());
        }
        let settings =
            allocator_settings(&config, placement.description().kind, |name| std::env::var(name).ok())?;
        let limit_bytes = Some(config.memory.limit_bytes).filter(|limit| *limit > 0);
        let device = DeviceOptions { settings, limit_bytes, tf32: config.precision.tf32 };
        let description = placement.description();
        let stages = divide(&config, &dataset, &description)?;
        let blueprint = Arc::new(Blueprint::new(&config, &dataset, &description, stages, None)?);
        Ok(Setup {
            leaves_out_frozen: config.leaves_out_frozen(),
            config: Arc::new(config),
            placement,
            reason: String::new(),
            device,
            dataset,
            blueprint,
            start: Start::Drawn,
            base: None,
            reference: None,
            left_out: Arc::default(),
            hook: None,
            tensor_hook: None,
            step_hook: None,
            history: 0,
            plan_work: None,
            preallocation: Arc::default(),
            planned: Arc::default(),
        })
    }

    /// Returns the setup with the model wrapped by `hook`, if there is one.
    ///
    /// # Errors
    /// Errors of [`Setup::partitioned`].
    pub fn with_hook(self, hook: Option<ModelHook>) -> Result<Self> {
        if hook.is_none() {
            return Ok(self);
        }
        let stages = self.blueprint.stages.clone();
        Setup { hook, ..self }.partitioned(stages)
    }

    /// Returns the setup with another partition into stages.
    ///
    /// # Errors
    /// No model can be built with these stages, or buffers of one name have different types or shapes.
    pub fn partitioned(self, stages: Vec<Stage>) -> Result<Self> {
        let description = self.placement.description();
        let hook = self.hook.as_ref();
        let blueprint = Blueprint::new(&self.config, &self.dataset, &description, stages, hook)?;
        Ok(Setup { blueprint: Arc::new(blueprint), ..self })
    }

    /// Returns the setup with plans with which the ranks of this process are compared.
    pub fn expecting(self, planned: Expected) -> Self {
        let events = planned.values().map(|parts| parts.events_to_keep()).max();
        Setup { history: events.unwrap_or(UNPLANNED_EVENTS), planned: Arc::new(planned), ..self }
    }

    /// Returns the source of micro-batches for ranks; on Meta, it only has their shapes.
    #[must_use]
    pub fn source(&self) -> Arc<dyn Source> {
        match self.placement {
            Placement::Meta(_) => Arc::new(self.dataset.shapes()),
            Placement::Cpu | Placement::Cuda(_) => Arc::clone(&self.dataset.source),
        }
    }

    /// Returns the calendar of the run, with the sequence length of each step.
    #[must_use]
    pub fn calendar(&self) -> Calendar {
        Calendar::new(&self.config).with_lengths(self.dataset.source.lengths(), &self.left_out)
    }

    /// Returns the index of the first step to run, from 0.
    pub fn first_step(&self) -> u64 {
        self.resumed().map_or(0, |point| point.checkpoint.step())
    }

    /// Returns the number of micro-batches in all preference pairs.
    #[must_use]
    pub fn pair_micro_batches(&self) -> usize {
        let pairs = self.dataset.source.pairs().unwrap_or_default() as usize;
        pairs.div_ceil(self.config.train.micro_batch_size)
    }

    /// Returns the number of micro-batches that a data-parallel replica scores with the reference model; 0 if
    /// the loss has none.
    #[must_use]
    pub fn reference_micro_batches(&self, replica: usize) -> usize {
        let objective = build::objective(&self.config);
        match objective.is_some_and(|objective| objective.has_reference()) {
            true => self.config.pairs_assignment(self.pair_micro_batches()).count(replica),
            false => 0,
        }
    }

    /// Returns the checkpoint from which the run continues; `None` if it does not.
    pub fn resumed(&self) -> Option<&ResumePoint> {
        match &self.start {
            Start::Resumed(point) => Some(point),
            Start::Drawn | Start::Weights(_) => None,
        }
    }

    /// The names of the parameters that `weights` has.
    pub fn names_in(&self, weights: &dyn Weights) -> Arc<BTreeSet<String>> {
        let names = self.blueprint.parameters.iter().map(|entry| &entry.name);
        Arc::new(names.filter(|name| weights.has(name)).cloned().collect())
    }

    /// The names of the parameters that a worker reads before its first step.
    pub(crate) fn read_at_start(&self) -> Arc<BTreeSet<String>> {
        match &self.start {
            Start::Drawn => Arc::default(),
            Start::Weights(weights) => self.names_in(&**weights),
            Start::Resumed(point) => {
                self.names_in(&Layered::new(Arc::new(point.checkpoint.clone()), self.base.clone()))
            }
        }
    }

    /// Opens the device of a rank.
    ///
    /// # Errors
    /// The allocator refuses its settings.
    pub fn device(&self, rank: usize) -> Result<Device> {
        self.placement.device(rank, &self.device)
    }

    /// Returns the setup on Meta devices that count memory as the setup's own devices would.
    pub fn on_meta(&self) -> Self {
        Setup { placement: Placement::Meta(self.placement.description()), ..self.clone() }
    }
}

/// Default allocator settings, chosen because they reserve the least beyond the allocated bytes on every
/// device (see `benches/notes/allocator.md`).
pub const DEFAULT_ALLOCATOR: &str = "expandable_segments:True";

/// Default allocator settings if address space is limited: segments of fixed size, because expandable
/// segments would exceed the limit.
const DEFAULT_UNDER_ADDRESS_LIMIT: &str = "expandable_segments:False";

fn default_allocator(kind: Kind) -> &'static str {
    let limited = kind == Kind::Cpu && AddressLimit::of_process().is_some();
    if limited { DEFAULT_UNDER_ADDRESS_LIMIT } else { DEFAULT_ALLOCATOR }
}

/// Refuses expandable segments, set by `setting`, if an address space limit bounds the host's memory: each
/// segment reserves more addresses than that.
fn check_addresses(settings: memory::Settings, kind: Kind, setting: &str) -> Result<memory::Settings> {
    let capacity = HostCapacity::of_process();
    let limit = AddressLimit::of_process().filter(|limit| limit.bytes == capacity.bytes);
    let Some(limit) = limit.filter(|_| kind == Kind::Cpu && settings.expandable_segments) else {
        return Ok(settings);
    };
    Err(WorkerError::Refused(format!(
        "{setting}: expandable_segments:True reserves more addresses than {} allows, {} bytes: leave \
         memory.allocator empty, or set expandable_segments:False",
        limit.name(),
        grouped(limit.bytes)
    )))
}

/// Minimum compute capability with FP8 matmuls (Ada).
const FP8_CAPABILITY: (u32, u32) = (8, 9);

/// Major compute capability with grouped FP8 matmuls (Hopper).
const FP8_EXPERTS_MAJOR: u32 = 9;

/// Refuses FP8 on a GPU that does not support it, or without bf16.
fn check_fp8(config: &RunConfig, device: &Description) -> Result<()> {
    if config.fp8.is_none() || device.kind == Kind::Cpu {
        return Ok(());
    }
    let (major, minor) = device.compute_capability;
    let reason = if (major, minor) < FP8_CAPABILITY {
        let (least, part) = FP8_CAPABILITY;
        format!(
            "needs a GPU of compute capability {least}.{part}, and {} has {major}.{minor}: use \"compute\"",
            device.model
        )
    } else if config.precision.compute != DType::Bf16 {
        "needs precision.compute = \"bf16\" on a GPU".to_owned()
    } else if major != FP8_EXPERTS_MAJOR && config.model.experts().is_some() {
        format!(
            "multiplies experts on GPUs of compute capability {FP8_EXPERTS_MAJOR}, and {} has {major}.{minor}: \
             use \"compute\"",
            device.model
        )
    } else {
        return Ok(());
    };
    let origin = config.origins.find(Precision::matmul);
    Err(WorkerError::Refused(format!("{origin}: precision.matmul = \"fp8\" {reason}")))
}

/// Refuses more ranks than may share the GPU.
fn check_sharing(config: &RunConfig, device: &Description) -> Result<()> {
    let ranks = config.world_size();
    let most = config.parallel.ranks_per_device;
    if device.kind == Kind::Cpu || !config.parallel.shares_gpu() || ranks <= most {
        return Ok(());
    }
    let origin = config.origins.find(Parallel::ranks_per_device);
    Err(WorkerError::Refused(format!(
        "{origin}: parallel.ranks_per_device = {most} is fewer than the {ranks} ranks of this run, and ranks \
         that share GPUs all share one: set it to {ranks}, or to 1 for a GPU each"
    )))
}

fn allocator_settings(
    config: &RunConfig,
    kind: Kind,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<memory::Settings> {
    let text = &config.memory.allocator;
    if !text.is_empty() {
        let settings = memory::Settings::parse(text)
            .map_err(|error| WorkerError::Refused(format!("memory.allocator: {error}")))?;
        return check_addresses(settings, kind, "memory.allocator");
    }
    let Some(name) = memory::ENVIRONMENT.into_iter().find(|name| variable(name).is_some()) else {
        let default = default_allocator(kind);
        return memory::Settings::parse(default)
            .map_err(|error| WorkerError::Refused(format!("{default}: {error}")));
    };
    let settings = memory::Settings::from_environment(variable)
        .map_err(|error| WorkerError::Refused(format!("{name}: {error}")))?;
    check_addresses(settings, kind, name)
}

impl std::fmt::Debug for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup").field("config", &self.config).field("placement", &self.placement).finish()
    }
}
