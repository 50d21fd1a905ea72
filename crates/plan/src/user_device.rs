//! Device descriptions measured on this host by `plimsoll plan --describe`, stored in the user's cache
//! directory.

use std::io::ErrorKind;
use std::path::PathBuf;

use device::cuda;
use system::output;

use crate::error::{PlanError, Result};
use crate::imitated::PlanDevice;

/// Format of the descriptions. Older ones are not read, because sizes of attention and the load of steps had
/// other meanings.
const FORMAT: &str = "3";

/// Returns the path of the description of a GPU model; `None` if the user has no cache directory.
fn path(model: &str) -> Option<PathBuf> {
    let name: String = model.to_lowercase().split_whitespace().collect::<Vec<_>>().join("-");
    let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || *letter == '-';
    let name: String = name.chars().filter(is_plain).collect();
    Some(cuda::user_cache()?.join("devices").join(FORMAT).join(format!("{name}.toml")))
}

impl PlanDevice {
    /// Reads the description of a GPU model measured on this host; `None` if there is none.
    ///
    /// # Errors
    /// The file cannot be read or is invalid.
    pub(crate) fn measured_here(model: &str) -> Result<Option<Self>> {
        let Some(path) = path(model) else { return Ok(None) };
        match std::fs::metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            _ => Self::load(&path).map(|device| Some(device).filter(|device| device.model == model)),
        }
    }

    /// Writes the description of a GPU into the user's cache directory, for the predictions of later runs.
    /// Keeps the calls of configurations that an earlier description there has. Returns its path; `None` for
    /// a CPU, and without a cache directory.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn remember(&self) -> Result<Option<PathBuf>> {
        let Some(path) = path(&self.model).filter(|_| self.is_gpu()) else { return Ok(None) };
        // An earlier description that cannot be read is replaced.
        let earlier = Self::measured_here(&self.model).ok().flatten();
        let probed = earlier.map(|device| device.probed).unwrap_or_default();
        let mut own = self.clone();
        own.probed = probed;
        let own = own.with_probed(self.probed.clone());
        let refused = |error: std::io::Error| PlanError::Refused(format!("{}: {error}", path.display()));
        path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(refused)?;
        output::write_own(&path, own.to_toml()?.as_bytes()).map_err(refused)?;
        Ok(Some(path))
    }
}
