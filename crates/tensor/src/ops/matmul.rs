//! Matmuls of stacks (batches) of matrices.

use device::{Backend, Category, Epilogue, Matmul, MatrixRef, Operand, Request, Work, gemm};

use super::check;
use crate::{Result, Shape, Tensor};

/// A matrix, or a stack of matrices in the outer dimensions, optionally transposed.
#[derive(Clone, Copy, Debug)]
pub struct Factor<'a> {
    /// The stack, `[.., rows, columns]`.
    pub tensor: &'a Tensor,
    /// Whether rows and columns are exchanged.
    pub transposed: bool,
}

impl<'a> Factor<'a> {
    /// Returns `tensor` as a factor without transposition.
    #[must_use]
    pub fn plain(tensor: &'a Tensor) -> Self {
        Factor { tensor, transposed: false }
    }

    /// Returns `tensor` as a transposed factor.
    #[must_use]
    pub fn transposed(tensor: &'a Tensor) -> Self {
        Factor { tensor, transposed: true }
    }

    /// Returns the number of matrices, and the rows and columns of each after transposition.
    fn sizes(&self, operator: &'static str, operand: &'static str) -> Result<[usize; 3]> {
        let shape = self.tensor.shape();
        let [outer @ .., rows, columns] = shape.dims() else {
            return Err(check::wrong(operator, operand, self.tensor, "at least two dimensions".to_owned()));
        };
        let (rows, columns) = if self.transposed { (*columns, *rows) } else { (*rows, *columns) };
        Ok([outer.iter().product(), rows, columns])
    }

    /// Returns matrix `index` of the stack, with its stored rows and columns.
    fn matrix(&self, index: usize) -> Result<Tensor> {
        let shape = self.tensor.shape();
        let columns = shape.columns();
        let all = shape.rows();
        let rows = shape.dims().iter().rev().nth(1).copied().unwrap_or(all);
        self.tensor.view(index * rows * columns, [rows, columns])
    }
}

/// Computes `a [.., m, k]` · `b [.., k, n]` as `[.., m, n]` in memory of `category`. The factors are both f32
/// or both bf16 and have equal outer dimensions; sums are in f32.
pub fn product(a: Factor<'_>, b: Factor<'_>, category: Category) -> Result<Tensor> {
    const OPERATOR: &str = "matmul.product";
    let dtype = check::computed(OPERATOR, &[("a", a.tensor), ("b", b.tensor)])?;
    let ([count, m, k], [others, inner, n]) = (a.sizes(OPERATOR, "a")?, b.sizes(OPERATOR, "b")?);
    let shape = outer(a.tensor.shape(), [m, n]);
    if count != others || k != inner || outer(b.tensor.shape(), [m, n]) != shape {
        let expected = format!("the outer dimensions of {} and {k} rows", a.tensor.shape());
        return Err(check::wrong(OPERATOR, "b", b.tensor, expected));
    }
    let shape = shape.ok_or_else(|| check::wrong(OPERATOR, "a", a.tensor, "a matrix".to_owned()))?;
    let device = a.tensor.device();
    let output = Tensor::empty(device, shape, dtype, Request::new(category, OPERATOR))?;
    into(a, b, &output)?;
    Ok(output)
}

/// Computes `a` · `b` as [`product`] does, into `out`.
///
/// # Errors
/// As [`product`]; another shape or type of `out`.
pub fn into(a: Factor<'_>, b: Factor<'_>, out: &Tensor) -> Result<()> {
    const OPERATOR: &str = "matmul.product";
    let dtype = check::computed(OPERATOR, &[("a", a.tensor), ("b", b.tensor), ("out", out)])?;
    let ([count, m, k], [others, inner, n]) = (a.sizes(OPERATOR, "a")?, b.sizes(OPERATOR, "b")?);
    if count != others || k != inner || Factor::plain(out).sizes(OPERATOR, "out")? != [count, m, n] {
        return Err(check::wrong(OPERATOR, "out", out, format!("{count} matrices of {m} by {n}")));
    }
    let device = out.device();
    device.count_flops(Work::flops_of_products([count, m, n, k]));
    if device.backend() == Backend::Meta {
        return Ok(());
    }
    for index in 0..count {
        let a_matrix = a.matrix(index)?;
        let b_matrix = b.matrix(index)?;
        let out = out.view(index * m * n, [m, n])?;
        match device.backend() {
            Backend::Cpu => on_host((&a_matrix, a.transposed), (&b_matrix, b.transposed), &out)?,
            _ if m * n == 0 => {}
            _ => {
                let left = Operand { transposed: a.transposed, ..Operand::new(a_matrix.region(), dtype) };
                let right = Operand { transposed: b.transposed, ..Operand::new(b_matrix.region(), dtype) };
                let out = Operand::new(out.region(), dtype);
                let epilogue = Epilogue::None;
                let a = left;
                let b = right;
                let call = Matmul { m, n, k, a, b, out, accumulate: false, epilogue, fast: false };
                device.matmul(&call)?;
            }
        }
    }
    Ok(())
}

/// Returns the shape with its two innermost dimensions replaced by `rows` and `columns`.
fn outer(shape: Shape, [rows, columns]: [usize; 2]) -> Option<Shape> {
    let rank = shape.dims().len();
    shape.with(rank.checked_sub(2)?, rows)?.with(rank - 1, columns)
}

fn on_host(a: (&Tensor, bool), b: (&Tensor, bool), out: &Tensor) -> Result<()> {
    let left = a.0.values()?;
    let right = b.0.values()?;
    let matrix = |values, tensor: &Tensor, transposed: bool| {
        let rows = tensor.shape().rows();
        let columns = tensor.shape().columns();
        let matrix = MatrixRef::new(values, rows, columns, columns);
        if transposed { matrix.transposed() } else { matrix }
    };
    let left = matrix(&left, a.0, a.1);
    let right = matrix(&right, b.0, b.1);
    gemm(left, right, &mut out.values_mut()?, out.shape().columns(), 1.0, false);
    Ok(())
}
