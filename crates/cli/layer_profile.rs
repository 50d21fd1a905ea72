//! Times a model's layers, for `plimsoll plan --profile` and `plimsoll bench pipeline --profile`.

use std::path::Path;

use crate::error::CliError;
use bench::take_profile;
use config::RunConfig;
use plan::{PlanTarget, Profile};

use crate::outputs::{Force, Kind};

/// Times the layers, writes a profile to `path`, and reads it back.
///
/// # Errors
/// The run fails, or the file may not be replaced.
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
