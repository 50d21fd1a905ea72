//! The backward rule of layer norm and RMS norm.

use std::ops::Range;

use device::{Category, DType, Request};
use tensor::Tensor;
use tensor::ops;
use tensor::ops::rms_norm::Settings;

use super::autocast;
use crate::error::{AutogradError, Result};
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Source, TensorRanks, Var, give};
use crate::sink::{GradientSink, Target, discarded, ready, target};
use crate::tape::Tape;
use crate::weight::Weight;

/// Backward of layer norm and of RMS norm, alone or fused with a residual addition.
#[derive(Debug)]
pub struct NormRule {
    pub(super) operator: &'static str,
    pub(super) x: Tensor,
    /// Mean of each row; `None` for RMS norm.
    pub(super) mean: Option<Tensor>,
    pub(super) rstd: Tensor,
    pub(super) weight: Weight,
    pub(super) bias: Option<Weight>,
    /// Gradient of the normalised values, kept between the input and weight halves of backward.
    pub(super) gradient: Option<Tensor>,
    /// Whether to measure the largest magnitude of the input's gradient.
    pub(super) measures: bool,
    /// The ranks that hold other rows, if rows are sharded.
    pub(super) ranks: TensorRanks,
}

/// Returns the settings of a norm in this pass. A pass over the next tokens of sequences has few rows, so it
/// uses a block per row.
pub(super) fn of_pass(tape: &Tape, settings: impl Into<Settings>) -> Settings {
    Settings { block_per_row: tape.pass().extends_cache(), ..settings.into() }
}

/// Casts the operands of a norm of a residual sum by autocast.
pub(super) fn residual_operands(
    tape: &Tape,
    operator: &str,
    residual_td: Var,
    branch_td: Option<Var>,
) -> Result<(Var, Option<Var>)> {
    Ok(match branch_td {
        Some(branch_td) => {
            let [residual_td, branch_td] = autocast(tape, operator, [residual_td, branch_td])?;
            (residual_td, Some(branch_td))
        }
        None => {
            let [residual_td] = autocast(tape, operator, [residual_td])?;
            (residual_td, None)
        }
    })
}

/// Records a norm of a residual sum; returns (sum, normalised).
pub(super) fn record_residual(
    tape: &Tape,
    sources: &[Source],
    sum_td: Tensor,
    output_td: Tensor,
    rule: impl FnOnce() -> NormRule,
) -> Result<(Var, Var)> {
    let mut outputs = tape.record(sources, vec![sum_td, output_td], rule)?;
    match (outputs.pop(), outputs.pop()) {
        (Some(normalised), Some(sum_td)) => Ok((sum_td, normalised)),
        _ => Err(AutogradError::NotRecorded),
    }
}

impl NormRule {
    /// Adds the weight and bias gradients of some rows to the targets.
    fn sums(&self, rows: Range<usize>, weight: &Target, bias: Option<&Target>) -> Result<()> {
        let Some(gradient) = &self.gradient else { return Ok(()) };
        let width = gradient.shape().columns();
        let slice = |array: &Tensor| array.view(rows.start * width, [rows.len(), width]);
        let per_row = |array: &Tensor| array.view(rows.start, [rows.len()]);
        let gradient = slice(gradient)?;
        let x = slice(&self.x)?;
        let rstd = per_row(&self.rstd)?;
        match &self.mean {
            Some(mean) => {
                let mean = per_row(mean)?;
                ops::layer_norm::backward_weight(&gradient, &x, &mean, &rstd, weight, bias)?;
            }
            None => ops::rms_norm::backward_weight(&gradient, &x, &rstd, weight)?,
        }
        Ok(())
    }

    /// Adds the weight and bias gradients of all rows to the targets: a sum over all shards of rows. The rank
    /// has `shards` of them.
    fn sums_over_shards(&self, shards: usize, weight: &Target, bias: Option<&Target>) -> Result<()> {
        let Some(gradient) = &self.gradient else { return Ok(()) };
        let width = gradient.shape().columns();
        let rows = gradient.shape().rows() / shards;
        let request = Request::new(Category::Workspace, self.operator);
        let arrays = 1 + usize::from(bias.is_some());
        let part = |shard: usize| -> Result<Tensor> {
            let sums = Tensor::empty(gradient.device(), [arrays, width], DType::F32, request)?;
            let target = |index: usize| -> Result<Target> {
                Ok(Target { tensor: sums.view(index * width, [width])?, accumulate: false })
            };
            let of_bias = bias.map(|_| target(1)).transpose()?;
            self.sums(shard * rows..(shard + 1) * rows, &target(0)?, of_bias.as_ref())?;
            Ok(sums)
        };
        let parts = (0..shards).map(part).collect::<Result<Vec<_>>>()?;
        let sums = self.ranks.sum(parts, request)?;
        give(&sums.view(0, [width])?, weight)?;
        bias.map_or(Ok(()), |bias| give(&sums.view(width, [width])?, bias))
    }
}

impl Rule for NormRule {
    fn operator(&self) -> &'static str {
        self.operator
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let mean = self.mean.iter().map(|mean| Saved::new("mean", mean));
        let x = std::iter::once(Saved::new("x", &self.x));
        x.chain(mean).chain([Saved::new("rstd", &self.rstd)]).collect()
    }

    fn has_weights(&self) -> bool {
        self.weight.is_trained() || self.bias.as_ref().is_some_and(Weight::is_trained)
    }

    fn backward_input(&mut self, mut outputs: ValueGradients, wanted: &[bool]) -> Result<ValueGradients> {
        let normalised = outputs.pop().flatten();
        let sum = outputs.pop().flatten();
        // Without a gradient of the normalised values, the input's gradient is the sum's.
        let Some(gradient) = normalised else { return Ok(wanted.iter().map(|_| sum.clone()).collect()) };
        let input = if wanted.contains(&true) {
            let x = &self.x;
            let weight = &self.weight.values(gradient.dtype())?;
            let sum = sum.as_ref();
            let rstd = &self.rstd;
            Some(match &self.mean {
                Some(mean) => {
                    ops::layer_norm::backward_input(&gradient, sum, x, weight, mean, rstd, self.measures)?
                }
                None => ops::rms_norm::backward_input(&gradient, sum, x, weight, rstd, self.measures)?,
            })
        } else {
            None
        };
        self.gradient = self.has_weights().then_some(gradient);
        Ok(wanted.iter().map(|wanted| input.clone().filter(|_| *wanted)).collect())
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let Some(gradient) = &self.gradient else { return Ok(()) };
        let weight = target(sink, &self.weight)?;
        let bias = self.bias.as_ref().map_or(Ok(None), |bias| target(sink, bias))?;
        let weight = match (weight, &bias) {
            (Some(weight), _) => weight,
            (None, Some(bias)) => discarded(&self.weight, bias)?,
            (None, None) => return Ok(()),
        };
        match self.weight.row_shards() {
            0 => self.sums(0..gradient.shape().rows(), &weight, bias.as_ref())?,
            shards => self.sums_over_shards(shards, &weight, bias.as_ref())?,
        }
        self.bias.as_ref().map_or(Ok(()), |bias| ready(sink, bias))?;
        ready(sink, &self.weight)
    }
}
