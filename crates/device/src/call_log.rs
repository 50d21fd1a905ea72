//! The log of a Meta device that imitates a GPU: every call that the GPU would receive, in order.
//!
//! While a device logs, operators make a GPU's calls, because [`Device::backend`](crate::Device::backend) is
//! that of the imitated device, and each call ends in the log instead of the driver. So the log is made by
//! the code that launches, and nothing else describes a step.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use crate::convolution::{ConvolutionPass, ConvolutionShape};
use crate::dtype::DType;
use crate::kernels::Function;
use crate::matmul_table::MatmulKey;
use crate::stream::StreamKind;
use crate::work::Work;

/// A call in a log.
#[derive(Clone, Debug)]
pub enum LoggedCall {
    /// A launch of a kernel.
    Kernel(LoggedKernel),
    /// A matmul of the library, on the compute stream.
    Matmul {
        /// Sizes, types, transposition and epilogue.
        key: MatmulKey,
        /// The least work.
        work: Work,
    },
    /// A pass of a convolution by the library, on the compute stream.
    Convolution {
        /// The sizes.
        shape: ConvolutionShape,
        /// The pass.
        pass: ConvolutionPass,
        /// Type of all elements.
        dtype: DType,
        /// The least work.
        work: Work,
    },
    /// A copy or a zero-fill.
    Copy {
        /// The ends of the copy.
        kind: CopyKind,
        /// Number of bytes.
        bytes: u64,
        /// The stream.
        stream: StreamKind,
    },
    /// A message or a collective between ranks.
    Communication(LoggedCommunication),
    /// An event after the work of a stream so far.
    Record(StreamKind),
    /// A wait of a stream for an event.
    Wait {
        /// The stream that waits.
        stream: StreamKind,
        /// The event.
        event: LoggedEvent,
    },
    /// A wait of the host for an event.
    HostWait(LoggedEvent),
    /// A wait of the host for all streams.
    Synchronize,
    /// The name of the part of the step that begins.
    Section(&'static str),
}

/// A launch of a kernel in a log.
#[derive(Clone, Copy, Debug)]
pub struct LoggedKernel {
    /// The kernel.
    pub function: Function,
    /// Blocks along each dimension.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block in bytes.
    pub shared_bytes: u32,
    /// The stream.
    pub stream: StreamKind,
    /// The least work; without bytes for kernels that only move a few.
    pub work: Work,
}

/// The ends of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CopyKind {
    /// From host memory, which may change after the call.
    FromHost,
    /// To host memory; the host waits for it.
    ToHost,
    /// To host memory, for which the host waits later, or never.
    ToHostLater,
    /// From a host pool, beside the host.
    FromPool,
    /// To a host pool, beside the host.
    ToPool,
    /// Within the device.
    Within,
    /// No source: a zero-fill.
    Zero,
}

/// A message or a collective in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedCommunication {
    /// Name of the operation.
    pub operation: &'static str,
    /// Bytes of this rank's operand: of a collective the whole array, of messages those that it sends or
    /// receives, whichever are more.
    pub bytes: u64,
    /// Ranks of the world that take part, in the order of their numbers in the group; of messages, this rank
    /// and those with which it exchanges some.
    pub ranks: Vec<usize>,
    /// Ranks that receive from this one, and how many bytes; empty for collectives.
    pub sends: Vec<(usize, u64)>,
    /// Ranks that send to this one, and how many bytes; empty for collectives.
    pub receives: Vec<(usize, u64)>,
    /// The stream.
    pub stream: StreamKind,
}

/// An event of a stream, by the number of events that were recorded on the stream after it. That stays the
/// same where calls repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedEvent {
    /// The stream on which the event was recorded.
    pub stream: StreamKind,
    /// Number of later events of the stream, when something waits for this one.
    pub later: u64,
}

/// Calls that are repeated without being logged again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepeatedCalls {
    /// Indices of the calls.
    pub calls: Range<usize>,
    /// Number of repetitions after the logged one.
    pub times: usize,
}

/// The calls of a device, in the order in which the host makes them.
#[derive(Clone, Debug, Default)]
pub struct CallLog {
    /// The calls.
    pub calls: Vec<LoggedCall>,
    /// Repetitions, by the end of their calls.
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

    /// FLOPs of all matmuls, convolutions and kernels.
    #[must_use]
    pub fn flops(&self) -> u64 {
        let mut flops = 0_u64;
        self.for_each(|call| flops = flops.saturating_add(call.work().flops));
        flops
    }
}

impl LoggedCall {
    /// The least work of the call.
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
