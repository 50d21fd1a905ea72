//! Softmax over the innermost dimension.

pub(super) mod cuda;

use device::parallel::{for_pieces, simd};
use device::{Backend, Category, Request};

use super::math::{exp, sum, sum2};
use super::{check, rows};
use crate::{Result, Tensor};

/// Computes the softmax of `x`, f32 or bf16, along the innermost dimension, in a new tensor.
///
/// # Errors
/// Another type, no elements, out of memory.
pub fn forward(x: &Tensor) -> Result<Tensor> {
    const OPERATOR: &str = "softmax.forward";
    let dtype = check::computed(OPERATOR, &[("x", x)])?;
    check::not_empty(OPERATOR, "x", x)?;
    let y = x.like(dtype, Request::new(Category::Activation, OPERATOR))?;
    match x.device().backend() {
        Backend::Meta => {}
        Backend::Cuda => cuda::forward(OPERATOR, x, &y)?,
        Backend::Cpu => {
            let columns = x.shape().columns();
            let x = x.values()?;
            let x: &[f32] = &x;
            let per_task = rows::per_task(columns) * columns;
            for_pieces(&mut y.values_mut()?, per_task, |index, y| {
                let x = rows::piece(x, index, per_task);
                simd(|| {
                    for (y, x) in y.chunks_exact_mut(columns).zip(x.chunks_exact(columns)) {
                        let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                        let all = sum(x, |x| exp(x - largest));
                        y.iter_mut().zip(x).for_each(|(y, x)| *y = exp(x - largest) / all);
                    }
                });
            });
        }
    }
    Ok(y)
}

/// Computes the gradient of the input of [`forward`] from its result `y`: y · (dy − Σ y · dy), in a new
/// tensor.
pub fn backward(dy: &Tensor, y: &Tensor) -> Result<Tensor> {
    const OPERATOR: &str = "softmax.backward";
    let dtype = check::computed(OPERATOR, &[("dy", dy), ("y", y)])?;
    check::shape(OPERATOR, "y", y, dy.shape())?;
    check::not_empty(OPERATOR, "dy", dy)?;
    let dx = dy.like(dtype, Request::new(Category::ActivationGradient, OPERATOR))?;
    match dy.device().backend() {
        Backend::Meta => {}
        Backend::Cuda => cuda::backward(OPERATOR, dy, y, &dx)?,
        Backend::Cpu => {
            let columns = dy.shape().columns();
            let dy = dy.values()?;
            let y = y.values()?;
            let (dy, y): (&[f32], &[f32]) = (&dy, &y);
            let per_task = rows::per_task(columns) * columns;
            for_pieces(&mut dx.values_mut()?, per_task, |index, dx| {
                let dy = rows::piece(dy, index, per_task);
                let y = rows::piece(y, index, per_task);
                simd(|| {
                    let operands = dy.chunks_exact(columns).zip(y.chunks_exact(columns));
                    for (dx, (dy, y)) in dx.chunks_exact_mut(columns).zip(operands) {
                        let all = sum2(dy, y, |dy, y| dy * y);
                        let both = dy.iter().zip(y);
                        dx.iter_mut().zip(both).for_each(|(dx, (dy, y))| *dx = y * (dy - all));
                    }
                });
            });
        }
    }
    Ok(dx)
}
