//! Scans of selective state spaces.

use device::{Category, Request};
use tensor::ops::state_space_scan::{self as scan, Operands, StateHeads};
use tensor::ops::{GradientTarget, fill};
use tensor::{DType, Tensor};

use super::piece_states::{self, PieceOrder, Recurrence};
use super::{autocast, named};
use crate::error::{AutogradError, Result};
use crate::pass::CachedPass;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Var, map};
use crate::sink::{GradientSink, ready, target};
use crate::tape::Tape;
use crate::weight::Weight;

const OPERATOR: &str = "state_space_scan";

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
    /// The state that entered a piece; dropped by the input half.
    entering: Option<Tensor>,
    /// Partial sums of the weights' gradients, kept between the input and weight halves of backward.
    sums: Option<(Tensor, DType)>,
}

/// Computes the scan of `[xbc_blc, dt_blh]`: the columns of x, B and C, and the time steps before their bias.
/// The result is `[batch, time, heads · width]`. States do not pass from one document of the pass to another.
pub fn state_space_scan(tape: &Tape, operands: [Var; 2], layer: &StateSpaceScan) -> Result<Var> {
    if let Some(order) = PieceOrder::new(tape, OPERATOR, &operands[0])? {
        return piece_states::scan(tape, &order, autocast(tape, OPERATOR, operands)?, layer);
    }
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
            entering: None,
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
        named(OPERATOR, computed)
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

impl Recurrence<2> for StateSpaceScan {
    /// The map is the product of a piece's decays. The operator computes it, too: from a state of one, with
    /// heads of one column and zeros for B.
    fn map(&self, inputs: &[Tensor; 2], documents: Option<&Tensor>) -> Result<[Tensor; 2]> {
        let [xbc_blc, dt_blh] = inputs;
        let StateHeads { heads, width, states, .. } = self.heads;
        let [batch, time] = [xbc_blc.shape().dims()[0], xbc_blc.shape().dims()[1]];
        let request = Request::new(Category::Activation, OPERATOR);
        let computed = || {
            let device = xbc_blc.device();
            let state = Tensor::zeros(device, [batch, heads, states, width], DType::F32, request)?;
            self.with_operands(inputs, documents, |operands| scan::advance(operands, &state))?;
            let own = StateHeads { heads, groups: 1, width: 1, states: 1 };
            let zeros = Tensor::zeros(device, [batch, time, own.packed_columns()], xbc_blc.dtype(), request)?;
            let kept = Tensor::empty(device, [batch, heads, 1, 1], DType::F32, request)?;
            fill::constant(&kept, 1.0)?;
            self.with_operands(&[zeros, dt_blh.clone()], documents, |operands| {
                scan::advance(Operands { heads: own, ..operands }, &kept)
            })?;
            Ok([kept.reshape([batch * heads, 1, 1])?, state])
        };
        named(OPERATOR, computed())
    }

    fn forward(&self, tape: &Tape, inputs: [Var; 2], entering: Tensor) -> Result<Vec<Var>> {
        tape.begin(OPERATOR)?;
        let documents = tape.pass().documents.clone();
        let sources = inputs.each_ref().map(Var::source);
        let inputs = inputs.map(Var::into_tensor);
        let forward = || {
            let state = entering.like(DType::F32, Request::new(Category::Activation, OPERATOR))?;
            state.copy_from(&entering)?;
            self.with_operands(&inputs, documents.as_ref(), |operands| scan::forward(operands, Some(&state)))
        };
        let outputs = vec![named(OPERATOR, forward())?, entering.clone()];
        tape.record(&sources, outputs, || StateSpaceScanRule {
            saved: Some(inputs),
            layer: self.clone(),
            documents,
            entering: Some(entering),
            sums: None,
        })
    }

    fn retreat(
        &self,
        dy: &Tensor,
        inputs: &[Tensor; 2],
        documents: Option<&Tensor>,
        entering: &Tensor,
    ) -> Result<Tensor> {
        let request = Request::new(Category::ActivationGradient, OPERATOR);
        let gradient = Tensor::zeros(entering.device(), entering.shape(), DType::F32, request)?;
        self.with_operands(inputs, documents, |operands| scan::retreat(dy, operands, &gradient))?;
        Ok(gradient)
    }
}

impl Rule for StateSpaceScanRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let saved = self.saved.iter();
        let entering = self.entering.iter().map(|entering| Saved::new("entering", entering));
        saved.flat_map(|[xbc, dt]| [Saved::new("xbc", xbc), Saved::new("dt", dt)]).chain(entering).collect()
    }

    fn has_weights(&self) -> bool {
        self.layer.weights().into_iter().any(Weight::is_trained)
    }

    fn backward_input(&mut self, outputs: ValueGradients, _wanted: &[bool]) -> Result<ValueGradients> {
        let mut outputs = outputs.into_iter();
        let dy_blc = outputs.next().flatten().ok_or(AutogradError::NotRecorded)?;
        let Some(inputs) = self.saved.take() else { return Ok(vec![None, None]) };
        let request = Request::new(Category::ActivationGradient, OPERATOR);
        let states = self.entering.take().zip(outputs.next().flatten());
        let states = match states {
            Some((entering, leaving)) => {
                Some([entering.into_unique(request)?, leaving.into_unique(request)?])
            }
            None => None,
        };
        let ends = states.as_ref().map(|[entering, leaving]| [entering, leaving]);
        let backward = |operands: Operands<'_>| scan::backward_input(&dy_blc, operands, ends);
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
