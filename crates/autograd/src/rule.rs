//! Backward rules.

use tensor::Tensor;

use crate::error::Result;
use crate::sink::GradientSink;

/// Gradients of the values that an operator takes or returns, in order; `None` for a value without one.
pub type ValueGradients = Vec<Option<Tensor>>;

/// A tensor that a rule keeps alive until it has run.
#[derive(Debug)]
pub struct Saved<'a> {
    /// Name of the tensor within the rule.
    pub name: &'static str,
    /// The tensor.
    pub tensor: &'a Tensor,
}

impl<'a> Saved<'a> {
    /// Pairs `tensor` with its name.
    pub fn new(name: &'static str, tensor: &'a Tensor) -> Self {
        Saved { name, tensor }
    }
}

/// The backward rule of one operator call. Its fields are the tensors saved by the call.
///
/// [`Rule::backward_input`] is called once, then [`Rule::backward_weight`] once, perhaps much later. If the
/// weight half follows directly, [`Rule::backward`] is called instead of the input half.
pub trait Rule {
    /// The operator's name.
    fn operator(&self) -> &'static str;

    /// Tensors that the rule keeps alive for backward.
    fn saved(&self) -> Vec<Saved<'_>>;

    /// Returns whether [`Rule::backward_weight`] computes any gradient.
    fn has_weights(&self) -> bool {
        false
    }

    /// Computes the gradients of the inputs from the gradients of the outputs (`None` for an output without
    /// gradient). `wanted` tells which inputs need one. Keeps the tensors needed by the weight half and drops
    /// the others.
    fn backward_input(&mut self, outputs: ValueGradients, wanted: &[bool]) -> Result<ValueGradients>;

    /// Offers the sum of the single input's other gradients, before the input half. A rule that accepts it
    /// adds its own gradient in place, and returns the total from [`Rule::backward_input`]; other rules
    /// return it here.
    fn take_sum(&mut self, sum: Tensor) -> Option<Tensor> {
        Some(sum)
    }

    /// Runs [`Rule::backward_input`] when the weight half follows directly. A rule that consists of other
    /// rules may pass weight gradients to `sink` one by one here, instead of keeping them all.
    fn backward(
        &mut self,
        outputs: ValueGradients,
        wanted: &[bool],
        _sink: &mut dyn GradientSink,
    ) -> Result<ValueGradients> {
        self.backward_input(outputs, wanted)
    }

    /// Returns the gradients of the inputs when the single output is the root of backward, whose gradient is
    /// 1; for losses that computed their gradient in forward. `None`: [`Rule::backward_input`] is called with
    /// a gradient of 1 instead.
    fn backward_root(&mut self, _wanted: &[bool]) -> Result<Option<ValueGradients>> {
        Ok(None)
    }

    /// Writes the weight gradients to the targets of `sink`, and notifies it when each is ready.
    fn backward_weight(self: Box<Self>, _sink: &mut dyn GradientSink) -> Result<()> {
        Ok(())
    }
}
