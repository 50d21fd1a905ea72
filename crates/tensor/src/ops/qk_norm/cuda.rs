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
    fn choose(operator: &'static str, qkv_blc: &Tensor, width: usize, tensors: &[&Tensor]) -> Result<Self> {
        let half = width / 2;
        let lanes = gpu::lanes(qkv_blc.dtype());
        let vector = half.is_multiple_of(lanes) && half / lanes <= WARP && gpu::aligned(tensors);
        if !vector && width > WIDEST {
            return Err(check::wrong(operator, "qkv", qkv_blc, format!("heads of at most {WIDEST} columns")));
        }
        let count = if vector { (half / lanes).next_power_of_two() } else { WARP };
        Ok(Lanes { count, vector })
    }
}

pub(super) fn forward(
    operator: &'static str,
    qkv_blc: &Tensor,
    heads: Heads,
    weights: Weights<'_>,
    angles: Angles<'_>,
    epsilon: f32,
    result: &Output,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let rows = qkv_blc.shape().rows();
    let time = qkv_blc.shape().dims()[1];
    let Weights { query: query_k, key: key_k } = weights;
    let lanes = Lanes::choose(
        operator,
        qkv_blc,
        heads.width,
        &[qkv_blc, query_k, key_k, angles.table, &result.output],
    )?;
    let launch = kernel(qkv_blc.device(), "forward", qkv_blc.dtype()).read(qkv_blc).read(query_k).read(key_k);
    let launch = read_angles(launch, angles).write(&result.output).write(&result.rstd);
    let launch = launch.u32(word(rows)?).u32(word(time)?).u32(word(heads.query)?);
    let launch = launch.u32(word(heads.key_value)?).u32(word(heads.width)?).u32(word(lanes.count)?);
    let launch = launch.f32(epsilon).u32(u32::from(lanes.vector));
    let launch = launch.cost(gpu::bytes(&[qkv_blc, &result.output]), 6 * qkv_blc.elements() as u64);
    let threads = rows * (heads.query + 2 * heads.key_value) * lanes.count;
    Ok(launch.launch([word(threads.div_ceil(gpu::THREADS as usize))?, 1, 1], gpu::THREADS)?)
}

/// Replaces `gradient_blc`, the output's gradient, by the input's. Also measures its largest magnitude, if it
/// carries one.
#[expect(clippy::too_many_arguments, reason = "the operands of the forward pass and its gradients")]
pub(super) fn backward_input(
    operator: &'static str,
    qkv_blc: &Tensor,
    rstd_th: &Tensor,
    heads: Heads,
    weights: Weights<'_>,
    angles: Angles<'_>,
    gradient_blc: &Tensor,
    sums: &Tensor,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let rows = qkv_blc.shape().rows();
    let time = qkv_blc.shape().dims()[1];
    let Weights { query: query_k, key: key_k } = weights;
    let lanes = Lanes::choose(
        operator,
        qkv_blc,
        heads.width,
        &[qkv_blc, query_k, key_k, angles.table, gradient_blc],
    )?;
    let launch = kernel(qkv_blc.device(), "backward", qkv_blc.dtype()).read(gradient_blc).read(qkv_blc);
    let launch = launch.read(rstd_th).read(query_k).read(key_k);
    let launch = read_angles(launch, angles).write(gradient_blc).write(sums);
    let launch = launch.u32(word(rows)?).u32(word(time)?).u32(word(heads.query)?);
    let launch = launch.u32(word(heads.key_value)?).u32(word(heads.width)?).u32(word(lanes.count)?);
    let runs = workspace::runs(rows);
    let launch =
        launch.u32(word(rows.div_ceil(runs))?).u32(u32::from(lanes.vector)).write(gradient_blc.maxima());
    let launch =
        launch.cost(gpu::bytes(&[qkv_blc, gradient_blc, gradient_blc]), 12 * qkv_blc.elements() as u64);
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
