//! Loads a configuration from a file or text, or derives one with other values.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use keys::{Document, Error, RawValues, Section};
use nn::{Families, Tuning};

use crate::check;
use crate::choices::DataKind;
use crate::folder;
use crate::model::ModelConfig;
use crate::run_config::RunConfig;
use crate::sections::{
    Checkpoint, Data, LoraSection, Memory, Optim, Parallel, Precision, Preference, Scaler, Telemetry, Train,
};
use crate::table::table;
use crate::tokenizer;

/// Maximum size of a configuration file in bytes.
const MOST_BYTES: u64 = 4 << 20;
/// Name of the built-in configuration in messages.
const QUICKSTART: &str = "the built-in quickstart";

impl RunConfig {
    /// Loads a file. `overrides` are the arguments of `--set`, each `section.key=value`; if a key occurs
    /// twice, the last is used.
    pub fn load(path: &Path, overrides: &[String]) -> Result<Self, Error> {
        let unreadable = |source| Error::Unreadable { path: path.to_path_buf(), source };
        let text = system::input::read_text(path, MOST_BYTES).map_err(unreadable)?;
        let file = std::path::absolute(path).map_err(unreadable)?;
        let directory = file.parent().unwrap_or(Path::new("/"));
        Self::parse(&text, &path.to_string_lossy(), directory, overrides)
    }

    /// Parses the text of a file, which messages call `name`. Its paths are relative to the absolute
    /// `directory`; paths in `overrides` are relative to the current directory.
    pub fn parse(text: &str, name: &str, directory: &Path, overrides: &[String]) -> Result<Self, Error> {
        Self::parse_with(Families::registered(), text, name, directory, overrides)
    }

    /// Parses like [`RunConfig::parse`], with the model families of `families`.
    pub fn parse_with(
        families: &'static Families,
        text: &str,
        name: &str,
        directory: &Path,
        overrides: &[String],
    ) -> Result<Self, Error> {
        Self::of_document(families, Document { text, name, has_lines: true }, directory, overrides)
    }

    /// Parses like [`RunConfig::parse`], for text that is not the contents of the file `name`: messages name
    /// no lines.
    pub fn parse_made(text: &str, name: &str, directory: &Path, overrides: &[String]) -> Result<Self, Error> {
        let document = Document { text, name, has_lines: false };
        Self::of_document(Families::registered(), document, directory, overrides)
    }

    fn of_document(
        families: &'static Families,
        document: Document<'_>,
        directory: &Path,
        overrides: &[String],
    ) -> Result<Self, Error> {
        let imply =
            |raw: &RawValues| Ok([folder::implied(raw, families)?, folder::adapters_implied(raw)?].concat());
        let raw = RawValues::parse_implied(&table(families), document, directory, overrides, imply)?;
        Self::of_values(families, &raw)
    }

    /// Reads all sections, and checks their values against each other.
    fn of_values(families: &'static Families, raw: &RawValues) -> Result<Self, Error> {
        let mut data = Data::read(raw)?;
        if data.kind == DataKind::Tokens && !raw.is_set(Data::tokenizer) {
            data.tokenizer = tokenizer::of_shards(&data).unwrap_or(data.tokenizer);
        }
        let tokenizer = tokenizer::open(&data.tokenizer, raw)?;
        if data.kind == DataKind::Tokens && !raw.is_set(Data::separator) {
            let recorded = tokenizer::separator_of_shards(&data);
            data.separator = recorded.filter(|recorded| tokenizer.separator() != Some(*recorded));
        }
        let train = Train::read(raw)?;
        let tuning = Tuning::new(&train.freeze)
            .map_err(|reason| raw.conflict(&[Train::freeze], format!("{}: {reason}", Train::freeze)))?;
        let model = ModelConfig::read(raw, families, tokenizer.vocabulary())?;
        let lora = LoraSection::read(raw)?;
        let adapters = lora.adapters(model.hugging_face_with(train.prediction_modules()).as_ref());
        let adapters = adapters.map_err(|(key, reason)| raw.conflict(&[key], format!("{key}: {reason}")))?;
        let tuning = tuning.with_lora(adapters);
        let precision = Precision::read(raw)?;
        let fp8 = precision.fp8().map_err(|reason| {
            raw.conflict(&[Precision::fp8_layers], format!("{}: {reason}", Precision::fp8_layers))
        })?;
        let config = Self {
            model,
            data,
            tokenizer,
            train,
            lora,
            tuning: Arc::new(tuning),
            fp8: fp8.map(Arc::new),
            optim: Optim::read(raw)?,
            parallel: Parallel::read(raw)?,
            precision,
            preference: Preference::read(raw)?,
            scaler: Scaler::read(raw)?,
            memory: Memory::read(raw)?,
            telemetry: Telemetry::read(raw)?,
            checkpoint: Checkpoint::read(raw)?,
            origins: raw.origins(),
        };
        let config = config.with_schedule_lengths();
        check::check(raw, &config)?;
        Ok(config)
    }

    /// Returns the built-in configuration: a small byte-level GPT on the text of Plimsoll itself, over two
    /// ranks. Paths are relative to the source tree of the build. If that does not exist, they are relative
    /// to the source tree around the current directory, or else to the current directory.
    ///
    /// # Errors
    /// An override is invalid, or the current directory cannot be read.
    pub fn quickstart(overrides: &[String]) -> Result<Self, Error> {
        let text = include_str!("../../../launch/configs/quickstart.toml");
        let unreadable = |source| Error::Unreadable { path: PathBuf::from("."), source };
        let current = std::env::current_dir().map_err(unreadable)?;
        let built_from = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
        let mut candidates = built_from.into_iter().chain(current.ancestors());
        let root = candidates.find(|root| root.join("crates").is_dir()).unwrap_or(&current);
        Self::parse(text, QUICKSTART, &root.join("launch/configs"), overrides)
    }

    /// Returns the configuration with other values for some keys, each as `section.key=value`.
    ///
    /// # Errors
    /// A value is invalid or contradicts another.
    pub fn with(&self, overrides: &[String]) -> Result<Self, Error> {
        let families = self.model.families();
        // A resolved configuration contains its directory.
        let text = self.to_toml();
        let name = "the configuration";
        let directory = Path::new("/");
        let raw = RawValues::parse(&table(families), &text, name, directory, overrides)?;
        Self::of_values(families, &raw.written_at(&self.origins))
    }
}
