//! The statistics of one rank: taken, sent to rank 0, read.

use bincode::config::{Configuration, Limit, LittleEndian, Varint};
use collective::{ControlPlane, Traffic};
use memory::{CategoryBytes, Metric, PoolKind, Statistics};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{Result, TelemetryError};
use crate::phase::PhaseTimes;
use crate::statistic::Statistic;

/// A message of statistics has fewer bytes than this, whatever it says.
const MESSAGE_LIMIT: usize = 1 << 16;
/// The name of a host or device is cut off here.
const NAME_LIMIT: usize = 256;

/// Where the values come from.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// The caching allocator's counters.
    pub statistics: &'a Statistics,
    /// Its allocated bytes by category.
    pub live: CategoryBytes,
    /// The same at their peak.
    pub at_peak: CategoryBytes,
    /// What the data planes have moved.
    pub traffic: Traffic,
    /// What the device's driver says.
    pub driver: DriverAccount,
    /// What its steps took.
    pub phases: PhaseTimes,
}

/// Bytes that are used on a device, as its driver says, and what accounts for them beside the allocator. All 0 where
/// there is no driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverAccount {
    /// See [`Statistic::ContextBytes`].
    pub context: u64,
    /// See [`Statistic::ModuleBytes`].
    pub modules: u64,
    /// See [`Statistic::CommunicatorBytes`].
    pub communicators: u64,
    /// See [`Statistic::WarmUpBytes`].
    pub warm_up: u64,
    /// See [`Statistic::DriverUsedBytes`].
    pub used: u64,
    /// See [`Statistic::UnaccountedBytes`].
    pub unaccounted: u64,
    /// See [`Statistic::UnaccountedGrowthBytes`].
    pub unaccounted_growth: u64,
    /// See [`Statistic::DeviceContexts`].
    pub contexts: u64,
}

/// The values of one rank at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankStatistics {
    /// The rank.
    pub rank: usize,
    /// The name of its host.
    pub host: String,
    /// The name of its device.
    pub device: String,
    /// In the order of [`Statistic::all`].
    values: Vec<u64>,
}

impl RankStatistics {
    /// The values now.
    pub fn take(rank: usize, host: &str, device: &str, sources: &Sources<'_>) -> Self {
        let values = Statistic::all().iter().map(|statistic| value(*statistic, sources)).collect();
        RankStatistics { rank, host: shortened(host), device: shortened(device), values }
    }

    /// One value.
    pub fn get(&self, statistic: Statistic) -> u64 {
        let place = Statistic::all().iter().position(|each| *each == statistic);
        place.and_then(|place| self.values.get(place)).copied().unwrap_or(0)
    }

    /// Every statistic with its value.
    pub fn iter(&self) -> impl Iterator<Item = (Statistic, u64)> + '_ {
        Statistic::all().iter().copied().zip(self.values.iter().copied())
    }

    /// `rank`, `host`, `device` and every statistic under its name: an entry of `ranks` in `summary.json`.
    pub fn to_json(&self) -> Map<String, Value> {
        let mut entry = Map::new();
        entry.insert("rank".to_owned(), self.rank.into());
        entry.insert("host".to_owned(), self.host.clone().into());
        entry.insert("device".to_owned(), self.device.clone().into());
        entry.extend(self.iter().map(|(statistic, value)| (statistic.name().into_owned(), value.into())));
        entry
    }

    /// The message that carries them: bincode.
    pub fn encode(&self) -> Result<Vec<u8>> {
        bincode::serde::encode_to_vec(self, wire())
            .map_err(|error| TelemetryError::Encode { rank: self.rank, reason: error.to_string() })
    }

    /// Reads a message that came from rank `from`. Errors: anything that [`RankStatistics::encode`] of the same
    /// version does not write.
    pub fn decode(from: usize, message: &[u8]) -> Result<Self> {
        let refuse = |reason: String| Err(TelemetryError::Decode { rank: from, reason });
        let (statistics, read) = match bincode::serde::decode_from_slice::<Self, _>(message, wire()) {
            Ok(decoded) => decoded,
            Err(error) => return refuse(error.to_string()),
        };
        let (values, due) = (statistics.values.len(), Statistic::all().len());
        if read != message.len() {
            return refuse(format!("{} bytes follow them", message.len() - read));
        }
        if values != due {
            return refuse(format!("there are {values} values instead of {due}"));
        }
        Ok(statistics)
    }
}

