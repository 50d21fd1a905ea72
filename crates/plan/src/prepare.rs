//! What all ranks of a run have in common, with its layers divided by what they are planned to take.

use crate::error::Result;
use config::RunConfig;
use worker::{Placement, Setup};

use crate::division;

/// Opens the data of a configuration, and divides its layers into stages. Errors: as for [`Setup::new`]; a division that
/// cannot be, a profile that is not of this run.
pub fn prepare(config: RunConfig, placement: Placement) -> Result<Setup> {
    Setup::new(config, placement, division::stages)
}
