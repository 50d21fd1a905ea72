//! Descriptions of devices for plans: properties, memory outside the allocator, and rates.

use std::path::Path;
use std::sync::OnceLock;

use device::{Description, Kind};
use serde::{Deserialize, Serialize};

use crate::call_size::has_rows;
use crate::error::{PlanError, Result};
use crate::load::Load;
use crate::overhead::{DeviceRanks, Overhead};
use crate::rates::DeviceRates;
use crate::samples::MeasuredCalls;
use crate::surroundings::{GPUS_PER_HOST, Network, Power};
use crate::toml_file;

/// Description of the default device for plans on a host without a GPU.
const SHIPPED: &str = include_str!("../../../launch/devices/h200.toml");
const SHIPPED_FILE: &str = "h200";
const SHIPPED_NAME: &str = "the description that ships";
/// All descriptions in the repository, by file name.
const DESCRIPTIONS: [(&str, &str); 14] = [
    ("a100-40gb", include_str!("../../../launch/devices/a100-40gb.toml")),
    ("a100-80gb", include_str!("../../../launch/devices/a100-80gb.toml")),
    ("a10g", include_str!("../../../launch/devices/a10g.toml")),
    ("b200", include_str!("../../../launch/devices/b200.toml")),
    ("h100-80gb", include_str!("../../../launch/devices/h100-80gb.toml")),
    ("h20", include_str!("../../../launch/devices/h20.toml")),
    (SHIPPED_FILE, SHIPPED),
    ("l4", include_str!("../../../launch/devices/l4.toml")),
    ("l40s", include_str!("../../../launch/devices/l40s.toml")),
    ("rtx-3090", include_str!("../../../launch/devices/rtx-3090.toml")),
    ("rtx-4090", include_str!("../../../launch/devices/rtx-4090.toml")),
    ("rtx-5090", include_str!("../../../launch/devices/rtx-5090.toml")),
    ("rtx-pro-6000", include_str!("../../../launch/devices/rtx-pro-6000.toml")),
    ("t4", include_str!("../../../launch/devices/t4.toml")),
];
/// Words of model names that file names omit.
const MAKER: [&str; 3] = ["nvidia", "geforce", "tesla"];
/// Size of the allocator's segments, a multiple of the driver's granularity.
const SEGMENTS: u64 = 2 << 20;
/// Maximum device memory in bytes: above any real device, and small enough that sums do not overflow.
pub(crate) const MOST_BYTES: u64 = 1 << 56;
/// Compute capabilities of GPUs that are usually connected by NVLink within a host and can access each
/// other's memory.
const LINKED: [(u32, u32); 4] = [(7, 0), (8, 0), (9, 0), (10, 0)];

/// A description of a device for which runs can be planned, as stored in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanDevice {
    #[serde(with = "kind_by_name")]
    kind: Kind,
    /// Model of the hardware.
    pub model: String,
    /// Total memory in bytes.
    pub total_bytes: u64,
    /// Granularity of the driver's allocations in bytes.
    pub granularity: u64,
    /// Major and minor compute capability; 0 for a host.
    pub compute_capability: (u32, u32),
    /// Number of multiprocessors; 0 for a host.
    pub multiprocessors: u32,
    /// Number of GPUs per host; `None` means 8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus_per_host: Option<usize>,
    /// Versions of the compute libraries.
    #[serde(default)]
    pub libraries: String,
    /// Names of the fields above that were assumed, not measured on such a device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assumed: Vec<String>,
    /// Device memory that a run uses outside its allocator.
    #[serde(default)]
    pub overhead: Overhead,
    /// Compute, memory and link rates of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rates: Option<DeviceRates>,
    /// The network between hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Electric power of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<Power>,
    /// Dependence of the times of calls on tensor cores on the step; `None`: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
    /// Measured times of calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub times: Vec<MeasuredCalls>,
    /// Measured times of a configuration's own calls, which its predictions take as they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probed: Vec<MeasuredCalls>,
}

mod kind_by_name {
    use device::Kind;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    const NAMES: [&str; 2] = [Kind::Cpu.name(), Kind::Cuda.name()];

