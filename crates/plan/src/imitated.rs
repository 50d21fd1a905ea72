//! Devices for plans: what they are, what a run takes of them beside the allocator, and what they do in a
//! second.

use std::path::Path;

use device::{Description, Kind};
use serde::{Deserialize, Serialize};

use crate::error::{PlanError, Result};
use crate::toml_file;

/// The device that plans imitate where there is no GPU.
const SHIPPED: &str = include_str!("../../../launch/devices/h200.toml");
const SHIPPED_NAME: &str = "the description that ships";
/// Segments are multiples of this, so the driver's unit must divide it.
const SEGMENTS: u64 = 2 << 20;
/// Far beyond any device, and so far below 2⁶⁴ that nothing overflows.
pub(crate) const MOST_BYTES: u64 = 1 << 56;

/// A device that plans can imitate, as it is in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanDevice {
    #[serde(with = "kind_by_name")]
    kind: Kind,
    /// The model of the hardware.
    pub model: String,
    /// Total memory in bytes.
    pub total_bytes: u64,
    /// Granularity of the driver's allocations in bytes.
    pub granularity: u64,
    /// Major and minor; 0 of a host.
    pub compute_capability: (u32, u32),
    /// 0 of a host.
    pub multiprocessors: u32,
    /// Versions of what computes on it.
    #[serde(default)]
    pub libraries: String,
    /// The keys above whose values were not measured on such a device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assumed: Vec<String>,
    /// Memory that a run uses beside its allocator.
    #[serde(default)]
    pub overhead: Overhead,
    /// Rates of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rates: Option<DeviceRates>,
}

/// Writes a kind of device to a file as its name.
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

/// Bytes of a device that are not the allocator's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Overhead {
    /// The driver's context.
    pub context: u64,
    /// Kernels and library handles.
    pub modules: u64,
    /// Bytes that drivers and libraries load in the first step.
    pub warm_up: u64,
    /// Connections to other ranks, where there are any.
    pub communicators: u64,
    /// The keys above whose values were not measured on such a device.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub assumed: Vec<String>,
}

/// Rates of a device, for predicted times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceRates {
    /// Operations of large matmuls in bf16.
    pub flops_bf16: f64,
    /// FLOP/s of large matmuls in f32.
    pub flops_f32: f64,
    /// Bytes per second, read and written, of a large copy in the device.
    pub memory_bytes: f64,
    /// Bytes per second that a rank sends to another.
    pub link_bytes: f64,
    /// Operations of a whole step over those of matmuls in the same time.
    pub efficiency: f64,
    /// The keys above whose values were not measured on such a device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assumed: Vec<String>,
}

/// A part of the overhead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverheadPart {
    /// The key in files.
    pub name: &'static str,
    /// Number of bytes.
    pub bytes: u64,
    /// Whether the value was measured on such a device.
    pub measured: bool,
}

impl OverheadPart {
    /// In a sentence.
    #[must_use]
    pub fn words(&self) -> &'static str {
        match self.name {
            "modules" => "kernels",
            "warm_up" => "libraries",
            "communicators" => "connections",
            name => name,
        }
    }
}

impl Overhead {
    /// The parts of the overhead of a rank, alone or connected to others.
    pub fn parts(&self, connected: bool) -> Vec<OverheadPart> {
        let all = [
            ("context", self.context),
            ("modules", self.modules),
            ("warm_up", self.warm_up),
            ("communicators", if connected { self.communicators } else { 0 }),
        ];
        let part = |(name, bytes): (&'static str, u64)| OverheadPart {
            name,
            bytes,
            measured: !self.assumed.iter().any(|assumed| assumed == name),
        };
        all.into_iter().filter(|(_, bytes)| *bytes > 0).map(part).collect()
    }

    /// The same values marked as assumed, for another model of device.
    fn elsewhere(mut self) -> Self {
        self.assumed = ["context", "modules", "warm_up", "communicators"].map(str::to_owned).to_vec();
        self
    }
}

