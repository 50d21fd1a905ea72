//! Launches of `kernels/qk_norm.cu`.

use device::{Device, Family, Function};

use super::operands::{Output, Weights};
use super::workspace;
use crate::ops::attention::Heads;
use crate::ops::columns::cuda::{self as columns, Cut};
use crate::ops::kernels::family;
use crate::ops::rotary::Angles;
use crate::ops::rotary::cuda::read_angles;
use crate::ops::{GradientTarget, check, gpu};
use crate::{DType, Result, Tensor};

pub(crate) static FAMILY: Family = family!(
    "qk_norm",
    headers: ["columns.cuh", "maximum.cuh", "rotary.cuh"],
    constants: columns::MEASURING_CONSTANTS,
);

/// Threads of a warp. One head uses at most a warp.
const WARP: usize = 32;
/// Columns of the widest head that is computed without 16-byte vectors.
const WIDEST: usize = 256;

/// The threads that compute one head.
struct Lanes {
    count: usize,
    /// Whether each thread reads 16 bytes at once.
    vector: bool,
}

impl Lanes {
    fn choose(operator: &'static str, qkv: &Tensor, width: usize, tensors: &[&Tensor]) -> Result<Self> {
        let half = width / 2;
        let lanes = gpu::lanes(qkv.dtype());
        let vector = half.is_multiple_of(lanes) && half / lanes <= WARP && gpu::aligned(tensors);
        if !vector && width > WIDEST {
            return Err(check::wrong(operator, "qkv", qkv, format!("heads of at most {WIDEST} columns")));
        }
        let count = if vector { (half / lanes).next_power_of_two() } else { WARP };
        Ok(Lanes { count, vector })
    }
}

pub(super) fn forward(
    operator: &'static str,
    qkv: &Tensor,
    heads: Heads,
    weights: Weights<'_>,
    angles: Angles<'_>,
    epsilon: f32,
    result: &Output,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let rows = qkv.shape().rows();
    let time = qkv.shape().dims()[1];
    let Weights { query, key } = weights;
    let lanes = Lanes::choose(operator, qkv, heads.width, &[qkv, query, key, angles.table, &result.output])?;
    let launch = kernel(qkv.device(), "forward", qkv.dtype()).read(qkv).read(query).read(key);
    let launch = read_angles(launch, angles).write(&result.output).write(&result.rstd);
    let launch = launch.u32(word(rows)?).u32(word(time)?).u32(word(heads.query)?);
    let launch = launch.u32(word(heads.key_value)?).u32(word(heads.width)?).u32(word(lanes.count)?);
    let launch = launch.f32(epsilon).u32(u32::from(lanes.vector));
    let launch = launch.cost(gpu::bytes(&[qkv, &result.output]), 6 * qkv.elements() as u64);
    let threads = rows * (heads.query + 2 * heads.key_value) * lanes.count;
    Ok(launch.launch([word(threads.div_ceil(gpu::THREADS as usize))?, 1, 1], gpu::THREADS)?)
}

/// Replaces `gradient`, the output's gradient, by the input's. Also measures its largest magnitude, if it
/// carries one.
#[expect(clippy::too_many_arguments, reason = "the operands of the forward pass and its gradients")]
pub(super) fn backward_input(
    operator: &'static str,
    qkv: &Tensor,
    rstd: &Tensor,
    heads: Heads,
    weights: Weights<'_>,
    angles: Angles<'_>,
    gradient: &Tensor,
    sums: &Tensor,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let rows = qkv.shape().rows();
    let time = qkv.shape().dims()[1];
    let Weights { query, key } = weights;
    let lanes = Lanes::choose(operator, qkv, heads.width, &[qkv, query, key, angles.table, gradient])?;
    let launch = kernel(qkv.device(), "backward", qkv.dtype()).read(gradient).read(qkv);
    let launch = launch.read(rstd).read(query).read(key);
    let launch = read_angles(launch, angles).write(gradient).write(sums);
    let launch = launch.u32(word(rows)?).u32(word(time)?).u32(word(heads.query)?);
    let launch = launch.u32(word(heads.key_value)?).u32(word(heads.width)?).u32(word(lanes.count)?);
    let runs = workspace::runs(rows);
    let launch = launch.u32(word(rows.div_ceil(runs))?).u32(u32::from(lanes.vector)).write(gradient.maxima());
    let launch = launch.cost(gpu::bytes(&[qkv, gradient, gradient]), 12 * qkv.elements() as u64);
    Ok(launch.launch([word(runs)?, 1, 1], gpu::THREADS)?)
}

pub(super) fn backward_weight(
    operator: &'static str,
    sums: &Tensor,
    targets: [&GradientTarget; 2],
) -> Result<()> {
    let runs = sums.shape().rows();
    let width = sums.shape().columns() / 2;
    let cut = Cut::divide_sums(operator, runs, width)?;
    for (part, target) in targets.into_iter().enumerate() {
        columns::finish(&FAMILY, sums, part * width * DType::F32.bytes(), &cut, 2 * cut.width, target)?;
    }
    Ok(())
}

fn kernel<'a>(device: &'a Device, name: &'static str, dtype: DType) -> device::cuda::Launch<'a> {
    device.kernel(Function::new(&FAMILY, name).with_dtype(dtype))
}
