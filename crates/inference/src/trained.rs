//! A trained model: a run, a checkpoint, a folder of Hugging Face, or one of adapters and their model's.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use config::{RunConfig, how_to_download};
use data::{ChatTemplate, Tokenizer};
use nn::AdapterConfig;
use pretrained::{ADAPTER_CONFIG, CONFIG};
use worker::Weights;

use run::check_model;
use run::configuration_of;
use run::weights;
use run::{Result, RunError};

/// A trained model.
#[derive(Clone, Debug)]
pub(crate) struct Trained {
    /// Configuration of the run, or the one that the folder implies.
    pub(crate) config: RunConfig,
    /// Trained weights.
    pub(crate) weights: Arc<dyn Weights>,
    /// The folder, or the directory of the run.
    home: PathBuf,
    is_run: bool,
}

/// A path of a model, as a command names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location<'a> {
    /// A run, a checkpoint, or a folder.
    pub(crate) path: &'a Path,
    /// The step of a run's checkpoint.
    pub(crate) step: Option<u64>,
    /// The folder of the model that adapters belong to.
    pub(crate) base: Option<&'a Path>,
}

/// The file of a folder's tokenizer.
const TOKENIZER: &str = "tokenizer.json";

impl Trained {
    /// Finds the model at a location, with `sets` over its configuration.
    ///
    /// # Errors
    /// No run, checkpoint or folder there; one that is damaged or of another model; settings that are wrong.
    pub(crate) fn find(location: Location<'_>, sets: &[String]) -> Result<Self> {
        let Location { path, step, base } = location;
        let is_folder = path.join(CONFIG).is_file() && step.is_none();
        if !is_folder && path.join(ADAPTER_CONFIG).is_file() {
            return Self::of_adapters(location, sets);
        }
        if let Some(base) = base {
            let text = format!("--base {}: {} is no folder of adapters", base.display(), path.display());
            return Err(RunError::Refused(text));
        }
        if is_folder {
            return Self::of_folder(path, sets);
        }
        if !path.exists() {
            let advice =
                path.to_str().and_then(how_to_download).map_or(String::new(), |text| format!("; {text}"));
            return Err(RunError::Refused(format!(
                "{}: there is no such run, checkpoint or folder{advice}",
                path.display()
            )));
        }
        let home = checkpoint::run_of(path);
        let config = configuration_of(&home, sets)?;
        let checkpoint = checkpoint::find(path, step)?;
        check_model(&config, &checkpoint)?;
        let weights = weights::complete(checkpoint, &config)?;
        Ok(Trained { config, weights, home, is_run: true })
    }

    fn of_folder(path: &Path, sets: &[String]) -> Result<Self> {
        let config = folder_config(path, sets)?;
        let weights = weights::open(path, &config)?;
        Ok(Trained { config, weights: Arc::new(weights), home: path.to_owned(), is_run: false })
    }

    fn of_adapters(location: Location<'_>, sets: &[String]) -> Result<Self> {
        let Location { path, step, base } = location;
        if let Some(step) = step {
            let text = format!("--step {step}: {} is a folder of adapters", path.display());
            return Err(RunError::Refused(text));
        }
        let base = base.map_or_else(|| base_of(path), |base| Ok(base.to_owned()))?;
        if !base.join(CONFIG).is_file() {
            let text = format!(
                "--base {}: it has no {CONFIG}; it is the folder of a model, which `plimsoll export` makes of \
                 a run",
                base.display()
            );
            return Err(RunError::Refused(text));
        }
        let (model, adapters) = (toml_path(&base)?, toml_path(path)?);
        let text = format!("[model]\nfrom = {model}\n[lora]\nfrom = {adapters}\n{NO_DATA}");
        let name = path.join(ADAPTER_CONFIG);
        let config = RunConfig::parse(&text, &name.to_string_lossy(), Path::new("/"), sets)?;
        let weights = weights::of_folders(&config)?;
        let missing = || RunError::Refused(format!("{}: it has no adapters", path.display()));
        let weights = weights.ok_or_else(missing)?;
        Ok(Trained { config, weights, home: path.to_owned(), is_run: false })
    }

    /// Returns whether the model is a run or a checkpoint of one.
    pub(crate) fn is_run(&self) -> bool {
        self.is_run
    }

    /// The model's folders, in which its files are looked for in this order: that of its adapters, and its
    /// own or original one, which may no longer exist.
    pub(crate) fn folders(&self) -> Vec<&Path> {
        let own = Some(self.home.as_path()).filter(|_| !self.is_run);
        let original = self.config.model.folder().filter(|_| self.is_run || self.config.lora.from.is_some());
        own.into_iter().chain(original).collect()
    }

