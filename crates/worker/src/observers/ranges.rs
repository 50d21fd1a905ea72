//! Shows operators as ranges in tools such as Nsight Systems.

use autograd::{Call, Direction, Observer, ObserverError};
use device::nvtx;
use tensor::Tensor;

/// An observer that opens a range named after the operator for each call.
#[derive(Debug)]
pub(crate) struct OperatorRanges;

impl Observer for OperatorRanges {
    fn before(&self, call: &Call) -> Result<(), ObserverError> {
        match call.direction {
            Direction::Forward => nvtx::push(call.operator),
            pass => nvtx::push(&format!("{}, {}", call.operator, pass.name())),
        }
        Ok(())
    }

    fn after(&self, _: &Call, _: &[Option<&Tensor>]) -> Result<(), ObserverError> {
        nvtx::pop();
        Ok(())
    }
}
