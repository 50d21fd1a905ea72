//! A trained model: a run, a checkpoint, a Hugging Face folder, or adapters with their model.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use checkpoint::Share;
use config::{Data, Parallel, RunConfig, Train, how_to_download};
use data::{ChatTemplate, Tokenizer};
use worker::{Averaged, Weights};

use crate::location::{Location, NO_DATA, TOKENIZER};
use run::check_model;
use run::configuration_of;
use run::weights;
use run::{Result, RunError};

/// A trained model.
#[derive(Clone, Debug)]
pub(crate) struct Trained {
    /// Configuration of the run, or implied by the folder.
    pub(crate) config: RunConfig,
    /// Source of the trained weights.
    pub(crate) weights: Arc<dyn Weights>,
    /// The folder, or the run directory.
    home: PathBuf,
    is_run: bool,
}

impl Trained {
    /// Finds the model at a location, with overrides `sets` of its configuration. This process verifies a
    /// `share` of a checkpoint's files.
    ///
    /// # Errors
    /// There is no run, checkpoint or folder, it is damaged or of another model, or settings are invalid.
    pub(crate) fn find(location: Location<'_>, sets: &[String], share: Share) -> Result<Self> {
        if location.is_folder() {
            return Self::of_folder(location, NO_DATA, sets);
        }
        location.check_base()?;
        let Location { path, step, average, .. } = location;
        if !path.exists() {
            let advice =
                path.to_str().and_then(how_to_download).map_or(String::new(), |text| format!("; {text}"));
            return Err(RunError::Refused(format!(
                "{}: there is no such run, checkpoint or folder{advice}",
                path.display()
            )));
        }
        let home = checkpoint::run_of(path);
        let config = configuration_of(&home, &with_lanes(&home, sets)?)?;
        let checkpoint = checkpoint::find_share(path, step, share)?;
        check_model(&config, &checkpoint)?;
        if average && !Averaged::is_in(&checkpoint) {
            let path = checkpoint.path().display();
            let text = format!("--ema: {path} has no average of the weights, which train.ema keeps");
            return Err(RunError::Refused(text));
        }
        let mut weights = weights::complete(checkpoint, &config)?;
        if average {
            weights = Arc::new(Averaged::new(weights));
        }
        Ok(Trained { config, weights, home, is_run: true })
    }

    /// Reads the folder at `location`, with `data` as its `[data]` section and overrides `sets`.
    pub(crate) fn of_folder(location: Location<'_>, data: &str, sets: &[String]) -> Result<Self> {
        let path = location.path;
        location.check_average()?;
        let config = location.config(data, sets)?;
        for note in config.folder_notes() {
            tracing::info!("{note}");
        }
        let weights: Arc<dyn Weights> = if location.is_adapters() {
            let missing = || RunError::Refused(format!("{}: it has no adapters", path.display()));
            weights::of_folders(&config)?.ok_or_else(missing)?
        } else {
            Arc::new(weights::open(path, &config)?)
        };
        Ok(Trained { config, weights, home: path.to_owned(), is_run: false })
    }

    /// Returns whether the model is a run or a run's checkpoint.
    pub(crate) fn is_run(&self) -> bool {
        self.is_run
    }

    /// Returns the folders in which the model's files are searched, in order: its adapters' folder, then its
    /// own or original folder, which may no longer exist.
    pub(crate) fn folders(&self) -> Vec<&Path> {
        let own = Some(self.home.as_path()).filter(|_| !self.is_run);
        let original = self.config.model.folder().filter(|_| self.is_run || self.config.lora.from.is_some());
        own.into_iter().chain(original).collect()
    }

    /// Returns the tokenizer for the model's texts: the run's or the one set by `--set`, else the one in the
    /// model's folders.
    ///
    /// # Errors
    /// The tokenizer is missing or cannot be read.
    pub(crate) fn tokenizer(&self) -> Result<Tokenizer> {
        let is_named = self.is_run || self.config.origins.find(Data::tokenizer).is_override();
        let configured = Some(&self.config.tokenizer).filter(|own| is_named && **own != Tokenizer::None);
        let file = || files_in(&self.folders(), &[TOKENIZER]).pop();
        let tokenizer = match configured {
            Some(configured) => configured.clone(),
            None => {
                let read = |file: PathBuf| Tokenizer::from_name(&file.to_string_lossy());
                let refused = |error: data::Error| RunError::Refused(error.to_string());
                file().map_or(Ok(Tokenizer::None), read).map_err(refused)?
            }
        };
        if tokenizer == Tokenizer::None {
            let why = match self.is_run {
                false => format!("{}: it has no {TOKENIZER}", self.home.display()),
                true => "data.tokenizer = \"none\" makes no text of tokens".to_owned(),
            };
            return Err(RunError::Refused(why));
        }
        Ok(tokenizer)
    }

    /// Returns the chat template of the run, else of the model's folder. It may refer to special tokens of
    /// `tokenizer`.
    ///
    /// # Errors
    /// The template is missing or cannot be read.
    pub(crate) fn chat_template(&self, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
        let others = self.folders().into_iter().filter(|folder| *folder != self.home);
        let folders: Vec<&Path> = std::iter::once(self.home.as_path()).chain(others).collect();
        ChatTemplate::of_folders(&folders, tokenizer).map_err(|error| RunError::Refused(error.to_string()))
    }
}

/// Returns the paths of files with these names, each in the first folder that has it.
pub(crate) fn files_in(folders: &[&Path], names: &[&str]) -> Vec<PathBuf> {
    // A directory or dangling link with such a name is refused when read.
    let exists = |path: &PathBuf| path.symlink_metadata().is_ok();
    let first = |name: &&str| folders.iter().map(|folder| folder.join(name)).find(exists);
    names.iter().filter_map(first).collect()
}

/// Returns `sets` with the number of lanes raised to the data-parallel ranks that they set, if the run has
/// fewer lanes. Lanes do not matter here, because no gradients are summed.
///
/// # Errors
/// There is no run, or its configuration is invalid.
fn with_lanes(run_dir: &Path, sets: &[String]) -> Result<Vec<String>> {
    let named = |key: &str| {
        let pairs = sets.iter().rev().filter_map(|set| set.split_once('='));
        let value = pairs.map(|(path, value)| (path.trim(), value)).find(|(path, _)| *path == key);
        value.and_then(|(_, value)| value.trim().parse::<usize>().ok())
    };
    let Some(ranks) = named(Parallel::data).filter(|_| named(Parallel::lanes).is_none()) else {
        return Ok(sets.to_vec());
    };
    let RunConfig { parallel, train, .. } = configuration_of(run_dir, &[])?;
    let more = [
        format!("{}={ranks}", Parallel::lanes),
        format!("{}={}", Train::global_batch_size, ranks * train.micro_batch_size),
    ];
    Ok(if ranks > parallel.lanes { [sets, &more].concat() } else { sets.to_vec() })
}
