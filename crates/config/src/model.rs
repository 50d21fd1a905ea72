//! `[model]`: the model to train.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use keys::{Error, Key, RawValues, Section, Value};
use nn::{Families, Family, ModelSpec};

use crate::sections::ModelSection;

/// The default vocabulary is a multiple of this, because such matmuls are fast on every GPU.
const VOCABULARY_MULTIPLE: usize = 128;

/// The model to train: its family and sizes.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    section: ModelSection,
    families: &'static Families,
    family: &'static Family,
    spec: Arc<dyn ModelSpec>,
}

impl ModelConfig {
    /// Reads `[model]`. `tokens` is the vocabulary size of the configured tokenizer.
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

    /// Returns the folder with the initial weights; `None` if they are random.
    #[must_use]
    pub fn weights(&self) -> Option<&Path> {
        self.section.from.as_deref().filter(|_| !self.section.from_config)
    }

    /// Returns the folder that implies the model's sizes; `None` without `model.from`.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        self.section.from.as_deref()
    }

    /// Returns whether the model may have more tokens than the folder with its initial weights.
    #[must_use]
    pub fn resizes_vocabulary(&self) -> bool {
        self.section.resize_vocabulary
    }

    /// Returns the keys of `[model]` that every family has.
    pub(crate) fn section(&self) -> &ModelSection {
        &self.section
    }

    pub(crate) fn families(&self) -> &'static Families {
        self.families
    }

    /// Returns the family's keys, each with its value.
    pub fn pairs(&self) -> impl Iterator<Item = (&'static Key, Value)> {
        self.family.keys().into_iter().zip(self.spec.values())
    }

    /// Returns the value of the family's key `path`; `None` if it has no such key.
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
