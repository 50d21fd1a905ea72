//! Compares a run's partitions with and without a profile, using the profile's times.

use std::fmt;
use std::path::Path;

use nn::Stage;

use crate::costs::Costs;
use crate::error::Result;
use crate::overhead::DeviceRanks;
use crate::partition;
use crate::prepare::prepare_shapes;
use crate::profile::Profile;
use crate::resolve::resolve;
use crate::target::PlanTarget;
use config::{PartitionPolicy, RunConfig};
use worker::Placement;

/// A partition of a run's layers, and its stages' times according to a profile.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedPartition {
    /// Policy of the partition, for users.
    pub name: String,
    /// Number of layers of each stage.
    pub layers: Vec<usize>,
    /// Milliseconds that each stage takes per micro-batch, including its share of the update.
    pub milliseconds: Vec<f64>,
}

/// Returns the partition of `config` without a profile, and with the profile in `path`; empty for a single
/// stage.
///
/// # Errors
/// Planning fails, or the profile is of another run.
pub fn timed_partitions(config: &RunConfig, path: &Path, target: &PlanTarget) -> Result<Vec<TimedPartition>> {
    if config.stages() == 1 {
        return Ok(Vec::new());
    }
    let ranks = DeviceRanks::from_config(config);
    let description = target.device(None, ranks)?.description(ranks);
    let (config, _) = resolve(config.clone(), &description)?;
    let mut timed = config.clone();
    (timed.parallel.partition, timed.parallel.profile) = (PartitionPolicy::Fastest, Some(path.to_owned()));
    let mut plain = config.clone();
    plain.parallel.profile = None;
    let profile = Profile::of_run(path, &timed, &description)?;
    let costs = Costs::from_profile(&profile, &config);
    let time_partition = |config: &RunConfig| -> Result<TimedPartition> {
        let name = partition::in_words(config);
        let setup = prepare_shapes(config.clone(), Placement::Meta(description.clone()))?;
        let costs = costs.for_partition(config);
        let busy = |stage: &Stage| costs.stage_time(stage.layers.clone()) as f64 / 1e6;
        let stages = &setup.blueprint.stages;
        let layers = stages.iter().map(|stage| stage.layers.len()).collect();
        Ok(TimedPartition { name, layers, milliseconds: stages.iter().map(busy).collect() })
    };
    Ok(vec![time_partition(&plain)?, time_partition(&timed)?])
}

impl TimedPartition {
    /// Returns the milliseconds of the slowest stage.
    #[must_use]
    pub fn slowest(&self) -> f64 {
        self.milliseconds.iter().copied().fold(0.0, f64::max)
    }
}

impl fmt::Display for TimedPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layers: Vec<_> = self.layers.iter().map(usize::to_string).collect();
        let mean = self.milliseconds.iter().sum::<f64>() / self.milliseconds.len().max(1) as f64;
        let slowest = self.slowest();
        let above = 100.0 * (slowest / mean - 1.0);
        write!(
            f,
            "layers of each stage: {}, {}: the slowest stage takes {slowest:.3} ms for a micro-batch, \
             {above:.1} % above the mean",
            layers.join(", "),
            self.name
        )
    }
}
