//! Scans of selective state spaces.

use tensor::ops::GradientTarget;
use tensor::ops::state_space_scan::{self as scan, Operands, StateHeads};
use tensor::{DType, Tensor};

use super::{autocast, named, only};
use crate::error::{AutogradError, Result};
use crate::pass::CachedPass;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Var, map};
use crate::sink::{GradientSink, ready, target};
use crate::tape::Tape;
use crate::weight::Weight;

/// Weights of a scan, `[heads]` each, and its sizes.
#[derive(Clone, Debug)]
pub struct StateSpaceScan {
    /// Logarithms of minus A.
    pub a_log: Weight,
    /// Factors of x in the output.
    pub d: Weight,
    /// Bias of time steps.
    pub bias: Weight,
    /// Sizes of the heads.
    pub heads: StateHeads,
    /// Least and largest time step.
    pub limits: [f32; 2],
}

/// Backward of [`state_space_scan`].
#[derive(Debug)]
pub struct StateSpaceScanRule {
    /// The columns of x, B and C, and the time steps; dropped by the input half.
    saved: Option<[Tensor; 2]>,
    layer: StateSpaceScan,
    documents: Option<Tensor>,
    /// Partial sums of the weights' gradients, kept between the input and weight halves of backward.
    sums: Option<(Tensor, DType)>,
}

/// Computes the scan of `[xbc_blc, dt_blh]`: the columns of x, B and C, and the time steps before their bias.
/// The result is `[batch, time, heads · width]`. States do not pass from one document of the pass to another.
pub fn state_space_scan(tape: &Tape, operands: [Var; 2], layer: &StateSpaceScan) -> Result<Var> {
    const OPERATOR: &str = "state_space_scan";
    map(tape, operands, |_, operands| {
        let [xbc_blc, dt_blh] = autocast(tape, OPERATOR, operands)?;
        tape.begin(OPERATOR)?;
        let documents = tape.pass().documents.clone();
        let inputs = [xbc_blc.tensor().clone(), dt_blh.tensor().clone()];
        if let Some(pass) = &tape.pass().cache {
            return Ok(tape.constant(layer.forward_cached(tape, pass, &inputs)?));
        }
        let forward =
            layer.with_operands(&inputs, documents.as_ref(), |operands| scan::forward(operands, None));
        let sources = [xbc_blc.source(), dt_blh.source()];
        tape.record_one(&sources, named(OPERATOR, forward)?, || StateSpaceScanRule {
            saved: Some(inputs),
            layer: layer.clone(),
            documents,
            sums: None,
        })
    })
}

impl StateSpaceScan {
    /// Computes a whole sequence that fills a slot of the pass's states, or the next token of every sequence.
    fn forward_cached(&self, tape: &Tape, pass: &CachedPass, inputs: &[Tensor; 2]) -> Result<Tensor> {
        let states = pass.next_state().ok_or(AutogradError::NoCache)?;
        let computed = match (pass.slot(), &tape.pass().documents) {
            (Some(slot), _) => self.with_operands(inputs, None, |operands| {
                let shape = states.shape().with(0, 1).unwrap_or_else(|| states.shape());
                let own = states.view(slot * shape.elements(), shape)?;
                scan::forward(operands, Some(&own))
            }),
            (None, Some(documents)) => {
                self.with_operands(inputs, Some(documents), |operands| scan::forward(operands, Some(states)))
            }
            (None, None) => return Err(AutogradError::NoCache),
        };
        named("state_space_scan", computed)
    }

    /// Calls `compute` with the values of the weights.
    fn with_operands<T>(
        &self,
        [xbc_blc, dt_blh]: &[Tensor; 2],
        documents: Option<&Tensor>,
        compute: impl FnOnce(Operands<'_>) -> tensor::Result<T>,
    ) -> tensor::Result<T> {
        let dtype = xbc_blc.dtype();
        let [a_log, d, bias] = [self.a_log.values(dtype)?, self.d.values(dtype)?, self.bias.values(dtype)?];
        compute(Operands {
            xbc: xbc_blc,
            dt: dt_blh,
            a_log: &a_log,
            d: &d,
            bias: &bias,
            heads: self.heads,
            limits: self.limits,
            documents,
        })
    }

    fn weights(&self) -> [&Weight; 3] {
        [&self.a_log, &self.d, &self.bias]
    }
}

impl Rule for StateSpaceScanRule {
    fn operator(&self) -> &'static str {
        "state_space_scan"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let saved = self.saved.iter();
        saved.flat_map(|[xbc, dt]| [Saved::new("xbc", xbc), Saved::new("dt", dt)]).collect()
    }

    fn has_weights(&self) -> bool {
        self.layer.weights().into_iter().any(Weight::is_trained)
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let dy_blc = only(outputs)?;
        let Some(inputs) = self.saved.take() else { return Ok(vec![None, None]) };
        let backward = |operands: Operands<'_>| scan::backward_input(&dy_blc, operands);
        let gradients = self.layer.with_operands(&inputs, self.documents.as_ref(), backward)?;
        self.sums = self.has_weights().then(|| (gradients.sums, dy_blc.dtype()));
        Ok(vec![Some(gradients.xbc), Some(gradients.dt)])
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let Some((sums, computed)) = &self.sums else { return Ok(()) };
        let weights = self.layer.weights();
        let mut targets = Vec::with_capacity(weights.len());
        for weight in weights {
            targets.push(target(sink, weight)?);
        }
        let of_part = |part: usize| targets.get(part).and_then(Option::as_ref);
        let parts: [Option<&GradientTarget>; 3] = [of_part(0), of_part(1), of_part(2)];
        scan::backward_weight(sums, *computed, parts)?;
        weights.into_iter().rev().try_for_each(|weight| ready(sink, weight))
    }
}
