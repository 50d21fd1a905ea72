//! Low-rank adapters of experts: each expert has its own, for some parts of a layer's outputs.

use device::{Category, DType, Request};
use tensor::Tensor;
use tensor::ops::dropout::Mask;
use tensor::ops::experts::{self as kernel, AdaptedParts};
use tensor::ops::routing::Routes;
use tensor::ops::{self};

use super::Dropout;
use super::adapter::dropped;
use crate::error::Result;
use crate::sink::{GradientSink, Target, give_gradient};
use crate::tape::Tape;
use crate::weight::Weight;

/// A term added to the output of a layer of experts: `scale · B · A · dropout(x)`, with the matrices of each
/// row's expert.
#[derive(Clone, Debug)]
pub struct ExpertAdapter {
    /// Rows of A, by expert and adapted part: `[experts · adapted · rank, in]`.
    pub a: Weight,
    /// Rows of B, by expert and adapted part: `[experts · rows of adapted parts, rank]`.
    pub b: Weight,
    /// The parts of the outputs that are adapted.
    pub parts: AdaptedParts,
    /// Factor of the term.
    pub scale: f32,
    /// Dropout of the input.
    pub dropout: Option<Dropout>,
}

/// The tensors of an adapter's call that backward needs.
#[derive(Debug)]
pub(super) struct ExpertAdapterTensors {
    /// A · dropout(x), `[slots, adapted · rank]`.
    pub(super) low: Tensor,
    mask: Option<Mask>,
    /// Gradient of `low`, kept between the input and weight halves of backward.
    gradient: Option<Tensor>,
}

impl ExpertAdapter {
    /// Returns whether A or B is trained.
    pub(super) fn is_trained(&self) -> bool {
        self.a.is_trained() || self.b.is_trained()
    }

    /// Computes A · dropout(x) for the rows of all experts.
    pub(super) fn compress(
        &self,
        tape: &Tape,
        x: &Tensor,
        routes: &Routes,
    ) -> tensor::Result<ExpertAdapterTensors> {
        let mask = self.dropout.as_ref().and_then(|dropout| dropout.mask(tape));
        let input = dropped(x, mask)?;
        let a = self.a.values(x.dtype())?;
        let low = kernel::forward(&input, &a, None, routes, x.dtype())?;
        Ok(ExpertAdapterTensors { low, mask, gradient: None })
    }

    /// Adds the adapter's term to the layer's output `y`.
    pub(super) fn add(
        &self,
        tensors: &ExpertAdapterTensors,
        routes: &Routes,
        y: &Tensor,
    ) -> tensor::Result<()> {
        let expansion = self.expansion(tensors.low.dtype())?;
        ops::add::into(y, &kernel::forward(&tensors.low, &expansion, None, routes, y.dtype())?)
    }

    /// Returns the matrices from `low` to the output.
    fn expansion(&self, dtype: DType) -> tensor::Result<Tensor> {
        kernel::spread(&self.b.values(dtype)?, &self.parts, self.scale)
    }

    /// Computes the gradient of `low` from the output's gradient, and adds the input's gradient to `dx`, if
    /// present.
    pub(super) fn backward_input(
        &self,
        tensors: &mut ExpertAdapterTensors,
        dy: &Tensor,
        routes: &Routes,
        dx: Option<&Tensor>,
    ) -> tensor::Result<()> {
        let dtype = tensors.low.dtype();
        let low = kernel::backward_input(dy, &self.expansion(dtype)?, routes, dtype)?;
        if let Some(dx) = dx {
            let own = kernel::backward_input(&low, &self.a.values(dtype)?, routes, dx.dtype())?;
            let own = match tensors.mask {
                Some(mask) => ops::dropout::apply(own, mask, Category::ActivationGradient)?,
                None => own,
            };
            ops::add::into(dx, &own)?;
        }
        tensors.gradient = Some(low);
        Ok(())
    }

    /// Computes the gradients of B and A from the output's gradient `dy` and the layer's input `x`.
    pub(super) fn backward_weight(
        &self,
        sink: &mut dyn GradientSink,
        tensors: ExpertAdapterTensors,
        [dy, x]: [&Tensor; 2],
        routes: &Routes,
    ) -> Result<()> {
        let ExpertAdapterTensors { low, mask, gradient } = tensors;
        give_gradient(sink, &self.b, |target| self.backward_b(dy, &low, routes, target))?;
        let Some(gradient) = &gradient else { return Ok(()) };
        give_gradient(sink, &self.a, |target| {
            kernel::backward_weight(gradient, &dropped(x, mask)?, routes, target)
        })
    }

    fn backward_b(&self, dy: &Tensor, low: &Tensor, routes: &Routes, target: &Target) -> tensor::Result<()> {
        let shape = [routes.experts() * dy.shape().columns(), low.shape().columns()];
        let request = Request::new(Category::Gradient, "expert_adapter.backward");
        let tensor = Tensor::empty(dy.device(), shape, target.tensor.dtype(), request)?;
        let all = Target { tensor, accumulate: false };
        kernel::backward_weight(dy, low, routes, &all)?;
        kernel::collect(&all.tensor, &self.parts, self.scale, target)
    }
}
