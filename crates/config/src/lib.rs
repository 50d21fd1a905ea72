//! The configuration of a run: TOML and `--set` in, one validated value out, once.
//!
//! The one idea: what follows need not check anything again. [`RunConfig`] is made in one place, from a file's
//! text and the command line's overrides; each value has a type of its own, has its default filled in, and
//! goes together with the others. What is wrong is refused before anything is allocated, in one sentence that
//! names the key, the file and the line ([`ConfigError`]).
//!
//! Each key is one row of `sections.rs`: name, type, default, documentation, what it decides, how it is read and
//! written. The crate `keys` makes of the rows the structs below, the suggestion for a misspelt key, the resolved text
//! ([`RunConfig::to_toml`]) and the documentation's [`reference()`]. Checks between keys are in `check.rs`.
//!
//! ```
//! use std::path::Path;
//! use config::{Model, RunConfig};
//!
//! let text = r#"
//!     [model]
//!     width = 64
//!     [data]
//!     paths = ["corpus/*.txt"]
//! "#;
//! let config = RunConfig::parse(text, "run.toml", Path::new("/home/me"), &["train.steps=10".into()])?;
//! assert_eq!(config.train.steps, 10);
//! assert!(matches!(config.model, Model::Gpt(gpt) if gpt.width == 64 && gpt.heads == 4));
//!
//! let refused = RunConfig::parse(text, "run.toml", Path::new("/home/me"), &["model.heads=5".into()]);
//! assert_eq!(
//!     refused.unwrap_err().to_string(),
//!     "--set model.heads=5: model.width = 64 is not a multiple of model.heads = 5",
//! );
//! # Ok::<(), config::ConfigError>(())
//! ```

mod check;
mod choices;
mod identity;
mod paths;
mod sections;

pub use choices::{DataKind, ModelKind, OptimKind, Overlap, PartitionPolicy, RecomputePolicy};
pub use identity::differences;
pub use keys::{Error as ConfigError, Origin, Origins};
pub use sections::{
    Checkpoint, Data, Gpt, Memory, Mlp, Model, ModelSection, Optim, Parallel, Precision, Telemetry, Train,
};

use keys::{Given, Key, Only, Section, Table, Value};
use parallel::pipeline::ScheduleKind;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The name of the built-in configuration in messages.
const QUICKSTART: &str = "the built-in quickstart";

/// A validated configuration with every default filled in.
///
/// [`RunConfig::load`] and its like alone make it, and it is handed down unchanged.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RunConfig {
    /// The model that is trained.
    pub model: Model,
    /// The data that it is trained on.
    pub data: Data,
    /// How long, and in which portions.
    pub train: Train,
    /// The optimizer and its learning rate.
    pub optim: Optim,
    /// How the work is distributed over ranks.
    pub parallel: Parallel,
    /// The types of values.
    pub precision: Precision,
    /// The caching allocator, and the activations that are kept for backward.
    pub memory: Memory,
    /// Reports of progress.
    pub telemetry: Telemetry,
    /// What is saved during a run.
    pub checkpoint: Checkpoint,
    /// Where each value was written.
    pub origins: Origins,
}

impl RunConfig {
    /// Reads a file. `overrides` are the arguments of `--set`, each `section.key=value`, the last of a key winning.
    ///
    /// # Errors
    /// Whatever is wrong, in one sentence.
    pub fn load(path: &Path, overrides: &[String]) -> Result<Self, ConfigError> {
        let unreadable = |source| ConfigError::Unreadable { path: path.to_path_buf(), source };
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        let file = std::path::absolute(path).map_err(unreadable)?;
        let directory = file.parent().unwrap_or(Path::new("/"));
        Self::parse(&text, &path.to_string_lossy(), directory, overrides)
    }

    /// Reads the text of a file called `name`, which messages name, in the absolute `directory`, which the data's
    /// paths are relative to.
    ///
    /// # Errors
    /// Whatever is wrong, in one sentence.
    pub fn parse(
        text: &str,
        name: &str,
        directory: &Path,
        overrides: &[String],
    ) -> Result<Self, ConfigError> {
        let given = Given::parse(&table(), text, name, directory, overrides)?;
        let config = Self {
            model: model(&given)?,
            data: Data::read(&given)?,
            train: Train::read(&given)?,
            optim: Optim::read(&given)?,
            parallel: Parallel::read(&given)?,
            precision: Precision::read(&given)?,
            memory: Memory::read(&given)?,
            telemetry: Telemetry::read(&given)?,
            checkpoint: Checkpoint::read(&given)?,
            origins: given.origins(),
        };
        check::check(&given, &config)?;
        Ok(config)
    }

    /// The built-in configuration: a small GPT on the text of Plimsoll itself, by bytes, over two ranks. The paths
    /// are relative to the source tree it was built from; where that is not there, to the one that the current
    /// directory is in, or else to the current directory.
    ///
    /// # Errors
    /// An override that is wrong; a current directory that cannot be asked for.
    pub fn quickstart(overrides: &[String]) -> Result<Self, ConfigError> {
        let text = include_str!("../../../launch/configs/quickstart.toml");
        let unreadable = |source| ConfigError::Unreadable { path: PathBuf::from("."), source };
        let current = std::env::current_dir().map_err(unreadable)?;
        let built_from = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
        let mut candidates = built_from.into_iter().chain(current.ancestors());
        let root = candidates.find(|root| root.join("crates").is_dir()).unwrap_or(&current);
        Self::parse(text, QUICKSTART, &root.join("launch/configs"), overrides)
    }

