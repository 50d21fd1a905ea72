//! Times of a model's layers, for `plimsoll plan --profile` and `plimsoll bench pipeline --profile`.

use std::path::Path;

use crate::error::CliError;
use bench::take_profile;
use config::RunConfig;
use plan::{PlanTarget, Profile};

use crate::new_file;

/// Times the layers into the new file `path` and reads it back. Errors: those of the run; the file exists.
pub(crate) fn take(config: &RunConfig, path: &Path, target: &PlanTarget) -> Result<Profile, CliError> {
    new_file::fill("--profile", path, || Ok(take_profile(config, target)?.to_toml()?))?;
    Ok(Profile::load(path)?)
}
