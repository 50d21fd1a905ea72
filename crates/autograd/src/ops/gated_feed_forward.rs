//! A gated feed-forward layer: `y = (activation(x · Wgᵀ) · (x · Wuᵀ)) · Wdᵀ`, called SwiGLU with SiLU and
//! GeGLU with GELU.
//!
//! One rule for all matmuls, so that gate · up is not saved: backward recomputes it in the pass that computes
//! the gradients of gate and up, in memory that is already allocated.

use tensor::Tensor;
use tensor::ops::gate::Gate;
use tensor::ops::{self, Activation};

use super::adapter::{Adapter, AdapterTensors};
use super::linear::backward_weight;
use super::{autocast, named, only, values_of};
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Var, map};
use crate::sink::GradientSink;
use crate::tape::Tape;
use crate::weight::Weight;

/// The parameters, at their uses.
#[derive(Clone, Debug)]
pub struct GatedFeedForwardWeights {
    /// Rows of the gate, then rows of up: `[2 · hidden, in]`.
    pub gate_up: Weight,
    /// `[out, hidden]`.
    pub down: Weight,
    /// The biases of both, `[2 · hidden]` and `[out]`.
    pub biases: [Option<Weight>; 2],
    /// The adapters of both.
    pub adapters: [Option<Adapter>; 2],
    /// Whether output and gradient of the input are partial sums over shards, and therefore in f32.
    pub is_partial: bool,
}

/// Backward of [`gated_feed_forward`].
#[derive(Debug)]
pub struct GatedFeedForwardRule {
    /// The input, if the weight of gate and up is trained.
    x: Option<Tensor>,
    /// x · Wg and x · Wu; the input half replaces them by their gradients.
    gate_up: Tensor,
    gate: Gate,
    weights: GatedFeedForwardWeights,
    /// The tensors that the adapters keep.
    tensors: [Option<AdapterTensors>; 2],
    /// The output's gradient and the input of the last matmul, from the input half to the weight half, if
    /// anything is trained.
    down: Option<(Tensor, Tensor)>,
}

/// `x` is `[.., in]`; the result is `[.., out]`.
///
/// # Errors
/// As [`ops::linear::forward`] and [`ops::gate::forward`].
pub fn gated_feed_forward(
    tape: &Tape,
    x: Var,
    weights: &GatedFeedForwardWeights,
    gate: impl Into<Gate>,
) -> Result<Var> {
    let gate = gate.into();
    map(tape, [x], |_, [x]| {
        const OPERATOR: &str = "gated_feed_forward";
        let [x] = autocast(tape, OPERATOR, [x])?;
        tape.begin(OPERATOR)?;
        let [adapter, down_adapter] = &weights.adapters;
        let [bias, down_bias] = weights.biases.each_ref().map(Option::as_ref);
        let forward = || {
            let (gate_up, tensors) = match adapter {
                Some(adapter) => {
                    let (output, tensors) = adapter.compute(tape, x.tensor(), &weights.gate_up, bias)?;
                    (output, Some(tensors))
                }
                None => {
                    let matrix = weights.gate_up.values(x.tensor().dtype())?;
                    let bias = values_of(bias, x.tensor().dtype())?;
                    (ops::linear::forward(x.tensor(), &matrix, bias.as_ref(), Activation::None)?.output, None)
                }
            };
            let hidden = match tape.reads_output() || down_adapter.is_some() {
                true => ops::gate::forward(&gate_up, gate)?,
                false => ops::gate::forward_again(&gate_up)?,
            };
            let down = || weights.down.values(x.tensor().dtype());
            let down_values = || values_of(down_bias, x.tensor().dtype());
            let (output, down_tensors) = match (down_adapter, tape.reads_output()) {
                (Some(adapter), _) => {
                    let (output, tensors) = adapter.forward(tape, &hidden, &weights.down, down_bias)?;
                    (output, Some(tensors))
                }
                (None, _) if weights.is_partial => (ops::linear::partial(&hidden, &down()?)?, None),
                (None, true) => {
                    let bias = down_values()?;
                    (ops::linear::forward(&hidden, &down()?, bias.as_ref(), Activation::None)?.output, None)
                }
                (None, false) => {
                    let down = weights.down.unread_values(x.tensor().dtype())?;
                    (ops::linear::forward_again(&hidden, &down, down_values()?.as_ref())?.output, None)
                }
            };
            Ok((gate_up, output, [tensors, down_tensors]))
        };
        let (gate_up, output, tensors) = named(OPERATOR, forward())?;
        tape.record_one(&[x.source()], output, || GatedFeedForwardRule {
            x: (weights.gate_up.is_trained() || adapter.is_some()).then(|| x.tensor().clone()),
            gate_up,
            gate,
            weights: weights.clone(),
            tensors,
            down: None,
        })
    })
}

