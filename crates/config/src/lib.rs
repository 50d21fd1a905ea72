//! The configuration of a run: TOML and `--set` in, one validated value out, once.
//!
//! The one idea: what follows need not check anything again. [`RunConfig`] is made in one place, from a file's
//! text and the command line's overrides; each value has a type of its own, has its default filled in, and
//! goes together with the others. What is wrong is refused before anything is allocated, in one sentence that
//! names the key, the file and the line ([`ConfigError`]).
//!
//! Keys are listed once, in a table from which come types, defaults, the documentation's [`reference()`], the
//! suggestion for a misspelt key and the resolved text ([`RunConfig::to_toml`]). What is known and not built
//! yet is refused by one list (`unbuilt.rs`).
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
mod error;
mod identity;
mod key;
mod keys;
mod places;
mod raw;
mod reference;
mod resolve;
mod sections;
mod typed;
mod unbuilt;
mod value;

pub use error::{ConfigError, Place};
pub use identity::differences;
pub use places::Places;
pub use reference::{defaults, reference};
pub use sections::*;

use parallel::pipeline::ScheduleKind;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The name of the built-in configuration in messages.
const QUICKSTART: &str = "the built-in quickstart";

/// A validated configuration with every default filled in.
///
/// It is made by [`RunConfig::load`] and its like only, and handed down unchanged.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RunConfig {
    /// What is trained.
    pub model: Model,
    /// What it is trained on.
    pub data: Data,
    /// How long and in which portions.
    pub train: Train,
    /// How weights follow from gradients.
    pub optim: Optim,
    /// How the work is divided over ranks.
    pub parallel: Parallel,
    /// Types that are computed in.
    pub precision: Precision,
    /// The caching allocator.
    pub memory: Memory,
    /// What is reported.
    pub telemetry: Telemetry,
    /// What is saved.
    pub checkpoint: Checkpoint,
    /// Where each value was written.
    #[serde(skip)]
    pub places: Places,
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
        resolve::resolve(raw::Raw::parse(text, name, overrides)?, directory)
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
        match self.parallel.schedule {
            _ if self.parallel.pipeline == 1 => ScheduleKind::OneForwardOneBackward,
            Schedule::GPipe => ScheduleKind::GPipe,
            Schedule::OneForwardOneBackward => ScheduleKind::OneForwardOneBackward,
            Schedule::Interleaved => ScheduleKind::Interleaved,
            Schedule::ZeroBubble => ScheduleKind::ZeroBubble,
        }
    }

    /// The resolved configuration as TOML, every key that applies written out. It parses to an equal value in any
    /// directory.
    #[must_use]
    pub fn to_toml(&self) -> String {
        self.render(|_| true)
    }

    /// The SHA-256 of the resolved text in hexadecimal, without the paths `data.base` and `parallel.profile`: ranks on
    /// machines that keep files in different places have the same configuration. What the data is, its own fingerprint
    /// tells, and what the division is, its stages.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let text = self.render(|path| path != keys::BASE.path && path != keys::PROFILE.path);
        format!("{:x}", Sha256::digest(text))
    }

    fn render(&self, with: impl Fn(&str) -> bool) -> String {
        let mut text = String::new();
        let mut section = "";
        for key in keys::KEYS.iter().filter(|key| key.applies(self) && with(key.path)) {
            let Some(value) = (key.read)(self) else { continue };
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
}

#[cfg(test)]
mod tests;
