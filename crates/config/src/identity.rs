//! Compares settings that affect a run's results, and settings that affect only its speed.

use std::collections::{BTreeMap, BTreeSet};

use keys::{Default, Error, Key, Value};
use nn::Families;

use crate::choices::LossMean;
use crate::run_config::RunConfig;
use crate::sections::{Data, Parallel, Preference, Train};
use crate::table::table;

/// A setting that affects results and differs from a checkpoint's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The setting, as `section.key`.
    pub key: String,
    /// Value in the checkpoint, as TOML; `None` if the checkpoint has no such setting.
    pub from: Option<String>,
    /// Value in the configuration, as TOML; `None` if the key does not apply.
    pub to: Option<String>,
    /// Whether a resumed run may change the setting.
    pub allowed: bool,
}

impl Change {
    /// Formats both values: `64 here, 32 in the checkpoint`.
    #[must_use]
    pub fn values(&self) -> String {
        let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "absent".to_owned());
        format!("{} here, {} in the checkpoint", shown(&self.to), shown(&self.from))
    }
}

/// A key's values in two configurations, as TOML.
#[derive(Default)]
struct SidesOfKey {
    values: [Option<String>; 2],
    /// The values without paths of this machine.
    portable: [Option<String>; 2],
    decides_bits: bool,
}

impl RunConfig {
    /// Returns the settings that affect losses and weights, by `section.key`, as TOML.
    ///
    /// `data.paths` is not among them, because the contents of the data have their own hash.
    #[must_use]
    pub fn identity(&self) -> BTreeMap<String, String> {
        self.settings_where(|key| key.decides_bits)
    }

    /// Returns the settings that differ from `there`, a checkpoint's [`identity`](Self::identity), sorted by
    /// name. A setting that an earlier version did not write has its default.
    #[must_use]
    pub fn changes_since(&self, there: &BTreeMap<String, String>) -> Vec<Change> {
        let here = self.identity();
        let there = with_present_names(there.clone());
        let table = table(self.model.families());
        let change = |path: &String| {
            let key = table.keys().iter().find(|key| key.path == path);
            let to = here.get(path).cloned();
            let from = there.get(path).cloned();
            let differs = !is_equal(key, to.as_deref(), from.as_deref());
            // The tokens stay as they are when they get a tokenizer.
            let is_named_later = path == Data::tokenizer && from.as_deref() == Some("\"none\"");
            let allowed = key.is_some_and(|key| key.may_change) || is_named_later;
            differs.then(|| Change { key: path.clone(), from, to, allowed })
        };
        let paths: BTreeSet<_> = here.keys().chain(there.keys()).collect();
        paths.into_iter().filter_map(change).collect()
    }

    /// Returns the keys whose values differ from `other`, sorted by name, as (key, both values as TOML,
    /// whether it affects results). A value is `None` if the key does not apply. Tokenizers are compared by
    /// content, because each run has its own copy. The paths of a mixture do not affect results.
    #[must_use]
    pub fn differences_from(&self, other: &Self) -> Vec<(String, [Option<String>; 2], bool)> {
        let mut keys: BTreeMap<&str, SidesOfKey> = BTreeMap::new();
        for (side, config) in [self, other].into_iter().enumerate() {
            for ((key, value), (_, portable)) in config.settings().into_iter().zip(config.portable_settings())
            {
                let sides = keys.entry(key.path).or_default();
                sides.values[side] = Some(value.to_string());
                sides.portable[side] = Some(portable.to_string());
                sides.decides_bits |= key.decides_bits;
            }
        }
        let differs = |(path, sides): &(&str, SidesOfKey)| {
            let compared = if *path == Data::tokenizer { &sides.portable } else { &sides.values };
            compared[0] != compared[1]
        };
        let differing = keys.into_iter().filter(differs);
        let entry = |(path, sides): (&str, SidesOfKey)| {
            let decides_bits = sides.decides_bits && sides.portable[0] != sides.portable[1];
            (path.to_owned(), sides.values, decides_bits)
        };
        differing.map(entry).collect()
    }

