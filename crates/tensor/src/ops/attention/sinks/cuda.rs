//! Launches of `kernels/attention_sinks.cu`.

use device::{Family, Function};

use crate::ops::attention::Heads;
use crate::ops::kernels::family;
use crate::ops::{GradientTarget, gpu};
use crate::{Result, Tensor};

const THREADS: u32 = 1024;

pub(crate) static FAMILY: Family = family!("attention_sinks", constants: &[("THREADS", THREADS)]);

/// Computes the sinks' gradients from the output's gradient, the output, its log-sum-exps and the sinks.
pub(super) fn gradients(
    operator: &'static str,
    sums_h: &Tensor,
    operands @ [dy_blc, output_blc, logsumexp_bhl, sinks_h]: [&Tensor; 4],
    heads: Heads,
) -> Result<()> {
    let word = |size| gpu::word(operator, size);
    let [batch, time] = [dy_blc.shape().dims()[0], dy_blc.shape().dims()[1]];
    let launch = dy_blc.device().kernel(Function::new(&FAMILY, "gradients").with_dtype(dy_blc.dtype()));
    let launch = launch.write(sums_h).read(dy_blc).read(output_blc);
    let launch = launch.read(logsumexp_bhl).read(sinks_h).u32(word(batch)?).u32(word(time)?);
    let launch = launch.u32(word(heads.query)?).u32(word(heads.value_width)?);
    let launch = launch.cost(gpu::bytes(&operands), 2 * dy_blc.elements() as u64);
    Ok(launch.launch([word(heads.query)?, 1, 1], THREADS)?)
}

/// Adds the gradients `sums_h` to a target, or overwrites it.
pub(super) fn accumulate(operator: &'static str, sums_h: &Tensor, target: &GradientTarget) -> Result<()> {
    let count = gpu::word(operator, sums_h.elements())?;
    let adds = u32::from(target.accumulate);
    let launch =
        sums_h.device().kernel(Function::new(&FAMILY, "accumulate").with_dtype(target.tensor.dtype()));
    let launch = launch.write(&target.tensor).read(sums_h).u32(count).u32(adds);
    let launch = launch.cost(gpu::bytes(&[sums_h]) + target.moved(), 0);
    Ok(launch.launch([count.div_ceil(THREADS), 1, 1], THREADS)?)
}
