//! Gradients of attention sinks.

mod cuda;

use device::parallel::for_pieces;
use device::{Backend, Category, DType, Request};

pub(crate) use cuda::FAMILY;

use super::heads::Heads;
use super::masks::check_sinks;
use crate::ops::math::exp;
use crate::ops::{GradientTarget, check};
use crate::{Result, Tensor};

/// Computes the gradients of sinks, `[heads.query]` f32, from the output's gradient and the results of
/// [`forward`](super::forward): for each head, −Σ over its rows of weight of the sink · (dy · output), in row
/// order.
pub fn sink_gradients(
    dy_blc: &Tensor,
    output_blc: &Tensor,
    logsumexp_bhl: &Tensor,
    sinks_h: &Tensor,
    heads: Heads,
) -> Result<Tensor> {
    const OPERATOR: &str = "attention.sink_gradients";
    check_sinks(
        OPERATOR,
        sinks_h,
        check::computed(OPERATOR, &[("dy", dy_blc), ("output", output_blc)])?,
        heads,
    )?;
    check::f32s(OPERATOR, &[("logsumexp", logsumexp_bhl)])?;
    check::rank(OPERATOR, "dy", dy_blc, 3)?;
    let [batch, time] = [dy_blc.shape().dims()[0], dy_blc.shape().dims()[1]];
    for (name, tensor) in [("dy", dy_blc), ("output", output_blc)] {
        check::shape(OPERATOR, name, tensor, [batch, time, heads.output_columns()])?;
    }
    check::shape(OPERATOR, "logsumexp", logsumexp_bhl, [batch, heads.query, time])?;
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let sums_h = Tensor::empty(dy_blc.device(), [heads.query], DType::F32, request)?;
    match sums_h.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let dy_blc = dy_blc.values()?;
            let output_blc = output_blc.values()?;
            let logsumexp_bhl = logsumexp_bhl.values()?;
            let sinks_h = sinks_h.values()?;
            let size = [batch * time, time];
            on_host([&dy_blc, &output_blc, &logsumexp_bhl, &sinks_h], size, heads, &mut sums_h.values_mut()?);
        }
        Backend::Cuda => {
            cuda::gradients(OPERATOR, &sums_h, [dy_blc, output_blc, logsumexp_bhl, sinks_h], heads)?
        }
    }
    Ok(sums_h)
}

/// Computes the gradients of sinks on the host. Sequences have `time` rows.
fn on_host(
    [dy_blc, output_blc, logsumexp_bhl, sinks_h]: [&[f32]; 4],
    [rows, time]: [usize; 2],
    heads: Heads,
    sums_h: &mut [f32],
) {
    for_pieces(sums_h, 1, |head, sum| {
        let mut total = 0.0;
        for row in 0..rows {
            let at = (row * heads.query + head) * heads.value_width;
            let pairs = dy_blc[at..][..heads.value_width].iter().zip(&output_blc[at..][..heads.value_width]);
            let delta: f64 = pairs.map(|(dy, output)| f64::from(dy * output)).sum();
            let line = (row / time * heads.query + head) * time + row % time;
            total -= f64::from(exp(sinks_h[head] - logsumexp_bhl[line])) * delta;
        }
        sum.fill(total as f32);
    });
}

/// Adds the result of [`sink_gradients`] to a target, or overwrites it. The target is f32 or has the
/// operands' type, `computed`.
pub fn accumulate_sinks(sums_h: &Tensor, computed: DType, target: &GradientTarget) -> Result<()> {
    const OPERATOR: &str = "attention.accumulate_sinks";
    check::f32s(OPERATOR, &[("sums", sums_h)])?;
    check::targets(OPERATOR, computed, &[("sinks", target)])?;
    check::shape(OPERATOR, "sinks", &target.tensor, sums_h.shape())?;
    match sums_h.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => {
            let sums_h = sums_h.values()?;
            for (value, sum) in target.tensor.values_mut()?.iter_mut().zip(&*sums_h) {
                *value = if target.accumulate { *value + sum } else { *sum };
            }
            Ok(())
        }
        Backend::Cuda => cuda::accumulate(OPERATOR, sums_h, target),
    }
}
