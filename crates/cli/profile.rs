//! Times of a model's layers, for `plimsoll plan --profile` and `plimsoll bench pipeline --profile`.

use std::path::Path;

use bench::take_profile;
use config::RunConfig;
use plan::{PlanTarget, Profile};
use worker::TrainError;

use crate::new_file;

/// Times the layers into the new file `path` and reads it back. Errors: those of the run; the file exists.
pub(crate) fn take(config: &RunConfig, path: &Path, target: &PlanTarget) -> Result<Profile, TrainError> {
    new_file::fill("--profile", path, || take_profile(config, target)?.to_toml())?;
    Profile::load(path)
}
