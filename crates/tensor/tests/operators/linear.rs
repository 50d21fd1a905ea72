use proptest::prelude::*;
use tensor::ops::{Activation, feed_forward, linear};
use tensor::{DType, Tensor};

use crate::reference;
use crate::support::{Case, devices, dot, half_precision, read};
use crate::trial::Trial;

const ACTIVATIONS: [Activation; 3] = [Activation::None, Activation::Relu, Activation::Gelu];
/// Rows, inputs, outputs: odd sizes, several tiles and chunks, and whole vectors.
const SIZES: [[usize; 3]; 8] = [
    [1, 1, 1],
    [1, 33, 5],
    [7, 1, 33],
    [33, 7, 1],
    [70, 65, 130],
    [300, 16, 8],
    [5, 1100, 40],
    [96, 64, 256],
];

fn with_activation(pre: &[f64], activation: Activation) -> Vec<f64> {
    pre.iter().map(|x| reference::activation(*x, activation)).collect()
}

/// Returns whether a result has too few elements for a relative error. GELU and its derivative decay so fast
/// below 0 that rounding their argument to bf16 changes a single element by more than the tolerance.
fn too_few(case: &Case, elements: usize, activation: Activation) -> bool {
    case.dtype == DType::Bf16 && activation == Activation::Gelu && elements < 33
}

fn every_layer() -> impl Iterator<Item = ([usize; 3], Activation, bool)> {
    let biased = |(size, activation)| [false, true].map(|bias| (size, activation, bias));
    SIZES.into_iter().flat_map(|size| ACTIVATIONS.map(|activation| (size, activation))).flat_map(biased)
}

pub(crate) fn declared(trial: &mut Trial<'_>) {
    for (size, activation, with_bias) in every_layer() {
        layer(trial, size, activation, with_bias);
    }
    leading_dimensions(trial);
    weight_gradient_without_bias(trial);
    bias_gradients(trial);
}

/// Tests the results of a layer, and with a bias also its gradients.
fn layer(
    trial: &mut Trial<'_>,
    [rows, inputs, outputs]: [usize; 3],
    activation: Activation,
    with_bias: bool,
) {
    if too_few(trial, rows * outputs, activation) {
        return;
    }
    trial.label(format!("{rows}x{inputs}x{outputs} {activation:?} bias {with_bias}"));
    let (x, x_wide) = trial.operand("x", [rows, inputs]);
    let (weight, weight_wide) = trial.operand("weight", [outputs, inputs]);
    let (bias, bias_wide) = trial.operand("bias", [outputs]);
    let affine = |x: &[f64], w: &[f64], b: &[f64]| reference::linear(x, w, with_bias.then_some(b), inputs);
    let pre = if trial.compares() { affine(&x_wide, &weight_wide, &bias_wide) } else { vec![] };
    let result = linear::forward(&x, &weight, with_bias.then_some(&bias), activation).unwrap();
    assert_eq!(result.output.shape(), [rows, outputs].into(), "{}", trial.what("shape"));
    assert_eq!(result.pre_activation.is_some(), activation == Activation::Gelu, "{}", trial.what("results"));
    trial.output("output", &result.output, || with_activation(&pre, activation));
    if let Some(saved) = &result.pre_activation {
        trial.output("pre-activation", saved, || pre.clone());
    }
    if !with_bias {
        return;
    }

    let (dy, dy_wide) = trial.operand("dy", [rows, outputs]);
    let saved = result.pre_activation.unwrap_or(result.output);
    let apart = linear::backward_activation(dy.clone(), &saved, activation).unwrap();
    trial.result("dpre apart", &apart);
    let dpre = linear::backward_activation(dy, &saved, activation).unwrap();
    trial.same("dpre", &dpre, &apart);
    let dx = linear::backward_input(&dpre, &weight).unwrap();
    let accumulate = activation == Activation::Relu;
    let dweight = trial.target("dweight", [outputs, inputs], accumulate);
    let dbias = trial.target("dbias", [outputs], accumulate);
    linear::backward_weight(&dpre, &x, &dweight, Some(&dbias)).unwrap();

    // The device's own rounding decides which side of ReLU's corner a value is on.
    let here = match activation {
        Activation::Relu if trial.compares() => read(&saved),
        _ => pre,
    };
    let value = |x: &[f64], w: &[f64], b: &[f64]| {
        // A finite difference across ReLU's corner is no derivative: values stay on their side.
        let side = |(pre, here): (&f64, &f64)| match activation {
            Activation::Relu => pre * f64::from(u8::from(*here > 0.0)),
            other => reference::activation(*pre, other),
        };
        dot(&dy_wide, &affine(x, w, b).iter().zip(&here).map(side).collect::<Vec<_>>())
    };
    // The terms of each sum, with the output's gradients in place of the activation's.
    let by_row = |r: usize| dot(&dy_wide[r * outputs..][..outputs], &dy_wide[r * outputs..][..outputs]);
    let by_output = |o: usize| (0..rows).map(|r| dy_wide[r * outputs + o].powi(2)).sum::<f64>();
    let row =
        |w: &[f64], output: usize| dot(&w[output * inputs..][..inputs], &w[output * inputs..][..inputs]);
    let dx_terms = (0..outputs).map(|o| by_output(o) * row(&weight_wide, o)).sum::<f64>().sqrt();
    let dweight_terms = (0..rows).map(|r| by_row(r) * row(&x_wide, r)).sum::<f64>().sqrt();
    let dbias_terms = dot(&dy_wide, &dy_wide).sqrt();
    trial.gradient("dx", &dx, (&x_wide, dx_terms), |x| value(x, &weight_wide, &bias_wide));
    trial.weight_gradient("dweight", &dweight, (&weight_wide, dweight_terms), |w| {
        value(&x_wide, w, &bias_wide)
    });
    trial.weight_gradient("dbias", &dbias, (&bias_wide, dbias_terms), |b| value(&x_wide, &weight_wide, b));
}

