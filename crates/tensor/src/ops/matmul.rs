//! Matmuls of stacks (batches) of matrices.

use device::{Backend, Category, DType, Epilogue, Matmul, MatrixRef, Operand, Request, Work, gemm};

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
    out.device().count_flops(multiply(a, b, out)?);
    Ok(())
}

/// Does the same as [`into`], and returns the FLOPs instead of counting them as the model's.
pub(super) fn multiply(a: Factor<'_>, b: Factor<'_>, out: &Tensor) -> Result<u64> {
    const OPERATOR: &str = "matmul.product";
    let Products { dtype, sizes: [count, m, n, k] } = check_products(OPERATOR, a, b, out)?;
    let device = out.device();
    let flops = Work::flops_of_products([count, m, n, k]);
    if device.backend() == Backend::Meta {
        return Ok(flops);
    }
    for index in 0..count {
        let a_matrix = a.matrix(index)?;
        let b_matrix = b.matrix(index)?;
        let out = out.view(index * m * n, [m, n])?;
        match device.backend() {
            Backend::Cpu => product_on_host(
                Factor { tensor: &a_matrix, ..a },
                Factor { tensor: &b_matrix, ..b },
                &mut out.values_mut()?,
                1.0,
            )?,
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
    Ok(flops)
}

/// Type and sizes of matmuls of stacks.
struct Products {
    dtype: DType,
    /// Number of matrices, then m, n and k of each.
    sizes: [usize; 4],
}

/// Checks that `out` can hold the products of two stacks.
fn check_products(operator: &'static str, a: Factor<'_>, b: Factor<'_>, out: &Tensor) -> Result<Products> {
    let dtype = check::computed(operator, &[("a", a.tensor), ("b", b.tensor), ("out", out)])?;
    let [count, m, k] = a.sizes(operator, "a")?;
    let [others, inner, n] = b.sizes(operator, "b")?;
    if count != others || k != inner || Factor::plain(out).sizes(operator, "out")? != [count, m, n] {
        return Err(check::wrong(operator, "out", out, format!("{count} matrices of {m} by {n}")));
    }
    Ok(Products { dtype, sizes: [count, m, n, k] })
}

/// Computes `product` · (`a [m, k]` · `b [k, n]`) + `own` · `added [m, n]` into `out`, rounded once. `added`
/// may be a factor, but not `out`. The FLOPs are not counted as the model's.
///
/// # Errors
/// As [`into`]; a stack of several matrices.
pub fn combined(
    [a, b]: [Factor<'_>; 2],
    product: f32,
    (added, own): (&Tensor, f32),
    out: &Tensor,
) -> Result<()> {
    const OPERATOR: &str = "matmul.combined";
    let Products { dtype, sizes: [count, m, n, k] } = check_products(OPERATOR, a, b, out)?;
    check::dtype(OPERATOR, "added", added, dtype)?;
    check::elements(OPERATOR, "added", added, m * n)?;
    if count != 1 || added.region().offset == out.region().offset && added.shares_storage(out) {
        return Err(check::wrong(OPERATOR, "added", added, "one matrix other than the output".to_owned()));
    }
    let device = out.device();
    match device.backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => {
            let mut sums = vec![0.0; m * n];
            product_on_host(a, b, &mut sums, product)?;
            let added = added.values()?;
            let mut out = out.values_mut()?;
            for ((out, sum), added) in out.iter_mut().zip(sums).zip(added.iter()) {
                *out = own * added + sum;
            }
            Ok(())
        }
        Backend::Cuda => {
            let a = Operand { transposed: a.transposed, ..Operand::new(a.tensor.region(), dtype) };
            let b = Operand { transposed: b.transposed, ..Operand::new(b.tensor.region(), dtype) };
            let out = Operand::new(out.region(), dtype);
            let epilogue = Epilogue::Combined { product, own, added: added.region() };
            Ok(device.matmul(&Matmul { m, n, k, a, b, out, accumulate: false, epilogue, fast: false })?)
        }
    }
}

/// Returns the shape with its two innermost dimensions replaced by `rows` and `columns`.
fn outer(shape: Shape, [rows, columns]: [usize; 2]) -> Option<Shape> {
    let rank = shape.dims().len();
    shape.with(rank.checked_sub(2)?, rows)?.with(rank - 1, columns)
}

/// Writes `alpha` · `a [m, k]` · `b [k, n]` to `out`.
fn product_on_host(a: Factor<'_>, b: Factor<'_>, out: &mut [f32], alpha: f32) -> Result<()> {
    let left_values = a.tensor.values()?;
    let right_values = b.tensor.values()?;
    let left = matrix(&left_values, a);
    let right = matrix(&right_values, b);
    let columns = if b.transposed { b.tensor.shape().rows() } else { b.tensor.shape().columns() };
    gemm(left, right, out, columns, alpha, false);
    Ok(())
}

/// Returns the stored `values` of a factor as a matrix.
fn matrix<'a>(values: &'a [f32], factor: Factor<'_>) -> MatrixRef<'a> {
    let rows = factor.tensor.shape().rows();
    let columns = factor.tensor.shape().columns();
    let matrix = MatrixRef::new(values, rows, columns, columns);
    if factor.transposed { matrix.transposed() } else { matrix }
}
