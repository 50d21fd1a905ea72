//! Times of a model's layers, for `plimsoll plan` and `plimsoll bench pipeline`.

use std::path::Path;

use bench::take_profile;
use config::RunConfig;
use plan::{PlanTarget, Profile};
use worker::TrainError;

use crate::new_file;

/// Takes them into a file that is not there yet. Errors: those of the run; a file that is there.
pub(crate) fn take(config: &RunConfig, path: &Path, target: &PlanTarget) -> Result<Profile, TrainError> {
    new_file::fill("--profile", path, || take_profile(config, target)?.to_toml())?;
    Profile::load(path)
}
