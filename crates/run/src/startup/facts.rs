//! Properties of a run that must be equal on all ranks.

use checkpoint::CorpusMark;
use device::Kind;
use worker::Setup;

use crate::error::Result;

/// Properties that must be equal on all ranks.
#[derive(Debug, PartialEq)]
pub(super) struct Facts {
    version: String,
    /// Command-line options.
    options: String,
    device: String,
    corpus: String,
    /// Settings of the allocator, whose default depends on the process's memory limits.
    allocator: String,
    /// The initial state: drawn, from weights, or from a checkpoint.
    start: String,
    fingerprint: String,
    /// Number of layers in every stage.
    partition: String,
    /// The whole configuration, used to name a setting that differs.
    configuration: String,
}

impl Facts {
    pub(super) fn of_setup(setup: &Setup, options: &str) -> Result<Self> {
        Ok(Facts {
            options: options.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            device: device_facts(setup),
            corpus: setup.dataset.mark()?.map_or_else(|| "none".to_owned(), corpus_facts),
            allocator: setup.device.settings.text().to_owned(),
            start: setup.start.id().to_owned(),
            fingerprint: setup.config.fingerprint(),
            partition: setup.blueprint.layers_of_stages(),
            configuration: setup.config.to_toml(),
        })
    }

    pub(super) fn encode(&self) -> String {
        let Facts { version, options, device, corpus, allocator, start, fingerprint, partition, .. } = self;
        let first = [&**version, options, device, corpus, allocator, start, fingerprint, partition];
        [first.join("\n"), self.configuration.clone()].join("\n")
    }

    pub(super) fn decode(text: &str) -> Self {
        let mut parts = text.splitn(9, '\n').map(str::to_owned);
        let mut next = || parts.next().unwrap_or_default();
        let version = next();
        let options = next();
        let device = next();
        let corpus = next();
        let allocator = next();
        let start = next();
        let fingerprint = next();
        let partition = next();
        let configuration = next();
        Facts { version, options, device, corpus, allocator, start, fingerprint, partition, configuration }
    }

    /// Returns a sentence about the first property that differs from `other`; `None` if all are equal.
    pub(super) fn difference(&self, other: &Facts) -> Option<String> {
        let is = |what: &str, mine: &str, theirs: &str| {
            (mine != theirs).then(|| format!("{what}, {theirs} and not {mine},"))
        };
        is("version of Plimsoll", &self.version, &other.version)
            .or_else(|| is("set of options", &self.options, &other.options))
            .or_else(|| {
                let line = self.different_line(other);
                (self.fingerprint != other.fingerprint).then(|| format!("configuration{line}"))
            })
            .or_else(|| is("kind of device", &self.device, &other.device))
            .or_else(|| is("corpus", &self.corpus, &other.corpus))
            .or_else(|| {
                is(
                    "default of memory.allocator (PLIMSOLL_ALLOC_CONF, ulimit -v)",
                    &self.allocator,
                    &other.allocator,
                )
            })
            .or_else(|| is("checkpoint to start from", &self.start, &other.start))
            .or_else(|| is("partition into stages of layers", &self.partition, &other.partition))
    }

    /// Returns the first configuration line that differs from `other`.
    fn different_line(&self, other: &Facts) -> String {
        // Paths may differ between hosts.
        let is_location =
            |line: &&str| ["base =", "from =", "profile ="].iter().any(|start| line.starts_with(start));
        let lines = |facts: &'_ Facts| -> Vec<String> {
            let settings = facts.configuration.lines().filter(|line| !is_location(line));
            settings.map(str::to_owned).collect()
        };
        let mine = lines(self);
        let theirs = lines(other);
        let pair = mine.iter().zip(&theirs).find(|(mine, theirs)| mine != theirs);
        pair.map_or_else(String::new, |(mine, theirs)| format!(", `{theirs}` and not `{mine}`,"))
    }
}

/// Describes a corpus by its size and hash. Modification times are left out, because they may differ between
/// hosts.
fn corpus_facts(mark: &CorpusMark) -> String {
    let hash = mark.sha256.as_ref().unwrap_or(&mark.samples_sha256);
    format!("of {} tokens, {hash}", mark.tokens)
}

/// Describes the hardware and software that must match for equal weights: the device model and its libraries.
/// Hosts without GPUs may differ.
fn device_facts(setup: &Setup) -> String {
    let description = setup.placement.description();
    match description.kind {
        Kind::Cuda => {
            format!("{}, {} ({})", setup.placement.name(), description.model, description.libraries)
        }
        Kind::Cpu => setup.placement.name().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_reported() {
        let facts = |version: &str, corpus: &str, configuration: &str| Facts {
            version: version.to_owned(),
            options: "none".to_owned(),
            device: "CPU".to_owned(),
            corpus: corpus.to_owned(),
            allocator: "expandable_segments:True".to_owned(),
            start: String::new(),
            partition: "2, 2".to_owned(),
            fingerprint: configuration.replace("base = 'b'", "base = 'a'").replace('\n', " "),
            configuration: configuration.to_owned(),
        };
        let own = facts("1.0", "abc", "base = 'a'\nseed = 1\nsteps = 2");
        assert_eq!(Facts::decode(&own.encode()), own);
        let table = [
            (facts("1.0", "abc", "base = 'b'\nseed = 1\nsteps = 2"), None),
            (facts("1.1", "abd", "base = 'a'"), Some("version of Plimsoll, 1.1 and not 1.0,")),
            (
                facts("1.0", "abd", "base = 'b'\nseed = 3\nsteps = 2"),
                Some("configuration, `seed = 3` and not `seed = 1`,"),
            ),
            (facts("1.0", "abc", "base = 'a'\nseed = 1"), Some("configuration")),
            (facts("1.0", "abd", "base = 'a'\nseed = 1\nsteps = 2"), Some("corpus, abd and not abc,")),
        ];
        for (other, difference) in table {
            assert_eq!(own.difference(&other).as_deref(), difference, "{other:?}");
        }
        let limited =
            Facts { allocator: "expandable_segments:False".to_owned(), ..Facts::decode(&own.encode()) };
        let difference = "default of memory.allocator (PLIMSOLL_ALLOC_CONF, ulimit -v), expandable_segments:False and not \
                          expandable_segments:True,";
        assert_eq!(own.difference(&limited).as_deref(), Some(difference));
        let elsewhere = Facts { start: "f00".to_owned(), ..Facts::decode(&own.encode()) };
        let difference = "checkpoint to start from, f00 and not ,";
        assert_eq!(own.difference(&elsewhere).as_deref(), Some(difference));
        let partitioned = Facts { partition: "1, 3".to_owned(), ..Facts::decode(&own.encode()) };
        let difference = "partition into stages of layers, 1, 3 and not 2, 2,";
        assert_eq!(own.difference(&partitioned).as_deref(), Some(difference));
    }
}
