//! A linear layer whose input rows are sharded over tensor ranks.

use device::{Category, DType, Request};
use tensor::Tensor;
use tensor::ops;
use tensor::ops::matmul::{self, Factor};

use super::{autocast, named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Dimension, Placement, TensorRanks, Var, give, map};
use crate::sink::{GradientSink, Target, ready, target};
use crate::tape::Tape;
use crate::weight::Weight;

const OPERATOR: &str = "row_linear";

/// Backward of [`row_linear`].
#[derive(Debug)]
pub struct RowLinearRule {
    /// The input, if the weight is trained.
    x: Option<Tensor>,
    weight: Weight,
    /// Gradient of the output, kept between the input and weight halves of backward.
    gradient: Option<Tensor>,
    ranks: TensorRanks,
    /// Number of local runs of rows; each is a separate matmul.
    runs: usize,
}

/// Computes `x_ti · Wᵀ` for `x_ti [.., in]` and `weight [out, in]` of [`Weight::over_rows`]. The rows of each
/// shard are a separate matmul, so that the bits do not depend on the number of local shards.
pub fn row_linear(tape: &Tape, x_ti: Var, weight: &Weight) -> Result<Var> {
    map(tape, [x_ti], |_, [x_ti]| {
        let is_sharded = matches!(x_ti.placements().tensor, Placement::Shard(Dimension::Rows { .. }));
        let [x_ti] = autocast(tape, OPERATOR, [x_ti])?;
        tape.begin(OPERATOR)?;
        let shards = weight.row_shards().max(1);
        let runs = if is_sharded && x_ti.tensor().shape().rows().is_multiple_of(shards) { shards } else { 1 };
        let forward = || -> tensor::Result<Tensor> {
            let values = weight.values(x_ti.tensor().dtype())?;
            each_run(x_ti.tensor(), runs, Factor::transposed(&values), Category::Activation)
        };
        let output_to = named(OPERATOR, forward())?;
        tape.record_one(&[x_ti.source()], output_to, || RowLinearRule {
            x: weight.is_trained().then(|| x_ti.tensor().clone()),
            weight: weight.clone(),
            gradient: None,
            ranks: TensorRanks::new(tape, false),
            runs,
        })
    })
}

/// Multiplies each of `runs` equal runs of rows by `factor`.
fn each_run(x: &Tensor, runs: usize, factor: Factor<'_>, category: Category) -> tensor::Result<Tensor> {
    let shape = x.shape();
    let dims = factor.tensor.shape();
    let columns = if factor.transposed { dims.rows() } else { dims.columns() };
    let rows = shape.rows() / runs;
    let inner = shape.columns();
    let axis = shape.dims().len() - 1;
    let shape = shape.with(axis, columns).unwrap_or(shape);
    let output = Tensor::empty(x.device(), shape, x.dtype(), Request::new(category, OPERATOR))?;
    for run in 0..runs {
        let own = x.view(run * rows * inner, [rows, inner])?;
        matmul::into(Factor::plain(&own), factor, &output.view(run * rows * columns, [rows, columns])?)?;
    }
    Ok(output)
}

impl Rule for RowLinearRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        self.x.iter().map(|x| Saved::new("x", x)).collect()
    }

    fn has_weights(&self) -> bool {
        self.weight.is_trained()
    }

    fn backward_input(&mut self, outputs: ValueGradients, wanted: &[bool]) -> Result<ValueGradients> {
        let dy_to = only(outputs)?;
        let dx_ti = if wanted[0] {
            let values = self.weight.values(dy_to.dtype())?;
            Some(each_run(&dy_to, self.runs, Factor::plain(&values), Category::ActivationGradient)?)
        } else {
            None
        };
        self.gradient = self.has_weights().then_some(dy_to);
        Ok(vec![dx_ti])
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let RowLinearRule { x: x_ti, weight, gradient: dy_to, ranks, runs } = *self;
        let (Some(x_ti), Some(dy_to), Some(target)) = (x_ti, dy_to, target(sink, &weight)?) else {
            return Ok(());
        };
        let part = |run: usize| -> Result<Tensor> {
            let rows_of_run = |array: &Tensor| {
                let rows = array.shape().rows() / runs;
                let columns = array.shape().columns();
                array.view(run * rows * columns, [rows, columns])
            };
            let request = Request::new(Category::Workspace, OPERATOR);
            let tensor = Tensor::empty(x_ti.device(), weight.shape(), DType::F32, request)?;
            let own = Target { tensor, accumulate: false };
            ops::linear::backward_weight(&rows_of_run(&dy_to)?, &rows_of_run(&x_ti)?, &own, None)?;
            Ok(own.tensor)
        };
        let parts = (0..runs).map(part).collect::<Result<Vec<_>>>()?;
        drop((dy_to, x_ti));
        let sum = ranks.sum(parts, Request::new(Category::Gradient, OPERATOR))?;
        give(&sum, &target)?;
        ready(sink, &weight)
    }
}