    pub(super) fn serialize<S: Serializer>(kind: &Kind, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(kind.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Kind, D::Error> {
        let name = String::deserialize(deserializer)?;
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
        kind.ok_or_else(|| D::Error::unknown_variant(&name, &NAMES))
    }
}

impl PlanDevice {
    /// Returns the description of the default device, an NVIDIA H200.
    ///
    /// # Errors
    /// The embedded file is invalid, which a test rules out.
    pub fn shipped() -> Result<Self> {
        Self::named(SHIPPED_FILE)?.ok_or_else(|| PlanError::Refused(format!("{SHIPPED_NAME} is missing")))
    }

    /// Returns the repository's description of the GPU model with this name; `None` if there is none.
    ///
    /// # Errors
    /// The embedded file is invalid, which a test rules out.
    pub fn of_model(model: &str) -> Result<Option<Self>> {
        for index in 0..DESCRIPTIONS.len() {
            let device = parsed(index)?;
            if device.model == model {
                return Ok(Some(device.clone()));
            }
        }
        Ok(None)
    }

    /// Returns the names of the descriptions in the repository.
    pub fn names() -> impl Iterator<Item = &'static str> {
        DESCRIPTIONS.iter().map(|(name, _)| *name)
    }

    /// Returns the names of descriptions in the repository that `text` may refer to. Case, punctuation and
    /// the maker's name are ignored. An exact match of the name or model is returned alone; otherwise all
    /// names that contain every word of `text`, as `rtx-4090` contains `4090`.
    ///
    /// # Errors
    /// The embedded file is invalid, which a test rules out.
    pub fn names_spelled(text: &str) -> Result<Vec<&'static str>> {
        let words = |text: &str| -> Vec<String> {
            let words = text.split(|letter: char| !letter.is_ascii_alphanumeric());
            let words = words.map(str::to_ascii_lowercase);
            words.filter(|word| !word.is_empty() && !MAKER.contains(&&word[..])).collect()
        };
        let wanted = words(text);
        let mut found = Vec::new();
        for (index, name) in Self::names().enumerate() {
            let model = words(&parsed(index)?.model);
            let own = words(name);
            if own.concat() == wanted.concat() || model.concat() == wanted.concat() {
                return Ok(vec![name]);
            }
            if !wanted.is_empty() && wanted.iter().all(|word| own.contains(word)) {
                found.push(name);
            }
        }
        Ok(found)
    }

    /// Returns the repository's description called `name`; `None` if there is none.
    ///
    /// # Errors
    /// The embedded file is invalid, which a test rules out.
    pub(crate) fn named(name: &str) -> Result<Option<Self>> {
        let index = Self::names().position(|other| other == name);
        index.map(|index| parsed(index).cloned()).transpose()
    }

    /// Reads a description from a file.
    ///
    /// # Errors
    /// The file cannot be read or is invalid; the error is a sentence with the line.
    pub fn load(path: &Path) -> Result<Self> {
        let (text, name) = toml_file::read(path)?;
        Self::parse(&text, &name)
    }

    /// Parses a description; `name` is the file's name in errors.
    pub fn parse(text: &str, name: &str) -> Result<Self> {
        let read: Self = toml_file::parse(text, name)?;
        let wrong = |what: &str| Err(PlanError::Refused(format!("{name}: {what}")));
        let positive = |rate: &f64| rate.is_finite() && *rate > 0.0;
        let mut samples = read.times.iter().chain(&read.probed).flat_map(|measured| &measured.samples);
        let positive_times = samples.clone().all(|[.., seconds]| positive(seconds));
        let positive_sizes = samples.all(|sample| sample.iter().all(|size| size.is_finite() && *size >= 0.0));
        match &read {
            Self { total_bytes: 0, .. } => wrong("total_bytes must be above 0"),
            Self { total_bytes, .. } if *total_bytes > MOST_BYTES => {
                wrong("total_bytes is larger than any device")
            }
            Self { granularity, .. } if !SEGMENTS.is_multiple_of(*granularity) => {
                wrong("granularity must divide 2097152, of which segments are multiples")
            }
            Self { overhead, .. } if overhead.bytes().is_none_or(|bytes| bytes >= read.total_bytes) => {
                wrong("[overhead] leaves nothing of total_bytes")
            }
            _ if !read.rates.iter().flat_map(DeviceRates::all).all(|rate| positive(&rate)) => {
                wrong("[rates] must all be above 0")
            }
            _ if !read.network.iter().flat_map(Network::all).all(|figure| positive(&figure)) => {
                wrong("[network] must all be above 0")
            }
            _ if !read.power.iter().flat_map(Power::all).all(|watts| positive(&watts)) => {
                wrong("[power] must all be above 0")
            }
            _ if !read.load.iter().flat_map(Load::all).all(|figure| positive(&figure)) => {
                wrong("[load] must all be above 0")
            }
            Self { gpus_per_host: Some(0), .. } => wrong("gpus_per_host must be above 0"),
            _ if !positive_times => wrong("the seconds of [[times]] and [[probed]] must all be above 0"),
            _ if !positive_sizes => {
                wrong("the sizes of [[times]] and [[probed]] must be numbers of at least 0")
            }
            _ if read.has_units_of_attention() => wrong(
                "the sizes of attention count units of work, as earlier versions did; \
                 describe the device again with plimsoll plan --describe",
            ),
            _ => Ok(read),
        }
    }

