//! Times of a model's layers, for `plimsoll plan --profile` and `plimsoll bench pipeline --profile`.

use std::path::Path;

use crate::error::CliError;
use bench::take_profile;
use config::RunConfig;
use plan::{PlanTarget, Profile};

use crate::outputs::{Force, Kind};

/// Times the layers, writes them to the file `path` and reads it back.
///
/// # Errors
/// Errors of the run; a file that may not be replaced.
pub(crate) fn take(
    config: &RunConfig,
    path: &Path,
    target: &PlanTarget,
    force: Force,
) -> Result<Profile, CliError> {
    let output = force.output("--profile", path, Kind::Measurement)?;
    output.write(&take_profile(config, target)?.to_toml()?)?;
    Ok(Profile::load(path)?)
}
