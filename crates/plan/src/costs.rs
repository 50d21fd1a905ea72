//! Costs of a model's layers, counted on Meta or read from a profile. They determine the partition into
//! stages and pictures of the schedule.

use std::path::{Path, PathBuf};

use device::Description;
use nn::Stage;
use parallel::pipeline::{LayerCosts, StageTimes};

use crate::error::Result;
use crate::layer_cost::LayerCost;
use crate::measure;
use crate::profile::Profile;
use config::{Memory, RecomputePolicy, RunConfig};
use worker::dataset::Dataset;

/// Costs of all layers of a model.
#[derive(Clone, Debug)]
pub struct Costs {
    layers: Vec<LayerCost>,
    /// Number of layers at the start of every stage that backward recomputes.
    recomputed: usize,
    /// The profile from which the costs were read.
    profile: Option<PathBuf>,
}

impl Costs {
    /// Computes the costs of a run on devices like `description`.
    ///
    /// # Errors
    /// The data cannot be read, or the profile is of another run.
    pub fn from_config(config: &RunConfig, dataset: &Dataset, description: &Description) -> Result<Self> {
        let profile = config.parallel.profile.clone();
        let layers = match &profile {
            Some(path) => Profile::of_run(path, config, description)?.costs(),
            None => counted(config, dataset, description)?,
        };
        Ok(Costs { layers, recomputed: recomputed_layers(&config.memory), profile })
    }

    /// Returns the costs in a profile that has been read.
    pub fn from_profile(profile: &Profile, config: &RunConfig) -> Self {
        Costs { layers: profile.costs(), recomputed: recomputed_layers(&config.memory), profile: None }
    }

    /// Returns the costs of a stage's passes.
    pub fn of_stage(&self, stage: &Stage) -> StageTimes {
        let layers = self.layers.get(stage.layers.clone()).unwrap_or_default();
        let sum =
            |pass: usize| layers.iter().fold(0_u64, |sum, layer| sum.saturating_add(layer.passes[pass]));
        let again =
            layers.iter().take(self.recomputed).fold(0_u64, |sum, layer| sum.saturating_add(layer.again));
        StageTimes { forward: sum(0), backward_input: sum(1).saturating_add(again), backward_weight: sum(2) }
    }

    /// Returns the costs of each layer per micro-batch: its passes, and its share of the optimizer update.
    pub fn for_partition(&self, config: &RunConfig) -> LayerCosts {
        let parallel = &config.parallel;
        let owners = if parallel.shards_optimizer() { parallel.owners() } else { 1 };
        let micro_batches = config.training_assignment().count(0);
        let among = (owners * micro_batches).max(1) as u64;
        let layer =
            |layer: &LayerCost| layer.passes.into_iter().fold(layer.update / among, u64::saturating_add);
        LayerCosts {
            layers: self.layers.iter().map(layer).collect(),
            again: self.layers.iter().map(|layer| layer.again).collect(),
            recomputed: self.recomputed,
        }
    }

    /// Returns the path of the profile; `None` if costs were counted.
    pub fn profile(&self) -> Option<&Path> {
        self.profile.as_deref()
    }
}

/// Returns the number of layers, from the first on, that backward recomputes in every stage.
pub(crate) fn recomputed_layers(memory: &Memory) -> usize {
    match (memory.recompute, memory.recompute_layers) {
        (RecomputePolicy::None | RecomputePolicy::Auto, _) => 0,
        (_, 0) => usize::MAX,
        (_, layers) => layers,
    }
}

/// Counts the costs in FLOPs and bytes on Meta.
fn counted(config: &RunConfig, dataset: &Dataset, description: &Description) -> Result<Vec<LayerCost>> {
    let baseline = measure::layers(&with_recompute(config, RecomputePolicy::None), dataset, description)?;
    let again = match recomputed_layers(&config.memory) {
        0 => Vec::new(),
        _ => measure::layers(&with_recompute(config, RecomputePolicy::Block), dataset, description)?,
    };
    let work = |passes: &[u64; 3]| passes.iter().sum::<u64>();
    let cost = |(number, layer): (usize, &measure::LayerMeasure)| {
        let again = again.get(number).map_or(0, |again| work(&again.passes));
        LayerCost { passes: layer.passes, again: again.saturating_sub(work(&layer.passes)), update: 0 }
    };
    Ok(baseline.iter().enumerate().map(cost).collect())
}

/// Returns the configuration with recomputation of all layers or of none.
pub fn with_recompute(config: &RunConfig, recompute: RecomputePolicy) -> RunConfig {
    let mut config = config.clone();
    (config.memory.recompute, config.memory.recompute_layers) = (recompute, 0);
    config
}
