//! Orthogonalisation of matrices by Newton–Schulz iterations in bf16 (Jordan and others, *Muon: An optimizer
//! for hidden layers in neural networks*, 2024), as `torch.optim.Muon` computes it.
//!
//! A matrix X is divided by its Frobenius norm. Each iteration then replaces it by aX + (bG + cG²)X with
//! G = XXᵀ, which moves all singular values towards 1. For a matrix with more rows than columns G is XᵀX and
//! multiplies from the right. The result is a function of the matrix alone: neither of its address nor of how
//! its columns were divided over ranks.

mod columns;
mod kernels;
mod normalise;
mod workspace;

use device::DType;

use super::check;
use super::matmul::{self, Factor};
use crate::{Result, Tensor};

pub use workspace::Workspace;

pub(super) use kernels::FAMILY;
use kernels::OPERATOR;

/// The constants of the iterations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NewtonSchulz {
    /// Factors a, b and c of X, GX and G²X.
    pub coefficients: [f32; 3],
    /// Number of iterations.
    pub iterations: u32,
    /// Lower bound of the norm that a matrix is divided by.
    pub epsilon: f32,
}

impl Default for NewtonSchulz {
    /// Returns the constants of `torch.optim.Muon`.
    fn default() -> Self {
        NewtonSchulz { coefficients: [3.4445, -4.775, 2.0315], iterations: 5, epsilon: 1e-7 }
    }
}

/// A matrix in memory, bf16.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// The elements: `parts` matrices `[rows, columns / parts]`, one after another.
    pub elements: Tensor,
    /// Number of rows and columns of the whole matrix.
    pub shape: [usize; 2],
    /// Number of parts that the columns are divided into.
    pub parts: usize,
}

/// Returns the FLOPs of orthogonalising a matrix of this shape.
#[must_use]
pub fn flops(rules: &NewtonSchulz, [rows, columns]: [usize; 2]) -> u64 {
    let short = rows.min(columns) as u64;
    let long = rows.max(columns) as u64;
    u64::from(rules.iterations) * (4 * short * short * long + 2 * short * short * short)
}

/// Replaces `matrix` by `scale` times its orthogonalised values. `workspace` must be large enough for it.
///
/// # Errors
/// Another type than bf16, parts that do not divide the columns, a workspace that is too small.
pub fn orthogonalise(rules: &NewtonSchulz, matrix: &Matrix, scale: f32, workspace: &Workspace) -> Result<()> {
    let Matrix { elements, shape: [m, n], parts } = matrix;
    let [m, n] = [*m, *n];
    check::dtype(OPERATOR, "matrix", elements, DType::Bf16)?;
    check::elements(OPERATOR, "matrix", elements, m * n)?;
    if *parts == 0 || !n.is_multiple_of(*parts) {
        return Err(check::wrong(OPERATOR, "matrix", elements, format!("{n} columns in {parts} parts")));
    }
    if m * n == 0 {
        return Ok(());
    }
    let [mut x_mn, mut next_mn] = workspace.iterates([m, n])?;
    let whole = match parts {
        1 => elements.reshape([m, n])?,
        _ => {
            columns::join(elements, &next_mn, *parts)?;
            next_mn.clone()
        }
    };
    normalise::normalise(&whole, &workspace.sums(m * n)?, &x_mn, rules.epsilon)?;
    let [gram, polynomial] = workspace.squares(m.min(n))?;
    let [a, b, c] = rules.coefficients;
    for iteration in 1..=rules.iterations {
        match m <= n {
            true => matmul::multiply(Factor::plain(&x_mn), Factor::transposed(&x_mn), &gram)?,
            false => matmul::multiply(Factor::transposed(&x_mn), Factor::plain(&x_mn), &gram)?,
        };
        let factors = [Factor::plain(&gram), Factor::plain(&gram)];
        matmul::combined(factors, c, (&gram, b), &polynomial)?;
        let x = Factor::plain(&x_mn);
        let p = Factor::plain(&polynomial);
        let scale = if iteration == rules.iterations { scale } else { 1.0 };
        matmul::combined(if m <= n { [p, x] } else { [x, p] }, scale, (&x_mn, scale * a), &next_mn)?;
        std::mem::swap(&mut x_mn, &mut next_mn);
    }
    match parts {
        1 => elements.reshape([m, n])?.copy_from(&x_mn),
        _ => columns::divide(&x_mn, elements, *parts),
    }
}
