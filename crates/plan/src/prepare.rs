//! The setup of a run, with layers partitioned by predicted cost.

use crate::error::Result;
use config::RunConfig;
use worker::dataset::DataScope;
use worker::{Placement, Setup};

use crate::partition;

/// Opens the data of a configuration, and partitions its layers into stages.
///
/// # Errors
/// As for [`Setup::new`]; a partition that is not possible; a profile of another run.
pub fn prepare(config: RunConfig, placement: Placement) -> Result<Setup> {
    Setup::new(config, placement, DataScope::All, partition::stages)
}

/// [`prepare`] for plans alone, which read no data.
pub fn prepare_shapes(config: RunConfig, placement: Placement) -> Result<Setup> {
    Setup::new(config, placement, DataScope::Shapes, partition::stages)
}
