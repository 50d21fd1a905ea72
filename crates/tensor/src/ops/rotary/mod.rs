//! Rotary position embeddings (Su and others, *RoFormer*, 2021). Elements i and i + width/2 of a head, or
//! elements 2·i and 2·i + 1 if interleaved, are rotated by the angle position · frequency(i). The width is
//! the head's, or less if only its first elements are rotated.

mod angles;
pub(super) mod cpu;
pub(crate) mod cuda;
mod frequencies;

pub use angles::{Angles, Rotation};
pub use frequencies::{Frequencies, Scaling};

use device::{Backend, Request};

use super::{check, gpu};
use crate::{Result, Tensor};
pub(super) use angles::{check_angles, check_documents};

/// Rotates the first `heads` heads of the rows of `x_blc [batch, time, columns]`, f32 or bf16. Overwrites
/// `x_blc` if no other view of its storage exists, and else returns a new tensor. With `measures`, a backward
/// rotation of whole heads on a GPU also measures the result's largest magnitude ([`Tensor::with_maxima`]).
///
/// # Errors
/// Shapes or types that do not agree, more positions than the table has, an odd head width, out of memory.
pub fn rotate(
    x_blc: Tensor,
    heads: usize,
    angles: Angles<'_>,
    rotation: Rotation,
    measures: bool,
) -> Result<Tensor> {
    const OPERATOR: &str = "rotary.rotate";
    check::computed(OPERATOR, &[("x", &x_blc)])?;
    let width = check_angles(OPERATOR, &x_blc, angles)?;
    let head_width = angles.head_width();
    if heads * head_width > x_blc.shape().columns() {
        return Err(check::wrong(OPERATOR, "x", &x_blc, format!("at least {} columns", heads * head_width)));
    }
    let request = Request::new(rotation.category(), OPERATOR);
    let measures = measures && rotation == Rotation::Backward && width == head_width;
    let x_blc = gpu::with_cells(x_blc.into_unique(request)?, measures, request)?;
    match x_blc.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let time = x_blc.shape().dims()[1];
            let documents_bl = angles.documents.map(Tensor::read::<u32>).transpose()?;
            check_documents(OPERATOR, documents_bl.as_deref(), time)?;
            let table_lk = angles.table.values()?;
            let read = cpu::Angles { table: &table_lk, documents: documents_bl.as_deref(), time, width };
            cpu::rotate(
                &mut x_blc.values_mut()?,
                x_blc.shape().columns(),
                [heads, head_width],
                read,
                (rotation, angles.interleaved),
            );
        }
        Backend::Cuda => cuda::rotate(OPERATOR, &x_blc, heads, angles, rotation)?,
    }
    Ok(x_blc)
}
