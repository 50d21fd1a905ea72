//! Copies pixels to the device while it computes, and normalises them there.

use std::cell::RefCell;
use std::rc::Rc;

use data::{ArrayShape, HostArray, HostData, HostType, Normalisation, Source};
use device::{Category, DType, Device, Event, Request, StreamKind};
use tensor::Tensor;
use tensor::ops::pixels;

use crate::error::Result;
use crate::feed::arrays::shape_of;

/// A rank's device buffer for the pixels of one micro-batch, \[images, height, width, channels\] of u8, kept
/// throughout the run. The next micro-batch is copied into it as soon as the current one has been normalised.
#[derive(Debug)]
pub(crate) struct PixelBuffer {
    pixels: Tensor,
    normalisation: Normalisation,
    /// Event after the last work that reads the pixels.
    read: RefCell<Event>,
}

impl PixelBuffer {
    /// Allocates the buffer for a source of pixels; `None` for inputs of other types.
    pub(crate) fn new(device: &Device, source: &dyn Source) -> Result<Option<Rc<Self>>> {
        let ArrayShape { extents, values } = source.shape().inputs;
        let (HostType::U8, Some(normalisation)) = (values, source.normalisation()) else {
            return Ok(None);
        };
        let request = Request::new(Category::Input, "pixels");
        let pixels = Tensor::empty(device, shape_of(&extents)?, DType::U8, request)?;
        let read = RefCell::new(device.record(StreamKind::Compute)?);
        Ok(Some(Rc::new(PixelBuffer { pixels, normalisation: normalisation.clone(), read })))
    }

    /// Allocates the buffer on a rank with these stages, if they include the first; otherwise `None`.
    pub(crate) fn of_stages(
        device: &Device,
        source: &dyn Source,
        mut stages: impl Iterator<Item = usize>,
    ) -> Result<Option<Rc<Self>>> {
        if stages.any(|stage| stage == 0) { Self::new(device, source) } else { Ok(None) }
    }

    /// Enqueues the copy of `pixels`, which the caller may change afterwards. Returns them normalised, as
    /// `dtype`.
    ///
    /// # Errors
    /// The array has another type or size, or the device fails.
    pub(crate) fn upload(&self, pixels: &HostArray, dtype: DType) -> Result<Tensor> {
        self.fill(pixels)?;
        let values = self.normalised(dtype)?;
        self.end_read()?;
        Ok(values)
    }

    /// Enqueues the copy of `pixels`, which the caller may change afterwards. The compute stream waits for
    /// it.
    ///
    /// # Errors
    /// The array has another type or size, or the device fails.
    pub(crate) fn fill(&self, pixels: &HostArray) -> Result<()> {
        let device = self.pixels.device();
        device.wait(StreamKind::Input, &self.read.borrow())?;
        match pixels.data {
            HostData::Shape(_) => device.log_copy_from_host(self.pixels.bytes(), StreamKind::Input),
            _ => self.pixels.set_on(pixels.pixels()?, StreamKind::Input)?,
        }
        device.await_arrival(&device.arrival(StreamKind::Input)?);
        Ok(())
    }

    /// Returns the buffer's pixels normalised. The caller must then call [`PixelBuffer::end_read`].
    pub(crate) fn normalised(&self, dtype: DType) -> Result<Tensor> {
        let Normalisation { mean, deviation } = &self.normalisation;
        Ok(pixels::normalise(&self.pixels, mean, deviation, dtype)?)
    }

    /// Allows the next copy to start after the work enqueued so far.
    pub(crate) fn end_read(&self) -> Result<()> {
        self.read.replace(self.pixels.device().record(StreamKind::Compute)?);
        Ok(())
    }
}
