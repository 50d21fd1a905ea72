//! The rank and call named in an error.

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
    /// Returns an error that rejects the call's operands.
    pub(crate) fn refuse<T>(self, problem: String) -> Result<T> {
        Err(CollectiveError::Operand { rank: self.rank, call: self.call, problem })
    }

    /// Wraps a device error with this rank and call.
    pub(crate) fn device_error(self, source: DeviceError) -> CollectiveError {
        CollectiveError::Device { rank: self.rank, call: self.call, source: Box::new(source) }
    }
}