    /// Returns whether sizes of attention are of an earlier version: none has more busy multiprocessors than
    /// the device.
    fn has_units_of_attention(&self) -> bool {
        let mut measured = self.times.iter().chain(&self.probed).filter(|measured| has_rows(&measured.call));
        let most = f64::from(self.multiprocessors);
        measured.any(|measured| measured.samples.iter().any(|[busy, ..]| *busy > most))
    }

    /// Describes this host as a CPU device, without memory outside the allocator.
    pub fn host() -> Self {
        Self::from_description(&Description::host(), Overhead::default(), None)
    }

    /// Describes a GPU of this host. Rates and call times come from measurements on this host, else from the
    /// repository's description of its model, if there is one.
    ///
    /// # Errors
    /// The description measured on this host is invalid, or as for [`PlanDevice::shipped`].
    pub fn gpu(description: &Description) -> Result<Self> {
        let device = Self::from_description(description, Self::overhead_of(description)?, None);
        let known = match Self::measured_here(&description.model)? {
            Some(measured) => Some(measured),
            None => Self::of_model(&description.model)?,
        };
        Ok(match known {
            Some(known) => Self {
                rates: known.rates,
                gpus_per_host: known.gpus_per_host,
                network: known.network,
                power: known.power,
                load: known.load,
                times: known.times,
                ..device
            },
            None => device,
        })
    }

    /// Returns the memory of a GPU outside the allocator. It is known for the default model and assumed for
    /// others.
    pub(crate) fn overhead_of(description: &Description) -> Result<Overhead> {
        let shipped = Self::shipped()?;
        let is_shipped = shipped.model == description.model;
        Ok(if is_shipped { shipped.overhead } else { shipped.overhead.elsewhere() })
    }

    /// Creates a device description from measured properties.
    pub fn from_description(
        description: &Description,
        overhead: Overhead,
        rates: Option<DeviceRates>,
    ) -> Self {
        PlanDevice {
            kind: description.kind,
            model: description.model.clone(),
            total_bytes: description.total_bytes,
            granularity: description.granularity,
            compute_capability: description.compute_capability,
            multiprocessors: description.multiprocessors,
            libraries: description.libraries.clone(),
            assumed: Vec::new(),
            overhead,
            rates,
            network: None,
            power: None,
            load: None,
            gpus_per_host: None,
            times: Vec::new(),
            probed: Vec::new(),
        }
    }

    /// Replaces the measurements between hosts by newly measured ones.
    #[must_use]
    pub fn with_network(mut self, measured: Vec<MeasuredCalls>) -> Self {
        self.network = Network::from_measured(&measured).or(self.network);
        self.times.iter_mut().for_each(|calls| {
            let is_measured = measured.iter().any(|other| other.call == calls.call);
            calls.samples.retain(|[hosts, ..]| !is_measured || *hosts <= 1.0);
        });
        for MeasuredCalls { call, samples } in measured {
            match self.times.iter_mut().find(|calls| calls.call == call) {
                Some(calls) => calls.samples.extend(samples),
                None => self.times.push(MeasuredCalls { call, samples }),
            }
        }
        self
    }

    /// Adds measured calls. A newer measurement replaces that of a call of the same kind and size.
    #[must_use]
    pub fn with_calls(mut self, measured: Vec<MeasuredCalls>) -> Self {
        add_calls(&mut self.times, measured);
        self
    }

    /// Adds measured calls of a configuration, whose predictions take these times as they are. A newer
    /// measurement replaces that of a call of the same kind and size.
    #[must_use]
    pub fn with_probed(mut self, measured: Vec<MeasuredCalls>) -> Self {
        add_calls(&mut self.probed, measured);
        self
    }

    /// Returns how many seconds sooner a call starts within a CUDA graph than without.
    #[must_use]
    pub fn graph_gain_seconds(&self) -> f64 {
        self.rates.as_ref().and_then(|rates| rates.graph_gain_seconds).unwrap_or(0.0)
    }

