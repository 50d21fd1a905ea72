//! Launches of `kernels/layer_norm.cu`.

use device::DType;
use device::kernels::LAYER_NORM;

use super::Output;
use crate::ops::columns::cuda::Saved;
use crate::ops::gpu;
use crate::{Result, Tensor};

/// What every row is scaled and shifted by.
#[derive(Clone, Copy)]
pub(super) struct Affine<'a> {
    pub(super) gamma: &'a Tensor,
    pub(super) beta: &'a Tensor,
    pub(super) epsilon: f32,
}

/// A form of a kernel: a row's group holds up to `vectors` vectors of it; of `forward` and `backward` by type.
struct Form {
    vectors: usize,
    rows_per_block: usize,
    forward: [&'static str; 2],
    backward: [&'static str; 2],
}

macro_rules! form {
    ($place:literal, $group:literal, $held:literal) => {
        Form {
            vectors: $group * $held,
            rows_per_block: gpu::THREADS as usize / $group,
            forward: [concat!("forward_f32_", $place, $held), concat!("forward_bf16_", $place, $held)],
            backward: [concat!("backward_f32_", $place, $held), concat!("backward_bf16_", $place, $held)],
        }
    };
}

/// From the narrowest on.
static FORMS: [Form; 7] = [
    form!("warp", 32, 1),
    form!("warp", 32, 2),
    form!("warp", 32, 4),
    form!("warp", 32, 8),
    form!("block", 256, 2),
    form!("block", 256, 4),
    form!("block", 256, 8),
];
/// The widest is there for f32 only.
static WIDEST: Form = form!("block", 256, 16);
/// Rows of any width and alignment.
static ANY: Form = Form {
    vectors: usize::MAX,
    rows_per_block: 1,
    forward: ["forward_f32_any", "forward_bf16_any"],
    backward: ["backward_f32_any", "backward_bf16_any"],
};

/// The form for rows of `width` elements of `dtype`.
fn form(width: usize, dtype: DType, aligned: bool) -> &'static Form {
    let lanes = gpu::lanes(dtype);
    if !aligned || !width.is_multiple_of(lanes) {
        return &ANY;
    }
    let widest = (dtype == DType::F32).then_some(&WIDEST);
    FORMS.iter().chain(widest).find(|form| width / lanes <= form.vectors).unwrap_or(&ANY)
}

/// The normalised rows of `x`, or of x + branch with that sum in `residual`'s second tensor.
pub(super) fn forward(
    operator: &'static str,
    x: &Tensor,
    residual: Option<(&Tensor, &Tensor)>,
    affine: Affine<'_>,
    made: &Output,
) -> Result<()> {
    let Affine { gamma, beta, epsilon } = affine;
    let (rows, width) = (x.shape().rows(), x.shape().columns());
    let more: Vec<&Tensor> = residual.iter().flat_map(|(branch, sum)| [*branch, *sum]).collect();
    let aligned = gpu::aligned(&[x, gamma, beta, &made.output]) && gpu::aligned(&more);
    let form = form(width, x.dtype(), aligned);
    let mut launch = x.device().kernel(gpu::kernel(&LAYER_NORM, form.forward, x.dtype())).read(x.region());
    launch = match residual {
        Some((branch, _)) => launch.read(branch.region()),
        None => launch.null(),
    };
    launch = launch.read(gamma.region()).read(beta.region());
    launch = match residual {
        Some((_, sum)) => launch.write(sum.region()),
        None => launch.null(),
    };
    launch = launch.write(made.output.region()).write(made.mean.region()).write(made.rstd.region());
    launch = launch.u32(gpu::word(operator, rows)?).u32(gpu::word(operator, width)?).f32(epsilon);
    let bytes = gpu::bytes(&[x, &made.output, &made.mean, &made.rstd]) + gpu::bytes(&more);
    let blocks = gpu::word(operator, rows.div_ceil(form.rows_per_block))?;
    Ok(launch.cost(bytes, 8 * x.elements() as u64).launch([blocks, 1, 1], gpu::THREADS)?)
}

/// The gradient of what was normalised, plus `dsum`.
pub(super) fn backward_input(
    operator: &'static str,
    dy: &Tensor,
    dsum: Option<&Tensor>,
    saved: Saved<'_>,
    gamma: &Tensor,
    dx: &Tensor,
) -> Result<()> {
    let Saved { x, mean, rstd } = saved;
    let (rows, width) = (x.shape().rows(), x.shape().columns());
    let more: Vec<&Tensor> = dsum.into_iter().collect();
    let aligned = gpu::aligned(&[dy, x, gamma, dx]) && gpu::aligned(&more);
    let form = form(width, x.dtype(), aligned);
    let function = gpu::kernel(&LAYER_NORM, form.backward, x.dtype());
    let mut launch = x.device().kernel(function).read(dy.region());
    launch = match dsum {
        Some(dsum) => launch.read(dsum.region()),
        None => launch.null(),
    };
    launch = launch.read(x.region()).read(gamma.region()).read(mean.region()).read(rstd.region());
    launch = launch.write(dx.region()).u32(gpu::word(operator, rows)?).u32(gpu::word(operator, width)?);
    let bytes = gpu::bytes(&[dy, x, dx, mean, rstd]) + gpu::bytes(&more);
    let blocks = gpu::word(operator, rows.div_ceil(form.rows_per_block))?;
    Ok(launch.cost(bytes, 12 * x.elements() as u64).launch([blocks, 1, 1], gpu::THREADS)?)
}
