//! The partition of a model's layers over the stages of a pipeline.

use device::Description;
use nn::Stage;
use parallel::pipeline::{LayerBytes, Partition, PartitionError, loads};

use crate::costs::Costs;
use crate::error::{PlanError, Result};
use crate::measure;
use crate::profile::Profile;
use config::{self, RunConfig};
use worker::dataset::Dataset;
use worker::setup::blueprint;

/// Returns the stages of a run, in order. Costs of layers are counted on Meta or read from a file, so every
/// rank and every plan finds the same partition.
pub fn stages(config: &RunConfig, dataset: &Dataset, description: &Description) -> Result<Vec<Stage>> {
    let layers = config.layers();
    let stages = config.stages();
    if stages == 1 {
        // A configured profile must be of this run, even if it is not needed.
        if let Some(path) = &config.parallel.profile {
            Profile::of_run(path, config, description)?;
        }
        return Ok(vec![Stage::whole(layers)]);
    }
    let partition = match &config.parallel.partition {
        config::PartitionPolicy::Layers(counts) => Partition::explicit(layers, stages, counts),
        config::PartitionPolicy::Fastest => Partition::fastest(
            &Costs::from_config(config, dataset, description)?.for_partition(config),
            stages,
        ),
        config::PartitionPolicy::Smallest => {
            let measured = measure::layers(config, dataset, description)?;
            let transfer = measured.iter().filter_map(|layer| layer.output);
            let transfer = transfer.map(|cut| (cut.shape.elements() * cut.dtype.bytes()) as u64).max();
            let layers = measured.iter().map(|layer| layer.bytes).collect();
            let bytes = LayerBytes { layers, transfer: transfer.unwrap_or(0) };
            Partition::smallest(&bytes, &loads(&blueprint::schedule(config)?).stages)
        }
    };
    let refused = |error: PartitionError| PlanError::Refused(format!("parallel.partition: {error}"));
    Ok(partition.map_err(refused)?.stages())
}

/// Describes the policy of the partition.
pub fn in_words(config: &RunConfig) -> String {
    match (&config.parallel.partition, &config.parallel.profile) {
        (config::PartitionPolicy::Layers(_), _) => "as configured".to_owned(),
        (config::PartitionPolicy::Smallest, _) => "for the smallest peak".to_owned(),
        (config::PartitionPolicy::Fastest, None) => "the fastest by FLOPs and bytes".to_owned(),
        (config::PartitionPolicy::Fastest, Some(path)) => {
            format!("the fastest by the times in {}", path.display())
        }
    }
}
