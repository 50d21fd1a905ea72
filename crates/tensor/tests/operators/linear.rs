use proptest::prelude::*;
use tensor::ops::{Activation, linear};

use crate::reference;
use crate::support::{added, bits, close, cpu, dot, is_gradient, operand, read, target};

const ACTIVATIONS: [Activation; 3] = [Activation::None, Activation::Relu, Activation::Gelu];
/// Rows, inputs, outputs: odd ones, and more than one tile and chunk of each.
const SIZES: [[usize; 3]; 7] =
    [[1, 1, 1], [1, 33, 5], [7, 1, 33], [33, 7, 1], [70, 65, 130], [300, 16, 8], [5, 1100, 40]];

fn with_activation(pre: &[f64], activation: Activation) -> Vec<f64> {
    pre.iter().map(|x| reference::activation(*x, activation)).collect()
}

#[test]
fn forward_is_the_affine_map_and_its_activation() {
    let device = cpu();
    for [rows, inputs, outputs] in SIZES {
        for activation in ACTIVATIONS {
            for with_bias in [false, true] {
                let what = format!("{rows}x{inputs}x{outputs} {activation:?} bias {with_bias}");
                let (x, x_wide) = operand(&device, "x", [rows, inputs]);
                let (weight, weight_wide) = operand(&device, "weight", [outputs, inputs]);
                let (bias, bias_wide) = operand(&device, "bias", [outputs]);
                let (bias, bias_wide) = (with_bias.then_some(&bias), with_bias.then_some(&bias_wide[..]));
                let made = linear::forward(&x, &weight, bias, activation).unwrap();
                let pre = reference::linear(&x_wide, &weight_wide, bias_wide, inputs);
                close(&what, &read(&made.output), &with_activation(&pre, activation));
                assert_eq!(made.output.shape(), [rows, outputs].into(), "{what}");
                assert_eq!(made.pre_activation.is_some(), activation == Activation::Gelu, "{what}");
                if let Some(saved) = made.pre_activation {
                    close(&what, &read(&saved), &pre);
                }
            }
        }
    }
}

#[test]
fn leading_dimensions_are_rows() {
    let device = cpu();
    let (x, _) = operand(&device, "x", [2, 3, 4]);
    let (weight, _) = operand(&device, "weight", [5, 4]);
    let three = linear::forward(&x, &weight, None, Activation::Gelu).unwrap().output;
    let two = linear::forward(&x.reshape([6, 4]).unwrap(), &weight, None, Activation::Gelu).unwrap().output;
    let one = linear::forward(&x.view(0, [4]).unwrap(), &weight, None, Activation::Gelu).unwrap().output;
    assert_eq!(three.shape(), [2, 3, 5].into());
    assert_eq!(one.shape(), [5].into());
    assert_eq!(bits(&three), bits(&two));
}

#[test]
fn gradients_are_those_of_finite_differences() {
    let device = cpu();
    for [rows, inputs, outputs] in SIZES {
        for (accumulate, activation) in ACTIVATIONS.into_iter().enumerate() {
            let accumulate = accumulate == 1;
            let what = |name: &str| format!("{name} {rows}x{inputs}x{outputs} {activation:?}");
            let (x, x_wide) = operand(&device, "x", [rows, inputs]);
            let (weight, weight_wide) = operand(&device, "weight", [outputs, inputs]);
            let (bias, bias_wide) = operand(&device, "bias", [outputs]);
            let (dy, dy_wide) = operand(&device, "dy", [rows, outputs]);
            let made = linear::forward(&x, &weight, Some(&bias), activation).unwrap();
            let saved = made.pre_activation.unwrap_or(made.output);
            let dpre = linear::backward_activation(dy, &saved, activation).unwrap();
            let dx = linear::backward_input(&dpre, &weight).unwrap();
            let dweight = target(&device, "dw", [outputs, inputs], accumulate);
            let dbias = target(&device, "db", [outputs], accumulate);
            linear::backward_weight(&dpre, &x, &dweight, Some(&dbias)).unwrap();

            let here = reference::linear(&x_wide, &weight_wide, Some(&bias_wide), inputs);
            let value = |x: &[f64], w: &[f64], b: &[f64]| {
                let pre = reference::linear(x, w, Some(b), inputs);
                // A step over ReLU's corner would be no derivative: it stays on the side where it started.
                let side = |(pre, here): (&f64, &f64)| match activation {
                    Activation::Relu => pre * f64::from(u8::from(*here > 0.0)),
                    other => reference::activation(*pre, other),
                };
                dot(&dy_wide, &pre.iter().zip(&here).map(side).collect::<Vec<_>>())
            };
            is_gradient(&what("dx"), &read(&dx), &x_wide, |x| value(x, &weight_wide, &bias_wide));
            let dweight = added(&dweight, "dw");
            is_gradient(&what("dweight"), &dweight, &weight_wide, |w| value(&x_wide, w, &bias_wide));
            let dbias = added(&dbias, "db");
            is_gradient(&what("dbias"), &dbias, &bias_wide, |b| value(&x_wide, &weight_wide, b));
        }
    }
}

#[test]
fn a_weight_gradient_may_go_without_a_bias() {
    let device = cpu();
    let (x, _) = operand(&device, "x", [9, 4]);
    let (dy, _) = operand(&device, "dy", [9, 6]);
    let (alone, both) = (target(&device, "dw", [6, 4], false), target(&device, "dw", [6, 4], false));
    linear::backward_weight(&dy, &x, &alone, None).unwrap();
    linear::backward_weight(&dy, &x, &both, Some(&target(&device, "db", [6], false))).unwrap();
    assert_eq!(bits(&alone.tensor), bits(&both.tensor));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_sizes(rows in 1usize..150, inputs in 1usize..150, outputs in 1usize..150) {
        let device = cpu();
        let (x, x_wide) = operand(&device, "x", [rows, inputs]);
        let (weight, weight_wide) = operand(&device, "weight", [outputs, inputs]);
        let (bias, bias_wide) = operand(&device, "bias", [outputs]);
        let made = linear::forward(&x, &weight, Some(&bias), Activation::None).unwrap();
        let expected = reference::linear(&x_wide, &weight_wide, Some(&bias_wide), inputs);
        close("linear", &read(&made.output), &expected);
    }
}
