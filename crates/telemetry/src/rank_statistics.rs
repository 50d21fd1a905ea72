//! The statistics of one rank, and how rank 0 gathers them.

use collective::{ControlChannel, Traffic};
use memory::{CategoryBytes, Metric, PoolKind, Statistics, Usage};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{Result, TelemetryError};
use crate::phase::PhaseTimes;
use crate::statistic::Statistic;
use crate::wire;

/// Maximum length of a host or device name, in characters.
const NAME_LIMIT: usize = 256;

/// Inputs from which a rank's statistics are collected.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// Counters of the caching allocator.
    pub statistics: &'a Statistics,
    /// Allocated bytes by category, now.
    pub live: CategoryBytes,
    /// Allocated bytes by category, at the peak of total allocated bytes.
    pub at_peak: CategoryBytes,
    /// Allocated bytes of the host pool, and the peak of its reserved bytes.
    pub host: Usage,
    /// Traffic of all process groups.
    pub traffic: Traffic,
    /// Memory of the device as its driver counts it.
    pub driver: DriverAccount,
    /// Times of the phases of the rank's steps.
    pub phases: PhaseTimes,
}

/// Memory of a device as its driver reports it, in bytes, and the memory outside the allocator by cause. All
/// 0 without a driver.
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
    /// See [`Statistic::DeviceRanks`].
    pub ranks: u64,
}

/// The statistics of one rank at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankStatistics {
    /// The rank.
    pub rank: usize,
    /// Name of the rank's host.
    pub host: String,
    /// Name of the rank's device.
    pub device: String,
    /// Values in the order of [`Statistic::all`].
    values: Vec<u64>,
}

impl RankStatistics {
    /// Collects the statistics of a rank.
    pub fn take(rank: usize, host: &str, device: &str, sources: &Sources<'_>) -> Self {
        let values = Statistic::all().iter().map(|statistic| value(*statistic, sources)).collect();
        RankStatistics { rank, host: shortened(host), device: shortened(device), values }
    }

    /// Returns the value of a statistic.
    pub fn get(&self, statistic: Statistic) -> u64 {
        let index = Statistic::all().iter().position(|each| *each == statistic);
        index.and_then(|index| self.values.get(index)).copied().unwrap_or(0)
    }

    /// Iterates over all statistics with their values.
    pub fn iter(&self) -> impl Iterator<Item = (Statistic, u64)> + '_ {
        Statistic::all().iter().copied().zip(self.values.iter().copied())
    }

    /// Returns the rank's entry in `summary.json`: `rank`, `host`, `device` and every statistic by name.
    pub fn to_json(&self) -> Map<String, Value> {
        let mut entry = Map::new();
        entry.insert("rank".to_owned(), self.rank.into());
        entry.insert("host".to_owned(), self.host.clone().into());
        entry.insert("device".to_owned(), self.device.clone().into());
        entry.extend(self.iter().map(|(statistic, value)| (statistic.name().into_owned(), value.into())));
        entry
    }

    /// Reads statistics that [`RankStatistics::to_json`] wrote; missing values are 0 or empty.
    pub fn from_json(entry: &Map<String, Value>) -> Self {
        let number = |key: &str| entry.get(key).and_then(Value::as_u64).unwrap_or(0);
        let text = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default();
        RankStatistics {
            rank: usize::try_from(number("rank")).unwrap_or(0),
            host: shortened(text("host")),
            device: shortened(text("device")),
            values: Statistic::all().iter().map(|statistic| number(&statistic.name())).collect(),
        }
    }

    /// Encodes the statistics as a message (bincode).
    pub fn encode(&self) -> Result<Vec<u8>> {
        wire::encode(self.rank, self)
    }

    /// Decodes a message received from rank `from`.
    ///
    /// # Errors
    /// The message was not written by [`RankStatistics::encode`] of this version.
    pub fn decode(from: usize, message: &[u8]) -> Result<Self> {
        let statistics: Self = wire::decode(from, message)?;
        let values = statistics.values.len();
        let due = Statistic::all().len();
        if values != due {
            let reason = format!("it has {values} values instead of {due}");
            return Err(TelemetryError::Decode { rank: from, reason });
        }
        Ok(statistics)
    }
}

/// Gathers the statistics of all ranks on rank 0, in rank order; returns `None` on the other ranks. Every
/// rank must call it.
pub fn gather(control: &mut dyn ControlChannel, own: &RankStatistics) -> Result<Option<Vec<RankStatistics>>> {
    let Some(messages) = control.gather(0, &own.encode()?)? else { return Ok(None) };
    let decoded = messages.iter().enumerate().map(|(rank, message)| RankStatistics::decode(rank, message));
    decoded.collect::<Result<_>>().map(Some)
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
        Statistic::HostAllocatedBytes => return sources.host.allocated,
        Statistic::PeakHostReservedBytes => return sources.host.reserved,
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
        Statistic::DeviceRanks => return sources.driver.ranks,
        Statistic::TimedSteps => return sources.phases.steps,
        Statistic::MedianStepTime => return sources.phases.median_step,
        Statistic::WholeStepTime => return sources.phases.whole_step(),
        Statistic::MedianTime(phase) => return sources.phases.median[phase.index()],
        Statistic::WholeTime(phase) => return sources.phases.whole[phase.index()],
        Statistic::LiveBytes(category) => return sources.live.get(category),
        Statistic::PeakBytes(category) => return sources.at_peak.get(category),
    };
    // The allocator counts in i64; these counters are never negative.
    u64::try_from(count).unwrap_or(0)
}

/// Returns the name of this host, or `localhost` if the system does not report it.
pub fn host_name() -> String {
    let files = ["/proc/sys/kernel/hostname", "/etc/hostname"];
    let named =
        files.iter().filter_map(|file| std::fs::read_to_string(file).ok()).chain(std::env::var("HOSTNAME"));
    let mut named = named.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
    named.next().unwrap_or_else(|| "localhost".to_owned())
}
