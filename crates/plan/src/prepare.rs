//! Sets up a run, with layers partitioned by predicted cost.

use crate::error::Result;
use config::RunConfig;
use worker::dataset::{DataScope, SampleSizes};
use worker::{Placement, Setup};

use crate::partition;

/// Opens a configuration's data, and partitions its layers into stages.
///
/// # Errors
/// As for [`Setup::new`]; the partition is not possible, or the profile is of another run.
pub fn prepare(config: RunConfig, placement: Placement) -> Result<Setup> {
    Setup::new(config, placement, DataScope::All, partition::stages)
}

/// Like [`prepare`], for plans only: reads no data.
pub fn prepare_shapes(config: RunConfig, placement: Placement) -> Result<Setup> {
    Setup::new(config, placement, DataScope::Shapes, partition::stages)
}

/// Like [`prepare_shapes`], and sets the sizes of the data's samples if they are known.
///
/// # Errors
/// As for [`prepare_shapes`].
pub fn prepare_known(
    config: RunConfig,
    placement: Placement,
    samples: Option<&SampleSizes>,
) -> Result<Setup> {
    let setup = prepare_shapes(config, placement)?;
    let Some(samples) = samples else { return Ok(setup) };
    let dataset = setup.dataset.clone().with_sample_sizes(samples, &setup.config);
    Ok(Setup { dataset, ..setup })
}

/// Prepares the run of `setup` with other settings.
///
/// # Errors
/// As for [`prepare_shapes`]; wrong settings.
pub(crate) fn prepare_changed(setup: &Setup, sets: &[String]) -> Result<Setup> {
    let samples = setup.dataset.sample_sizes();
    prepare_known(setup.config.with(sets)?, setup.placement.clone(), Some(&samples))
}