    /// The tokenizer file of the model's folders, if one has it.
    pub(crate) fn tokenizer_file(&self) -> Option<PathBuf> {
        files_in(&self.folders(), &[TOKENIZER]).pop().filter(|_| !self.is_run)
    }

    /// Returns the tokenizer of the model's texts: the run's, or that of the model's folder. Errors: there is
    /// none, or it cannot be read.
    pub(crate) fn tokenizer(&self) -> Result<Tokenizer> {
        let configured = Some(&self.config.tokenizer).filter(|own| self.is_run && **own != Tokenizer::None);
        let file = || files_in(&self.folders(), &[TOKENIZER]).pop();
        let found = match configured {
            Some(configured) => configured.clone(),
            None => {
                file().map_or(Ok(Tokenizer::None), |file| Tokenizer::from_name(&file.to_string_lossy()))?
            }
        };
        if found == Tokenizer::None {
            let why = match self.is_run {
                false => format!("{}: it has no {TOKENIZER}", self.home.display()),
                true => "data.tokenizer = \"none\" makes no text of tokens".to_owned(),
            };
            return Err(RunError::Refused(why));
        }
        Ok(found)
    }

    /// Returns the chat template: that of the run, or that of its model's folder. Errors:
    /// there is none, or it cannot be read.
    pub(crate) fn chat_template(&self) -> Result<ChatTemplate> {
        let own = ChatTemplate::beside(&self.home.join(TOKENIZER));
        let folders = self.folders();
        let others = folders.iter().filter(|folder| **folder != self.home);
        let found = others
            .fold(own, |found, folder| found.or_else(|_| ChatTemplate::beside(&folder.join(TOKENIZER))));
        found.map_err(|error| RunError::Refused(error.to_string()))
    }
}

/// The configuration that a folder implies, with `sets` over it. Errors: a model that there is no family for.
pub(crate) fn folder_config(path: &Path, sets: &[String]) -> Result<RunConfig> {
    let text = format!("[model]\nfrom = {}\n{NO_DATA}", toml_path(path)?);
    Ok(RunConfig::parse(&text, &path.join(CONFIG).to_string_lossy(), Path::new("/"), sets)?)
}

/// The section of a model without data.
const NO_DATA: &str = "[data]\nkind = \"synthetic\"\n";
/// The most bytes of an adapter_config.json.
const MOST_CONFIG: u64 = 1 << 24;

/// Returns the absolute path as a TOML string. Errors: a name that is not UTF-8, no current directory.
fn toml_path(path: &Path) -> Result<String> {
    let unreadable = |source| RunError::File { path: path.to_owned(), source };
    let absolute = std::path::absolute(path).map_err(unreadable)?;
    match absolute.to_str() {
        // A JSON string is a TOML string.
        Some(name) => Ok(serde_json::Value::from(name).to_string()),
        None => Err(RunError::Refused(format!("{}: its name is not UTF-8", path.display()))),
    }
}

/// Returns the folder of the model that a folder of adapters names: relative to the current directory, as
/// PEFT takes it, or to the folder itself. Errors: adapters that cannot be read, or whose model is not there.
fn base_of(adapters: &Path) -> Result<PathBuf> {
    let path = adapters.join(ADAPTER_CONFIG);
    let refused = |reason: String| RunError::Refused(format!("{}: {reason}", path.display()));
    let text = system::input::read_text(&path, MOST_CONFIG).map_err(|error| refused(error.to_string()))?;
    let Some(base) = AdapterConfig::parse(&text).map_err(refused)?.base else {
        return Err(refused(
            "it names no model: --base DIR names the folder of the adapters' model".to_owned(),
        ));
    };
    let found =
        [PathBuf::from(&base), adapters.join(&base)].into_iter().find(|path| path.join(CONFIG).is_file());
    found.ok_or_else(|| {
        let advice = how_to_download(&base).map_or(String::new(), |text| format!("; {text}"));
        refused(format!(
            "base_model_name_or_path = \"{base}\" is no folder with a {CONFIG}: --base DIR names the \
             adapters' model{advice}"
        ))
    })
}

/// Returns the files of these names, each from the first of the folders that has it.
pub(crate) fn files_in(folders: &[&Path], names: &[&str]) -> Vec<PathBuf> {
    let first = |name: &&str| folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
    names.iter().filter_map(first).collect()
}
