//! Path of a model, and the configuration implied by a folder.

use std::path::{Path, PathBuf};

use config::{RunConfig, how_to_download};
use nn::AdapterConfig;
use pretrained::{ADAPTER_CONFIG, CONFIG};
use system::quoted::shortened;

use run::{Result, RunError};

/// File name of a folder's tokenizer.
pub(crate) const TOKENIZER: &str = "tokenizer.json";
/// The `[data]` section of a model that is used without data.
pub(crate) const NO_DATA: &str = "kind = \"synthetic\"\n";
/// Maximum size of adapter_config.json in bytes.
const MOST_CONFIG: u64 = 1 << 24;

/// Path of a model, as named on the command line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location<'a> {
    /// A run, a checkpoint, or a folder.
    pub(crate) path: &'a Path,
    /// Step of a run's checkpoint.
    pub(crate) step: Option<u64>,
    /// Folder of the model to which adapters belong.
    pub(crate) base: Option<&'a Path>,
    /// Whether the averages of the weights are used instead of the weights.
    pub(crate) average: bool,
}

impl Location<'_> {
    /// Returns whether the path is a Hugging Face folder, of a model (without a step) or of adapters.
    pub(crate) fn is_folder(&self) -> bool {
        self.is_model() || self.is_adapters()
    }

    fn is_model(&self) -> bool {
        self.path.join(CONFIG).is_file() && self.step.is_none()
    }

    /// Returns whether the path is a folder of adapters.
    pub(crate) fn is_adapters(&self) -> bool {
        !self.is_model() && self.path.join(ADAPTER_CONFIG).is_file()
    }

    /// Refuses `--base` unless the path is a folder of adapters.
    pub(crate) fn check_base(&self) -> Result<()> {
        match self.base {
            Some(base) => Err(RunError::Refused(format!(
                "--base {}: {} is no folder of adapters",
                base.display(),
                self.path.display()
            ))),
            None => Ok(()),
        }
    }

    /// Refuses `--ema` of a folder, which has no averages.
    pub(crate) fn check_average(&self) -> Result<()> {
        match self.average {
            true => Err(RunError::Refused(format!(
                "--ema: {} is a folder of a model, and only checkpoints have an average of the weights",
                self.path.display()
            ))),
            false => Ok(()),
        }
    }

    /// Returns the configuration implied by the folder, with `data` as its `[data]` section and overrides
    /// `sets`.
    ///
    /// # Errors
    /// There is no family for the model, the adapters' model is missing, or settings are invalid.
    pub(crate) fn config(&self, data: &str, sets: &[String]) -> Result<RunConfig> {
        if self.is_adapters() {
            return self.adapters_config(data, sets);
        }
        self.check_base()?;
        folder_config(self.path, data, sets)
    }

    fn adapters_config(&self, data: &str, sets: &[String]) -> Result<RunConfig> {
        let Location { path, step, base, .. } = self;
        if let Some(step) = step {
            let text = format!("--step {step}: {} is a folder of adapters", path.display());
            return Err(RunError::Refused(text));
        }
        let base = base.map_or_else(|| base_of(path), |base| Ok(base.to_owned()))?;
        if !base.join(CONFIG).is_file() {
            let text = format!(
                "--base {}: it has no {CONFIG}; it is the folder of a model, which `plimsoll export` makes \
                 of a run",
                base.display()
            );
            return Err(RunError::Refused(text));
        }
        let model = toml_path(&base)?;
        let adapters = toml_path(path)?;
        let text = format!("[model]\nfrom = {model}\n[lora]\nfrom = {adapters}\n[data]\n{data}");
        let name = path.join(ADAPTER_CONFIG);
        Ok(RunConfig::parse_made(&text, &name.to_string_lossy(), Path::new("/"), sets)?)
    }
}

/// Returns the configuration implied by a model folder, with `data` as its `[data]` section and overrides
/// `sets`.
///
/// # Errors
/// There is no family for the model, or settings are invalid.
pub(crate) fn folder_config(path: &Path, data: &str, sets: &[String]) -> Result<RunConfig> {
    let text = format!("[model]\nfrom = {}\n[data]\n{data}", toml_path(path)?);
    Ok(RunConfig::parse_made(&text, &path.join(CONFIG).to_string_lossy(), Path::new("/"), sets)?)
}

/// Returns the absolute path as a TOML string.
///
/// # Errors
/// The path is not UTF-8, or there is no current directory.
pub(crate) fn toml_path(path: &Path) -> Result<String> {
    let unreadable = |source| RunError::unreadable(path, source);
    let absolute = std::path::absolute(path).map_err(unreadable)?;
    match absolute.to_str() {
        // A JSON string is also a TOML string.
        Some(name) => Ok(serde_json::Value::from(name).to_string()),
        None => Err(RunError::Refused(format!("{}: its name is not UTF-8", path.display()))),
    }
}

/// Returns the model folder named by a folder of adapters: relative to the current directory, as in PEFT, or
/// to the folder itself.
///
/// # Errors
/// The adapters cannot be read, or their model does not exist.
fn base_of(adapters: &Path) -> Result<PathBuf> {
    let path = adapters.join(ADAPTER_CONFIG);
    let refused = |reason: String| RunError::Refused(format!("{}: {reason}", path.display()));
    let text = system::input::read_text(&path, MOST_CONFIG).map_err(|error| refused(error.to_string()))?;
    let Some(base) = AdapterConfig::parse(&text).map_err(refused)?.base else {
        return Err(refused(
            "it names no model: --base DIR names the folder of the adapters' model".to_owned(),
        ));
    };
    let folder =
        [PathBuf::from(&base), adapters.join(&base)].into_iter().find(|path| path.join(CONFIG).is_file());
    folder.ok_or_else(|| {
        let advice = how_to_download(&base).map_or(String::new(), |text| format!("; {text}"));
        refused(format!(
            "base_model_name_or_path = \"{}\" is no folder with a {CONFIG}: --base DIR names the \
             adapters' model{advice}",
            shortened(&base)
        ))
    })
}
