use proptest::prelude::*;
use tensor::ops::{Activation, feed_forward, linear};
use tensor::{DType, Tensor};

use crate::reference;
use crate::support::{Case, bits, devices, dot, half_precision, read};

const ACTIVATIONS: [Activation; 3] = [Activation::None, Activation::Relu, Activation::Gelu];
/// Rows, inputs, outputs: odd ones, more than one tile and chunk of each, and whole vectors.
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

/// Returns whether a result has too few elements for a relative error: GELU and its derivative fall so fast
/// below 0 that rounding their argument to bf16 changes a single element by more than the tolerance.
fn too_few(case: &Case, elements: usize, activation: Activation) -> bool {
    case.dtype == DType::Bf16 && activation == Activation::Gelu && elements < 33
}

fn every_layer() -> impl Iterator<Item = ([usize; 3], Activation, bool)> {
    let biased = |(size, activation)| [false, true].map(|bias| (size, activation, bias));
    SIZES.into_iter().flat_map(|size| ACTIVATIONS.map(|activation| (size, activation))).flat_map(biased)
}

#[test]
fn forward_is_the_affine_map_and_its_activation() {
    for case in devices() {
        for ([rows, inputs, outputs], activation, with_bias) in every_layer() {
            if too_few(&case, rows * outputs, activation) {
                continue;
            }
            let what = format!("{rows}x{inputs}x{outputs} {activation:?} bias {with_bias}");
            let (x, x_wide) = case.operand("x", [rows, inputs]);
            let (weight, weight_wide) = case.operand("weight", [outputs, inputs]);
            let (bias, bias_wide) = case.operand("bias", [outputs]);
            let (bias, bias_wide) = (with_bias.then_some(&bias), with_bias.then_some(&bias_wide[..]));
            let result = linear::forward(&x, &weight, bias, activation).unwrap();
            let pre = reference::linear(&x_wide, &weight_wide, bias_wide, inputs);
            case.close(&what, &read(&result.output), &with_activation(&pre, activation));
            assert_eq!(result.output.shape(), [rows, outputs].into(), "{what}");
            assert_eq!(result.pre_activation.is_some(), activation == Activation::Gelu, "{what}");
            if let Some(saved) = result.pre_activation {
                case.close(&what, &read(&saved), &pre);
            }
        }
    }
}

#[test]
fn leading_dimensions_are_rows() {
    for case in devices() {
        let (x, _) = case.operand("x", [2, 3, 4]);
        let (weight, _) = case.operand("weight", [5, 4]);
        let output = |x: &Tensor| linear::forward(x, &weight, None, Activation::Gelu).unwrap().output;
        let [three, two] = [output(&x), output(&x.reshape([6, 4]).unwrap())];
        let one = output(&x.view(0, [4]).unwrap());
        assert_eq!(three.shape(), [2, 3, 5].into());
        assert_eq!(one.shape(), [5].into());
        assert_eq!(bits(&three), bits(&two), "{}", case.name());
    }
}

#[test]
fn gradients_match_finite_differences() {
    for case in devices() {
        for (size, (accumulate, activation)) in
            SIZES.into_iter().flat_map(|size| ACTIVATIONS.into_iter().enumerate().map(move |a| (size, a)))
        {
            gradients(&case, size, activation, accumulate == 1);
        }
    }
}

fn gradients(case: &Case, [rows, inputs, outputs]: [usize; 3], activation: Activation, accumulate: bool) {
    if too_few(case, rows * outputs, activation) {
        return;
    }
    let what = |name: &str| format!("{name} {rows}x{inputs}x{outputs} {activation:?}");
    let (x, x_wide) = case.operand("x", [rows, inputs]);
    let (weight, weight_wide) = case.operand("weight", [outputs, inputs]);
    let (bias, bias_wide) = case.operand("bias", [outputs]);
    let (dy, dy_wide) = case.operand("dy", [rows, outputs]);
    let result = linear::forward(&x, &weight, Some(&bias), activation).unwrap();
    let saved = result.pre_activation.unwrap_or(result.output);
    let dpre = linear::backward_activation(dy, &saved, activation).unwrap();
    let dx = linear::backward_input(&dpre, &weight).unwrap();
    let dweight = case.target("dw", [outputs, inputs], accumulate);
    let dbias = case.target("db", [outputs], accumulate);
    linear::backward_weight(&dpre, &x, &dweight, Some(&dbias)).unwrap();

    // The device's own rounding decides which side of ReLU's corner a value is on.
    let here = match activation {
        Activation::Relu => read(&saved),
        _ => reference::linear(&x_wide, &weight_wide, Some(&bias_wide), inputs),
    };
    let value = |x: &[f64], w: &[f64], b: &[f64]| {
        let pre = reference::linear(x, w, Some(b), inputs);
        // A finite difference across ReLU's corner is no derivative: values stay on their side.
        let side = |(pre, here): (&f64, &f64)| match activation {
            Activation::Relu => pre * f64::from(u8::from(*here > 0.0)),
            other => reference::activation(*pre, other),
        };
        dot(&dy_wide, &pre.iter().zip(&here).map(side).collect::<Vec<_>>())
    };
    // The terms of each sum, with the output's gradients in place of the activation's.
    let by_row = |r: usize| dot(&dy_wide[r * outputs..][..outputs], &dy_wide[r * outputs..][..outputs]);
    let by_output = |o: usize| (0..rows).map(|r| dy_wide[r * outputs + o].powi(2)).sum::<f64>();
    let row = |w: &[f64], of: usize| dot(&w[of * inputs..][..inputs], &w[of * inputs..][..inputs]);
    let dx_terms = (0..outputs).map(|o| by_output(o) * row(&weight_wide, o)).sum::<f64>().sqrt();
    let dweight_terms = (0..rows).map(|r| by_row(r) * row(&x_wide, r)).sum::<f64>().sqrt();
    let dbias_terms = dot(&dy_wide, &dy_wide).sqrt();
    let dx = read(&dx);
    case.is_gradient_of_terms(&what("dx"), dx_terms, &dx, &x_wide, |x| value(x, &weight_wide, &bias_wide));
    let dweight = case.added(&dweight, "dw");
    case.is_gradient_of_terms(&what("dweight"), dweight_terms, &dweight, &weight_wide, |w| {
        value(&x_wide, w, &bias_wide)
    });
    let dbias = case.added(&dbias, "db");
    case.is_gradient_of_terms(&what("dbias"), dbias_terms, &dbias, &bias_wide, |b| {
        value(&x_wide, &weight_wide, b)
    });
}

