//! Profiles: files with measured times of a model's layers, from which `parallel.profile` partitions the
//! layers.
//!
//! Times vary between measurements, but all ranks, plans and resumed runs must find the same partition.
//! Therefore crate `bench` measures once and writes a file that all of them read.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use device::Description;
use serde::{Deserialize, Serialize};
use telemetry::table::aligned;

use crate::error::{PlanError, Result};
use crate::layer_cost::LayerCost;
use crate::toml_file;
use config::RunConfig;

/// Maximum accepted time in nanoseconds: eleven days, far above any layer's.
pub const LONGEST: u64 = 1_000_000_000_000_000;

/// Measured times of a model's layers on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Model of the device on which times were measured.
    pub device: String,
    /// Versions of the compute libraries.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub libraries: String,
    /// Settings that determine the times, by `section.key`, as TOML values.
    pub of: BTreeMap<String, String>,
    /// Times of the layers, in order. The first layer includes everything before the layers, the last
    /// everything after them.
    pub layers: Vec<LayerTimes>,
}

/// Times of several consecutive equal layers, in nanoseconds per layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerTimes {
    /// Number of consecutive equal layers.
    pub count: usize,
    /// Forward pass of a micro-batch.
    pub forward: u64,
    /// The half of backward that computes the input's gradient.
    pub backward_input: u64,
    /// The half of backward that computes the weights' gradients.
    pub backward_weight: u64,
    /// Additional time of backward if it recomputes the layer.
    pub recomputed: u64,
    /// Gradient norm and optimizer update, per step.
    pub update: u64,
}

impl Profile {
    /// Reads a profile from a file.
    ///
    /// # Errors
    /// The file cannot be read or is invalid; the error is a sentence with the line.
    pub fn load(path: &Path) -> Result<Self> {
        let (text, name) = toml_file::read(path)?;
        Self::parse(&text, &name)
    }

    /// Parses a profile; `name` is the file's name in errors.
    pub fn parse(text: &str, name: &str) -> Result<Self> {
        let read: Self = toml_file::parse(text, name)?;
        let times = |layer: &LayerTimes| {
            [layer.forward, layer.backward_input, layer.backward_weight, layer.recomputed, layer.update]
        };
        let wrong = |what: &str| Err(PlanError::Refused(format!("{name}: {what}")));
        match &read.layers {
            layers if layers.iter().any(|layer| layer.count == 0) => wrong("count must be above 0"),
            layers if layers.iter().any(|layer| layer.forward == 0) => wrong("forward must be above 0"),
            layers if layers.iter().flat_map(times).any(|time| time > LONGEST) => {
                wrong("a time is longer than eleven days")
            }
            _ => Ok(read),
        }
    }

    /// Reads the profile that a run's configuration names, and checks that it fits the run and devices like
    /// `description`.
    ///
    /// # Errors
    /// As for [`Profile::load`]; the profile is of another model, other sizes or another device.
    pub fn of_run(path: &Path, config: &RunConfig, description: &Description) -> Result<Self> {
        let index = config.origins.find("parallel.profile");
        let refused = |what: String| PlanError::Refused(format!("{index}: parallel.profile: {what}"));
        let read = Self::load(path).map_err(|error| refused(error.to_string()))?;
        let path = path.display();
        let differences = config::differences(&config.timing(), &read.of);
        if !differences.is_empty() {
            return Err(refused(format!("{path} is of other layers: {differences}")));
        }
        if read.device != description.model {
            let there = &read.device;
            let here = &description.model;
            return Err(refused(format!("{path} was measured on {there}; this is for {here}")));
        }
        let count = read.layers.iter().fold(0_usize, |count, layer| count.saturating_add(layer.count));
        if count != config.layers() {
            let layers = config.layers();
            return Err(refused(format!("{path} has {count} layers; the model has {layers}")));
        }
        Ok(read)
    }

    /// Returns the cost of each layer.
    pub fn costs(&self) -> Vec<LayerCost> {
        let cost = |layer: &LayerTimes| LayerCost {
            passes: [layer.forward, layer.backward_input, layer.backward_weight],
            again: layer.recomputed,
            update: layer.update,
        };
        self.layers.iter().flat_map(|layer| std::iter::repeat_n(cost(layer), layer.count)).collect()
    }

    /// Serializes the profile as TOML, as read by [`Profile::load`].
    ///
    /// # Errors
    /// A value cannot be represented in TOML, which does not occur for values that were read or measured.
    pub fn to_toml(&self) -> Result<String> {
        let unwritable = |error| PlanError::Refused(format!("a profile that TOML cannot hold: {error}"));
        let text = toml::to_string(self).map_err(unwritable)?;
        Ok(format!(
            "# Nanoseconds of a model's layers, for the key parallel.profile, written by `plimsoll plan \
             --profile`.\n\n{text}"
        ))
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let titles =
            ["layers", "forward", "backward, input", "backward, weights", "recomputed", "update of a step"];
        let mut rows = vec![titles.map(str::to_owned).to_vec()];
        let mut start = 0;
        for layer in &self.layers {
            let end = start + layer.count - 1;
            let name = if layer.count == 1 { format!("{start}") } else { format!("{start}-{end}") };
            let times =
                [layer.forward, layer.backward_input, layer.backward_weight, layer.recomputed, layer.update];
            rows.push([vec![name], times.map(|time| format!("{:.3}", time as f64 / 1e6)).to_vec()].concat());
            start = end + 1;
        }
        let with = if self.libraries.is_empty() { String::new() } else { format!(" ({})", self.libraries) };
        writeln!(f, "milliseconds on {}{with}, of a micro-batch", self.device)?;
        write!(f, "{}", aligned(&rows, 1, &[]))?;
        write!(f, "the first layer includes everything before it, the last everything after it")
    }
}

#[cfg(test)]
mod tests;
