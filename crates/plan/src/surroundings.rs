//! A GPU's surroundings in a description: the network between hosts, and electric power.

use serde::{Deserialize, Serialize};

use crate::samples::MeasuredCalls;

/// GPUs per host if a description does not state it.
pub(crate) const GPUS_PER_HOST: usize = 8;

/// `[network]`: the network between hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Bytes per second that a GPU sends to GPUs of other hosts.
    pub bytes: f64,
    /// Seconds of the shortest message; `None` for the assumed value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Names of the fields above that were assumed, not measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assumed: Vec<String>,
}

impl Network {
    /// The assumed network of a description without one: 400 Gbit/s per GPU.
    pub(crate) const ASSUMED: Network = Network { bytes: 50e9, seconds: Some(20e-6), assumed: Vec::new() };

    /// Derives the network from measured operations between hosts: the rate of the largest all-reduce with
    /// the most ranks, and the shortest message. `None` without such measurements.
    pub(crate) fn from_measured(measured: &[MeasuredCalls]) -> Option<Self> {
        let far = |call: &'static str| {
            let samples =
                measured.iter().filter(move |calls| calls.call == call).flat_map(|calls| &calls.samples);
            samples.filter(|[hosts, ..]| *hosts > 1.0)
        };
        let largest = |[hosts, on_host, bytes, _]: &&[f64; 4]| hosts * on_host * bytes;
        let [hosts, on_host, bytes, seconds] =
            far("all-reduce").max_by(|one, other| largest(one).total_cmp(&largest(other)))?;
        let message = far("send").map(|[.., seconds]| *seconds).reduce(f64::min);
        // All GPUs of a host send at the same time, twice.
        let bytes = 2.0 * bytes * (hosts - 1.0) / hosts / on_host / seconds;
        Some(Network { bytes, seconds: message, assumed: Vec::new() })
    }

    /// Returns the seconds of the shortest message.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.seconds.or(Network::ASSUMED.seconds).unwrap_or_default()
    }

    /// Iterates over all values, which must be above 0.
    pub(crate) fn all(&self) -> impl Iterator<Item = f64> {
        [Some(self.bytes), self.seconds].into_iter().flatten()
    }
}

/// `[power]`: electric power of a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Power {
    /// Power limit in watts.
    pub limit_watts: f64,
    /// Mean watts during measured steps; `None` if not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_watts: Option<f64>,
}

impl Power {
    /// Returns the watts of a GPU during a step, and their source.
    #[must_use]
    pub fn of_step(&self) -> (f64, &'static str) {
        match self.step_watts {
            Some(watts) => (watts, "measured power"),
            None => (self.limit_watts, "power limit"),
        }
    }

    /// Iterates over all values, which must be above 0.
    pub(crate) fn all(&self) -> impl Iterator<Item = f64> {
        [Some(self.limit_watts), self.step_watts].into_iter().flatten()
    }
}
