//! What is counted on every rank. A new statistic is a variant here and its value in `RankStatistics::take`.

use std::borrow::Cow;
use std::sync::LazyLock;

use memory::Category;

use crate::phase::Phase;

/// What a value counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// A number of things.
    Count,
    /// Millionths of a second.
    Microseconds,
}

macro_rules! statistics {
    ($($(#[doc = $doc:literal])+ $variant:ident $name:literal $unit:ident,)+) => {
        /// One number of a rank. "Blocks" are those of the caching allocator, rounding included.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Statistic {
            $($(#[doc = $doc])+ $variant,)+
            /// Bytes of allocated blocks of one category; over all categories they make `allocated_bytes`.
            LiveBytes(Category),
            /// The same when `allocated_bytes` was at its peak; over all categories they make
            /// `peak_allocated_bytes`. Not the category's own peak.
            PeakBytes(Category),
            /// What a step spends in a phase: the median over the last 1,024 timed steps.
            MedianTime(Phase),
            /// What all timed steps spent in it.
            WholeTime(Phase),
        }

        impl Statistic {
            /// The key in files, and the name in tables.
            pub fn name(self) -> Cow<'static, str> {
                match self {
                    $(Statistic::$variant => $name.into(),)+
                    Statistic::LiveBytes(category) => format!("live_{}_bytes", category.name()).into(),
                    Statistic::PeakBytes(category) => format!("at_peak_{}_bytes", category.name()).into(),
                    Statistic::MedianTime(phase) => format!("median_{}_microseconds", phase.name()).into(),
                    Statistic::WholeTime(phase) => format!("whole_{}_microseconds", phase.name()).into(),
                }
            }

            /// What it counts in.
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
    /// Blocks handed out and not given back. Leaves out the allocator's idle blocks and all that is not
    /// asked for through it (driver, libraries).
    AllocatedBytes "allocated_bytes" Bytes,
    /// Taken from the driver: allocated and idle blocks. Leaves out what drivers and libraries take themselves.
    ReservedBytes "reserved_bytes" Bytes,
    /// The most that `allocated_bytes` has been.
    PeakAllocatedBytes "peak_allocated_bytes" Bytes,
    /// The most that `reserved_bytes` has been.
    PeakReservedBytes "peak_reserved_bytes" Bytes,
    /// What the owners of active blocks asked for, without rounding.
    RequestedBytes "requested_bytes" Bytes,
    /// Blocks not yet usable again: allocated, or given back while another stream used them.
    ActiveBytes "active_bytes" Bytes,
    /// Idle blocks in segments that others use too: what emptying the cache cannot give back. Leaves out
    /// expandable segments.
    InactiveSplitBytes "inactive_split_bytes" Bytes,
    /// How many such blocks there are.
    InactiveSplitBlocks "inactive_split_blocks" Count,
    /// Segments held from the driver. Leaves out expandable ones.
    Segments "segments" Count,
    /// Blocks handed out and not given back.
    AllocatedBlocks "allocated_blocks" Count,
    /// Blocks handed out since the start, given back or not.
    Allocations "allocations" Count,
    /// Requests that had to release the whole cache and try again.
    Retries "retries" Count,
    /// Requests that failed for want of memory.
    OutOfMemory "ooms" Count,
    /// Times that memory was taken from the driver: segments, and steps of expandable ones.
    DriverAllocations "driver_allocations" Count,
    /// Times that memory was given back to the driver.
    DriverFrees "driver_frees" Count,
    /// Operands of the data plane sent to other ranks. Leaves out headers and the control plane.
    BytesSent "bytes_sent" Bytes,
    /// Operands of the data plane received from other ranks. Leaves out headers and the control plane.
    BytesReceived "bytes_received" Bytes,
    /// Calls of the data plane.
    CollectiveCalls "collective_calls" Count,
    /// Used on the device, as its driver says, when the context was made: the context, and what other processes had.
    /// 0 where there is no driver.
    ContextBytes "context_bytes" Bytes,
    /// What loaded kernels and library handles then took.
    ModuleBytes "module_bytes" Bytes,
    /// What connections to other ranks took: buffers and kernels of NCCL.
    CommunicatorBytes "communicator_bytes" Bytes,
    /// What the first step made drivers and libraries take besides.
    WarmUpBytes "warm_up_bytes" Bytes,
    /// Used on the device at the end, as its driver says.
    DriverUsedBytes "driver_used_bytes" Bytes,
    /// That, less context, modules, communicators, warm-up and reserved: what nothing accounts for. 0 where it would be negative.
    UnaccountedBytes "unaccounted_bytes" Bytes,
    /// How much more that is than after the second step.
    UnaccountedGrowthBytes "unaccounted_growth_bytes" Bytes,
    /// GPUs on which the rank's process has a context: its ranks', and no other. 0 where there is no driver.
    DeviceContexts "device_contexts" Count,
    /// Steps whose phases were timed: all but the first, which warms up, unless there is no other. 0 where nothing is
    /// computed.
    TimedSteps "timed_steps" Count,
    /// The median timed step, from its begin to its end on the device's compute stream. Leaves out what lies between steps:
    /// validations, checkpoints, agreeing on when to stop.
    MedianStepTime "median_step_microseconds" Microseconds,
    /// All timed steps together.
    WholeStepTime "whole_step_microseconds" Microseconds,
}

impl Statistic {
    /// Every statistic, in the order of tables and of the wire.
    pub fn all() -> &'static [Statistic] {
        &ALL
    }
}