/// Tests that leading dimensions are treated as rows.
fn leading_dimensions(trial: &mut Trial<'_>) {
    trial.label("2x3x4x5".to_owned());
    let (x, _) = trial.operand("x", [2, 3, 4]);
    let (weight, _) = trial.operand("weight", [5, 4]);
    let output = |x: &Tensor| linear::forward(x, &weight, None, Activation::Gelu).unwrap().output;
    let [three, two] = [output(&x), output(&x.reshape([6, 4]).unwrap())];
    let one = output(&x.view(0, [4]).unwrap());
    assert_eq!(three.shape(), [2, 3, 5].into());
    assert_eq!(one.shape(), [5].into());
    trial.same("output of three dimensions", &three, &two);
    trial.result("output of one dimension", &one);
}

fn weight_gradient_without_bias(trial: &mut Trial<'_>) {
    trial.label("9x4x6".to_owned());
    let (x, _) = trial.operand("x", [9, 4]);
    let (dy, _) = trial.operand("dy", [9, 6]);
    let [alone, both] = ["dweight alone", "dweight"].map(|part| trial.target(part, [6, 4], false));
    linear::backward_weight(&dy, &x, &alone, None).unwrap();
    linear::backward_weight(&dy, &x, &both, Some(&trial.target("dbias", [6], false))).unwrap();
    trial.weight_gradient_is("dweight alone", &alone, || read(&both.tensor));
    if trial.compares() && trial.device.backend() == tensor::Backend::Cpu {
        trial.same("dweight alone", &alone.tensor, &both.tensor);
    }
}

/// Tests bias gradients, with fewer rows than a run, more than the maximum of runs, odd widths, and more than
/// one tile of vectors.
fn bias_gradients(trial: &mut Trial<'_>) {
    for [rows, outputs] in [[1, 3], [31, 8], [33, 264], [70, 257], [9000, 40]] {
        let (x, _) = trial.operand("x", [rows, 1]);
        let (dy, dy_wide) = trial.operand("dy", [rows, outputs]);
        let sum = |output: usize| dy_wide.iter().skip(output).step_by(outputs).sum::<f64>();
        for accumulate in [false, true] {
            trial.label(format!("{rows}x{outputs} accumulate {accumulate}"));
            let dweight = trial.target("dweight of one input", [outputs, 1], accumulate);
            let dbias = trial.target("dbias of one input", [outputs], accumulate);
            linear::backward_weight(&dy, &x, &dweight, Some(&dbias)).unwrap();
            trial.weight_gradient_is("dbias of one input", &dbias, || (0..outputs).map(sum).collect());
        }
    }
}

/// Rows, inputs, hidden, outputs: odd sizes, and whole vectors.
const PAIRS: [[usize; 4]; 4] = [[1, 1, 1, 1], [7, 5, 33, 6], [70, 24, 96, 24], [40, 64, 256, 64]];

