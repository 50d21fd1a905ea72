//! Logging of a device's calls.

use std::ops::Range;

use crate::call_log::{CallLog, CopyKind, LoggedCall, RepeatedCalls};
use crate::description::Backend;
use crate::device::Device;
use crate::error::Result;
use crate::stream::StreamKind;

impl Device {
    /// Starts to log all calls, if the device is a Meta device that imitates a GPU.
    pub fn begin_log(&self) {
        self.call_log().begin(self.is_meta() && self.is_cuda_like());
    }

    /// Ends the log and returns it.
    pub fn end_log(&self) -> CallLog {
        self.call_log().end()
    }

    /// Returns whether calls are logged.
    pub fn is_logging(&self) -> bool {
        self.call_log().is_on()
    }

    /// Returns the number of calls in the log.
    pub fn logged_calls(&self) -> usize {
        self.call_log().with(|log| log.calls.len())
    }

    /// Logs the call that `call` returns, if calls are logged. Returns whether they are.
    pub fn log(&self, call: impl FnOnce() -> LoggedCall) -> bool {
        let is_on = self.is_logging();
        if is_on {
            let call = call();
            self.call_log().with(|log| log.calls.push(call));
        }
        is_on
    }

    /// Records that `calls`, the last ones of the log, are repeated `times` times without being logged again.
    pub fn log_repetition(&self, calls: Range<usize>, times: usize) {
        if self.is_logging() && !calls.is_empty() && times > 0 {
            self.call_log().with(|log| log.repeated.push(RepeatedCalls { calls, times }));
        }
    }

    /// Logs a copy of `bytes` bytes of a micro-batch, as [`Device::copy_from_host_on`] would. Meta does not
    /// read the micro-batch itself.
    pub fn log_copy_from_host(&self, bytes: usize, stream: StreamKind) {
        self.log_copy(CopyKind::FromHost, bytes, stream);
    }

    pub(crate) fn log_copy(&self, kind: CopyKind, bytes: usize, stream: StreamKind) {
        self.log(|| LoggedCall::Copy { kind, bytes: bytes as u64, stream });
    }

    /// Returns the backend whose calls operators make: while calls are logged, a GPU's.
    pub(crate) fn calls_of(&self, backend: Backend) -> Backend {
        if self.is_logging() { Backend::Cuda } else { backend }
    }

    /// Checks a call's operands by `check` and logs it. Returns whether it was logged.
    pub(crate) fn logged_call(
        &self,
        check: impl FnOnce() -> Result<()>,
        call: impl FnOnce() -> LoggedCall,
    ) -> Result<bool> {
        if !self.is_logging() {
            return Ok(false);
        }
        check()?;
        Ok(self.log(call))
    }
}