    /// Returns the keys whose value differs from their default. Defaults that depend on other keys are not
    /// compared.
    #[must_use]
    pub fn non_defaults(&self) -> BTreeSet<&'static str> {
        let differs = |(key, value): &(Key, Value)| {
            matches!(key.default, Default::Literal(_)) && !is_equal(Some(key), Some(&value.to_string()), None)
        };
        self.settings().into_iter().filter(differs).map(|(key, _)| key.path).collect()
    }

    /// Returns the [`RunConfig::changes_since`] that make a checkpoint's weights unusable: changes to the
    /// model or tokenizer that a resumed run may not make.
    #[must_use]
    pub fn model_changes_since(&self, there: &BTreeMap<String, String>) -> Vec<Change> {
        let of_model = |key: &str| key.starts_with("model.") || key == Data::tokenizer;
        let mut changes = self.changes_since(there);
        changes.retain(|change| of_model(&change.key) && !change.allowed);
        changes
    }

    /// Returns the settings that affect the time of a layer on a device, by `section.key`, as TOML.
    #[must_use]
    pub fn timing(&self) -> BTreeMap<String, String> {
        self.settings_where(|key| key.decides_times)
    }

    /// Returns the overrides `sets`, each `section.key=value`. Unsets `parallel.profile` if they change the
    /// times of layers.
    ///
    /// # Errors
    /// A value is invalid or contradicts another.
    pub fn with_profile_of(&self, mut sets: Vec<String>) -> Result<Vec<String>, Error> {
        if self.parallel.profile.is_some() && self.with(&sets)?.timing() != self.timing() {
            sets.push(format!("{}=", Parallel::profile));
        }
        Ok(sets)
    }

    fn settings_where(&self, chosen: impl Fn(&Key) -> bool) -> BTreeMap<String, String> {
        let chosen = self.portable_settings().into_iter().filter(|(key, _)| chosen(key));
        chosen.map(|(key, value)| (key.path.to_owned(), value.to_string())).collect()
    }
}

/// Returns a list of `key is a here and b there` for each setting that differs; empty if none does. `there`
/// may come from an earlier version with other key names, or without keys whose default here matches its
/// behaviour.
pub fn differences(here: &BTreeMap<String, String>, there: &BTreeMap<String, String>) -> String {
    let there = &with_present_names(there.clone());
    let table = table(Families::registered());
    let paths: BTreeSet<_> = here.keys().chain(there.keys()).collect();
    let all = paths.into_iter().filter_map(|path| {
        let key = table.keys().iter().find(|key| key.path == path);
        let [here, there] = [here, there].map(|settings| settings.get(path).map(String::as_str));
        let [shown_here, shown_there] = [here, there].map(|value| value.unwrap_or("absent"));
        (!is_equal(key, here, there)).then(|| format!("{path} is {shown_here} here and {shown_there} there"))
    });
    all.collect::<Vec<_>>().join(", ")
}

/// Returns whether two values of a setting, as TOML, are equal, however a number is written. A missing value
/// is the default.
fn is_equal(key: Option<&Key>, here: Option<&str>, there: Option<&str>) -> bool {
    let default = key.and_then(|key| match key.default {
        Default::Literal(literal) => Some(literal),
        Default::Derived(_) => None,
    });
    let number = |text: &str| text.parse::<f64>().ok();
    match (here, there.or(default)) {
        (Some(here), Some(there)) => {
            here == there || (number(here).is_some() && number(here) == number(there))
        }
        (here, _) => here == there,
    }
}

/// Converts an identity of an earlier version to the current key names. Keys that did not exist are set if
/// that version behaved differently from their default. Renamed keys are the batch sizes; a step's size was
/// counted in micro-batches. The loss was the mean of the micro-batches' means if some tokens were not
/// targets.
fn with_present_names(mut identity: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let count = |key: &str| identity.get(key).and_then(|value| value.parse::<u64>().ok());
    let micro_batch = count("train.micro_batch");
    let micro_batches = count("train.micro_batches");
    if let (Some(micro_batch), Some(micro_batches)) = (micro_batch, micro_batches)
        && let Some(global_batch) = micro_batch.checked_mul(micro_batches)
    {
        identity.retain(|key, _| key != "train.micro_batch" && key != "train.micro_batches");
        identity.insert(Train::micro_batch_size.to_owned(), micro_batch.to_string());
        identity.insert(Train::global_batch_size.to_owned(), global_batch.to_string());
    }
    let is = |key: &str, value: &str| identity.get(key).is_some_and(|there| there == value);
    let ignores_targets = is(Data::kind, "\"chat\"")
        || is(Data::pack_documents, "true")
        || is(Preference::loss, "\"orpo\"")
        || identity.get(Data::ignore).is_some_and(|token| token != "\"none\"");
    if ignores_targets && !identity.contains_key(Train::loss_mean) {
        let value = format!("\"{}\"", LossMean::MicroBatches.name());
        identity.insert(Train::loss_mean.to_owned(), value);
    }
    identity
}
