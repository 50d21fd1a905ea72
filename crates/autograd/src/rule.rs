//! What a backward rule is.

use tensor::Tensor;

use crate::error::Result;
use crate::sink::GradientSink;

/// A tensor that a rule keeps alive until it has run.
#[derive(Debug)]
pub struct Saved<'a> {
    /// What it is to the rule.
    pub name: &'static str,
    /// The tensor.
    pub tensor: &'a Tensor,
}

impl<'a> Saved<'a> {
    /// `tensor`, which the rule calls `name`.
    pub fn new(name: &'static str, tensor: &'a Tensor) -> Self {
        Saved { name, tensor }
    }
}

/// The backward of one operator call, with what it saved as its fields.
///
/// [`Rule::backward_input`] is called first, once, and then [`Rule::backward_weight`], once, perhaps much later. Where one
/// follows the other at once, [`Rule::backward`] is called in place of the first.
pub trait Rule {
    /// The operator's name.
    fn operator(&self) -> &'static str;

    /// What is kept alive for backward.
    fn saved(&self) -> Vec<Saved<'_>>;

    /// Whether there is a weight half: whether [`Rule::backward_weight`] has anything to do.
    fn has_weights(&self) -> bool {
        false
    }

    /// The gradients of the inputs from those of the outputs (`None`: nothing flowed back there); `wanted` says
    /// which inputs need one. Keeps what the weight half needs and drops the rest.
    fn backward_input(
        &mut self,
        outputs: Vec<Option<Tensor>>,
        wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>>;

    /// [`Rule::backward_input`] in a backward that is not divided: the weight half comes next. A rule that is made of rules
    /// may give their weights' gradients to `sink` one by one already, rather than hold them all.
    fn backward(
        &mut self,
        outputs: Vec<Option<Tensor>>,
        wanted: &[bool],
        _sink: &mut dyn GradientSink,
    ) -> Result<Vec<Option<Tensor>>> {
        self.backward_input(outputs, wanted)
    }

    /// The gradients of the inputs when the single output is the root of backward, whose gradient is 1. A loss that
    /// computed its gradient in forward returns it as it is; `None`: pass a 1 to [`Rule::backward_input`] instead.
    fn backward_root(&mut self, _wanted: &[bool]) -> Result<Option<Vec<Option<Tensor>>>> {
        Ok(None)
    }

    /// Gives the weights' gradients to `sink`, and tells it when each is ready.
    fn backward_weight(self: Box<Self>, _sink: &mut dyn GradientSink) -> Result<()> {
        Ok(())
    }
}
