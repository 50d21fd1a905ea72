use tensor::ops::batch_norm::{self, Affine};
use tensor::ops::convolution;
use tensor::ops::folded_convolution::{self, Ending, Norm};
use tensor::{DType, Tensor};

use crate::convolution::{Sizes, table};
use crate::support::{Case, bits, devices, read, tensor, typed};

const EPSILON: f32 = 1e-5;
/// Factor by which the error of a folded result may exceed that of a convolution and a norm in turn: one
/// rounds each weight, the other each of the convolution's results.
const CHANCE: f64 = 2.0;

/// The operands of a call, and their values.
struct Operands {
    x: Tensor,
    /// In f32, of values that the case's type represents.
    weight: Tensor,
    norm: [Tensor; 4],
    residual: Tensor,
    /// Results of the convolution, normalised, in f64.
    normalised: Vec<f64>,
    residual_wide: Vec<f64>,
}

impl Operands {
    fn new(case: &Case, sizes: &Sizes) -> Self {
        let (x, x_wide) = case.operand("x", sizes.input);
        let (_, weight_wide) = case.operand("weight", sizes.weight());
        let (residual, residual_wide) = case.operand("residual", sizes.output());
        let outputs = sizes.outputs;
        let vectors = ["norm's weight", "norm's bias", "mean", "variance"].map(|name| {
            let values = case.normal(name, outputs);
            let variance = |value: &f32| case.round(0.5 + value * value);
            if name == "variance" { values.iter().map(variance).collect() } else { values }
        });
        let [scale, bias, mean, variance] = vectors.each_ref().map(|values| &values[..]);
        let mut normalised = vec![0.0; sizes.output().iter().product()];
        sizes.terms(|o, i, w| normalised[o] += x_wide[i] * weight_wide[w]);
        for (at, value) in normalised.iter_mut().enumerate() {
            let channel = at % outputs;
            let [scale, bias, mean, variance] =
                [scale, bias, mean, variance].map(|values| f64::from(values[channel]));
            *value = (*value - mean) / (variance + f64::from(EPSILON)).sqrt() * scale + bias;
        }
        let weight: Vec<f32> = weight_wide.iter().map(|value| *value as f32).collect();
        Operands {
            x,
            weight: tensor(&case.device, &weight, sizes.weight()),
            norm: vectors.map(|values| tensor(&case.device, &values, [outputs])),
            residual,
            normalised,
            residual_wide,
        }
    }

    /// Weight and parameters of the norm in another type.
    fn stored(&self, dtype: DType) -> [Tensor; 3] {
        let [scale, bias, ..] = &self.norm;
        [&self.weight, scale, bias].map(|single| {
            let (values, count) = (single.to_vec::<f32>().unwrap(), single.elements());
            typed(single.device(), dtype, &values, [count]).reshape(single.shape()).unwrap()
        })
    }

    fn folded(&self, dtype: DType, ending: Ending<'_>, sizes: &Sizes) -> tensor::Result<Tensor> {
        let [kernel, weight, bias] = &self.stored(dtype);
        let [_, _, mean, variance] = &self.norm;
        let norm = Norm { weight, bias, mean, variance, epsilon: EPSILON };
        folded_convolution::forward(&self.x, kernel, norm, ending, &sizes.options)
    }

    /// The convolution, and the norm of its rounded result.
    fn in_turn(&self, case: &Case, ending: Ending<'_>, sizes: &Sizes) -> Tensor {
        let [kernel, weight, bias] = &self.stored(case.dtype);
        let [_, _, mean, variance] = &self.norm;
        let (residual, relu) = match ending {
            Ending::None => (None, false),
            Ending::Relu => (None, true),
            Ending::ResidualRelu(residual) => (Some(residual), true),
        };
        let y = convolution::forward(&self.x, kernel, &sizes.options).unwrap();
        let affine = Affine { weight, bias, epsilon: EPSILON, relu };
        batch_norm::evaluate(&y, residual, affine, [mean, variance]).unwrap()
    }

    fn expected(&self, ending: Ending<'_>) -> Vec<f64> {
        let sums = self.normalised.iter().zip(&self.residual_wide);
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

#[test]
fn outputs_are_those_of_a_convolution_and_a_norm() {
    for case in devices() {
        for sizes in table() {
            let operands = Operands::new(&case, &sizes);
            for ending in [Ending::None, Ending::Relu, Ending::ResidualRelu(&operands.residual)] {
                let what = format!("{:?} {:?} {:?}", sizes.input, sizes.kernel, sizes.options);
                let expected = operands.expected(ending);
                let actual = operands.folded(DType::F32, ending, &sizes).unwrap();
                assert_eq!((actual.shape(), actual.dtype()), (sizes.output().into(), case.dtype));
                case.close(&what, &read(&actual), &expected);
                // Stored in the type of the input or in f32, the same values are folded alike.
                let same = operands.folded(case.dtype, ending, &sizes).unwrap();
                assert_eq!(bits(&same), bits(&actual), "{what}, {}", case.name());
                let in_turn = error(&operands.in_turn(&case, ending, &sizes), &expected);
                let (folded, least) = (error(&actual, &expected), 1e-5 * (expected.len() as f64).sqrt());
                let name = case.name();
                assert!(folded <= CHANCE * in_turn.max(least), "{what}, {name}: {folded:e}, {in_turn:e}");
            }
        }
    }
}

/// A network whose weights are no numbers does not seem to work.
#[test]
fn relu_passes_nan() {
    for case in devices() {
        for sizes in table() {
            let operands = Operands::new(&case, &sizes);
            let mut scales = operands.norm[0].to_vec::<f32>().unwrap();
            scales[0] = f32::NAN;
            operands.norm[0].set(&scales).unwrap();
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
    let (case, all) = (&devices()[0], table());
    let (sizes, operands) = (&all[0], Operands::new(&devices()[0], &all[0]));
    let refused = |operands: &Operands, ending: Ending<'_>| {
        operands.folded(DType::F32, ending, sizes).unwrap_err().to_string()
    };
    let other = Operands { x: case.operand("x", [2, 5, 6, 9]).0, ..Operands::new(case, sizes) };
    let message = refused(&other, Ending::None);
    assert!(message.starts_with("folded_convolution.forward: weight has shape"), "{message}");
    let short = tensor(&case.device, &[1.0_f32; 3], [3]);
    for (index, name) in ["norm's weight", "norm's bias", "mean", "variance"].into_iter().enumerate() {
        let mut other = Operands::new(case, sizes);
        other.norm[index] = short.clone();
        let message = refused(&other, Ending::None);
        assert!(message.starts_with(&format!("folded_convolution.forward: {name} has shape")), "{message}");
    }
    let message = refused(&operands, Ending::ResidualRelu(&case.operand("r", [2, 5, 6, 8]).0));
    assert!(message.starts_with("folded_convolution.forward: residual has shape"), "{message}");
    let message = operands.folded(DType::Bf16, Ending::None, sizes).unwrap_err().to_string();
    assert!(message.starts_with("folded_convolution.forward: weight"), "{message}");
}
