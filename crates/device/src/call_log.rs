//! The log of a Meta device that imitates a GPU: every call that the GPU would receive, in order.
//!
//! While a device logs, operators make a GPU's calls, because [`Device::backend`](crate::Device::backend)
//! returns the imitated device's backend. Each call ends in the log instead of the driver. So the log is made
//! by the code that launches, and nothing else describes a step.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use crate::convolution::{ConvolutionPass, ConvolutionShape};
use crate::dtype::DType;
use crate::kernels::Function;
use crate::matmul_table::MatmulKey;
use crate::stream::StreamKind;
use crate::tiling::Tiling;
use crate::work::Work;

/// A call in a log.
#[derive(Clone, Debug)]
pub enum LoggedCall {
    /// A launch of a kernel.
    Kernel(LoggedKernel),
    /// A cuBLASLt matmul, on the compute stream.
    Matmul {
        /// Sizes, types, transposition and epilogue.
        key: MatmulKey,
        /// Minimum bytes and FLOPs.
        work: Work,
    },
    /// A cuDNN convolution pass, on the compute stream.
    Convolution {
        /// Sizes of the convolution.
        shape: ConvolutionShape,
        /// Forward, or one of the backward passes.
        pass: ConvolutionPass,
        /// Type of all elements.
        dtype: DType,
        /// Minimum bytes and FLOPs.
        work: Work,
    },
    /// A copy or a zero-fill.
    Copy {
        /// Source and destination of the copy.
        kind: CopyKind,
        /// Number of bytes.
        bytes: u64,
        /// Stream of the copy.
        stream: StreamKind,
    },
    /// A message or a collective between ranks.
    Communication(LoggedCommunication),
    /// An event recorded after the stream's work so far.
    Record(StreamKind),
    /// A wait of a stream for an event.
    Wait {
        /// The stream that waits.
        stream: StreamKind,
        /// The event waited for.
        event: LoggedEvent,
    },
    /// A wait of the host for an event.
    HostWait(LoggedEvent),
    /// A wait of the host for all streams.
    Synchronize,
    /// Start of the part of the step with this name.
    Section(&'static str),
}

/// A launch of a kernel in a log.
#[derive(Clone, Copy, Debug)]
pub struct LoggedKernel {
    /// The launched kernel.
    pub function: Function,
    /// Blocks along each dimension.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block in bytes.
    pub shared_bytes: u32,
    /// Stream of the launch.
    pub stream: StreamKind,
    /// Minimum bytes and FLOPs; no bytes for kernels that move only a few.
    pub work: Work,
    /// Division of the work, if it decides the time.
    pub tiling: Option<Tiling>,
}

/// Source and destination of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CopyKind {
    /// A copy from host memory, which may change right after the call.
    FromHost,
    /// A copy to host memory for which the host waits.
    ToHost,
    /// A copy to host memory for which the host waits later, or never.
    ToHostLater,
    /// A copy from a host pool, without blocking the host.
    FromPool,
    /// A copy to a host pool, without blocking the host.
    ToPool,
    /// A copy between two buffers of the device.
    Within,
    /// A zero-fill, without a source.
    Zero,
}

/// A message or a collective in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedCommunication {
    /// Name of the operation.
    pub operation: &'static str,
    /// Bytes of this rank's operand. For a collective, the whole array; for messages, the bytes sent or
    /// received, whichever are more.
    pub bytes: u64,
    /// World ranks that take part, in the order of the group. For messages, this rank and the ranks that it
    /// exchanges messages with.
    pub ranks: Vec<usize>,
    /// Ranks that receive messages from this one, with the bytes; empty for collectives.
    pub sends: Vec<(usize, u64)>,
    /// Ranks that send messages to this one, with the bytes; empty for collectives.
    pub receives: Vec<(usize, u64)>,
    /// Stream of the communication.
    pub stream: StreamKind,
}

/// An event, identified by how many events were recorded after it on its stream. This number stays the same
/// when calls repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedEvent {
    /// The stream on which the event was recorded.
    pub stream: StreamKind,
    /// Number of later events on the stream, at the time of the wait.
    pub later: u64,
}

/// A range of logged calls that repeat without being logged again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepeatedCalls {
    /// Indices of the calls in the log.
    pub calls: Range<usize>,
    /// Number of repetitions after the logged one.
    pub times: usize,
}

/// The calls of a device, in the order in which the host makes them.
#[derive(Clone, Debug, Default)]
pub struct CallLog {
    /// The logged calls.
    pub calls: Vec<LoggedCall>,
    /// Repetitions, sorted by the end of their calls.
    pub repeated: Vec<RepeatedCalls>,
}

impl CallLog {
    /// Calls `each` with every call in order, repetitions included.
    pub fn for_each(&self, mut each: impl FnMut(&LoggedCall)) {
        let mut next = 0;
        for RepeatedCalls { calls, times } in &self.repeated {
            self.calls[next..calls.end].iter().for_each(&mut each);
            (0..*times).for_each(|_| self.calls[calls.clone()].iter().for_each(&mut each));
            next = calls.end;
        }
        self.calls[next..].iter().for_each(each);
    }

    /// Calls `each` with every logged call and how often it is made.
    pub fn for_each_counted(&self, mut each: impl FnMut(&LoggedCall, usize)) {
        let mut counts = vec![1; self.calls.len()];
        for RepeatedCalls { calls, times } in &self.repeated {
            counts[calls.clone()].iter_mut().for_each(|count| *count += times);
        }
        self.calls.iter().zip(counts).for_each(|(call, count)| each(call, count));
    }

    /// Returns the FLOPs of all matmuls, convolutions and kernels.
    #[must_use]
    pub fn flops(&self) -> u64 {
        let mut flops = 0_u64;
        self.for_each(|call| flops = flops.saturating_add(call.work().flops));
        flops
    }
}

impl LoggedCall {
    /// Returns the minimum bytes and FLOPs of the call.
    #[must_use]
    pub fn work(&self) -> Work {
        match self {
            LoggedCall::Kernel(LoggedKernel { work, .. })
            | LoggedCall::Matmul { work, .. }
            | LoggedCall::Convolution { work, .. } => *work,
            LoggedCall::Copy { bytes, .. } => Work { bytes: *bytes, flops: 0 },
            _ => Work::default(),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct LogState {
    is_on: Cell<bool>,
    log: RefCell<CallLog>,
}

impl LogState {
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.get()
    }

    /// Starts an empty log, if `is_on`.
    pub(crate) fn begin(&self, is_on: bool) {
        self.log.take();
        self.is_on.set(is_on);
    }

    pub(crate) fn end(&self) -> CallLog {
        self.is_on.set(false);
        self.log.take()
    }

    pub(crate) fn with<T>(&self, body: impl FnOnce(&mut CallLog) -> T) -> T {
        body(&mut self.log.borrow_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_calls_are_those_that_are_made() {
        let log = CallLog {
            calls: vec![
                LoggedCall::Section("a"),
                LoggedCall::Section("b"),
                LoggedCall::Synchronize,
                LoggedCall::Section("c"),
            ],
            repeated: vec![
                RepeatedCalls { calls: 1..2, times: 3 },
                RepeatedCalls { calls: 0..3, times: 2 },
                RepeatedCalls { calls: 3..4, times: 5 },
            ],
        };
        let made = |name: &str| {
            let mut count = 0;
            log.for_each(|call| count += usize::from(format!("{call:?}").contains(name)));
            count
        };
        log.for_each_counted(|call, count| assert_eq!(count, made(&format!("{call:?}")), "{call:?}"));
    }
}
