//! Differences between two runs' configurations and software.

use std::fmt;

use config::{Data, RunConfig};
use serde::Serialize;
use system::input;
use telemetry::run_files::Summary;

/// Maximum size of a chat template, in bytes.
const MOST_TEMPLATE: u64 = 16 << 20;

/// A configuration key or software property whose value differs between two runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Name, as `section.key`.
    pub name: String,
    /// The value in each run; `None` if the run has none.
    pub values: [Option<String>; 2],
    /// Whether the setting can change losses and weights.
    pub decides_bits: bool,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { name, values, decides_bits } = self;
        let [first, second] = values.each_ref().map(|value| value.as_deref().unwrap_or("absent"));
        let means = if *decides_bits { "decides bits" } else { "decides no bit" };
        write!(f, "{name}: {first} and {second} ({means})")
    }
}

/// Returns the keys whose values differ. Chat templates are compared by content, because each run has its own
/// copy.
pub(super) fn of_configurations(configs: [&RunConfig; 2]) -> Vec<Difference> {
    let template = |config: &RunConfig| input::read(config.data.chat_template.as_ref()?, MOST_TEMPLATE).ok();
    let [first, second] = configs.map(template);
    let same_template = first.is_some() && first == second;
    let differences = configs[0].differences_from(configs[1]).into_iter();
    let differences = differences.filter(|(name, ..)| !(same_template && name == Data::chat_template));
    differences.map(|(name, values, decides_bits)| Difference { name, values, decides_bits }).collect()
}

/// Returns the differences in device, libraries, version and grid; empty if a run has no summary.
pub(super) fn of_software(summaries: [&Option<Summary>; 2]) -> Vec<Difference> {
    let [Some(first), Some(second)] = summaries else { return Vec::new() };
    let text = |summary: &Summary, key: &str| summary.more.get(key)?.as_str().map(str::to_owned);
    let grid = |summary: &Summary| Some(summary.grid.to_string());
    let fact = |name: &str, values: [Option<String>; 2], decides_bits| {
        let name = name.to_owned();
        (values[0] != values[1]).then_some(Difference { name, values, decides_bits })
    };
    let named = ["device_model", "libraries", "version", "weights_from"];
    let texts = named.iter().map(|key| fact(key, [text(first, key), text(second, key)], true));
    texts.chain([fact("grid", [grid(first), grid(second)], false)]).flatten().collect()
}
