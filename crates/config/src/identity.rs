//! The settings that decide the bits of a run, and those that decide its times.

use std::collections::{BTreeMap, BTreeSet};

use keys::{Default, Error, Key};
use nn::Families;

use crate::run_config::RunConfig;
use crate::sections::{Parallel, Train};
use crate::table::table;

impl RunConfig {
    /// Returns the settings that decide the losses and weights of a run, by `section.key`, as TOML.
    ///
    /// A run may be continued with any other grid, memory, report or location of the data. The contents of
    /// the data have a hash of their own, so `data.paths` are not among the settings.
    #[must_use]
    pub fn identity(&self) -> BTreeMap<String, String> {
        self.settings_where(|key| key.decides_bits)
    }

    /// Returns the settings that decide how long a layer of a run takes on a device, by `section.key`, as
    /// TOML.
    #[must_use]
    pub fn timing(&self) -> BTreeMap<String, String> {
        self.settings_where(|key| key.decides_times)
    }

    /// Returns `sets`, each `section.key=value`, with `parallel.profile` unset if they change the times of a
    /// layer.
    ///
    /// # Errors
    /// Values that are wrong or do not go together with the others.
    pub fn with_profile_of(&self, mut sets: Vec<String>) -> Result<Vec<String>, Error> {
        if self.parallel.profile.is_some() && self.with(&sets)?.timing() != self.timing() {
            sets.push(format!("{}=", Parallel::profile));
        }
        Ok(sets)
    }

    fn settings_where(&self, chosen: impl Fn(&Key) -> bool) -> BTreeMap<String, String> {
        let chosen = self.settings().into_iter().filter(|(key, _)| chosen(key));
        chosen.map(|(key, value)| (key.path.to_owned(), value.to_string())).collect()
    }
}

/// `key is a here and b there`, for each setting that differs; empty if none does. `there` may have been
/// written by a version in which keys had other names, or which did not have a key yet that has its default
/// here: defaults of new keys are what earlier versions did.
pub fn differences(here: &BTreeMap<String, String>, there: &BTreeMap<String, String>) -> String {
    let there = &with_present_names(there.clone());
    let keys: BTreeSet<_> = here.keys().chain(there.keys()).collect();
    let all = keys.into_iter().filter_map(|key| match (here.get(key), there.get(key)) {
        (Some(here), Some(there)) if here == there => None,
        (Some(here), Some(there)) => Some(format!("{key} is {here} here and {there} there")),
        (Some(here), None) if is_default(key, here) => None,
        (Some(here), None) => Some(format!("{key} is {here} here and absent there")),
        (None, Some(there)) => Some(format!("{key} is absent here and {there} there")),
        (None, None) => None,
    });
    all.collect::<Vec<_>>().join(", ")
}

/// Returns whether `value` is what the key at `path` has unless it is written.
fn is_default(path: &str, value: &str) -> bool {
    let table = table(Families::standard());
    let literal = |key: &Key| matches!(key.default, Default::Literal(literal) if literal == value);
    table.keys().iter().find(|key| key.path == path).is_some_and(literal)
}

/// Returns an identity under the present names of its keys. The renamed keys that decide bits are the sizes
/// of batches: that of a step was counted in micro-batches.
fn with_present_names(mut identity: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let count = |key: &str| identity.get(key).and_then(|value| value.parse::<u64>().ok());
    let (micro_batch, micro_batches) = (count("train.micro_batch"), count("train.micro_batches"));
    if let (Some(micro_batch), Some(micro_batches)) = (micro_batch, micro_batches)
        && let Some(global_batch) = micro_batch.checked_mul(micro_batches)
    {
        identity.retain(|key, _| key != "train.micro_batch" && key != "train.micro_batches");
        identity.insert(Train::micro_batch_size.to_owned(), micro_batch.to_string());
        identity.insert(Train::global_batch_size.to_owned(), global_batch.to_string());
    }
    identity
}
