//! A linear layer whose matmuls have operands in FP8: `y = f(x) · Wᵀ + b`, where f is the identity, an
//! activation or a gate.
//!
//! Backward needs the layer's input in FP8 only, so that is what the rule keeps of it.

use std::cell::RefCell;
use std::rc::Rc;

use device::{Category, DType};
use tensor::Tensor;
use tensor::ops::fp8_linear::{self as operator, Cast, Input, Quantised, Recipe, Scaled};
use tensor::ops::fp8_parts;

use super::{PartialSums, named, only};
use crate::error::Result;
use crate::rule::{Rule, Saved, ValueGradients};
use crate::sharded::{Var, map};
use crate::sink::{GradientSink, ready, target};
use crate::tape::Tape;
use crate::weight::{Weight, WeightHandle};

/// The FP8 copies of a weight `[out, in]`, cast at their first use after [`Fp8Weight::outdate`]. Clones share
/// them.
#[derive(Clone, Debug)]
pub struct Fp8Weight(Rc<Copies>);

#[derive(Debug)]
struct Copies {
    weight: WeightHandle,
    recipe: Recipe,
    gradients: DType,
    layouts: RefCell<Layouts>,
}

/// The layouts of a weight's copies.
#[derive(Clone, Debug)]
enum Layouts {
    /// None yet: the weight's source provides them.
    Missing,
    /// To be cast from the weight, which has changed.
    Outdated(Quantised),
    /// The weight's current values as stored, to be transposed.
    Stored(Quantised),
    /// The weight's current values.
    Current(Quantised),
}

impl Fp8Weight {
    /// Allocates both layouts of `weight`, of a layer whose gradients are cast to `gradients`, E4M3 or E5M2.
    /// Nothing is allocated for a weight without values, whose source provides the layouts.
    pub fn new(weight: &Weight, recipe: Recipe, gradients: DType) -> tensor::Result<Self> {
        let cast = Cast::new(DType::E4m3, recipe).stored().transposed().with_category(Category::Parameter);
        let sizes = [weight.shape().rows(), weight.shape().columns()];
        let layouts = match weight.handle().is_released() {
            true => Layouts::Missing,
            false => Layouts::Outdated(Quantised::empty(weight.device(), "fp8_weight", sizes, cast)?),
        };
        let weight = weight.handle().clone();
        let layouts = RefCell::new(layouts);
        Ok(Fp8Weight(Rc::new(Copies { weight, recipe, gradients, layouts })))
    }

    /// Returns whether an operand has one factor, which its maker can measure.
    pub fn is_tensorwise(&self) -> bool {
        self.0.recipe == Recipe::Tensorwise
    }

    /// The weight that these are copies of.
    pub fn weight(&self) -> &WeightHandle {
        &self.0.weight
    }

    /// Records that the weight has changed; layouts that its source provides stay until that replaces them.
    pub fn outdate(&self) {
        let mut layouts = self.0.layouts.borrow_mut();
        if let (Layouts::Current(current) | Layouts::Stored(current), false) =
            (&*layouts, self.0.weight.is_gathered())
        {
            *layouts = Layouts::Outdated(current.clone());
        }
    }

    /// Provides layouts of which the one as stored has the current values; the other is transposed at its
    /// first use, which only backward has.
    pub fn fill(&self, layouts: Quantised) {
        *self.0.layouts.borrow_mut() = Layouts::Stored(layouts);
    }

    /// Provides layouts into which the current values are cast at their first use.
    pub fn fill_later(&self, layouts: Quantised) {
        *self.0.layouts.borrow_mut() = Layouts::Outdated(layouts);
    }

    /// Drops layouts that the weight's source provided.
    pub fn release(&self) {
        *self.0.layouts.borrow_mut() = Layouts::Missing;
    }

    /// The cast of a layer's input.
    fn input_cast(&self) -> Cast {
        Cast::new(DType::E4m3, self.0.recipe)
    }

    /// The cast of an output's gradient.
    fn gradient_cast(&self) -> Cast {
        Cast::new(self.0.gradients, self.0.recipe).with_category(Category::ActivationGradient)
    }

    /// Casts the input of a layer's output.
    pub(super) fn input(&self, x: &Tensor) -> tensor::Result<Scaled> {
        operator::quantise(x, Input::Plain, self.input_cast().stored())?.stored.ok_or_else(missing)
    }

    /// Casts the input of a layer for the gradient of its weight.
    pub(super) fn transposed_input(&self, x: &Tensor) -> tensor::Result<Scaled> {
        let cast = self.input_cast().transposed().with_category(Category::ActivationGradient);
        operator::quantise(x, Input::Plain, cast)?.transposed.ok_or_else(missing)
    }