impl Rule for GatedFeedForwardRule {
    fn operator(&self) -> &'static str {
        "gated_feed_forward"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let x = self.x.iter().map(|t| Saved::new("x", t));
        let low = self.tensors.iter().flatten().map(|tensors| Saved::new("low", &tensors.low));
        x.chain(low).chain(std::iter::once(Saved::new("gate_up", &self.gate_up))).collect()
    }

    fn has_weights(&self) -> bool {
        let GatedFeedForwardWeights { gate_up, down, biases, adapters, .. } = &self.weights;
        let adapted = adapters.iter().flatten().any(Adapter::is_trained);
        [gate_up, down].into_iter().chain(biases.iter().flatten()).any(Weight::is_trained) || adapted
    }

    fn backward_input(&mut self, outputs: ValueGradients, wanted: &[bool]) -> Result<ValueGradients> {
        let gradient = only(outputs)?;
        let is_trained = self.has_weights();
        let [adapter, down_adapter] = &self.weights.adapters;
        let [tensors, down_tensors] = &mut self.tensors;
        let hidden = input_gradient(down_adapter, down_tensors, &gradient, &self.weights.down, true)?;
        let Some(hidden) = hidden else { return Ok(vec![None]) };
        ops::gate::backward(&self.gate_up, &hidden, self.gate)?;
        self.down = is_trained.then_some((gradient, hidden));
        let wanted = wanted.contains(&true);
        let gate_up = &self.weights.gate_up;
        let input = match wanted && self.weights.is_partial && adapter.is_none() {
            true => {
                let matrix = gate_up.values(self.gate_up.dtype())?;
                Some(ops::linear::partial_backward_input(&self.gate_up, &matrix)?)
            }
            false => input_gradient(adapter, tensors, &self.gate_up, gate_up, wanted)?,
        };
        Ok(vec![input])
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let GatedFeedForwardRule { x, gate_up, weights, tensors: [tensors, down_tensors], down, .. } = *self;
        let Some((gradient, hidden)) = down else { return Ok(()) };
        let [adapter, down_adapter] = &weights.adapters;
        let [bias, down_bias] = weights.biases.each_ref().map(Option::as_ref);
        if let (Some(adapter), Some(tensors)) = (down_adapter, down_tensors) {
            adapter.backward_weight(sink, tensors, &gradient, &hidden)?;
        }
        backward_weight(sink, gradient, Some(hidden), &weights.down, down_bias)?;
        if let (Some(adapter), Some(tensors), Some(x)) = (adapter, tensors, &x) {
            adapter.backward_weight(sink, tensors, &gate_up, x)?;
        }
        backward_weight(sink, gate_up, x, &weights.gate_up, bias)
    }
}

/// The gradient of the input of a matmul with or without an adapter, if it is wanted.
fn input_gradient(
    adapter: &Option<Adapter>,
    tensors: &mut Option<AdapterTensors>,
    dy: &Tensor,
    weight: &Weight,
    wanted: bool,
) -> tensor::Result<Option<Tensor>> {
    match (adapter, tensors) {
        (Some(adapter), Some(tensors)) => adapter.backward_input(tensors, dy, weight, wanted),
        _ if wanted => Ok(Some(ops::linear::backward_input(dy, &weight.values(dy.dtype())?)?)),
        _ => Ok(None),
    }
}
