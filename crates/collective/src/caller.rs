//! Callers, as the errors of their calls name them.

use device::DeviceError;

use crate::call::Call;
use crate::error::{CollectiveError, Result};

/// A rank and its call, for error messages.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// The caller's world number.
    pub rank: usize,
    /// The call.
    pub call: Call,
}

impl Caller {
    /// Returns an error about the call's operands.
    pub(crate) fn refuse<T>(self, problem: String) -> Result<T> {
        Err(CollectiveError::Operand { rank: self.rank, call: self.call, problem })
    }

    /// Returns the call's error for an error of the device.
    pub(crate) fn device_error(self, source: DeviceError) -> CollectiveError {
        CollectiveError::Device { rank: self.rank, call: self.call, source: Box::new(source) }
    }
}
