//! Which settings decide the bits of a run, and which may change when it is continued.

use std::collections::BTreeMap;

use super::RunConfig;
use super::keys::{self, KEYS};

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
            &keys::SHARD_OPTIMIZER,
            &keys::BUCKET_BYTES,
            &keys::PEERS,
            &keys::PEER_BLOCKS,
            &keys::TIMEOUT_SECONDS,
        ];
        let decides = |path: &str, section: &str| {
            !FREE_SECTIONS.contains(&section) && !free.iter().any(|key| key.path == path)
        };
        let deciding = KEYS.iter().filter(|key| key.applies(self) && decides(key.path, key.section));
        deciding.filter_map(|key| Some((key.path.to_owned(), (key.read)(self)?.to_string()))).collect()
    }
}
