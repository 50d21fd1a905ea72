//! Convolutions of a device: operands are checked, and the call is timed and passed to the library.

use super::dnn::{Dnn, convolve, name};
use crate::call_log::LoggedCall;
use crate::convolution::Convolution;
use crate::device::Device;
use crate::stream::StreamKind;

impl Device {
    /// Enqueues a pass of a convolution on the compute stream.
    ///
    /// # Errors
    /// A device that is not a GPU, no cuDNN, operands that do not fit their regions, no deterministic
    /// algorithm whose workspace fits.
    pub fn convolve(&self, call: &Convolution<'_>) -> crate::Result<()> {
        let Convolution { shape, pass, dtype, .. } = *call;
        let logged = || LoggedCall::Convolution { shape, pass, dtype, work: call.work() };
        if self.logged_call(|| call.check(), logged)? {
            return Ok(());
        }
        let cuda = self.gpu_or_refuse("convolution")?;
        call.check()?;
        let stream = cuda.streams.handle(StreamKind::Compute);
        if cuda.dnn.get().is_none() {
            let dnn = Dnn::open(stream, cuda.blas.tf32).map_err(|error| self.cuda_error(error))?;
            let _ = cuda.dnn.set(dnn.ok_or(crate::DeviceError::NoCudnn)?);
        }
        let dnn = cuda.dnn.get().ok_or(crate::DeviceError::NoCudnn)?;
        let timed = cuda.timed(stream, "convolution", || name(call.pass).to_owned(), call.work());
        convolve(dnn, call).map_err(|error| self.cuda_error(error))?;
        timed.finish().map_err(|error| self.cuda_error(error))
    }
}
