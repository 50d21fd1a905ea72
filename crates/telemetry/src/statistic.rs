//! The statistics of a rank. A new statistic is a line here and an expression in `RankStatistics::take`.

use std::borrow::Cow;
use std::sync::LazyLock;

use memory::Category;

use crate::phase::Phase;

/// Unit of a statistic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// A dimensionless count.
    Count,
    /// Microseconds.
    Microseconds,
}

macro_rules! statistics {
    ($($(#[doc = $doc:literal])+ $variant:ident $name:literal $unit:ident,)+) => {
        /// A statistic of a rank. Bytes of blocks include the allocator's rounding.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Statistic {
            $($(#[doc = $doc])+ $variant,)+
            /// Allocated bytes of a category. The sum over categories is `allocated_bytes`.
            LiveBytes(Category),
            /// Allocated bytes of a category at the peak of `allocated_bytes`, not at the category's own
            /// peak. The sum over categories is `peak_allocated_bytes`.
            PeakBytes(Category),
            /// Median time of a phase per step, over the last 1,024 timed steps.
            MedianTime(Phase),
            /// Total time of a phase over all timed steps.
            WholeTime(Phase),
        }

        impl Statistic {
            /// Returns the key in files, which is also the name in tables.
            pub fn name(self) -> Cow<'static, str> {
                match self {
                    $(Statistic::$variant => $name.into(),)+
                    Statistic::LiveBytes(category) => format!("live_{}_bytes", category.name()).into(),
                    Statistic::PeakBytes(category) => format!("at_peak_{}_bytes", category.name()).into(),
                    Statistic::MedianTime(phase) => format!("median_{}_microseconds", phase.name()).into(),
                    Statistic::WholeTime(phase) => format!("whole_{}_microseconds", phase.name()).into(),
                }
            }

            /// Returns the unit of the value.
            pub fn unit(self) -> Unit {
                match self {
                    $(Statistic::$variant => Unit::$unit,)+
                    Statistic::LiveBytes(_) | Statistic::PeakBytes(_) => Unit::Bytes,
                    Statistic::MedianTime(_) | Statistic::WholeTime(_) => Unit::Microseconds,
                }
            }
        }

        static ALL: LazyLock<Vec<Statistic>> = LazyLock::new(|| {
            let plain = [$(Statistic::$variant,)+].into_iter();
            plain
                .chain(Category::ALL.into_iter().map(Statistic::LiveBytes))
                .chain(Category::ALL.into_iter().map(Statistic::PeakBytes))
                .chain(Phase::ALL.into_iter().map(Statistic::MedianTime))
                .chain(Phase::ALL.into_iter().map(Statistic::WholeTime))
                .collect()
        });
    };
}

statistics! {
    /// Bytes of allocated blocks. Excludes cached blocks and memory of drivers and libraries.
    AllocatedBytes "allocated_bytes" Bytes,
    /// Bytes taken from the driver: allocated and cached blocks. Excludes memory of drivers and libraries.
    ReservedBytes "reserved_bytes" Bytes,
    /// Peak of `allocated_bytes`.
    PeakAllocatedBytes "peak_allocated_bytes" Bytes,
    /// Peak of `reserved_bytes`.
    PeakReservedBytes "peak_reserved_bytes" Bytes,
    /// Bytes requested by the owners of active blocks, without rounding.
    RequestedBytes "requested_bytes" Bytes,
    /// Bytes of unusable blocks: allocated, or freed while another stream still uses them.
    ActiveBytes "active_bytes" Bytes,
    /// Bytes of cached blocks in partly used segments, which emptying the cache cannot return. Excludes
    /// expandable segments.
    InactiveSplitBytes "inactive_split_bytes" Bytes,
    /// Number of cached blocks in partly used segments.
    InactiveSplitBlocks "inactive_split_blocks" Count,
    /// Number of segments. Excludes expandable segments.
    Segments "segments" Count,
    /// Number of allocated blocks.
    AllocatedBlocks "allocated_blocks" Count,
    /// Number of allocations since the start.
    Allocations "allocations" Count,
    /// Number of requests that were retried after emptying the cache.
    Retries "retries" Count,
    /// Number of requests that failed for lack of memory.
    OutOfMemory "ooms" Count,
    /// Number of calls that took memory from the driver: segments, and growth of expandable segments.
    DriverAllocations "driver_allocations" Count,
    /// Number of calls that returned memory to the driver.
    DriverFrees "driver_frees" Count,
    /// Allocated bytes of the rank's host pool, which holds offloaded tensors: pinned memory for a GPU.
    HostAllocatedBytes "host_allocated_bytes" Bytes,
    /// Peak of the bytes that the host pool has reserved.
    PeakHostReservedBytes "peak_host_reserved_bytes" Bytes,
    /// Bytes of collectives' operands sent to other ranks. Excludes headers and the control channel.
    BytesSent "bytes_sent" Bytes,
    /// Bytes of collectives' operands received from other ranks. Excludes headers and the control channel.
    BytesReceived "bytes_received" Bytes,
    /// Number of calls of collectives and transfers.
    CollectiveCalls "collective_calls" Count,
    /// Bytes used on the device when the rank's context had just been created, as the driver reports: the
    /// context and other processes. 0 without a driver.
    ContextBytes "context_bytes" Bytes,
    /// Bytes taken by loading kernels and creating library handles, over all ranks that share the device.
    ModuleBytes "module_bytes" Bytes,
    /// Bytes taken by connections to other ranks: buffers and kernels of NCCL.
    CommunicatorBytes "communicator_bytes" Bytes,
    /// Bytes taken by drivers and libraries during the first step, over all ranks that share the device.
    WarmUpBytes "warm_up_bytes" Bytes,
    /// Bytes used on the device at the end, as the driver reports.
    DriverUsedBytes "driver_used_bytes" Bytes,
    /// `driver_used_bytes` minus context, modules, communicators, warm-up and the bytes reserved by all ranks
    /// that share the device; at least 0.
    UnaccountedBytes "unaccounted_bytes" Bytes,
    /// Growth of `unaccounted_bytes` since the second step.
    UnaccountedGrowthBytes "unaccounted_growth_bytes" Bytes,
    /// Number of GPUs on which the process has a context. 0 without a driver.
    DeviceContexts "device_contexts" Count,
    /// Number of ranks that share the device: at most `parallel.ranks_per_device`. 0 without a driver.
    DeviceRanks "device_ranks" Count,
    /// Number of timed steps: all but the first, which warms up, unless it is the only step. 0 if nothing is
    /// computed.
    TimedSteps "timed_steps" Count,
    /// Median timed step, from beginning to end on the device's compute stream. Excludes work between steps:
    /// validation, checkpoints, agreeing when to stop.
    MedianStepTime "median_step_microseconds" Microseconds,
    /// Total time of all timed steps.
    WholeStepTime "whole_step_microseconds" Microseconds,
}

impl Statistic {
    /// Memory statistics shown in tables.
    pub const MEMORY: [Statistic; 4] = [
        Statistic::AllocatedBytes,
        Statistic::ReservedBytes,
        Statistic::PeakAllocatedBytes,
        Statistic::PeakReservedBytes,
    ];

    /// Returns every statistic, in the order of tables and messages.
    pub fn all() -> &'static [Statistic] {
        &ALL
    }
}
