//! ReLU and residual additions after a layer's bias, applied to a matmul's sums before they are rounded. For
//! outputs without a gradient.

use device::{Backend, Epilogue};

use super::{allocate, count, cpu, cuda};
use crate::{Result, Tensor};

/// Operations that follow the bias.
#[derive(Clone, Copy, Debug)]
pub enum Ending<'a> {
    /// No operation.
    None,
    /// ReLU: max(x, 0).
    Relu,
    /// relu(sum + residual), where the residual has the shape and type of the output.
    ResidualRelu(&'a Tensor),
}

impl<'a> Ending<'a> {
    pub(in crate::ops) fn residual(self) -> Option<&'a Tensor> {
        match self {
            Ending::ResidualRelu(residual) => Some(residual),
            Ending::None | Ending::Relu => None,
        }
    }

    pub(in crate::ops) fn has_relu(self) -> bool {
        !matches!(self, Ending::None)
    }
}

/// Computes ending(x · Wᵀ + bias) for `x [.., in]`, `weight [out, in]`, `bias [out]`.
pub(in crate::ops) fn ended(
    operator: &'static str,
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    ending: Ending<'_>,
) -> Result<Tensor> {
    let output = allocate(operator, x, weight, Some(bias))?;
    count(x, weight);
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            if let Some(residual) = ending.residual() {
                output.copy_from(&residual.reshape(output.shape())?)?;
            }
            let adds = ending.residual().is_some();
            cpu::affine(x, weight, Some(bias), ending.has_relu(), &output, adds)?;
        }
        Backend::Cuda => affine_ended(x, weight, bias, ending, &output)?,
    }
    Ok(output)
}

/// Computes out = ending(x · Wᵀ + bias) in one matmul on a GPU.
pub(in crate::ops) fn affine_ended(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    ending: Ending<'_>,
    out: &Tensor,
) -> Result<()> {
    let bias = bias.region();
    let epilogue = match ending {
        Ending::None => Epilogue::Bias(bias),
        Ending::Relu => Epilogue::BiasRelu(bias),
        Ending::ResidualRelu(residual) => Epilogue::BiasResidualRelu { bias, residual: residual.region() },
    };
    cuda::forward(x, weight, out, false, epilogue)
}