/// Tests that a feed-forward pair equals its two layers.
pub(crate) fn feed_forward(trial: &mut Trial<'_>) {
    for ([rows, inputs, hidden, outputs], with_biases) in
        PAIRS.into_iter().flat_map(|sizes| [(sizes, true), (sizes, false)])
    {
        if too_few(trial, rows * hidden, Activation::Gelu) {
            continue;
        }
        trial.label(format!("{rows}x{inputs}x{hidden}x{outputs} biases {with_biases}"));
        let (x, x_wide) = trial.operand("x", [rows, inputs]);
        let (w1, w1_wide) = trial.operand("w1", [hidden, inputs]);
        let (b1, b1_wide) = trial.operand("b1", [hidden]);
        let (w2, w2_wide) = trial.operand("w2", [outputs, hidden]);
        let (b2, b2_wide) = trial.operand("b2", [outputs]);
        let (dy, dy_wide) = trial.operand("dy", [rows, outputs]);
        let [b1, b2] = [&b1, &b2].map(|bias| with_biases.then_some(bias));
        let [b1_wide, b2_wide] = [&b1_wide[..], &b2_wide].map(|bias| with_biases.then_some(bias));
        let result = feed_forward::forward(&x, &w1, b1, &w2, b2, Activation::Gelu).unwrap();

        let first = || reference::linear(&x_wide, &w1_wide, b1_wide, inputs);
        let pre = if trial.compares() { first() } else { vec![] };
        let second = |pre: &[f64]| {
            reference::linear(&with_activation(pre, Activation::Gelu), &w2_wide, b2_wide, hidden)
        };
        trial.output("pre-activation", &result.pre_activation, || pre.clone());
        trial.output("activated", &result.activated, || with_activation(&pre, Activation::Gelu));
        trial.output("output", &result.output, || second(&pre));
        let dpre = feed_forward::backward_input_hidden(&dy, &w2, &result.pre_activation, Activation::Gelu);
        let dpre = dpre.unwrap();
        trial.gradient("dpre", &dpre, (&pre, 0.0), |pre| dot(&dy_wide, &second(pre)));
        if trial.compares() && trial.device.backend() == tensor::Backend::Cpu {
            let first = linear::forward(&x, &w1, b1, Activation::Gelu).unwrap();
            let apart = linear::forward(&first.output, &w2, b2, Activation::None).unwrap();
            trial.same("output of two layers", &result.output, &apart.output);
            let hidden = linear::backward_input(&dy, &w2).unwrap();
            let apart = linear::backward_activation(hidden, &result.pre_activation, Activation::Gelu);
            trial.same("dpre of two layers", &dpre, &apart.unwrap());
        }
    }
}

/// The matmuls may add in different orders, and round before they add to the target. So results agree within
/// one bf16 unit in the last digit, plus the rounding of f32. Sums of rows are equal.
#[test]
fn gradients_in_half_precision_are_rounded_f32_gradients() {
    for case in half_precision() {
        for [rows, inputs, outputs] in SIZES.into_iter().chain([[9000, 24, 40], [2048, 256, 512]]) {
            let (x, _) = case.operand("x", [rows, inputs]);
            let (dy, _) = case.operand("dy", [rows, outputs]);
            for accumulate in [false, true] {
                let what = format!("{rows}x{inputs}x{outputs} {accumulate}");
                let dweight = case.targets("dw", [outputs, inputs], accumulate);
                let dbias = case.targets("db", [outputs], accumulate);
                let before = if accumulate { case.normal("dw", inputs * outputs) } else { Vec::new() };
                for (dweight, dbias) in dweight.iter().zip(&dbias) {
                    linear::backward_weight(&dy, &x, dweight, Some(dbias)).unwrap();
                }
                let lost = 1e-5 * (rows as f64).sqrt();
                let pairs = [(&dweight, before.as_slice(), "weight"), (&dbias, &[], "bias")];
                for ([single, half], before, name) in pairs {
                    let pairs = read(&single.tensor).into_iter().zip(read(&half.tensor)).enumerate();
                    for (index, (single, half)) in pairs {
                        let product = before.get(index).map_or(0.0, |before| single - f64::from(*before));
                        let most = (single.abs() + product.abs()) / 128.0 + lost;
                        assert!((single - half).abs() <= most, "{what} {name}: {single} {half}");
                    }
                }
                if accumulate {
                    case.is_rounded(&what, &dbias);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn linear_layers_of_random_sizes(rows in 1usize..150, inputs in 1usize..150, outputs in 1usize..150) {
        // One device for all cases: creating a GPU's takes long.
        thread_local!(static DEVICES: Vec<Case> = devices());
        DEVICES.with(|devices| for case in devices {
            let (x, x_wide) = case.operand("x", [rows, inputs]);
            let (weight, weight_wide) = case.operand("weight", [outputs, inputs]);
            let (bias, bias_wide) = case.operand("bias", [outputs]);
            let result = linear::forward(&x, &weight, Some(&bias), Activation::None).unwrap();
            let expected = reference::linear(&x_wide, &weight_wide, Some(&bias_wide), inputs);
            case.close("linear", &read(&result.output), &expected);
        });
    }
}
