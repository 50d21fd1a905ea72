//! The norm of all gradients, and the factor that clips them, without leaving the device.

use device::{Category, DType, Device, Request};
use tensor::{Result, Tensor, ops};

use crate::optimizer::Slot;

/// The 2-norm over all parameters: sums of squares over fixed chunks counted from each parameter's start, added in
/// (parameter, chunk) order, so that it does not depend on who owns which.
#[derive(Debug)]
pub struct GradientNorm {
    /// One sum per chunk of every parameter.
    sums: Tensor,
    /// Where each parameter's chunks start in `sums`.
    starts: Vec<usize>,
    /// The norm, then the factor.
    result: Tensor,
    max_norm: f32,
}

impl GradientNorm {
    /// Buffers for the parameters' chunk sums; `max_norm` 0 measures and does not clip. Errors: out of memory.
    pub fn new(device: &Device, slots: &[Slot], max_norm: f32) -> Result<Self> {
        let mut total = 0;
        let mut starts = Vec::with_capacity(slots.len() + 1);
        for slot in slots {
            starts.push(total);
            total += ops::norm::chunks(slot.weight.elements());
        }
        starts.push(total);
        let request = Request::new(Category::OptimizerState, "gradient_norm");
        let sums = Tensor::zeros(device, [total], DType::F32, request)?;
        let result = Tensor::zeros(device, [2], DType::F32, request)?;
        Ok(GradientNorm { sums, starts, result, max_norm })
    }

    /// Measures `gradients`, one per parameter in the order of the slots.
    pub fn measure(&self, gradients: &[Tensor]) -> Result<()> {
        for (gradient, range) in gradients.iter().zip(self.starts.windows(2)) {
            let sums = self.sums.view(range[0], [range[1] - range[0]])?;
            ops::norm::chunk_sums(gradient, &sums)?;
        }
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