    /// Returns the number of GPUs per host.
    #[must_use]
    pub fn gpus_per_host(&self) -> usize {
        self.gpus_per_host.unwrap_or(GPUS_PER_HOST)
    }

    /// Returns the number of GPUs of a host that can usually access each other's memory; 0 if they usually
    /// cannot.
    pub(crate) fn peers(&self) -> usize {
        if LINKED.contains(&self.compute_capability) { self.gpus_per_host() } else { 0 }
    }

    /// Returns the device properties that Meta imitates, with `ranks` on the device.
    pub fn description(&self, ranks: DeviceRanks) -> Description {
        let name = match self.kind {
            Kind::Cpu => "cpu",
            Kind::Cuda => "cuda:0",
        };
        Description {
            kind: self.kind,
            name: name.to_owned(),
            model: self.model.clone(),
            total_bytes: self.total_bytes,
            taken_bytes: self.overhead.parts(ranks).iter().map(|part| part.bytes).sum(),
            granularity: self.granularity,
            compute_capability: self.compute_capability,
            multiprocessors: self.multiprocessors,
            peers: 0,
            libraries: self.libraries.clone(),
        }
    }

    /// Returns the rates of the device, or else of the default device, and the keys not measured on such a
    /// device. Network rates are the device's or assumed.
    pub(crate) fn rates_or_shipped(&self) -> Result<(DeviceRates, Vec<String>)> {
        let network = self.network.clone().unwrap_or(Network::ASSUMED);
        let with_network = |rates: DeviceRates| DeviceRates {
            network_bytes: Some(network.bytes),
            network_seconds: Some(network.seconds()),
            ..rates
        };
        if let Some(rates) = &self.rates {
            return Ok((with_network(rates.clone()), rates.assumed.clone()));
        }
        let missing = || PlanError::Refused(format!("{SHIPPED_NAME} has no [rates]"));
        let shipped = Self::shipped()?;
        let all = format!("all rates, which were measured on an {}", shipped.model);
        Ok((with_network(shipped.rates.ok_or_else(missing)?), vec![all]))
    }

    /// Returns whether the device is a GPU.
    #[must_use]
    pub fn is_gpu(&self) -> bool {
        self.kind == Kind::Cuda
    }

    /// Returns the name of the device's kind, as in `summary.json`.
    pub(crate) fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// Serializes the description as TOML, as read by [`PlanDevice::load`].
    ///
    /// # Errors
    /// A value cannot be represented in TOML, which does not occur for values that were read or measured.
    pub fn to_toml(&self) -> Result<String> {
        let unwritable = |error| PlanError::Refused(format!("a description that TOML cannot hold: {error}"));
        let text = toml::to_string(self).map_err(unwritable)?;
        Ok(format!(
            "# A device for `plimsoll plan --device FILE`, written by `plimsoll plan --describe`.\n\n{text}"
        ))
    }
}

/// The descriptions in the repository that have been parsed, in the order of [`DESCRIPTIONS`].
static PARSED: [OnceLock<PlanDevice>; DESCRIPTIONS.len()] = [const { OnceLock::new() }; DESCRIPTIONS.len()];

/// Returns a description in the repository. Some have a hundred thousand calls, so each is parsed once.
fn parsed(index: usize) -> Result<&'static PlanDevice> {
    let known = &PARSED[index];
    if let Some(device) = known.get() {
        return Ok(device);
    }
    let (name, text) = DESCRIPTIONS[index];
    let device = PlanDevice::parse(text, name)?;
    Ok(known.get_or_init(|| device))
}

/// Adds measured calls to described ones, and replaces calls of the same kind and size.
fn add_calls(described: &mut Vec<MeasuredCalls>, measured: Vec<MeasuredCalls>) {
    for MeasuredCalls { call, samples } in measured {
        let index = described.iter().position(|calls| calls.call == call).unwrap_or_else(|| {
            described.push(MeasuredCalls { call, samples: Vec::new() });
            described.len() - 1
        });
        let same_kind = &mut described[index].samples;
        for sample in samples {
            match same_kind.iter_mut().find(|other| other[..3] == sample[..3]) {
                Some(other) => *other = sample,
                None => same_kind.push(sample),
            }
        }
    }
    described.sort_by(|one, other| one.call.cmp(&other.call));
}

#[cfg(test)]
mod tests;
