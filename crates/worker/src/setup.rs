//! What all ranks of a run have in common.

use std::sync::Arc;

use checkpoint::ResumePoint;
use config::RunConfig;
use device::{DType, Description, Device, DeviceOptions, Kind};
use nn::Stage;

use crate::blueprint::Blueprint;
use crate::build::{self, Dataset};
use crate::error::{Result, WorkerError};
use crate::expected::{Expected, UNPLANNED_EVENTS};
use crate::hook::ModelHook;
use crate::placement::Placement;

/// What all ranks of a run have in common.
#[derive(Clone)]
pub struct Setup {
    /// The configuration.
    pub config: Arc<RunConfig>,
    /// Where ranks compute.
    pub placement: Placement,
    /// How that came about.
    pub reason: String,
    /// The allocator's settings and limit.
    pub device: DeviceOptions,
    /// The data.
    pub dataset: Dataset,
    /// The model's stages.
    pub blueprint: Arc<Blueprint>,
    /// Where the run goes on from, if it does not start at its beginning.
    pub resumed: Option<Arc<ResumePoint>>,
    /// Code around the model.
    pub hook: Option<ModelHook>,
    /// Events of the allocator that every rank keeps, at least.
    pub history: usize,
    /// By rank, what the run is held against.
    pub planned: Arc<Expected>,
}

impl Setup {
    /// Opens the data of a configuration, and has `divide` divide its layers into stages. Where the configuration says
    /// nothing of the allocator, the environment may ([`memory::ENVIRONMENT`]). Errors: data or allocator settings that
    /// are wrong, by name; those of `divide`.
    pub fn new<E: From<WorkerError>>(
        mut config: RunConfig,
        placement: Placement,
        divide: impl FnOnce(&RunConfig, &Dataset, &Description) -> std::result::Result<Vec<Stage>, E>,
    ) -> std::result::Result<Self, E> {
        if config.precision.compute == DType::Bf16 && placement.description().kind != Kind::Cuda {
            let place = config.origins.of("precision.compute");
            let text = "precision.compute = \"bf16\" needs a GPU: use \"f32\" on the CPU";
            return Err(WorkerError::Refused(format!("{place}: {text}")).into());
        }
        let dataset = build::dataset(&config)?;
        let settings = allocator_settings(&config, |name| std::env::var(name).ok())?;
        settings.text().clone_into(&mut config.memory.allocator);
        let limit_bytes = Some(config.memory.limit_bytes).filter(|limit| *limit > 0);
        let device = DeviceOptions { settings, limit_bytes };
        let description = placement.description();
        let stages = divide(&config, &dataset, &description)?;
        let blueprint = Arc::new(Blueprint::new(&config, &dataset, &description, stages)?);
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
    pub fn expecting(self, planned: Expected) -> Self {
        let events = planned.values().map(|parts| parts.events_to_keep()).max();
        Setup { history: events.unwrap_or(UNPLANNED_EVENTS), planned: Arc::new(planned), ..self }
    }

    /// The first step that is run, counted from 0.
    pub fn first_step(&self) -> u64 {
        self.resumed.as_ref().map_or(0, |point| point.checkpoint.step())
    }

    /// The device of a rank. Errors: settings that the allocator refuses.
    pub fn device(&self, rank: usize) -> Result<Device> {
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
            .map_err(|error| WorkerError::Refused(format!("memory.allocator: {error}")));
    }
    let Some(name) = memory::ENVIRONMENT.into_iter().find(|name| variable(name).is_some()) else {
        return memory::Settings::parse(DEFAULT_ALLOCATOR)
            .map_err(|error| WorkerError::Refused(format!("{DEFAULT_ALLOCATOR}: {error}")));
    };
    memory::Settings::from_environment(variable)
        .map_err(|error| WorkerError::Refused(format!("{name}: {error}")))
}

impl std::fmt::Debug for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup").field("config", &self.config).field("placement", &self.placement).finish()
    }
}