/// Rows, inputs, hidden, outputs: odd ones, and whole vectors.
const PAIRS: [[usize; 4]; 4] = [[1, 1, 1, 1], [7, 5, 33, 6], [70, 24, 96, 24], [40, 64, 256, 64]];

#[test]
fn a_feed_forward_pair_equals_its_two_layers() {
    for case in devices() {
        for ([rows, inputs, hidden, outputs], with_biases) in
            PAIRS.into_iter().flat_map(|sizes| [(sizes, true), (sizes, false)])
        {
            if too_few(&case, rows * hidden, Activation::Gelu) {
                continue;
            }
            let what = |name: &str| format!("{name} {rows}x{inputs}x{hidden}x{outputs} biases {with_biases}");
            let (x, x_wide) = case.operand("x", [rows, inputs]);
            let (w1, w1_wide) = case.operand("w1", [hidden, inputs]);
            let (b1, b1_wide) = case.operand("b1", [hidden]);
            let (w2, w2_wide) = case.operand("w2", [outputs, hidden]);
            let (b2, b2_wide) = case.operand("b2", [outputs]);
            let (dy, dy_wide) = case.operand("dy", [rows, outputs]);
            let [b1, b2] = [&b1, &b2].map(|bias| with_biases.then_some(bias));
            let result = feed_forward::forward(&x, &w1, b1, &w2, b2, Activation::Gelu).unwrap();
            let dpre =
                feed_forward::backward_input_hidden(&dy, &w2, &result.pre_activation, Activation::Gelu)
                    .unwrap();

            let [b1_wide, b2_wide] = [&b1_wide[..], &b2_wide].map(|bias| with_biases.then_some(bias));
            let second = |pre: &[f64]| {
                let activated = with_activation(pre, Activation::Gelu);
                (reference::linear(&activated, &w2_wide, b2_wide, hidden), activated)
            };
            let pre = reference::linear(&x_wide, &w1_wide, b1_wide, inputs);
            let (output, activated) = second(&pre);
            case.close(&what("pre_activation"), &read(&result.pre_activation), &pre);
            case.close(&what("activated"), &read(&result.activated), &activated);
            case.close(&what("output"), &read(&result.output), &output);
            case.is_gradient(&what("dpre"), &read(&dpre), &pre, |pre| dot(&dy_wide, &second(pre).0));
            if case.device.backend() == tensor::Backend::Cpu {
                let first = linear::forward(&x, &w1, b1, Activation::Gelu).unwrap();
                let apart = linear::forward(&first.output, &w2, b2, Activation::None).unwrap();
                assert_eq!(bits(&result.output), bits(&apart.output));
                let hidden = linear::backward_input(&dy, &w2).unwrap();
                let apart = linear::backward_activation(hidden, &result.pre_activation, Activation::Gelu);
                assert_eq!(bits(&dpre), bits(&apart.unwrap()));
            }
        }
    }
}

#[test]
fn a_weight_gradient_needs_no_bias() {
    for case in devices() {
        let (x, _) = case.operand("x", [9, 4]);
        let (dy, _) = case.operand("dy", [9, 6]);
        let (alone, both) = (case.target("dw", [6, 4], false), case.target("dw", [6, 4], false));
        linear::backward_weight(&dy, &x, &alone, None).unwrap();
        linear::backward_weight(&dy, &x, &both, Some(&case.target("db", [6], false))).unwrap();
        case.close("with and without a bias", &read(&alone.tensor), &read(&both.tensor));
        if case.device.backend() == tensor::Backend::Cpu {
            assert_eq!(bits(&alone.tensor), bits(&both.tensor));
        }
    }
}

/// Rows and columns: fewer than a run of rows, more than the most runs, odd widths, more than a tile of
/// vectors.
#[test]
fn bias_gradients_of_every_size() {
    for case in devices() {
        for [rows, outputs] in [[1, 3], [31, 8], [33, 264], [70, 257], [9000, 40]] {
            let (x, _) = case.operand("x", [rows, 1]);
            let (dy, dy_wide) = case.operand("dy", [rows, outputs]);
            let mut expected = vec![0.0; outputs];
            for row in dy_wide.chunks(outputs) {
                expected.iter_mut().zip(row).for_each(|(sum, dy)| *sum += dy);
            }
            for accumulate in [false, true] {
                let dweight = case.target("dw", [outputs, 1], accumulate);
                let dbias = case.target("db", [outputs], accumulate);
                linear::backward_weight(&dy, &x, &dweight, Some(&dbias)).unwrap();
                case.close(&format!("{rows}x{outputs}"), &case.added(&dbias, "db"), &expected);
            }
        }
    }
}

/// The matmuls may add in different orders, and round before they add to the target, so the results agree
/// within a unit in the last digit of bf16, of both, and the rounding of f32; sums of rows are equal.
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
