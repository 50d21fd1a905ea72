//! The statistics of a rank. A new one is a line here and an expression in `RankStatistics::take`.

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
            /// Median time that a step spends in a phase, over the last 1,024 timed steps.
            MedianTime(Phase),
            /// Time that all timed steps together spend in a phase.
            WholeTime(Phase),
        }

        impl Statistic {
            /// Key in files and name in tables.
            pub fn name(self) -> Cow<'static, str> {
                match self {
                    $(Statistic::$variant => $name.into(),)+
                    Statistic::LiveBytes(category) => format!("live_{}_bytes", category.name()).into(),
                    Statistic::PeakBytes(category) => format!("at_peak_{}_bytes", category.name()).into(),
                    Statistic::MedianTime(phase) => format!("median_{}_microseconds", phase.name()).into(),
                    Statistic::WholeTime(phase) => format!("whole_{}_microseconds", phase.name()).into(),
                }
            }

            /// Unit of the value.
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
    /// Bytes of blocks that are not usable yet: allocated, or freed while another stream uses them.
    ActiveBytes "active_bytes" Bytes,
    /// Bytes of cached blocks in segments that are partly in use, which emptying the cache cannot return.
    /// Excludes expandable segments.
    InactiveSplitBytes "inactive_split_bytes" Bytes,
    /// Number of cached blocks in segments that are partly in use.
    InactiveSplitBlocks "inactive_split_blocks" Count,
    /// Number of segments. Excludes expandable segments.
    Segments "segments" Count,
    /// Number of allocated blocks.
    AllocatedBlocks "allocated_blocks" Count,
    /// Number of allocations since the start.
    Allocations "allocations" Count,
    /// Number of requests that emptied the cache and tried again.
    Retries "retries" Count,
    /// Number of requests that failed for lack of memory.
    OutOfMemory "ooms" Count,
    /// Number of calls that took memory from the driver: segments, and growth of expandable segments.
    DriverAllocations "driver_allocations" Count,
    /// Number of calls that returned memory to the driver.
    DriverFrees "driver_frees" Count,
    /// Allocated bytes of the rank's host pool, which holds what is offloaded: pinned memory for a GPU.
    HostAllocatedBytes "host_allocated_bytes" Bytes,
    /// Peak of the bytes that the host pool has taken from the host.
    PeakHostReservedBytes "peak_host_reserved_bytes" Bytes,
    /// Bytes of collectives' operands sent to other ranks. Excludes headers and the control channel.
    BytesSent "bytes_sent" Bytes,
    /// Bytes of collectives' operands received from other ranks. Excludes headers and the control channel.
    BytesReceived "bytes_received" Bytes,
    /// Number of calls of process groups.
    CollectiveCalls "collective_calls" Count,
    /// Bytes used on the device by the driver's account when the context had been created: the context and
    /// other processes. 0 without a driver.
    ContextBytes "context_bytes" Bytes,
    /// Bytes that loading kernels and creating library handles took, of all ranks that share the device.
    ModuleBytes "module_bytes" Bytes,
    /// Bytes that connections to other ranks took: buffers and kernels of NCCL.
    CommunicatorBytes "communicator_bytes" Bytes,
    /// Bytes that drivers and libraries took during the first step, of all ranks that share the device.
    WarmUpBytes "warm_up_bytes" Bytes,
    /// Bytes used on the device at the end by the driver's account.
    DriverUsedBytes "driver_used_bytes" Bytes,
    /// `driver_used_bytes` minus context, modules, communicators, warm-up and what all ranks that share the
    /// device have reserved; at least 0.
    UnaccountedBytes "unaccounted_bytes" Bytes,
    /// Growth of `unaccounted_bytes` since the second step.
    UnaccountedGrowthBytes "unaccounted_growth_bytes" Bytes,
    /// Number of GPUs on which the process has a context. 0 without a driver.
    DeviceContexts "device_contexts" Count,
    /// Number of ranks that share the device: `parallel.ranks_per_device` at most. 0 without a driver.
    DeviceRanks "device_ranks" Count,
    /// Number of steps whose phases were timed: all but the first, which warms up, unless it is the only one.
    /// 0 if nothing is computed.
    TimedSteps "timed_steps" Count,
    /// Median timed step, from beginning to end on the device's compute stream. Excludes what happens between
    /// steps: validation, checkpoints, agreement on when to stop.
    MedianStepTime "median_step_microseconds" Microseconds,
    /// Time of all timed steps together.
    WholeStepTime "whole_step_microseconds" Microseconds,
}

impl Statistic {
    /// Statistics of memory that tables show.
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
