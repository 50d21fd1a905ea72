//! Operands of a causal convolution besides its input.

use std::ops::RangeInclusive;

use device::DType;

use super::cpu;
use crate::ops::{check, rotary};
use crate::{Result, Tensor};

/// Supported widths: numbers of inputs that each output reads.
pub const WIDTHS: RangeInclusive<usize> = 2..=4;

/// Weights of a causal convolution, and its options.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    /// Weights `[channels, width]` or `[channels, 1, width]`, the oldest input's first.
    pub weight: &'a Tensor,
    /// Bias `[channels]`, if any.
    pub bias: Option<&'a Tensor>,
    /// Whether SiLU is applied to the result.
    pub silu: bool,
    /// Position in its sequence where each token's document starts, `[batch, time]` u32; negative (modulo
    /// 2³²) if it starts before the sequence. `None`: all 0.
    pub documents: Option<&'a Tensor>,
    /// Inputs before the sequences, `[batch, width − 1, channels]`, the oldest first. Documents that start
    /// before the sequence read them. `None`: all documents start in it.
    pub halo: Option<&'a Tensor>,
}

impl Operands<'_> {
    /// Checks the operands against `x_blc`; returns the width.
    pub(super) fn check(&self, operator: &'static str, x_blc: &Tensor) -> Result<usize> {
        let Operands { weight, bias, documents, halo, .. } = self;
        let dtype = check::computed(operator, &[("x", x_blc), ("weight", weight)])?;
        check::rank(operator, "x", x_blc, 3)?;
        let channels = x_blc.shape().columns();
        let width = weight.shape().columns();
        if weight.shape().rows() != channels || !WIDTHS.contains(&width) {
            return Err(check::wrong(operator, "weight", weight, format!("[{channels}, 2, 3 or 4]")));
        }
        if let Some(bias) = bias {
            check::dtype(operator, "bias", bias, dtype)?;
            check::shape(operator, "bias", bias, [channels])?;
        }
        if let Some(documents_bl) = documents {
            check::dtype(operator, "documents", documents_bl, DType::U32)?;
            let [batch, time] = [x_blc.shape().dims()[0], x_blc.shape().dims()[1]];
            check::shape(operator, "documents", documents_bl, [batch, time])?;
        }
        if let Some(halo) = halo {
            check::dtype(operator, "halo", halo, dtype)?;
            check::shape(operator, "halo", halo, [x_blc.shape().dims()[0], width - 1, channels])?;
        }
        Ok(width)
    }

    /// Checks the gradient of the output.
    pub(super) fn check_gradient(
        &self,
        operator: &'static str,
        dy_blc: &Tensor,
        x_blc: &Tensor,
    ) -> Result<()> {
        check::dtype(operator, "dy", dy_blc, x_blc.dtype())?;
        check::shape(operator, "dy", dy_blc, x_blc.shape())
    }

    /// Calls `compute` with the operands' values on the host.
    pub(super) fn on_host(
        &self,
        operator: &'static str,
        x_blc: &Tensor,
        compute: impl FnOnce(cpu::Operands<'_>) -> Result<()>,
    ) -> Result<()> {
        let time = x_blc.shape().dims()[1];
        let documents_bl = self.documents.map(Tensor::read::<u32>).transpose()?;
        rotary::check_documents(operator, documents_bl.as_deref(), time)?;
        let bias = self.bias.map(Tensor::values).transpose()?;
        let halo = self.halo.map(Tensor::values).transpose()?;
        compute(cpu::Operands {
            weight_ck: &self.weight.values()?,
            bias_c: bias.as_deref(),
            documents_bl: documents_bl.as_deref(),
            halo: halo.as_deref(),
            time,
            channels: x_blc.shape().columns(),
            width: self.weight.shape().columns(),
            silu: self.silu,
        })
    }
}
