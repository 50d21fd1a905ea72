//! Sums and maxima along one dimension, whose size becomes 1.

pub(super) mod cuda;
mod cut;

use device::parallel::for_pieces;
use device::{Backend, Category, Request};

pub use cut::Reduction;

use super::{check, rows};
use crate::{Result, Tensor};
use cut::Cut;

/// Reduces dimension `axis` of `x`, f32 or bf16, to one element, in a new tensor.
///
/// # Errors
/// No such dimension, or a dimension without elements; out of memory.
pub fn forward(x: &Tensor, axis: usize, reduction: Reduction) -> Result<Tensor> {
    const OPERATOR: &str = "reduce.forward";
    let dtype = check::computed(OPERATOR, &[("x", x)])?;
    let (cut, shape) = Cut::at_axis(OPERATOR, x, axis)?;
    let output = Tensor::empty(x.device(), shape, dtype, Request::new(Category::Activation, OPERATOR))?;
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cuda => cuda::forward(OPERATOR, x, &output, cut, reduction)?,
        Backend::Cpu => {
            let x: &[f32] = &x.values()?;
            let per_task = rows::per_task(cut.count);
            for_pieces(&mut output.values_mut()?, per_task, |index, out| {
                for (at, out) in out.iter_mut().enumerate() {
                    let terms =
                        x[cut.first(index * per_task + at)..].iter().step_by(cut.inner).take(cut.count);
                    *out = match reduction {
                        Reduction::Sum => terms.sum(),
                        Reduction::Maximum => terms.copied().fold(f32::NEG_INFINITY, f32::max),
                    };
                }
            });
        }
    }
    Ok(output)
}

/// Computes the gradient of the input of a maximum with result `y`: `dy` at the first of the largest
/// elements, 0 elsewhere.
pub fn backward_maximum(dy: &Tensor, x: &Tensor, y: &Tensor, axis: usize) -> Result<Tensor> {
    const OPERATOR: &str = "reduce.backward_maximum";
    let dtype = check::computed(OPERATOR, &[("dy", dy), ("x", x), ("y", y)])?;
    let (cut, shape) = Cut::at_axis(OPERATOR, x, axis)?;
    check::shape(OPERATOR, "y", y, shape)?;
    check::shape(OPERATOR, "dy", dy, shape)?;
    let dx = x.like(dtype, Request::new(Category::ActivationGradient, OPERATOR))?;
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cuda => cuda::backward_maximum(OPERATOR, [dy, x, y], &dx, cut)?,
        Backend::Cpu => {
            let dy = dy.values()?;
            let x = x.values()?;
            let y = y.values()?;
            let mut dx = dx.values_mut()?;
            dx.fill(0.0);
            for result in 0..cut.results {
                let offsets = (0..cut.count).map(|term| cut.first(result) + term * cut.inner);
                let largest = offsets.into_iter().find(|offset| x[*offset] == y[result]);
                largest.into_iter().for_each(|offset| dx[offset] = dy[result]);
            }
        }
    }
    Ok(dx)
}
