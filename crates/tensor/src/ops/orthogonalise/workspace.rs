//! Scratch memory of the iterations.

use device::{Category, DType, Device, Request};

use super::kernels::OPERATOR;
use crate::ops::norm;
use crate::{Result, Tensor};

/// Scratch for one matrix at a time.
#[derive(Debug)]
pub struct Workspace {
    /// The iterate and its successor, bf16.
    iterates: [Tensor; 2],
    /// G and bG + cG², bf16.
    squares: [Tensor; 2],
    /// Sums of squares of the matrix's chunks, f32.
    sums: Tensor,
}

impl Workspace {
    /// Allocates scratch for matrices of these shapes, in memory of the optimizer's state.
    pub fn new(device: &Device, shapes: impl Iterator<Item = [usize; 2]> + Clone) -> Result<Self> {
        let empty = |elements: usize, dtype: DType| {
            Tensor::empty(device, [elements], dtype, Request::new(Category::OptimizerState, OPERATOR))
        };
        let whole = shapes.clone().map(|[m, n]| m * n).max().unwrap_or(0);
        let square = shapes.map(|[m, n]| m.min(n) * m.min(n)).max().unwrap_or(0);
        Ok(Workspace {
            iterates: [empty(whole, DType::Bf16)?, empty(whole, DType::Bf16)?],
            squares: [empty(square, DType::Bf16)?, empty(square, DType::Bf16)?],
            sums: empty(norm::chunks(whole), DType::F32)?,
        })
    }

    pub(super) fn iterates(&self, [m, n]: [usize; 2]) -> Result<[Tensor; 2]> {
        let [first, second] = &self.iterates;
        Ok([first.view(0, [m, n])?, second.view(0, [m, n])?])
    }

    pub(super) fn squares(&self, side: usize) -> Result<[Tensor; 2]> {
        let [first, second] = &self.squares;
        Ok([first.view(0, [side, side])?, second.view(0, [side, side])?])
    }

    pub(super) fn sums(&self, elements: usize) -> Result<Tensor> {
        self.sums.view(0, [norm::chunks(elements)])
    }
}