impl PlanDevice {
    /// The one that ships: an NVIDIA H200. Errors: none, as a test shows.
    pub fn shipped() -> Result<Self> {
        Self::parse(SHIPPED, SHIPPED_NAME)
    }

    /// Reads a description. Errors: a file that cannot be read or is none, in one sentence with the line.
    pub fn load(path: &Path) -> Result<Self> {
        let (text, name) = toml_file::read(path)?;
        Self::parse(&text, &name)
    }

    /// Reads the text of a file called `name`. Errors as for [`PlanDevice::load`].
    pub fn parse(text: &str, name: &str) -> Result<Self> {
        let read: Self = toml_file::parse(text, name)?;
        let wrong = |what: &str| Err(PlanError::Refused(format!("{name}: {what}")));
        let positive = |rate: &f64| rate.is_finite() && *rate > 0.0;
        let rates = read.rates.iter().flat_map(|rates| {
            [rates.flops_bf16, rates.flops_f32, rates.memory_bytes, rates.link_bytes, rates.efficiency]
        });
        match &read {
            Self { total_bytes: 0, .. } => wrong("total_bytes = 0 is no device"),
            Self { total_bytes, .. } if *total_bytes > MOST_BYTES => {
                wrong("total_bytes is beyond any device")
            }
            Self { granularity, .. } if !SEGMENTS.is_multiple_of(*granularity) => {
                wrong("granularity must divide 2097152, since segments are multiples of that")
            }
            Self { overhead, .. } if overhead.bytes().is_none_or(|bytes| bytes >= read.total_bytes) => {
                wrong("[overhead] is all that the device has")
            }
            _ if !rates.into_iter().all(|rate| positive(&rate)) => wrong("[rates] must all be above 0"),
            _ => Ok(read),
        }
    }

    /// The host. Nothing but the allocator's memory counts there.
    pub fn host() -> Self {
        Self::of(&Description::host(), Overhead::default(), None)
    }

    /// A GPU that is there. What runs take beside the allocator is known of the model that ships, and assumed
    /// of others.
    ///
    /// Errors: none, as a test shows.
    pub(crate) fn gpu(description: &Description) -> Result<Self> {
        let shipped = Self::shipped()?;
        let known = shipped.model == description.model;
        let overhead = if known { shipped.overhead } else { shipped.overhead.elsewhere() };
        let rates = shipped.rates.filter(|_| known);
        Ok(Self::of(description, overhead, rates))
    }

    /// A device of this description.
    pub fn of(description: &Description, overhead: Overhead, rates: Option<DeviceRates>) -> Self {
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
        }
    }

    /// The description that Meta imitates, for a rank alone or connected to others.
    pub fn description(&self, connected: bool) -> Description {
        let name = match self.kind {
            Kind::Cpu => "cpu",
            Kind::Cuda => "cuda:0",
        };
        Description {
            kind: self.kind,
            name: name.to_owned(),
            model: self.model.clone(),
            total_bytes: self.total_bytes,
            taken_bytes: self.overhead.parts(connected).iter().map(|part| part.bytes).sum(),
            granularity: self.granularity,
            compute_capability: self.compute_capability,
            multiprocessors: self.multiprocessors,
            libraries: self.libraries.clone(),
        }
    }

    /// Its rates, or those of the one that ships; and what of them was not measured on such a device. Errors:
    /// none, as a test shows.
    pub(crate) fn rates_or_shipped(&self) -> Result<(DeviceRates, Vec<String>)> {
        if let Some(rates) = &self.rates {
            return Ok((rates.clone(), rates.assumed.clone()));
        }
        let missing = || PlanError::Refused(format!("{SHIPPED_NAME} has no [rates]"));
        let shipped = Self::shipped()?;
        let all = format!("all rates, which are those of an {}", shipped.model);
        Ok((shipped.rates.ok_or_else(missing)?, vec![all]))
    }

    /// The name in `summary.json`.
    pub(crate) fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// The text of a file that [`PlanDevice::load`] reads. Errors: none of a description that was read or
    /// measured.
    pub fn to_toml(&self) -> Result<String> {
        let unwritable = |error| PlanError::Refused(format!("a description that TOML cannot hold: {error}"));
        let text = toml::to_string(self).map_err(unwritable)?;
        Ok(format!(
            "# A device for `plimsoll plan --device FILE`, written by `plimsoll plan --describe`.\n\n{text}"
        ))
    }
}

