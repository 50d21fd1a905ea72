//! Casts to FP8.

use device::{Backend, Category, DType, Request};

use super::call::{Call, SUMMED_ROWS};
use super::input::Input;
use super::quantised::{Cast, Quantised, Recipe, Scaled, padded};
use super::{cpu, cuda};
use crate::ops::gpu::CELLS;
use crate::ops::{GradientTarget, check};
use crate::{Result, Tensor};

/// Casts into `output`. Skips the search for the largest magnitude if the tensor carries it.
fn run(call: &Call<'_>, output: &Quantised) -> Result<()> {
    let measured = call.x.maxima().filter(|_| call.recipe == Recipe::Tensorwise && !call.has_factors);
    let words = match (call.has_factors, measured, call.recipe) {
        (true, ..) | (_, Some(_), _) => 0,
        (_, None, Recipe::Tensorwise) => CELLS,
        (_, None, Recipe::Rowwise) => call.rows + call.columns,
    };
    let workspace = Tensor::workspace(call.x.device(), call.operator, words * DType::U32.bytes())?;
    match call.x.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => cpu::quantise(call, output),
        Backend::Cuda if call.has_factors => cuda::cast(call, None, output),
        Backend::Cuda => {
            if measured.is_none() {
                cuda::measure(call, &workspace)?;
            }
            cuda::cast(call, Some(measured.unwrap_or(&workspace)), output)
        }
    }
}

/// Casts `input` of `x [.., columns]`, f32 or a half type, into new layouts.
///
/// # Errors
/// A number of columns that is no multiple of [`super::MULTIPLE`], another type, out of memory.
pub fn quantise(x: &Tensor, input: Input, cast: Cast) -> Result<Quantised> {
    const OPERATOR: &str = "fp8_linear.quantise";
    let call = Call::new(OPERATOR, x, input, cast.recipe)?;
    let output = Quantised::empty(x.device(), OPERATOR, [call.rows, call.columns], cast)?;
    run(&call, &output)?;
    Ok(output)
}

/// Computes [`quantise`] into existing layouts.
///
/// # Errors
/// As [`quantise`]; layouts of other shapes.
pub fn quantise_into(x: &Tensor, recipe: Recipe, output: &Quantised) -> Result<()> {
    const OPERATOR: &str = "fp8_linear.quantise_into";
    let call = Call::new(OPERATOR, x, Input::Plain, recipe)?;
    let rows = call.rows;
    let columns = call.columns;
    for layout in output.layouts() {
        check::elements(OPERATOR, "layout", &layout.values, rows * columns)?;
    }
    run(&call, output)
}

/// Writes the largest magnitude of a matrix `x` to one of the words `cells`, and smaller magnitudes or zeros
/// to the others.
///
/// # Errors
/// A number of columns that is no multiple of [`super::MULTIPLE`], another type.
pub(crate) fn measure(operator: &'static str, x: &Tensor, cells: &Tensor) -> Result<()> {
    let call = Call::new(operator, x, Input::Plain, Recipe::Tensorwise)?;
    match x.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => cpu::measure(&call, cells),
        Backend::Cuda => cuda::measure(&call, cells),
    }
}

/// Casts a matrix `x` into `output`, which has one factor, already known.
///
/// # Errors
/// A number of columns that is no multiple of [`super::MULTIPLE`], another type.
pub(crate) fn cast(operator: &'static str, x: &Tensor, output: &Quantised) -> Result<()> {
    let call = Call::new(operator, x, Input::Plain, Recipe::Tensorwise)?;
    run(&Call { has_factors: true, ..call }, output)
}

/// Casts `x` into the transposed layout alone, with the factors `scales` of an earlier cast of equal values.
pub fn quantise_with(x: &Tensor, format: DType, scales: &Tensor) -> Result<Scaled> {
    const OPERATOR: &str = "fp8_linear.quantise_with";
    let recipe = if scales.elements() == 1 { Recipe::Tensorwise } else { Recipe::Rowwise };
    let call = Call { has_factors: true, ..Call::new(OPERATOR, x, Input::Plain, recipe)? };
    let request = Request::new(Category::ActivationGradient, OPERATOR);
    let shape = [call.columns, padded(call.rows)];
    let values = Tensor::empty(x.device(), shape, format, request)?;
    let layout = Scaled { values, scales: scales.clone() };
    run(&call, &Quantised { stored: None, transposed: Some(layout.clone()) })?;
    Ok(layout)
}

/// Casts gradients `dy` as [`quantise`] does. With `sums`, also returns the column sums of every 128 rows,
/// f32, which [`finish_sums`] adds for the gradient of a bias.
pub fn quantise_gradient(dy: &Tensor, cast: Cast, sums: bool) -> Result<(Quantised, Option<Tensor>)> {
    const OPERATOR: &str = "fp8_linear.quantise_gradient";
    let call = Call::new(OPERATOR, dy, Input::Plain, cast.recipe)?;
    let output = Quantised::empty(dy.device(), OPERATOR, [call.rows, call.columns], cast)?;
    let request = Request::new(cast.category, OPERATOR);
    let sums = match sums {
        true => {
            let shape = [call.rows.div_ceil(SUMMED_ROWS), call.columns];
            Some(Tensor::empty(dy.device(), shape, DType::F32, request)?)
        }
        false => None,
    };
    run(&Call { sums: sums.as_ref(), ..call }, &output)?;
    Ok((output, sums))
}

/// Computes bias `[columns]` (+)= the sum of the column sums that [`quantise_gradient`] returned.
pub fn finish_sums(sums: &Tensor, bias: &GradientTarget) -> Result<()> {
    const OPERATOR: &str = "fp8_linear.finish_sums";
    check::shape(OPERATOR, "bias", &bias.tensor, [sums.shape().columns()])?;
    match sums.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => cpu::finish_sums(sums, bias),
        Backend::Cuda => cuda::finish_sums(OPERATOR, sums, bias),
    }
}
