//! Convolutions of a device: checks operands, times the call and passes it to cuDNN.

use super::Cuda;
use super::dnn::{Dnn, convolve, name};
use super::dnn_epilogue::convolve_then;
use crate::call_log::LoggedCall;
use crate::convolution::{Convolution, ConvolutionEpilogue};
use crate::device::{Device, OnDevice};
use crate::stream::StreamKind;
use crate::work::Work;

impl Device {
    /// Enqueues a pass of a convolution on the compute stream.
    ///
    /// # Errors
    /// A device that is not a GPU, no cuDNN, operands that do not fit their regions, no deterministic
    /// algorithm whose workspace fits.
    pub fn convolve(&self, call: &Convolution<'_>) -> crate::Result<()> {
        let calls = |_: &Cuda, dnn: &Dnn| convolve(dnn, call);
        self.with_dnn(call, (name(call.pass), call.work()), || call.check(), calls).map(drop)
    }

    /// Enqueues a forward pass with its epilogue, if cuDNN has an algorithm that applies it before the result
    /// is rounded; otherwise the pass without it. Returns whether the epilogue was applied.
    pub fn convolve_then(
        &self,
        call: &Convolution<'_>,
        epilogue: &ConvolutionEpilogue<'_>,
    ) -> crate::Result<bool> {
        let work = call.work();
        let work = Work { bytes: work.bytes + epilogue.bytes(), ..work };
        let check = || call.check().and_then(|()| epilogue.check(call));
        let calls = |cuda: &Cuda, dnn: &Dnn| convolve_then(dnn, &cuda.convolution_epilogues, call, epilogue);
        let applied = self.with_dnn(call, ("convolution, epilogue", work), check, calls)?;
        Ok(applied.unwrap_or(true))
    }

    /// Checks a pass, then times, logs and runs `enqueue`, which calls cuDNN. Returns `None` on a device that
    /// only logs.
    fn with_dnn<T>(
        &self,
        call: &Convolution<'_>,
        (name, work): (&'static str, Work),
        check: impl Fn() -> crate::Result<()>,
        enqueue: impl FnOnce(&Cuda, &Dnn) -> super::error::Result<T>,
    ) -> crate::Result<Option<T>> {
        let Convolution { shape, pass, dtype, .. } = *call;
        if self.logged_call(&check, || LoggedCall::Convolution { shape, pass, dtype, work })? {
            return Ok(None);
        }
        let cuda = self.gpu_or_refuse("convolution")?;
        check()?;
        let stream = cuda.streams.handle(StreamKind::Compute);
        if cuda.dnn.get().is_none() {
            let dnn = Dnn::open(stream, cuda.blas.tf32).on(self)?;
            let _ = cuda.dnn.set(dnn.ok_or(crate::DeviceError::NoCudnn)?);
        }
        let dnn = cuda.dnn.get().ok_or(crate::DeviceError::NoCudnn)?;
        let timed = cuda.timed(stream, "convolution", || name.to_owned(), work);
        let enqueued = enqueue(cuda, dnn).on(self)?;
        timed.finish().on(self)?;
        Ok(Some(enqueued))
    }
}