    /// The same with other values for some keys, each as `section.key=value`.
    ///
    /// # Errors
    /// Values that are wrong or do not go together with the others.
    pub fn with(&self, overrides: &[String]) -> Result<Self, ConfigError> {
        // What is resolved names its directory itself.
        Self::parse(&self.to_toml(), "the configuration", Path::new("/"), overrides)
    }

    /// Ranks in the whole grid: data × pipeline.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.parallel.data * self.parallel.pipeline
    }

    /// Layers of the model, over which a pipeline's stages divide.
    #[must_use]
    pub fn layers(&self) -> usize {
        match &self.model {
            Model::Gpt(gpt) => gpt.layers,
            Model::Mlp(mlp) => mlp.sizes.len().saturating_sub(1),
        }
    }

    /// Stages of the model; one rank has all of it in one.
    #[must_use]
    pub fn stages(&self) -> usize {
        let Parallel { pipeline, chunks, .. } = self.parallel;
        if pipeline == 1 { 1 } else { pipeline * chunks }
    }

    /// The schedule that is run; on one rank each micro-batch ends before the next begins, which is 1F1B there.
    #[must_use]
    pub fn schedule_kind(&self) -> ScheduleKind {
        match self.parallel.pipeline {
            1 => ScheduleKind::OneForwardOneBackward,
            _ => self.parallel.schedule,
        }
    }

    /// The resolved configuration as TOML, every key that applies written out. It parses to an equal value in any
    /// directory.
    #[must_use]
    pub fn to_toml(&self) -> String {
        render(self.settings())
    }

    /// The SHA-256 of the resolved text in hexadecimal, without the paths of this machine (`data.base` and
    /// `parallel.profile`): ranks on machines that keep files elsewhere have the same configuration. The data has a
    /// fingerprint of its own, and the partition is compared by its stages.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let text = render(self.settings().into_iter().filter(|(key, _)| !key.is_local));
        format!("{:x}", Sha256::digest(text))
    }

    /// Every key that applies, with its value, in the order of the file.
    fn settings(&self) -> Vec<(&'static Key, Value)> {
        let model = ModelSection { kind: self.model.kind() };
        let mut settings = pairs(&model);
        settings.extend(match &self.model {
            Model::Gpt(gpt) => pairs(gpt),
            Model::Mlp(mlp) => pairs(mlp),
        });
        settings.extend(pairs(&self.data));
        settings.extend(pairs(&self.train));
        settings.extend(pairs(&self.optim));
        settings.extend(pairs(&self.parallel));
        settings.extend(pairs(&self.precision));
        settings.extend(pairs(&self.memory));
        settings.extend(pairs(&self.telemetry));
        settings.extend(pairs(&self.checkpoint));
        let applies = |only: Option<Only>| {
            let kind = |only: Only| settings.iter().find(|(key, _)| key.path == only.key);
            only.is_none_or(|only| kind(only).is_some_and(|(_, value)| *value == only.is.into()))
        };
        let applies: Vec<bool> = settings.iter().map(|(key, _)| applies(key.only)).collect();
        settings
            .into_iter()
            .zip(applies)
            .filter_map(|(setting, applies)| applies.then_some(setting))
            .collect()
    }
}

/// Every key as a Markdown table. Ends with a newline.
///
/// ```
/// let table = config::reference();
/// assert!(table.contains("| `train.steps` | an integer from 1 to "));
/// ```
#[must_use]
pub fn reference() -> String {
    keys::reference(&table())
}

/// Every key with its meaning and default, as a configuration file in which all of them are commented out.
#[must_use]
pub fn defaults() -> String {
    keys::defaults(&table())
}

/// All keys, section by section.
fn table() -> Table {
    fn of<S: Section>() -> impl Iterator<Item = Key> {
        S::keys().into_iter().cloned()
    }
    fn of_model<S: Section>(kind: ModelKind) -> impl Iterator<Item = Key> {
        of::<S>().map(move |key| key.for_kind(Only { key: ModelSection::kind, is: kind.name() }))
    }
    let model =
        of::<ModelSection>().chain(of_model::<Gpt>(ModelKind::Gpt)).chain(of_model::<Mlp>(ModelKind::Mlp));
    let what = model.chain(of::<Data>()).chain(of::<Train>()).chain(of::<Optim>());
    let how = of::<Parallel>().chain(of::<Precision>()).chain(of::<Memory>());
    Table::new(what.chain(how).chain(of::<Telemetry>()).chain(of::<Checkpoint>()).collect())
}

fn model(given: &Given) -> Result<Model, ConfigError> {
    Ok(match ModelSection::read(given)?.kind {
        ModelKind::Gpt => Model::Gpt(Gpt::read(given)?),
        ModelKind::Mlp => Model::Mlp(Mlp::read(given)?),
    })
}

fn pairs<S: Section>(section: &S) -> Vec<(&'static Key, Value)> {
    S::keys().into_iter().zip(section.values()).collect()
}

fn render(settings: impl IntoIterator<Item = (&'static Key, Value)>) -> String {
    let mut text = String::new();
    let mut section = "";
    for (key, value) in settings {
        if key.section != section {
            section = key.section;
            let gap = if text.is_empty() { "" } else { "\n" };
            // Writing to a string does not fail.
            let _ = writeln!(text, "{gap}[{section}]");
        }
        let _ = writeln!(text, "{} = {value}", key.name);
    }
    text
}

#[cfg(test)]
mod tests;