    /// Casts the gradient of a layer's output for that of its input.
    pub(super) fn gradient(&self, dy: &Tensor) -> tensor::Result<Scaled> {
        operator::quantise(dy, Input::Plain, self.gradient_cast().stored())?.stored.ok_or_else(missing)
    }

    /// Casts the gradient of a layer's output for that of its weight.
    pub(super) fn transposed_gradient(&self, dy: &Tensor) -> tensor::Result<Scaled> {
        let cast = self.gradient_cast().transposed();
        operator::quantise(dy, Input::Plain, cast)?.transposed.ok_or_else(missing)
    }

    /// The layout as stored of the current values of the weight.
    pub(super) fn stored(&self) -> tensor::Result<Scaled> {
        self.current(false)?.stored.ok_or_else(missing)
    }

    /// The transposed layout of the current values of the weight.
    pub(super) fn transposed(&self) -> tensor::Result<Scaled> {
        self.current(true)?.transposed.ok_or_else(missing)
    }

    /// The layouts of the current values; the transposed one has them if it `is_read`.
    fn current(&self, is_read: bool) -> tensor::Result<Quantised> {
        self.0.weight.gather()?;
        let layouts = self.0.layouts.borrow().clone();
        let current = match layouts {
            Layouts::Missing => return Err(tensor::TensorError::Released { shape: self.0.weight.shape() }),
            Layouts::Outdated(layouts) => {
                operator::quantise_into(&self.0.weight.tensor()?, self.0.recipe, &layouts)?;
                layouts
            }
            Layouts::Stored(layouts) if is_read => {
                if let (Some(stored), Some(transposed)) = (&layouts.stored, &layouts.transposed) {
                    fp8_parts::transpose(&stored.values, &transposed.values)?;
                }
                layouts
            }
            Layouts::Stored(layouts) | Layouts::Current(layouts) => return Ok(layouts),
        };
        *self.0.layouts.borrow_mut() = Layouts::Current(current.clone());
        Ok(current)
    }
}

/// The parameters of a layer, at their uses.
#[derive(Clone, Debug)]
pub struct Fp8Linear {
    /// `[out, in]`.
    pub weight: Weight,
    /// The weight's copies.
    pub copies: Fp8Weight,
    /// `[out]`.
    pub bias: Option<Weight>,
    /// The results that are partial sums over shards.
    pub sums: PartialSums,
}

impl Fp8Linear {
    /// Type of the output for an input of type `dtype`.
    fn output_type(&self, dtype: DType) -> DType {
        if self.sums.output { DType::F32 } else { dtype }
    }
}

/// Backward of [`fp8_linear`].
#[derive(Debug)]
pub struct Fp8LinearRule {
    /// The layer's input transposed, if the weight is trained; that of a gate is made in backward.
    input: Option<Scaled>,
    /// Factor of a gate's result.
    factor: Option<Tensor>,
    /// The layer's input, if its gradient depends on it.
    layer_input: Option<Tensor>,
    function: Input,
    layer: Fp8Linear,
    /// The output's gradient transposed and sums of its rows, from the input half to the weight half.
    gradient: Option<Scaled>,
    sums: Option<Tensor>,
}

/// `x` is `[.., in]`, or `[.., 2 · in]` for a gate, which backward overwrites; the result is `[.., out]`.
///
/// # Errors
/// Sizes that are no multiples of 16, out of memory.
pub fn fp8_linear(tape: &Tape, x: Var, layer: &Fp8Linear, function: Input) -> Result<Var> {
    map(tape, [x], |_, [x]| {
        const OPERATOR: &str = "fp8_linear";
        tape.begin(OPERATOR)?;
        let source = x.source();
        let x = x.into_tensor();
        let (output, input, factor) = named(OPERATOR, forward(tape, &x, layer, function))?;
        tape.record_one(&[source], output, || Fp8LinearRule {
            input,
            factor,
            layer_input: (function != Input::Plain).then_some(x),
            function,
            layer: layer.clone(),
            gradient: None,
            sums: None,
        })
    })
}

/// The output, the transposed input if backward needs it, and the factor of a gate's result.
fn forward(
    tape: &Tape,
    x: &Tensor,
    layer: &Fp8Linear,
    function: Input,
) -> tensor::Result<(Tensor, Option<Scaled>, Option<Tensor>)> {
    let Fp8Linear { weight, copies, bias, .. } = layer;
    let is_gate = matches!(function, Input::Gated(_));
    let dtype = layer.output_type(x.dtype());
    let cast = Cast::new(DType::E4m3, copies.0.recipe);
    let keeps = tape.is_recording() && weight.is_trained() && !is_gate;
    let cast = if keeps { cast.transposed() } else { cast };
    if !tape.reads_output() {
        let transposed = match keeps {
            true => operator::quantise(x, function, cast)?.transposed,
            false => None,
        };
        let outputs = weight.shape().rows();
        return Ok((operator::forward_again(x, outputs, dtype)?, transposed, None));
    }
    let Quantised { stored, transposed } = operator::quantise(x, function, cast.stored())?;
    let own = copies.stored()?;
    let Some(stored) = stored else { return Err(missing()) };
    let bias = bias.as_ref().map(Weight::stored).transpose()?;
    let output = operator::forward(&stored, &own, bias.as_ref(), x.shape(), dtype)?;
    let factor = (is_gate && copies.is_tensorwise()).then_some(stored.scales);
    Ok((output, transposed, factor))
}

