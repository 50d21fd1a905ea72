//! The norm of all gradients, and the factor that clips them, without leaving the device.

use device::{Category, DType, Device, Request};
use tensor::ops::{self, Table};
use tensor::{Result, Tensor};

use crate::optimizer::Slot;

/// The 2-norm over all parameters: sums of squares over fixed chunks counted from each parameter's start, added in
/// (parameter, chunk) order, so that it does not depend on who owns which.
///
/// Who has all gradients calls [`GradientNorm::measure`]. Who has parts of them calls [`GradientNorm::measure_parts`],
/// brings in the sums that others have, and calls [`GradientNorm::finish`], with the same bits.
#[derive(Debug)]
pub struct GradientNorm {
    /// One sum per chunk of every parameter.
    sums: Tensor,
    /// Of a part each: where its sums begin. Without them the gradients are whole and their sums follow each other.
    places: Option<Vec<usize>>,
    /// Where the gradients are.
    table: Table,
    /// The norm, then the factor.
    result: Tensor,
    max_norm: f32,
}

impl GradientNorm {
    /// Buffers for the parameters' chunk sums; `max_norm` 0 measures and does not clip. Errors: out of memory.
    pub fn new(device: &Device, slots: &[Slot], max_norm: f32) -> Result<Self> {
        let sums = slots.iter().map(|slot| ops::norm::chunks(slot.weight.elements())).sum();
        Self::with(device, sums, None, Table::of_gradients(device, slots.len())?, max_norm)
    }

    /// The same for parts of parameters with `sizes` elements: of each, the parameter's number and its first element
    /// there, a multiple of [`ops::norm::CHUNK`]. Errors: out of memory.
    pub fn of_parts(
        device: &Device,
        sizes: &[usize],
        parts: &[(usize, usize)],
        max_norm: f32,
    ) -> Result<Self> {
        let chunks = |sizes: &[usize]| sizes.iter().map(|size| ops::norm::chunks(*size)).sum::<usize>();
        let place =
            |(parameter, first): &(usize, usize)| chunks(&sizes[..*parameter]) + first / ops::norm::CHUNK;
        let places = parts.iter().map(place).collect();
        Self::with(device, chunks(sizes), Some(places), Table::of_parts(device, parts.len())?, max_norm)
    }

    fn with(
        device: &Device,
        sums: usize,
        places: Option<Vec<usize>>,
        table: Table,
        max_norm: f32,
    ) -> Result<Self> {
        let request = Request::new(Category::OptimizerState, "gradient_norm");
        let sums = Tensor::zeros(device, [sums], DType::F32, request)?;
        let result = Tensor::zeros(device, [2], DType::F32, request)?;
        Ok(GradientNorm { sums, places, table, result, max_norm })
    }

    /// Measures `gradients`, one tensor per parameter in the order of the slots.
    pub fn measure(&self, gradients: &[Tensor]) -> Result<()> {
        ops::norm::measure(&self.table, gradients, &self.sums, self.max_norm, &self.result)
    }

    /// The chunk sums of `gradients`, one tensor per part, each in its place, and 0 in all others.
    pub fn measure_parts(&self, gradients: &[Tensor]) -> Result<&Tensor> {
        let places = self.places.as_deref().unwrap_or_default();
        ops::norm::part_sums(&self.table, gradients, places, &self.sums)?;
        Ok(&self.sums)
    }

    /// Norm and factor, once all sums are in their places.
    pub fn finish(&self) -> Result<()> {
        ops::norm::finish(&self.sums, self.max_norm, &self.result)
    }

    /// [2]: the norm as measured, before clipping, and the factor that clips.
    pub fn result(&self) -> &Tensor {
        &self.result
    }

    /// The norm on the host. Waits for the device.
    pub fn value(&self) -> Result<f32> {
        Ok(self.result.to_vec::<f32>()?.first().copied().unwrap_or(0.0))
    }
}
