//! A gated feed-forward layer: `y = (activation(x · Wgᵀ) · (x · Wuᵀ)) · Wdᵀ`, called SwiGLU with SiLU and
//! GeGLU with GELU.
//!
//! One rule covers all matmuls, so that gate · up is not saved. Backward recomputes it in the kernel that
//! computes the gradients of gate and up, in memory that is already allocated.

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

/// The parameters of a gated feed-forward layer.
#[derive(Clone, Debug)]
pub struct GatedFeedForwardWeights {
    /// Rows of the gate, then rows of up: `[2 · hidden, in]`.
    pub gate_up: Weight,
    /// Weight of the down layer, `[out, hidden]`.
    pub down: Weight,
    /// Biases of gate and up, `[2 · hidden]`, and of down, `[out]`.
    pub biases: [Option<Weight>; 2],
    /// Adapters of gate and up, and of down.
    pub adapters: [Option<Adapter>; 2],
    /// Whether the output and the input's gradient are partial sums over shards, and therefore f32.
    pub is_partial: bool,
}

/// Backward of [`gated_feed_forward`].
#[derive(Debug)]
pub struct GatedFeedForwardRule {
    /// The input, if the weight of gate and up is trained.
    x: Option<Tensor>,
    /// x · Wg and x · Wu; the input half overwrites them with their gradients.
    gate_up: Tensor,
    gate: Gate,
    weights: GatedFeedForwardWeights,
    /// Tensors saved by the adapters.
    tensors: [Option<AdapterTensors>; 2],
    /// The output's gradient and the down layer's input, kept between the input and weight halves of
    /// backward; `None` if nothing is trained.
    down: Option<(Tensor, Tensor)>,
}

/// Computes the layer. `x_td` is `[.., in]`, the result `[.., out]`.
///
/// # Errors
/// Errors of [`ops::linear::forward`] and [`ops::gate::forward`].
pub fn gated_feed_forward(
    tape: &Tape,
    x_td: Var,
    weights: &GatedFeedForwardWeights,
    gate: impl Into<Gate>,
) -> Result<Var> {
    let gate = gate.into();
    map(tape, [x_td], |_, [x_td]| {
        const OPERATOR: &str = "gated_feed_forward";
        let [x_td] = autocast(tape, OPERATOR, [x_td])?;
        tape.begin(OPERATOR)?;
        let [adapter, down_adapter] = &weights.adapters;
        let [bias, down_bias] = weights.biases.each_ref().map(Option::as_ref);
        let forward = || {
            let (gate_up_t2f, tensors) = match adapter {
                Some(adapter) => {
                    let (output_td, tensors) =
                        adapter.compute(tape, x_td.tensor(), &weights.gate_up, bias)?;
                    (output_td, Some(tensors))
                }
                None => {
                    let matrix = weights.gate_up.values(x_td.tensor().dtype())?;
                    let bias = values_of(bias, x_td.tensor().dtype())?;
                    (
                        ops::linear::forward(x_td.tensor(), &matrix, bias.as_ref(), Activation::None)?.output,
                        None,
                    )
                }
            };
            let hidden_tf = match tape.reads_output() || down_adapter.is_some() {
                true => ops::gate::forward(&gate_up_t2f, gate)?,
                false => ops::gate::forward_again(&gate_up_t2f)?,
            };
            let down = || weights.down.values(x_td.tensor().dtype());
            let down_values = || values_of(down_bias, x_td.tensor().dtype());
            let (output_td, down_tensors) = match (down_adapter, tape.reads_output()) {
                (Some(adapter), _) => {
                    let (output_td, tensors) = adapter.forward(tape, &hidden_tf, &weights.down, down_bias)?;
                    (output_td, Some(tensors))
                }
                (None, _) if weights.is_partial => (ops::linear::partial(&hidden_tf, &down()?)?, None),
                (None, true) => {
                    let bias = down_values()?;
                    (
                        ops::linear::forward(&hidden_tf, &down()?, bias.as_ref(), Activation::None)?.output,
                        None,
                    )
                }
                (None, false) => {
                    let down = weights.down.unread_values(x_td.tensor().dtype())?;
                    (ops::linear::forward_again(&hidden_tf, &down, down_values()?.as_ref())?.output, None)
                }
            };
            Ok((gate_up_t2f, output_td, [tensors, down_tensors]))
        };
        let (gate_up_t2f, output_td, tensors) = named(OPERATOR, forward())?;
        tape.record_one(&[x_td.source()], output_td, || GatedFeedForwardRule {
            x: (weights.gate_up.is_trained() || adapter.is_some()).then(|| x_td.tensor().clone()),
            gate_up: gate_up_t2f,
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
        let GatedFeedForwardRule {
            x: x_td,
            gate_up: gate_up_t2f,
            weights,
            tensors: [tensors, down_tensors],
            down,
            ..
        } = *self;
        let Some((dy_td, hidden_tf)) = down else { return Ok(()) };
        let [adapter, down_adapter] = &weights.adapters;
        let [bias, down_bias] = weights.biases.each_ref().map(Option::as_ref);
        if let (Some(adapter), Some(tensors)) = (down_adapter, down_tensors) {
            adapter.backward_weight(sink, tensors, &dy_td, &hidden_tf)?;
        }
        backward_weight(sink, dy_td, Some(hidden_tf), &weights.down, down_bias)?;
        if let (Some(adapter), Some(tensors), Some(x_td)) = (adapter, tensors, &x_td) {
            adapter.backward_weight(sink, tensors, &gate_up_t2f, x_td)?;
        }
        backward_weight(sink, gate_up_t2f, x_td, &weights.gate_up, bias)
    }
}

/// Computes the gradient of a matmul's input, with its adapter if any; `None` if not wanted.
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
