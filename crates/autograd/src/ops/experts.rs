//! Feed-forward layers of experts, each applied to the rows routed to it. A row's result is the sum over its
//! choices of `weight · f(x · W1ᵀ + b1) · W2ᵀ + weight · b2`, where f is a gate or an activation.
//!
//! One rule covers all matmuls. For a row of an expert only gate and up are saved: backward gathers the input
//! rows again, and recomputes the gate in the kernel that computes the gradients of gate and up.

use device::{Category, DType};
use tensor::Tensor;
use tensor::ops::experts::{self as kernel, ExpertFunction};
use tensor::ops::routing::Routes;

use super::Fp8Weight;
use super::expert_adapter::{ExpertAdapter, ExpertAdapterTensors};
use super::{autocast, named, only, values_of};
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::Var;
use crate::sink::{GradientSink, give_gradient};
use crate::tape::Tape;
use crate::weight::Weight;

const OPERATOR: &str = "experts";
/// Index of the gate and up layer; [`DOWN`] is the layer after it.
const GATE_UP: usize = 0;
const DOWN: usize = 1;

/// The parameters of all experts.
#[derive(Clone, Debug)]
pub struct ExpertWeights {
    /// Gate and up weights, stacked by expert with the gate's rows first: `[experts · 2 · hidden, in]`; or
    /// without a gate `[experts · hidden, in]`.
    pub gate_up: Weight,
    /// Weight of the down layer, `[experts · out, hidden]`.
    pub down: Weight,
    /// Bias of gate and up, `[experts · 2 · hidden]`, or of up.
    pub gate_up_bias: Option<Weight>,
    /// Bias of down, `[experts · out]`, added by the first shard only.
    pub down_bias: Option<Weight>,
    /// The adapters of both layers, if any.
    pub adapters: [Option<ExpertAdapter>; 2],
    /// FP8 copies of both layers' weights, if the layers multiply in FP8.
    pub fp8: [Option<Fp8Weight>; 2],
    /// Whether this is the first shard, or layers are not sharded.
    pub is_first: bool,
    /// Whether the output and the input's gradient are partial sums over shards, and therefore f32.
    pub is_partial: bool,
}

/// Backward of [`experts`].
#[derive(Debug)]
pub struct ExpertsRule {
    x: Tensor,
    /// x · W1ᵀ + b1 in the order of experts; the input half overwrites it with its gradient.
    gate_up: Tensor,
    routes: Routes,
    function: ExpertFunction,
    weights: ExpertWeights,
    /// Tensors saved by the adapters.
    tensors: [Option<ExpertAdapterTensors>; 2],
    /// The output's gradient and the down layer's input, kept between the input and weight halves of
    /// backward.
    down: Option<(Tensor, Tensor)>,
}

