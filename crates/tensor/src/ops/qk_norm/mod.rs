//! Normalisation of queries and keys: RMS norm of every query and key head, then rotation to its position, in
//! one pass. Values are copied.
//!
//! Rows are packed as [`Qkv::Packed`](super::attention::Qkv::Packed). All query heads share one weight, and
//! all key heads another.

mod cpu;
pub(crate) mod cuda;
mod operands;
mod workspace;

use device::{Backend, Category, DType, Request};

use super::attention::Heads;
use super::rotary::{self, Angles};
use super::{GradientTarget, check, gpu};
use crate::{Result, Tensor};
pub use operands::{Gradients, Output, Weights};

/// Normalises and rotates packed `qkv_blc [batch, time, heads.packed_columns()]`. The weights have the same
/// type.
///
/// # Errors
/// Shapes or types that do not agree, more positions than the table has, out of memory.
pub fn forward(
    qkv_blc: &Tensor,
    heads: Heads,
    weights: Weights<'_>,
    angles: Angles<'_>,
    epsilon: f32,
) -> Result<Output> {
    const OPERATOR: &str = "qk_norm.forward";
    check_operands(OPERATOR, qkv_blc, heads, weights, angles)?;
    let rows = qkv_blc.shape().rows();
    let normed = heads.query + heads.key_value;
    let request = Request::new(Category::Activation, OPERATOR);
    let output_blc = qkv_blc.like(qkv_blc.dtype(), request)?;
    let result = Output {
        output: output_blc,
        rstd: Tensor::empty(qkv_blc.device(), [rows, normed], DType::F32, request)?,
    };
    match qkv_blc.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let operands = cpu::Operands::read(qkv_blc, heads, weights, angles)?;
            let mut output_blc = result.output.values_mut()?;
            let mut rstd_th = result.rstd.values_mut()?;
            operands.rows(OPERATOR)?.forward(epsilon, &mut output_blc, &mut rstd_th);
        }
        Backend::Cuda => cuda::forward(OPERATOR, qkv_blc, heads, weights, angles, epsilon, &result)?,
    }
    Ok(result)
}

/// Computes the gradient of `qkv_blc` from the output's gradient `dy_blc` and the operands of [`forward`].
/// Overwrites `dy_blc` if no other view of its storage exists, and else returns a new tensor. With
/// `measures`, a GPU also measures its largest magnitude ([`Tensor::with_maxima`]).
pub fn backward_input(
    dy_blc: Tensor,
    qkv_blc: &Tensor,
    rstd_th: &Tensor,
    heads: Heads,
    weights: Weights<'_>,
    angles: Angles<'_>,
    measures: bool,
) -> Result<Gradients> {
    const OPERATOR: &str = "qk_norm.backward_input";
    check_operands(OPERATOR, qkv_blc, heads, weights, angles)?;
    check::computed(OPERATOR, &[("qkv", qkv_blc), ("dy", &dy_blc)])?;
    check::shape(OPERATOR, "dy", &dy_blc, qkv_blc.shape())?;
    let rows = qkv_blc.shape().rows();
    check::f32s(OPERATOR, &[("rstd", rstd_th)])?;
    check::shape(OPERATOR, "rstd", rstd_th, [rows, heads.query + heads.key_value])?;
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let input_blc = gpu::with_cells(dy_blc.into_unique(request)?, measures, request)?;
    let runs = workspace::runs(rows);
    let sums = Tensor::empty(input_blc.device(), [runs, 2 * heads.width], DType::F32, request)?;
    match input_blc.device().backend() {
        Backend::Meta => {}
        Backend::Cpu => {
            let operands = cpu::Operands::read(qkv_blc, heads, weights, angles)?;
            let rows = operands.rows(OPERATOR)?;
            rows.backward(&rstd_th.values()?, &mut input_blc.values_mut()?, &mut sums.values_mut()?);
        }
        Backend::Cuda => {
            cuda::backward_input(OPERATOR, qkv_blc, rstd_th, heads, weights, angles, &input_blc, &sums)?
        }
    }
    Ok(Gradients { input: input_blc, sums })
}

/// Computes the gradients of the weights of queries and keys, `[width]` each, from the partial sums of
/// [`backward_input`]. The targets are both f32 or both of `computed`, the type of the activations.
pub fn backward_weight(
    sums: &Tensor,
    computed: DType,
    query: &GradientTarget,
    key: &GradientTarget,
) -> Result<()> {
    const OPERATOR: &str = "qk_norm.backward_weight";
    check::f32s(OPERATOR, &[("sums", sums)])?;
    check::rank(OPERATOR, "sums", sums, 2)?;
    let targets = [("query", query), ("key", key)];
    check::targets(OPERATOR, computed, &targets)?;
    for (name, target) in targets {
        check::shape(OPERATOR, name, &target.tensor, [sums.shape().columns() / 2])?;
    }
    match sums.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => {
            let sums = sums.values()?;
            cpu::finish(&sums, 0, &mut query.tensor.values_mut()?, query.accumulate);
            cpu::finish(&sums, 1, &mut key.tensor.values_mut()?, key.accumulate);
            Ok(())
        }
        Backend::Cuda => cuda::backward_weight(OPERATOR, sums, [query, key]),
    }
}

fn check_operands(
    operator: &'static str,
    qkv_blc: &Tensor,
    heads: Heads,
    weights: Weights<'_>,
    angles: Angles<'_>,
) -> Result<()> {
    check::computed(
        operator,
        &[("qkv", qkv_blc), ("query weight", weights.query), ("key weight", weights.key)],
    )?;
    heads.check(operator)?;
    let width = rotary::check_angles(operator, qkv_blc, angles)?;
    let [batch, time] = [qkv_blc.shape().dims()[0], qkv_blc.shape().dims()[1]];
    check::shape(operator, "qkv", qkv_blc, [batch, time, heads.packed_columns()])?;
    if !heads.are_equally_wide() {
        return Err(check::wrong(operator, "qkv", qkv_blc, "values as wide as keys".to_owned()));
    }
    if [width, angles.head_width()] != [heads.width; 2] || angles.interleaved {
        let expected = format!("{} columns, which are not interleaved", heads.width);
        return Err(check::wrong(operator, "table", angles.table, expected));
    }
    check::shape(operator, "query weight", weights.query, [width])?;
    check::shape(operator, "key weight", weights.key, [width])
}
