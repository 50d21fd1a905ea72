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
    dy: &Tensor,
    output: &Tensor,
    logsumexp: &Tensor,
    sinks: &Tensor,
    heads: Heads,
) -> Result<Tensor> {
    const OPERATOR: &str = "attention.sink_gradients";
    check_sinks(OPERATOR, sinks, check::computed(OPERATOR, &[("dy", dy), ("output", output)])?, heads)?;
    check::f32s(OPERATOR, &[("logsumexp", logsumexp)])?;
    check::rank(OPERATOR, "dy", dy, 3)?;
    let [batch, time] = [dy.shape().dims()[0], dy.shape().dims()[1]];
    for (name, tensor) in [("dy", dy), ("output", output)] {
        check::shape(OPERATOR, name, tensor, [batch, time, heads.output_columns()])?;
    }
    check::shape(OPERATOR, "logsumexp", logsumexp, [batch, heads.query, time])?;
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let sums = Tensor::empty(dy.device(), [heads.query], DType::F32, request)?;
    match sums.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let dy = dy.values()?;
            let output = output.values()?;
            let logsumexp = logsumexp.values()?;
            let sinks = sinks.values()?;
            let size = [batch * time, time];
            on_host([&dy, &output, &logsumexp, &sinks], size, heads, &mut sums.values_mut()?);
        }
        Backend::Cuda => cuda::gradients(OPERATOR, &sums, [dy, output, logsumexp, sinks], heads)?,
    }
    Ok(sums)
}

/// Computes the gradients of sinks on the host. Sequences have `time` rows.
fn on_host(
    [dy, output, logsumexp, sinks]: [&[f32]; 4],
    [rows, time]: [usize; 2],
    heads: Heads,
    sums: &mut [f32],
) {
    for_pieces(sums, 1, |head, sum| {
        let mut total = 0.0;
        for row in 0..rows {
            let at = (row * heads.query + head) * heads.value_width;
            let pairs = dy[at..][..heads.value_width].iter().zip(&output[at..][..heads.value_width]);
            let delta: f64 = pairs.map(|(dy, output)| f64::from(dy * output)).sum();
            let line = (row / time * heads.query + head) * time + row % time;
            total -= f64::from(exp(sinks[head] - logsumexp[line])) * delta;
        }
        sum.fill(total as f32);
    });
}

/// Adds the result of [`sink_gradients`] to a target, or overwrites it. The target is f32 or has the
/// operands' type, `computed`.
pub fn accumulate_sinks(sums: &Tensor, computed: DType, target: &GradientTarget) -> Result<()> {
    const OPERATOR: &str = "attention.accumulate_sinks";
    check::f32s(OPERATOR, &[("sums", sums)])?;
    check::targets(OPERATOR, computed, &[("sinks", target)])?;
    check::shape(OPERATOR, "sinks", &target.tensor, sums.shape())?;
    match sums.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => {
            let sums = sums.values()?;
            for (value, sum) in target.tensor.values_mut()?.iter_mut().zip(&*sums) {
                *value = if target.accumulate { *value + sum } else { *sum };
            }
            Ok(())
        }
        Backend::Cuda => cuda::accumulate(OPERATOR, sums, target),
    }
}