/// Computes the experts' layers. `x_td` is `[.., in]`, the result `[.., out]`. `of_choices_tp` are the
/// weights of the choices in `routes`.
pub fn experts(
    tape: &Tape,
    x_td: Var,
    (of_choices_tp, routes): (Var, Routes),
    weights: &ExpertWeights,
    function: impl Into<ExpertFunction>,
) -> Result<Var> {
    let function = function.into();
    let [x_td] = autocast(tape, OPERATOR, [x_td])?;
    tape.begin(OPERATOR)?;
    let forward = || {
        let dtype = x_td.tensor().dtype();
        let rows_sd = kernel::gather(x_td.tensor(), &routes, Category::Activation)?;
        let bias = values_of(weights.gate_up_bias.as_ref(), dtype)?;
        let gate_up_s2f = weights.multiply(GATE_UP, &rows_sd, bias.as_ref(), &routes, dtype)?;
        let [adapter, down_adapter] = weights.adapters.each_ref().map(Option::as_ref);
        let adapted = adapter.map(|adapter| {
            let tensors = adapter.compress(tape, &rows_sd, &routes)?;
            adapter.add(&tensors, &routes, &gate_up_s2f).map(|()| tensors)
        });
        let adapted = adapted.transpose()?;
        drop((rows_sd, bias));
        let bias = weights.own_down_bias(dtype)?;
        let sum = if weights.is_partial { DType::F32 } else { dtype };
        let hidden_sf = match tape.reads_output() || down_adapter.is_some() {
            true => kernel::gate_forward(&gate_up_s2f, &routes, function)?,
            false => kernel::gate_forward_again(&gate_up_s2f, function)?,
        };
        let down_adapted = down_adapter.map(|adapter| adapter.compress(tape, &hidden_sf, &routes));
        let down_adapted = down_adapted.transpose()?;
        let results_sd = match tape.reads_output() {
            true => weights.multiply(DOWN, &hidden_sf, None, &routes, sum)?,
            false => kernel::forward_again(&hidden_sf, &weights.down.unread_values(dtype)?, &routes, sum)?,
        };
        drop(hidden_sf);
        if let (Some(adapter), Some(tensors)) = (down_adapter, &down_adapted) {
            adapter.add(tensors, &routes, &results_sd)?;
        }
        let output_td = kernel::combine(&results_sd, bias.as_ref(), &routes, x_td.tensor().shape(), sum)?;
        Ok((gate_up_s2f, output_td, [adapted, down_adapted]))
    };
    let (gate_up_s2f, output_td, tensors) = named(OPERATOR, forward())?;
    tape.record_one(&[x_td.source(), of_choices_tp.source()], output_td, || ExpertsRule {
        x: x_td.tensor().clone(),
        gate_up: gate_up_s2f,
        routes,
        function,
        weights: weights.clone(),
        tensors,
        down: None,
    })
}

impl ExpertWeights {
    /// Returns the weight of a layer.
    fn of_layer(&self, layer: usize) -> &Weight {
        if layer == GATE_UP { &self.gate_up } else { &self.down }
    }

    /// Computes x · Wᵀ + b of a layer for the rows of experts.
    fn multiply(
        &self,
        layer: usize,
        x_si: &Tensor,
        bias: Option<&Tensor>,
        routes: &Routes,
        dtype: DType,
    ) -> tensor::Result<Tensor> {
        let Some(copies) = &self.fp8[layer] else {
            return kernel::forward(x_si, &self.of_layer(layer).values(x_si.dtype())?, bias, routes, dtype);
        };
        let own = copies.stored()?;
        kernel::fp8::forward(&copies.input(x_si)?, &own, bias, routes, dtype)
    }

    /// Computes dy · W of a layer for the rows of experts.
    fn multiply_back(
        &self,
        layer: usize,
        dy_so: &Tensor,
        routes: &Routes,
        dtype: DType,
    ) -> tensor::Result<Tensor> {
        let Some(copies) = &self.fp8[layer] else {
            return kernel::backward_input(
                dy_so,
                &self.of_layer(layer).values(dy_so.dtype())?,
                routes,
                dtype,
            );
        };
        let transposed = copies.transposed()?;
        kernel::fp8::backward_input(&copies.gradient(dy_so)?, &transposed, routes, dtype)
    }

    /// Computes the gradient dyᵀ · x of a layer's weight from the rows of experts.
    fn give_weight(
        &self,
        sink: &mut dyn GradientSink,
        layer: usize,
        [dy, x]: [&Tensor; 2],
        routes: &Routes,
    ) -> Result<()> {
        give_gradient(sink, self.of_layer(layer), |target| match &self.fp8[layer] {
            None => kernel::backward_weight(dy, x, routes, target),
            Some(copies) => {
                let dy = copies.transposed_gradient(dy)?;
                let x = copies.transposed_input(x)?;
                kernel::fp8::backward_weight(&dy, &x, routes, target)
            }
        })
    }

    /// Returns the bias of down, if this shard adds it.
    fn own_down_bias(&self, dtype: DType) -> tensor::Result<Option<Tensor>> {
        let bias = self.down_bias.as_ref().filter(|_| self.is_first);
        values_of(bias, dtype)
    }
}

