//! Launches of `kernels/rotary.cu`.

use device::cuda::Launch;
use device::{Family, Function};

use super::angles::{Angles, Rotation};
use crate::ops::kernels::family;
use crate::ops::{elementwise, gpu};
use crate::{Result, Tensor};

pub(crate) static FAMILY: Family =
    family!("rotary", headers: ["maximum.cuh", "rotary.cuh"], constants: elementwise::MEASURING_CONSTANTS);

/// Overwrites the first `heads` heads of the rows of `x_blc` with their rotation. A backward rotation also
/// measures the largest magnitude, if `x_blc` carries one.
pub(super) fn rotate(
    operator: &'static str,
    x_blc: &Tensor,
    heads: usize,
    angles: Angles<'_>,
    rotation: Rotation,
) -> Result<()> {
    let width = angles.table.shape().columns();
    let rows = x_blc.shape().rows();
    let columns = x_blc.shape().columns();
    let lanes = gpu::lanes(x_blc.dtype());
    let head_width = angles.head_width();
    let whole = [width / 2, head_width, columns].iter().all(|size| size.is_multiple_of(lanes));
    let vector = whole && gpu::aligned(&[x_blc, angles.table]);
    let items = rows * heads * (width / 2);
    let each = if vector { lanes } else { 1 };
    let items = items / each;
    let rest = if x_blc.maxima().is_some() { (columns - heads * head_width) / each } else { 0 };
    let name = match rotation {
        Rotation::Forward => "rotate",
        Rotation::Backward => "rotate_back",
    };
    let word = |size| gpu::word(operator, size);
    let launch = x_blc.device().kernel(Function::new(&FAMILY, name).with_dtype(x_blc.dtype())).write(x_blc);
    let launch = read_angles(launch, angles).u32(word(items)?).u32(word(x_blc.shape().dims()[1])?);
    let launch = launch.u32(word(heads)?).u32(word(width)?).u32(word(head_width)?).u32(word(columns)?);
    let launch = launch.u32(u32::from(vector)).u32(u32::from(angles.interleaved));
    let turned = (rows * heads * width) as u64;
    let launch = match rotation {
        Rotation::Forward => launch,
        Rotation::Backward => launch.u32(word(rest)?).u32(word(rows * rest)?).write(x_blc.maxima()),
    };
    let blocks = (items + rows * rest).div_ceil((gpu::THREADS * elementwise::UNROLL) as usize);
    let launch = launch.cost(2 * turned * x_blc.dtype().bytes() as u64, 3 * turned);
    Ok(launch.launch([word(blocks)?, 1, 1], gpu::THREADS)?)
}

/// Adds the table and the documents to a launch.
pub(in crate::ops) fn read_angles<'a>(launch: Launch<'a>, angles: Angles<'_>) -> Launch<'a> {
    let launch = launch.read(angles.table);
    launch.read(angles.documents)
}
