//! Backward rules.

use tensor::Tensor;

use crate::error::Result;
use crate::sink::GradientSink;

/// The gradients of the values that an operator takes or returns, in their order; `None` for a value without
/// one.
pub type ValueGradients = Vec<Option<Tensor>>;

/// A tensor that a rule keeps alive until it has run.
#[derive(Debug)]
pub struct Saved<'a> {
    /// The rule's name for it.
    pub name: &'static str,
    /// The tensor.
    pub tensor: &'a Tensor,
}

impl<'a> Saved<'a> {
    /// Returns `tensor` under `name`.
    pub fn new(name: &'static str, tensor: &'a Tensor) -> Self {
        Saved { name, tensor }
    }
}

/// The backward of one operator call; its fields are the tensors that the call saved.
///
/// [`Rule::backward_input`] is called first, once, and then [`Rule::backward_weight`], once, perhaps much
/// later. If the weight half follows directly, [`Rule::backward`] is called instead of the input half.
pub trait Rule {
    /// The operator's name.
    fn operator(&self) -> &'static str;

    /// Tensors that the rule keeps alive for backward.
    fn saved(&self) -> Vec<Saved<'_>>;

    /// Returns whether [`Rule::backward_weight`] has anything to do.
    fn has_weights(&self) -> bool {
        false
    }

    /// Returns the gradients of the inputs, from those of the outputs (`None` for an output without
    /// gradient); `wanted` states which inputs need one. Keeps the tensors that the weight half needs and
    /// drops the others.
    fn backward_input(&mut self, outputs: ValueGradients, wanted: &[bool]) -> Result<ValueGradients>;

    /// Offers the sum of the other gradients of the only input, before the input half. A rule that takes it
    /// adds its own gradient in place and returns the total from [`Rule::backward_input`]; others give it
    /// back.
    fn take_sum(&mut self, sum: Tensor) -> Option<Tensor> {
        Some(sum)
    }

    /// [`Rule::backward_input`] directly followed by the weight half. A rule made of rules may give weight
    /// gradients to `sink` here, one by one, instead of keeping them all.
    fn backward(
        &mut self,
        outputs: ValueGradients,
        wanted: &[bool],
        _sink: &mut dyn GradientSink,
    ) -> Result<ValueGradients> {
        self.backward_input(outputs, wanted)
    }

    /// Returns the gradients of the inputs if the single output is the root of backward, whose gradient is 1:
    /// for losses that computed their gradient in forward. `None`: [`Rule::backward_input`] is called with a
    /// gradient of 1 instead.
    fn backward_root(&mut self, _wanted: &[bool]) -> Result<Option<ValueGradients>> {
        Ok(None)
    }

    /// Writes the weight gradients to `sink`'s targets, and tells it when each is ready.
    fn backward_weight(self: Box<Self>, _sink: &mut dyn GradientSink) -> Result<()> {
        Ok(())
    }
}
