//! Linear layers on the host.

use device::parallel::simd;
use device::{MatrixRef, gemm, gemm_then};

use crate::ops::activation::{Elementary, Relu};
use crate::ops::{GradientTarget, columns};
use crate::{Result, Tensor};

/// Computes out (+)= x · Wᵀ + b in one pass over the output. With `clip`, applies ReLU.
pub(super) fn affine(
    x_ti: &Tensor,
    weight_oi: &Tensor,
    bias_o: Option<&Tensor>,
    clip: bool,
    out_to: &Tensor,
    accumulate: bool,
) -> Result<()> {
    let rows = out_to.shape().rows();
    let inputs = x_ti.shape().columns();
    let outputs = weight_oi.shape().rows();
    let stride = out_to.shape().columns();
    let x_ti = x_ti.values()?;
    let weight_oi = weight_oi.values()?;
    let bias_o = bias_o.map(Tensor::values).transpose()?;
    let x_matrix = MatrixRef::new(&x_ti, rows, inputs, inputs);
    let weight_oi = MatrixRef::new(&weight_oi, outputs, inputs, inputs).transposed();
    let bias_o: &[f32] = bias_o.as_deref().unwrap_or(&[]);
    gemm_then(x_matrix, weight_oi, &mut out_to.values_mut()?, stride, 1.0, accumulate, |finished| {
        simd(|| {
            for row in finished.chunks_mut(stride) {
                match (bias_o.is_empty(), clip) {
                    (false, true) => row.iter_mut().zip(bias_o).for_each(|(y, b)| *y = Relu::value(*y + b)),
                    (false, false) => row.iter_mut().zip(bias_o).for_each(|(y, b)| *y += b),
                    (true, true) => row.iter_mut().for_each(|y| *y = Relu::value(*y)),
                    (true, false) => {}
                }
            }
        });
    });
    Ok(())
}

/// Computes dx (+)= dy · weight.
pub(super) fn backward_input(
    dy_to: &Tensor,
    weight_oi: &Tensor,
    dx_ti: &Tensor,
    accumulate: bool,
) -> Result<()> {
    let rows = dy_to.shape().rows();
    let outputs = weight_oi.shape().rows();
    let stride = dy_to.shape().columns();
    let inputs = dx_ti.shape().columns();
    let dy_to = dy_to.values()?;
    let weight_oi = weight_oi.values()?;
    let dy_to = MatrixRef::new(&dy_to, rows, outputs, stride);
    let weight_oi = MatrixRef::new(&weight_oi, outputs, inputs, inputs);
    gemm(dy_to, weight_oi, &mut dx_ti.values_mut()?, inputs, 1.0, accumulate);
    Ok(())
}

/// Computes weight (+)= dyᵀ · x, and bias (+)= Σ over rows of dy.
pub(super) fn backward_weight(
    dy_to: &Tensor,
    x_ti: &Tensor,
    weight: &GradientTarget,
    bias: Option<&GradientTarget>,
) -> Result<()> {
    let rows = dy_to.shape().rows();
    let outputs = weight.tensor.shape().rows();
    let stride = dy_to.shape().columns();
    let inputs = x_ti.shape().columns();
    let gradient = dy_to.values()?;
    let x_ti = x_ti.values()?;
    let dy_matrix = MatrixRef::new(&gradient, rows, outputs, stride).transposed();
    let x_matrix = MatrixRef::new(&x_ti, rows, inputs, inputs);
    gemm(dy_matrix, x_matrix, &mut weight.tensor.values_mut()?, inputs, 1.0, weight.accumulate);
    bias.map_or(Ok(()), |bias| backward_bias(dy_to, bias))
}

/// Computes bias (+)= Σ over rows of dy.
pub(super) fn backward_bias(dy_to: &Tensor, bias: &GradientTarget) -> Result<()> {
    let rows = dy_to.shape().rows();
    let outputs = dy_to.shape().columns();
    let dy_to = dy_to.values()?;
    let dy_to: &[f32] = &dy_to;
    columns::sum_rows(rows, &mut bias.tensor.values_mut()?, bias.accumulate, |row, columns, sum| {
        let dy = &dy_to[row * outputs..][columns];
        sum.iter_mut().zip(dy).for_each(|(sum, dy)| *sum += dy);
    });
    Ok(())
}
