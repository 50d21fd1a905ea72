//! The norm of all gradients, and the factor that clips them, without leaving the device.

use device::{Category, DType, Device, Request};
use tensor::ops::{self, Table};
use tensor::{Result, Tensor};

use crate::optimizer::Slot;

/// The 2-norm over all parameters: sums of squares over fixed chunks counted from each parameter's start, added in
/// (parameter, chunk) order, so that it does not depend on who owns which.
#[derive(Debug)]
pub struct GradientNorm {
    /// One sum per chunk of every parameter.
    sums: Tensor,
    /// Where the gradients are.
    table: Table,
    /// The norm, then the factor.
    result: Tensor,
    max_norm: f32,
}

impl GradientNorm {
    /// Buffers for the parameters' chunk sums; `max_norm` 0 measures and does not clip. Errors: out of memory.
    pub fn new(device: &Device, slots: &[Slot], max_norm: f32) -> Result<Self> {
        let total = slots.iter().map(|slot| ops::norm::chunks(slot.weight.elements())).sum();
        let request = Request::new(Category::OptimizerState, "gradient_norm");
        let sums = Tensor::zeros(device, [total], DType::F32, request)?;
        let result = Tensor::zeros(device, [2], DType::F32, request)?;
        let table = Table::of_gradients(device, slots.len())?;
        Ok(GradientNorm { sums, table, result, max_norm })
    }

    /// Measures `gradients`, one f32 tensor per parameter in the order of the slots.
    pub fn measure(&self, gradients: &[Tensor]) -> Result<()> {
        ops::norm::measure(&self.table, gradients, &self.sums, self.max_norm, &self.result)
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
