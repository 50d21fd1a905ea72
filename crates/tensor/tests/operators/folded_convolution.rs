use tensor::ops::batch_norm::{self, Affine};
use tensor::ops::convolution;
use tensor::ops::folded_convolution::{self, Ending, Norm};
use tensor::{DType, Tensor};

use crate::convolution::{Sizes, table};
use crate::support::{Case, devices, read, typed};
use crate::trial::Trial;

const EPSILON: f32 = 1e-5;
/// Maximum ratio of a folded result's error to the error of a convolution and a norm. The first rounds each
/// weight, the second each result of the convolution.
const CHANCE: f64 = 2.0;

/// Operands of a call, as tensors and in f64.
struct Operands {
    x: Tensor,
    residual: Tensor,
    x_wide: Vec<f64>,
    residual_wide: Vec<f64>,
    /// Weight of the convolution, in values that the case's type represents exactly.
    kernel: Vec<f32>,
    /// Weight, bias, mean and variance of the norm.
    norm: [Vec<f32>; 4],
}

impl Operands {
    fn new(case: &Case, sizes: &Sizes) -> Self {
        let (x, x_wide) = case.operand("x", sizes.input);
        let (residual, residual_wide) = case.operand("residual", sizes.output());
        let kernel = case.normal("weight", sizes.weight().iter().product());
        let norm = ["norm's weight", "norm's bias", "mean", "variance"].map(|name| {
            let values = case.normal(name, sizes.outputs);
            let variance = |value: &f32| case.round(0.5 + value * value);
            if name == "variance" { values.iter().map(variance).collect() } else { values }
        });
        Operands { x, residual, x_wide, residual_wide, kernel, norm }
    }

    /// Returns the convolution's weight in `dtype`.
    fn weight(&self, dtype: DType, sizes: &Sizes) -> Tensor {
        typed(self.x.device(), dtype, &self.kernel, sizes.weight())
    }

    /// Returns the norm's weight and bias in `dtype`, and its mean and variance in f32.
    fn parameters(&self, dtype: DType) -> [Tensor; 4] {
        let vector = |dtype, values: &[f32]| typed(self.x.device(), dtype, values, [values.len()]);
        let [scale, bias, mean, variance] = &self.norm;
        [vector(dtype, scale), vector(dtype, bias), vector(DType::F32, mean), vector(DType::F32, variance)]
    }

    /// Computes the normalised results of the convolution in f64.
    fn normalised(&self, sizes: &Sizes) -> Vec<f64> {
        let mut results = vec![0.0; self.residual_wide.len()];
        sizes.terms(|o, i, w| results[o] += self.x_wide[i] * f64::from(self.kernel[w]));
        for (at, value) in results.iter_mut().enumerate() {
            let channel = at % sizes.outputs;
            let [scale, bias, mean, variance] = self.norm.each_ref().map(|values| f64::from(values[channel]));
            *value = (*value - mean) / (variance + f64::from(EPSILON)).sqrt() * scale + bias;
        }
        results
    }

    fn folded(&self, dtype: DType, ending: Ending<'_>, sizes: &Sizes) -> tensor::Result<Tensor> {
        let [weight, bias, mean, variance] = &self.parameters(dtype);
        let norm = Norm { weight, bias, mean, variance, epsilon: EPSILON };
        folded_convolution::forward(&self.x, &self.weight(dtype, sizes), norm, ending, &sizes.options)
    }

    /// Runs the convolution, then the norm of its rounded result.
    fn separately(&self, dtype: DType, ending: Ending<'_>, sizes: &Sizes) -> Tensor {
        let [weight, bias, mean, variance] = &self.parameters(dtype);
        let (residual, relu) = match ending {
            Ending::None => (None, false),
            Ending::Relu => (None, true),
            Ending::ResidualRelu(residual) => (Some(residual), true),
        };
        let y = convolution::forward(&self.x, &self.weight(dtype, sizes), &sizes.options).unwrap();
        let affine = Affine { weight, bias, epsilon: EPSILON, relu };
        batch_norm::evaluate(&y, residual, affine, [mean, variance]).unwrap()
    }