fn missing() -> tensor::TensorError {
    tensor::TensorError::Count { operator: "fp8_linear", actual: 0, expected: 1 }
}

impl Fp8LinearRule {
    /// The gradient of the layer's input, from the output's.
    fn input_gradient(&mut self, dy: &Scaled, output: &Tensor) -> Result<Tensor> {
        let turned = self.layer.copies.transposed()?;
        let dtype = if self.layer.sums.input_gradient { DType::F32 } else { output.dtype() };
        let dx = operator::backward_input(dy, &turned, output.shape(), dtype)?;
        let Some(layer_input) = self.layer_input.take() else { return Ok(dx) };
        match self.function {
            Input::Plain => Ok(dx),
            Input::Activated(activation) => Ok(operator::backward_activation(dx, &layer_input, activation)?),
            Input::Gated(activation) => {
                let gradient = operator::backward_gate(layer_input, &dx, activation)?;
                self.input = self.gate_result(&dx)?;
                Ok(gradient)
            }
        }
    }

    /// The transposed result of a gate, which its backward pass computed again, if the weight is trained.
    fn gate_result(&mut self, hidden: &Tensor) -> Result<Option<Scaled>> {
        if !self.layer.weight.is_trained() {
            return Ok(None);
        }
        if let Some(factor) = self.factor.take() {
            return Ok(Some(operator::quantise_with(hidden, DType::E4m3, &factor)?));
        }
        let cast = Cast::new(DType::E4m3, self.layer.copies.0.recipe).transposed();
        let cast = cast.with_category(Category::ActivationGradient);
        Ok(operator::quantise(hidden, Input::Plain, cast)?.transposed)
    }
}

impl Rule for Fp8LinearRule {
    fn operator(&self) -> &'static str {
        "fp8_linear"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        let input = self.input.iter().flat_map(|input| {
            [Saved::new("input", &input.values), Saved::new("input_scales", &input.scales)]
        });
        let factor = self.factor.iter().map(|factor| Saved::new("factor", factor));
        input
            .chain(factor)
            .chain(self.layer_input.iter().map(|layer_input| Saved::new("given", layer_input)))
            .collect()
    }

    fn has_weights(&self) -> bool {
        self.layer.weight.is_trained() || self.layer.bias.as_ref().is_some_and(Weight::is_trained)
    }

    fn backward_input(&mut self, outputs: ValueGradients, wanted: &[bool]) -> Result<ValueGradients> {
        let output = only(outputs)?;
        let Fp8Linear { weight, copies, bias, .. } = &self.layer;
        let wanted = wanted[0] || matches!(self.function, Input::Gated(_));
        let cast = Cast::new(copies.0.gradients, copies.0.recipe).with_category(Category::ActivationGradient);
        let cast = if wanted { cast.stored() } else { cast };
        let cast = if weight.is_trained() { cast.transposed() } else { cast };
        let sums = bias.as_ref().is_some_and(Weight::is_trained);
        let (Quantised { stored, transposed }, sums) = operator::quantise_gradient(&output, cast, sums)?;
        (self.gradient, self.sums) = (transposed, sums);
        Ok(vec![stored.map(|dy| self.input_gradient(&dy, &output)).transpose()?])
    }

    fn backward_weight(self: Box<Self>, sink: &mut dyn GradientSink) -> Result<()> {
        let Fp8LinearRule { input, gradient, sums, layer: Fp8Linear { weight, bias, .. }, .. } = *self;
        let weight_target = target(sink, &weight)?;
        let bias_target = bias.as_ref().map_or(Ok(None), |bias| target(sink, bias))?;
        if let (Some(target), Some(input), Some(gradient)) = (&weight_target, &input, &gradient) {
            operator::backward_weight(gradient, input, target)?;
        }
        if let (Some(target), Some(sums)) = (&bias_target, &sums) {
            operator::finish_sums(sums, target)?;
        }
        drop((gradient, input, sums));
        bias.as_ref().map_or(Ok(()), |bias| ready(sink, bias))?;
        ready(sink, &weight)
    }
}