impl Rule for ExpertsRule {
    fn operator(&self) -> &'static str {
        OPERATOR
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        // The routes are saved by the operator that made them.
        let low = self.tensors.iter().flatten().map(|tensors| Saved::new("low", &tensors.low));
        [Saved::new("x", &self.x), Saved::new("gate_up", &self.gate_up)].into_iter().chain(low).collect()
    }

    fn has_weights(&self) -> bool {
        let ExpertWeights { gate_up, down, gate_up_bias, down_bias, adapters, .. } = &self.weights;
        let adapted = adapters.iter().flatten().any(ExpertAdapter::is_trained);
        adapted || [gate_up, down].into_iter().chain(gate_up_bias).chain(down_bias).any(Weight::is_trained)
    }

    fn backward_input(&mut self, outputs: ValueGradients, wanted: &[bool]) -> Result<ValueGradients> {
        let dy_td = only(outputs)?;
        let is_trained = self.has_weights();
        let ExpertsRule { gate_up, routes, function, weights, x, tensors: [tensors, down_tensors], .. } =
            self;
        let [adapter, down_adapter] = weights.adapters.each_ref().map(Option::as_ref);
        let dtype = gate_up.dtype();
        let rows = kernel::gather(&dy_td, routes, Category::ActivationGradient)?;
        let hidden_sf = weights.multiply_back(DOWN, &rows, routes, dtype)?;
        if let (Some(adapter), Some(tensors)) = (down_adapter, down_tensors) {
            adapter.backward_input(tensors, &rows, routes, Some(&hidden_sf))?;
        }
        drop(rows);
        let of_slots_s = kernel::gate_backward(gate_up, &hidden_sf, routes, *function)?;
        let bias = weights.own_down_bias(dtype)?;
        let biases = bias.as_ref().map(|bias| (&dy_td, bias));
        let of_choices_tp = kernel::weight_gradients(&of_slots_s, biases, routes)?;
        drop((of_slots_s, bias));
        self.down = is_trained.then_some((dy_td, hidden_sf));
        let is_wanted = |index: usize| wanted.get(index).copied().unwrap_or(false);
        let sum = if weights.is_partial { DType::F32 } else { dtype };
        let rows = || weights.multiply_back(GATE_UP, gate_up, routes, sum);
        let rows = is_wanted(0).then(rows).transpose()?;
        if let (Some(adapter), Some(tensors)) = (adapter, tensors) {
            adapter.backward_input(tensors, gate_up, routes, rows.as_ref())?;
        }
        let input = rows.map(|rows| kernel::sum_choices(&rows, routes, x.shape(), sum));
        Ok(vec![input.transpose()?, is_wanted(1).then_some(of_choices_tp)])
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let ExpertsRule { x: x_td, gate_up: gate_up_s2f, routes, weights, down, tensors, .. } = *self;
        let Some((dy_td, hidden_sf)) = down else { return Ok(()) };
        let [tensors, down_tensors] = tensors;
        let [adapter, down_adapter] = weights.adapters.each_ref().map(Option::as_ref);
        let category = Category::ActivationGradient;
        let rows_sd = kernel::gather(&dy_td, &routes, category)?;
        drop(dy_td);
        if let (Some(adapter), Some(tensors)) = (down_adapter, down_tensors) {
            adapter.backward_weight(sink, tensors, [&rows_sd, &hidden_sf], &routes)?;
        }
        if let Some(bias) = &weights.down_bias {
            give_gradient(sink, bias, |target| match weights.is_first {
                true => kernel::backward_bias(&rows_sd, &routes, true, target),
                false => Ok(target.tensor.zero()?),
            })?;
        }
        weights.give_weight(sink, DOWN, [&rows_sd, &hidden_sf], &routes)?;
        drop((rows_sd, hidden_sf));
        if let Some(bias) = &weights.gate_up_bias {
            give_gradient(sink, bias, |target| kernel::backward_bias(&gate_up_s2f, &routes, false, target))?;
        }
        let rows_sd = kernel::gather(&x_td, &routes, category)?;
        drop(x_td);
        if let (Some(adapter), Some(tensors)) = (adapter, tensors) {
            adapter.backward_weight(sink, tensors, [&gate_up_s2f, &rows_sd], &routes)?;
        }
        weights.give_weight(sink, GATE_UP, [&gate_up_s2f, &rows_sd], &routes)
    }
}
