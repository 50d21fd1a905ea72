//! `[model]`: the model that is trained.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use keys::{Error, Key, RawValues, Section, Value};
use nn::{Families, Family, ModelSpec};

use crate::sections::ModelSection;

/// The default vocabulary is a multiple of this, which makes matmuls fast on every GPU.
const VOCABULARY_MULTIPLE: usize = 128;

/// The model that is trained: its family and its sizes.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    section: ModelSection,
    families: &'static Families,
    family: &'static Family,
    spec: Arc<dyn ModelSpec>,
}

impl ModelConfig {
    /// Reads `[model]`. `tokens` is the number of tokens that the configured tokenizer has.
    pub(crate) fn read(raw: &RawValues, families: &'static Families, tokens: usize) -> Result<Self, Error> {
        // The table of keys has the default family and the names of all.
        let section = ModelSection { kind: raw.text(ModelSection::kind)?, ..ModelSection::read(raw)? };
        let kind = &section.kind;
        if section.from_config && section.from.is_none() {
            let reason = "model.from_config = true needs the folder: model.from = \"DIR\"".to_owned();
            return Err(raw.conflict(&[ModelSection::from_config], reason));
        }
        let Some(family) = families.find(kind) else {
            let reason = format!("{} = \"{kind}\" is not a model family", ModelSection::kind);
            return Err(raw.conflict(&[ModelSection::kind], reason));
        };
        if section.resize_vocabulary && section.from.is_none() {
            let reason = "model.resize_vocabulary = true needs the folder: model.from = \"DIR\"".to_owned();
            return Err(raw.conflict(&[ModelSection::resize_vocabulary], reason));
        }
        let vocabulary = tokens.next_multiple_of(VOCABULARY_MULTIPLE);
        let needed = if section.resize_vocabulary { tokens } else { 0 };
        Ok(Self { section, families, family, spec: family.read(raw, vocabulary, needed)? })
    }

    /// Returns the name of the family.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.family.name()
    }

    /// The folder of the initial weights; `None` if they are random.
    #[must_use]
    pub fn weights(&self) -> Option<&Path> {
        self.section.from.as_deref().filter(|_| !self.section.from_config)
    }

    /// The folder of the sizes.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        self.section.from.as_deref()
    }

    /// Returns whether the folder of the initial weights may have fewer tokens than the model.
    #[must_use]
    pub fn resizes_vocabulary(&self) -> bool {
        self.section.resize_vocabulary
    }

    /// The keys that every family has.
    pub(crate) fn section(&self) -> &ModelSection {
        &self.section
    }

    pub(crate) fn families(&self) -> &'static Families {
        self.families
    }

    /// The keys of the family, each with its value.
    pub fn pairs(&self) -> impl Iterator<Item = (&'static Key, Value)> {
        self.family.keys().into_iter().zip(self.spec.values())
    }

    /// The value of the family's key `path`, if it has that key.
    pub(crate) fn value(&self, path: &str) -> Option<Value> {
        self.pairs().find(|(key, _)| key.path == path).map(|(_, value)| value)
    }
}

impl Deref for ModelConfig {
    type Target = dyn ModelSpec;

    fn deref(&self) -> &Self::Target {
        &*self.spec
    }
}

impl PartialEq for ModelConfig {
    fn eq(&self, other: &Self) -> bool {
        self.section == other.section && self.spec.values() == other.spec.values()
    }
}
