//! FP8 codes of matrices that are cast in parts, such as the shards of gathered weights, for operands of
//! [`fp8_linear`] with one factor each. Codes and factors equal those of casting the whole matrix.
//!
//! [`measure`] finds the largest magnitude of a part, [`fold`] reduces it to one word, and [`factors`]
//! computes a matrix's factor from the words of all its parts. [`cast`] then casts a part, and [`transpose`]
//! makes the second layout when all parts are there.

use device::{Backend, DType, E4m3, Family, Function};

use super::fp8_linear::{self, Quantised, Scaled};
use super::kernels::family;
use super::{check, gpu};
use crate::{Result, Tensor};

/// Words over which [`measure`] spreads a largest magnitude.
pub const CELLS: usize = gpu::CELLS;
/// The number of elements of a part is a multiple of this.
const COLUMNS: usize = 128;
/// Rows and columns of a block of the transposition.
const SIDE: usize = 128;

pub(super) static FAMILY: Family = family!(
    "fp8_parts",
    headers: ["activation.cuh", "fp8_operands.cuh", "maximum.cuh"],
    constants: &[gpu::THREADS_CONSTANT, gpu::CELLS_CONSTANT],
);

/// Writes the bits of the largest magnitude of `part` to one of `cells [CELLS]` u32, and smaller values to
/// the others.
///
/// # Errors
/// A number of elements that is no multiple of 128, another type.
pub fn measure(part: &Tensor, cells: &Tensor) -> Result<()> {
    const OPERATOR: &str = "fp8_parts.measure";
    check::shape(OPERATOR, "cells", cells, [CELLS])?;
    fp8_linear::measure(OPERATOR, &in_rows(OPERATOR, part)?, cells)
}

/// Writes the largest of each matrix's words `cells [n, CELLS]` to `maxima [n]` u32.
pub fn fold(cells: &Tensor, maxima: &Tensor) -> Result<()> {
    const OPERATOR: &str = "fp8_parts.fold";
    let count = maxima.elements();
    check::shape(OPERATOR, "cells", cells, [count, CELLS])?;
    match cells.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => {
            let cells = cells.read::<u32>()?;
            let mut maxima = maxima.write::<u32>()?;
            let (words, _) = cells.as_chunks::<CELLS>();
            maxima.iter_mut().zip(words).for_each(|(most, cells)| *most = largest(cells.iter().copied()));
            Ok(())
        }
        Backend::Cuda => {
            let launch = cells.device().kernel(Function::new(&FAMILY, "fold_cells"));
            let launch = launch.read(cells).write(maxima);
            let blocks = gpu::word(OPERATOR, count)?;
            Ok(launch
                .cost(cells.bytes() as u64, cells.elements() as u64)
                .launch([blocks, 1, 1], CELLS as u32)?)
        }
    }
}

/// Writes each matrix's E4M3 factor to the first element of its row in `factors [n, stride]` f32, from
/// `maxima [parts, n]` u32, the largest magnitudes of its parts. Rows of 16 bytes or more have the alignment
/// that matmuls need.
pub fn factors(maxima: &Tensor, factors: &Tensor) -> Result<()> {
    const OPERATOR: &str = "fp8_parts.factors";
    let parts = maxima.shape().rows();
    let count = factors.shape().rows();
    check::shape(OPERATOR, "maxima", maxima, [parts, count])?;
    let stride = factors.shape().columns();
    match maxima.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => {
            let maxima = maxima.read::<u32>()?;
            let mut factors = factors.write::<f32>()?;
            for (matrix, row) in factors.chunks_exact_mut(stride).enumerate() {
                row[0] =
                    fp8_linear::factor_of::<E4m3>(largest((0..parts).map(|p| maxima[p * count + matrix])));
            }
            Ok(())
        }
        Backend::Cuda => {
            let launch = maxima.device().kernel(Function::new(&FAMILY, "factors_e4m3"));
            let launch = launch.read(maxima).write(factors);
            let launch = launch.u32(gpu::word(OPERATOR, parts)?).u32(gpu::word(OPERATOR, count)?);
            let launch = launch.u32(gpu::word(OPERATOR, stride)?);
            let blocks = gpu::word(OPERATOR, count.div_ceil(gpu::THREADS as usize))?;
            Ok(launch
                .cost(maxima.bytes() as u64, maxima.elements() as u64)
                .launch([blocks, 1, 1], gpu::THREADS)?)
        }
    }
}

/// Casts `part` to E4M3 with the factor `factor [1]`, into as many `codes`.
///
/// # Errors
/// A number of elements that is no multiple of 128, another type.
pub fn cast(part: &Tensor, factor: &Tensor, codes: &Tensor) -> Result<()> {
    const OPERATOR: &str = "fp8_parts.cast";
    check::elements(OPERATOR, "codes", codes, part.elements())?;
    let values = codes.reshape([part.elements() / COLUMNS, COLUMNS])?;
    let stored = Some(Scaled { values, scales: factor.clone() });
    fp8_linear::cast(OPERATOR, &in_rows(OPERATOR, part)?, &Quantised { stored, transposed: None })
}

/// Transposes codes `[rows, columns]`, bytes, into turned `[columns, rows]`.
///
/// # Errors
/// Shapes that do not agree, or that are no multiples of [`fp8_linear::MULTIPLE`].
pub fn transpose(codes: &Tensor, turned: &Tensor) -> Result<()> {
    const OPERATOR: &str = "fp8_parts.transpose";
    let rows = codes.shape().rows();
    let columns = codes.shape().columns();
    check::shape(OPERATOR, "turned", turned, [columns, rows])?;
    if !(rows.is_multiple_of(fp8_linear::MULTIPLE) && columns.is_multiple_of(fp8_linear::MULTIPLE)) {
        let expected = format!("multiples of {}", fp8_linear::MULTIPLE);
        return Err(check::wrong(OPERATOR, "codes", codes, expected));
    }
    match codes.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => {
            let codes = codes.read::<E4m3>()?;
            let mut turned = turned.write::<E4m3>()?;
            for (column, turned) in turned.chunks_exact_mut(rows).enumerate() {
                turned.iter_mut().enumerate().for_each(|(row, code)| *code = codes[row * columns + column]);
            }
            Ok(())
        }
        Backend::Cuda => {
            let word = |size: usize| gpu::word(OPERATOR, size);
            let launch = codes.device().kernel(Function::new(&FAMILY, "transpose_codes"));
            let launch = launch.read(codes).write(turned).u32(word(rows)?).u32(word(columns)?);
            let blocks = [word(columns.div_ceil(SIDE))?, word(rows.div_ceil(SIDE))?, 1];
            Ok(launch.cost(2 * codes.bytes() as u64, 0).launch(blocks, gpu::THREADS)?)
        }
    }
}

/// Returns the part as a matrix for the kernels of whole matrices.
fn in_rows(operator: &'static str, part: &Tensor) -> Result<Tensor> {
    check::computed(operator, &[("part", part)])?;
    if !part.elements().is_multiple_of(COLUMNS) {
        return Err(check::wrong(operator, "part", part, format!("a multiple of {COLUMNS} elements")));
    }
    part.reshape([part.elements() / COLUMNS, COLUMNS])
}

fn largest(words: impl Iterator<Item = u32>) -> u32 {
    words.max().unwrap_or(0)
}

/// Element type of the codes.
pub const CODES: DType = DType::E4m3;