    /// Returns the expected results in f64 from [`Operands::normalised`].
    fn expected(&self, normalised: &[f64], ending: Ending<'_>) -> Vec<f64> {
        let sums = normalised.iter().zip(&self.residual_wide);
        let end = |(value, residual): (&f64, &f64)| match ending {
            Ending::None => *value,
            Ending::Relu => value.max(0.0),
            Ending::ResidualRelu(_) => (value + residual).max(0.0),
        };
        sums.map(end).collect()
    }
}

fn error(actual: &Tensor, expected: &[f64]) -> f64 {
    read(actual).iter().zip(expected).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}

/// Tests that outputs equal a convolution followed by a norm.
pub(crate) fn declared(trial: &mut Trial<'_>) {
    for sizes in table() {
        trial.label(format!("{:?} {:?} {:?}", sizes.input, sizes.kernel, sizes.options));
        let operands = Operands::new(trial, &sizes);
        let normalised = if trial.compares() { operands.normalised(&sizes) } else { Vec::new() };
        for (part, ending) in [
            ("output", Ending::None),
            ("output with ReLU", Ending::Relu),
            ("output with residual and ReLU", Ending::ResidualRelu(&operands.residual)),
        ] {
            let expected = operands.expected(&normalised, ending);
            let actual = operands.folded(DType::F32, ending, &sizes).unwrap();
            assert_eq!((actual.shape(), actual.dtype()), (sizes.output().into(), trial.dtype));
            trial.output(part, &actual, || expected.clone());
            // Stored in the type of the input or in f32, the same values are folded alike.
            let same = operands.folded(trial.dtype, ending, &sizes).unwrap();
            trial.same("output of weights in the compute type", &same, &actual);
            if trial.compares() {
                let separately = error(&operands.separately(trial.dtype, ending, &sizes), &expected);
                let folded = error(&actual, &expected);
                let least = 1e-5 * (expected.len() as f64).sqrt();
                let what = format!("{}, {}", trial.what(part), trial.name());
                assert!(folded <= CHANCE * separately.max(least), "{what}: {folded:e}, {separately:e}");
            }
        }
    }
}

/// NaN weights give NaN outputs, instead of zeros that look valid.
#[test]
fn relu_passes_nan() {
    for case in devices() {
        for sizes in table() {
            let mut operands = Operands::new(&case, &sizes);
            operands.norm[0][0] = f32::NAN;
            for ending in [Ending::Relu, Ending::ResidualRelu(&operands.residual)] {
                let actual = read(&operands.folded(DType::F32, ending, &sizes).unwrap());
                let what = format!("{:?} {:?}, {}", sizes.input, sizes.kernel, case.name());
                for (at, value) in actual.iter().enumerate() {
                    assert_eq!(value.is_nan(), at % sizes.outputs == 0, "{what}: {value} at {at}");
                }
            }
        }
    }
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let case = &devices()[0];
    let all = table();
    let sizes = &all[0];
    let operands = Operands::new(&devices()[0], &all[0]);
    let refused = |operands: &Operands, ending: Ending<'_>| {
        operands.folded(DType::F32, ending, sizes).unwrap_err().to_string()
    };
    let other = Operands { x: case.operand("x", [2, 5, 6, 9]).0, ..Operands::new(case, sizes) };
    let message = refused(&other, Ending::None);
    assert!(message.starts_with("folded_convolution.forward: weight has shape"), "{message}");
    for (index, name) in ["norm's weight", "norm's bias", "mean", "variance"].into_iter().enumerate() {
        let mut other = Operands::new(case, sizes);
        other.norm[index] = vec![1.0; 3];
        let message = refused(&other, Ending::None);
        assert!(message.starts_with(&format!("folded_convolution.forward: {name} has shape")), "{message}");
    }
    let message = refused(&operands, Ending::ResidualRelu(&case.operand("r", [2, 5, 6, 8]).0));
    assert!(message.starts_with("folded_convolution.forward: residual has shape"), "{message}");
    let message = operands.folded(DType::Bf16, Ending::None, sizes).unwrap_err().to_string();
    assert!(message.starts_with("folded_convolution.forward: weight"), "{message}");
}
