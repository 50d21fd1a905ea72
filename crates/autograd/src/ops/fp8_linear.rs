//! A linear layer whose matmuls have FP8 operands: `y = f(x) · Wᵀ + b`, where f is the identity, an
//! activation or a gate.
//!
//! Backward needs the layer's input in FP8 only, so the rule saves only its FP8 codes.

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

/// State of a weight's FP8 copies, stored and transposed.
#[derive(Clone, Debug)]
enum Layouts {
    /// No copies yet; the weight's source will provide them.
    Missing,
    /// The weight has changed, so the copies must be cast again.
    Outdated(Quantised),
    /// Only the stored layout is current; the transposed one must be made from it.
    Stored(Quantised),
    /// Both layouts are current.
    Current(Quantised),
}

impl Fp8Weight {
    /// Allocates both layouts of `weight`. The layer's gradients are cast to `gradients`, E4M3 or E5M2. For a
    /// released weight nothing is allocated; its source provides the layouts.
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

    /// Returns whether an operand has a single scale, which the kernel that writes it can measure.
    pub fn is_tensorwise(&self) -> bool {
        self.0.recipe == Recipe::Tensorwise
    }

    /// The weight that was copied.
    pub fn weight(&self) -> &WeightHandle {
        &self.0.weight
    }

    /// Records that the weight has changed. Layouts provided by its source stay until the source replaces
    /// them.
    pub fn outdate(&self) {
        let mut layouts = self.0.layouts.borrow_mut();
        if let (Layouts::Current(current) | Layouts::Stored(current), false) =
            (&*layouts, self.0.weight.is_gathered())
        {
            *layouts = Layouts::Outdated(current.clone());
        }
    }

    /// Stores FP8 layouts of the weight's current values. The transposed one is made at its first use, in
    /// backward.
    pub fn fill(&self, layouts: Quantised) {
        *self.0.layouts.borrow_mut() = Layouts::Stored(layouts);
    }

    /// Provides memory for layouts, into which the weight is cast at its first use.
    pub fn fill_later(&self, layouts: Quantised) {
        *self.0.layouts.borrow_mut() = Layouts::Outdated(layouts);
    }

    /// Drops layouts provided by the weight's source.
    pub fn release(&self) {
        *self.0.layouts.borrow_mut() = Layouts::Missing;
    }

    /// Returns the FP8 format and scaling of a layer's input: always E4M3.
    fn input_cast(&self) -> Cast {
        Cast::new(DType::E4m3, self.0.recipe)
    }

    /// Returns the FP8 format and scaling of the output's gradient.
    fn gradient_cast(&self) -> Cast {
        Cast::new(self.0.gradients, self.0.recipe).with_category(Category::ActivationGradient)
    }

    /// Casts a layer's input for its forward matmul.
    pub(super) fn input(&self, x: &Tensor) -> tensor::Result<Scaled> {
        operator::quantise(x, Input::Plain, self.input_cast().stored())?.stored.ok_or_else(missing)
    }

    /// Casts a layer's input for the matmul of the weight's gradient.
    pub(super) fn transposed_input(&self, x: &Tensor) -> tensor::Result<Scaled> {
        let cast = self.input_cast().transposed().with_category(Category::ActivationGradient);
        operator::quantise(x, Input::Plain, cast)?.transposed.ok_or_else(missing)
    }

    /// Casts an output's gradient for the matmul of the input's gradient.
    pub(super) fn gradient(&self, dy: &Tensor) -> tensor::Result<Scaled> {
        operator::quantise(dy, Input::Plain, self.gradient_cast().stored())?.stored.ok_or_else(missing)
    }

    /// Casts an output's gradient for the matmul of the weight's gradient.
    pub(super) fn transposed_gradient(&self, dy: &Tensor) -> tensor::Result<Scaled> {
        let cast = self.gradient_cast().transposed();
        operator::quantise(dy, Input::Plain, cast)?.transposed.ok_or_else(missing)
    }

    /// Returns the current FP8 weight as stored.
    pub(super) fn stored(&self) -> tensor::Result<Scaled> {
        self.current(false)?.stored.ok_or_else(missing)
    }

    /// Returns the current FP8 weight transposed.
    pub(super) fn transposed(&self) -> tensor::Result<Scaled> {
        self.current(true)?.transposed.ok_or_else(missing)
    }

    /// Returns the current layouts. The transposed one is computed only if `is_read`.
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

/// The parameters of an FP8 layer.
#[derive(Clone, Debug)]
pub struct Fp8Linear {
    /// Weight, `[out, in]`.
    pub weight: Weight,
    /// FP8 copies of the weight.
    pub copies: Fp8Weight,
    /// Bias, `[out]`.
    pub bias: Option<Weight>,
    /// The results that are partial sums over shards.
    pub sums: PartialSums,
}

impl Fp8Linear {
    /// Returns the output's dtype for an input of type `dtype`.
    fn output_type(&self, dtype: DType) -> DType {
        if self.sums.output { DType::F32 } else { dtype }
    }
}

/// Backward of [`fp8_linear`].
#[derive(Debug)]
pub struct Fp8LinearRule {
    /// The transposed layer input, if the weight is trained. For a gate, backward makes it.
    input: Option<Scaled>,
    /// Scale of a gate's result.
    factor: Option<Tensor>,
    /// The layer's input, if f's derivative depends on it.
    layer_input: Option<Tensor>,
    function: Input,
    layer: Fp8Linear,
    /// The transposed output gradient and the sums of its rows, kept between the input and weight halves of
    /// backward.
    gradient: Option<Scaled>,
    sums: Option<Tensor>,
}

/// Computes the layer. `x` is `[.., in]`, or `[.., 2 · in]` for a gate, which backward overwrites. The result
/// is `[.., out]`.
///
/// # Errors
/// Sizes are not multiples of 16, or memory is exhausted.
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

/// Returns the output, the transposed input if backward needs it, and the scale of a gate's result.
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
    /// Computes the gradient of the layer's input from the output's gradient.
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

    /// Returns the transposed result of a gate, which backward has recomputed; `None` if the weight is not
    /// trained.
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
