//! Settings of the model's folder that are ignored.

use crate::folder;
use crate::run_config::RunConfig;

impl RunConfig {
    /// Returns a sentence that names the settings in the `config.json` of the model's folder which no key
    /// corresponds to, and which are ignored; `None` if there are none.
    #[must_use]
    pub fn folder_note(&self) -> Option<String> {
        let folder = self.model.folder()?;
        let ignored = folder::ignored(folder, self.model.families())?;
        let names = (!ignored.is_empty()).then(|| ignored.join(", "))?;
        Some(format!(
            "{}: settings that are unknown here are ignored: {names}",
            folder.join(folder::CONFIG).display()
        ))
    }
}
