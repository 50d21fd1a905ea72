//! Which settings decide the bits of a run, and which may change when it is continued; and which decide its times.

use std::collections::{BTreeMap, BTreeSet};

use crate::RunConfig;
use crate::error::ConfigError;
use crate::key::Key;
use crate::keys::{self, KEYS};

/// Sections that decide where and how the work is done, and never what comes out.
const FREE_SECTIONS: [&str; 3] = ["memory", "telemetry", "checkpoint"];

impl RunConfig {
    /// The settings that decide the losses and weights of a run, by `section.key`, as TOML. A run may be continued with
    /// any other grid, memory, report or place of the data. What the data is, is for its hash to say, so `data.paths` are
    /// not among them. A key that is added is, until it is named here.
    #[must_use]
    pub fn identity(&self) -> BTreeMap<String, String> {
        let free = [
            &keys::PATHS,
            &keys::BASE,
            &keys::VALIDATE_EVERY,
            &keys::VALIDATION_MICRO_BATCHES,
            &keys::DATA_PARALLEL,
            &keys::PIPELINE,
            &keys::SCHEDULE,
            &keys::CHUNKS,
            &keys::DIVISION,
            &keys::PROFILE,
            &keys::SHARD_OPTIMIZER,
            &keys::BUCKET_BYTES,
            &keys::OVERLAP,
            &keys::PEERS,
            &keys::PEER_BLOCKS,
            &keys::TIMEOUT_SECONDS,
        ];
        self.settings(|key| {
            !FREE_SECTIONS.contains(&key.section) && !free.iter().any(|free| free.path == key.path)
        })
    }

    /// The settings that decide how long a layer of a run takes on a device, in the same way.
    #[must_use]
    pub fn timing(&self) -> BTreeMap<String, String> {
        let others = [&keys::MICRO_BATCH, &keys::OPTIM_KIND, &keys::COMPUTE, &keys::GRADIENTS];
        let model = keys::MODEL_KIND.section;
        self.settings(|key| key.section == model || others.iter().any(|other| other.path == key.path))
    }

    /// `sets`, each as `section.key=value`; and, where these make other layers than the profile is of, that there is none.
    pub fn with_profile_of(&self, mut sets: Vec<String>) -> Result<Vec<String>, ConfigError> {
        if self.parallel.profile.is_some() && self.with(&sets)?.timing() != self.timing() {
            sets.push(format!("{}=", keys::PROFILE.path));
        }
        Ok(sets)
    }

    fn settings(&self, chosen: impl Fn(&Key) -> bool) -> BTreeMap<String, String> {
        let chosen = KEYS.iter().filter(|key| key.applies(self) && chosen(key));
        chosen.filter_map(|key| Some((key.path.to_owned(), (key.read)(self)?.to_string()))).collect()
    }
}

/// `key is a here and b there`, for each setting that differs; empty if none does.
pub fn differences(here: &BTreeMap<String, String>, there: &BTreeMap<String, String>) -> String {
    let keys: BTreeSet<_> = here.keys().chain(there.keys()).collect();
    let all = keys.into_iter().filter_map(|key| match (here.get(key), there.get(key)) {
        (Some(here), Some(there)) if here == there => None,
        (Some(here), Some(there)) => Some(format!("{key} is {here} here and {there} there")),
        (Some(here), None) => Some(format!("{key} is {here} here and absent there")),
        (None, Some(there)) => Some(format!("{key} is absent here and {there} there")),
        (None, None) => None,
    });
    all.collect::<Vec<_>>().join(", ")
}