/// Brings the statistics of all ranks to rank 0, in rank order; `None` on the others.
pub fn gather(control: &mut dyn ControlPlane, own: &RankStatistics) -> Result<Option<Vec<RankStatistics>>> {
    let Some(messages) = control.gather(0, &own.encode()?)? else { return Ok(None) };
    let decoded = messages.iter().enumerate().map(|(rank, message)| RankStatistics::decode(rank, message));
    decoded.collect::<Result<_>>().map(Some)
}

fn wire() -> Configuration<LittleEndian, Varint, Limit<MESSAGE_LIMIT>> {
    bincode::config::standard().with_limit::<MESSAGE_LIMIT>()
}

fn shortened(name: &str) -> String {
    name.chars().take(NAME_LIMIT).collect()
}

fn value(statistic: Statistic, sources: &Sources<'_>) -> u64 {
    let memory = sources.statistics;
    let now = |metric| memory.metric(metric, PoolKind::All).current;
    let count = match statistic {
        Statistic::AllocatedBytes => now(Metric::AllocatedBytes),
        Statistic::ReservedBytes => now(Metric::ReservedBytes),
        Statistic::PeakAllocatedBytes => memory.metric(Metric::AllocatedBytes, PoolKind::All).peak,
        Statistic::PeakReservedBytes => memory.metric(Metric::ReservedBytes, PoolKind::All).peak,
        Statistic::RequestedBytes => now(Metric::RequestedBytes),
        Statistic::ActiveBytes => now(Metric::ActiveBytes),
        Statistic::InactiveSplitBytes => now(Metric::InactiveSplitBytes),
        Statistic::InactiveSplitBlocks => now(Metric::InactiveSplit),
        Statistic::Segments => now(Metric::Segment),
        Statistic::AllocatedBlocks => now(Metric::Allocation),
        Statistic::Allocations => memory.metric(Metric::Allocation, PoolKind::All).allocated,
        Statistic::Retries => memory.num_alloc_retries,
        Statistic::OutOfMemory => memory.num_ooms,
        Statistic::DriverAllocations => memory.num_device_alloc,
        Statistic::DriverFrees => memory.num_device_free,
        Statistic::BytesSent => return sources.traffic.total().bytes_sent,
        Statistic::BytesReceived => return sources.traffic.total().bytes_received,
        Statistic::CollectiveCalls => return sources.traffic.total().calls,
        Statistic::ContextBytes => return sources.driver.context,
        Statistic::ModuleBytes => return sources.driver.modules,
        Statistic::CommunicatorBytes => return sources.driver.communicators,
        Statistic::WarmUpBytes => return sources.driver.warm_up,
        Statistic::DriverUsedBytes => return sources.driver.used,
        Statistic::UnaccountedBytes => return sources.driver.unaccounted,
        Statistic::UnaccountedGrowthBytes => return sources.driver.unaccounted_growth,
        Statistic::DeviceContexts => return sources.driver.contexts,
        Statistic::TimedSteps => return sources.phases.steps,
        Statistic::MedianStepTime => return sources.phases.median_step,
        Statistic::WholeStepTime => return sources.phases.whole_step(),
        Statistic::MedianTime(phase) => return sources.phases.median[phase.index()],
        Statistic::WholeTime(phase) => return sources.phases.whole[phase.index()],
        Statistic::LiveBytes(category) => return sources.live.get(category),
        Statistic::PeakBytes(category) => return sources.at_peak.get(category),
    };
    // The allocator counts in i64; none of these is ever below zero.
    u64::try_from(count).unwrap_or(0)
}

/// The name of this host, or `localhost` where the system does not say.
pub fn host_name() -> String {
    let files = ["/proc/sys/kernel/hostname", "/etc/hostname"];
    let named =
        files.iter().filter_map(|file| std::fs::read_to_string(file).ok()).chain(std::env::var("HOSTNAME"));
    let mut named = named.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
    named.next().unwrap_or_else(|| "localhost".to_owned())
}