impl Overhead {
    /// All of it; `None` beyond what can be counted.
    fn bytes(&self) -> Option<u64> {
        let parts = [self.modules, self.warm_up, self.communicators];
        parts.into_iter().try_fold(self.context, u64::checked_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_read_back() {
        let shipped = PlanDevice::shipped().unwrap();
        assert_eq!(PlanDevice::parse(&shipped.to_toml().unwrap(), "again").unwrap(), shipped);
        let alone = shipped.description(false).taken_bytes;
        assert_eq!(shipped.description(true).taken_bytes, alone + shipped.overhead.communicators);
        let host = PlanDevice::host();
        assert_eq!(PlanDevice::parse(&host.to_toml().unwrap(), "host").unwrap(), host);
        assert_eq!(host.description(true), Description::host());
        assert!(host.overhead.parts(true).is_empty() && !host.rates_or_shipped().unwrap().1.is_empty());
        let other = Description { model: "another".to_owned(), ..shipped.description(false) };
        let other = PlanDevice::gpu(&other).unwrap();
        assert!(other.overhead.parts(true).iter().all(|part| !part.measured) && other.rates.is_none());
    }

    #[test]
    fn descriptions_from_data_sheets_say_that_they_were_not_measured() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../launch/devices");
        let mut names = Vec::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let device = PlanDevice::load(&path).unwrap();
            names.push(path.file_stem().unwrap().to_string_lossy().into_owned());
            let (rates, assumed) = device.rates_or_shipped().unwrap();
            let all = [rates.assumed.len(), assumed.len(), device.overhead.assumed.len()];
            match names.last().map(String::as_str) {
                Some("h200") => assert!(device.assumed.is_empty() && all == [0, 0, 0]),
                _ => assert!(!device.assumed.is_empty() && all == [5, 5, 4], "{path:?}"),
            }
            assert!(
                device.overhead.parts(true).iter().all(|part| part.measured == device.assumed.is_empty())
            );
        }
        names.sort();
        let known = ["a100-40gb", "a100-80gb", "b200", "h100-80gb", "h200", "l40s", "rtx-4090"];
        assert_eq!(names, known);
    }

    #[test]
    fn wrong_descriptions_are_refused_with_the_line() {
        let table = [
            ("multiprocessors = 132", "processors = 132", ":9: unknown field"),
            ("total_bytes = 150109880320", "total_bytes = \"all\"", ":6: invalid type"),
            ("total_bytes = 150109880320", "total_bytes = 0", "no device"),
            ("granularity = 2097152", "granularity = 3000", "must divide 2097152"),
            ("context = 554500096", "context = 150109880320", "all that the device has"),
            ("context = 554500096", "context = 9223372036854775807", "all that the device has"),
            ("flops_f32 = ", "flops_f32 = 0.0 # ", "above 0"),
        ];
        for (from, to, expected) in table {
            let text = SHIPPED.replacen(from, to, 1);
            assert_ne!(text, SHIPPED, "{from}");
            let error = PlanDevice::parse(&text, "h.toml").unwrap_err();
            let said = error.to_string();
            assert!(said.starts_with("h.toml:") && said.contains(expected), "{said}");
            assert_eq!((error.exit_status(), said.lines().count()), (2, 1));
        }
    }
}
