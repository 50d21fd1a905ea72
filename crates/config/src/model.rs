//! `[model]`: the model that is trained.

use std::ops::Deref;
use std::sync::Arc;

use data::Tokenizer;
use keys::{Error, Given, Key, Value};
use nn::{Families, Family, ModelSpec};

use crate::sections::{Data, ModelSection};

/// The model that is trained: its family and its sizes.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    families: &'static Families,
    family: &'static dyn Family,
    spec: Arc<dyn ModelSpec>,
}

impl ModelConfig {
    pub(crate) fn read(given: &Given, families: &'static Families) -> Result<Self, Error> {
        let kind = given.text(ModelSection::kind)?;
        let Some(family) = families.find(&kind) else {
            let reason = format!("{} = \"{kind}\" is no family of models", ModelSection::kind);
            return Err(given.conflict(&[ModelSection::kind], reason));
        };
        let tokens = tokenizer(given)?.vocabulary();
        Ok(Self { families, family, spec: family.read(given, tokens)? })
    }

    /// Returns the name of the family.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.family.name()
    }

    /// The families that `model.kind` chooses among.
    pub(crate) fn families(&self) -> &'static Families {
        self.families
    }

    /// The keys of the family, each with its value.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&'static Key, Value)> {
        self.family.keys().into_iter().zip(self.spec.values())
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
        self.kind() == other.kind() && self.spec.values() == other.spec.values()
    }
}

/// The tokenizer that is configured.
fn tokenizer(given: &Given) -> Result<Tokenizer, Error> {
    Tokenizer::from_name(&given.text(Data::tokenizer)?)
        .map_err(|error| given.conflict(&[Data::tokenizer], format!("{}: {error}", Data::tokenizer)))
}
