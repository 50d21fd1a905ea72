use tensor::DType;
use tensor::ops::{Activation, activation};

use crate::reference;
use crate::support::{LENGTHS, bits, devices, read, tensor};

#[test]
fn activations_match_the_reference() {
    for case in devices() {
        for length in LENGTHS {
            let (x, x_wide) = case.operand("x", [length]);
            for kind in Activation::ALL {
                let expected: Vec<f64> = x_wide.iter().map(|x| reference::activation(*x, kind)).collect();
                case.close("activation", &read(&activation::forward(&x, kind).unwrap()), &expected);
            }
            assert!(activation::forward(&x, Activation::None).unwrap().shares_storage(&x));
        }
    }
}

#[test]
fn smooth_activations_and_derivatives_are_accurate_over_their_range() {
    for device in devices().into_iter().filter(|case| case.dtype == DType::F32).map(|case| case.device) {
        let values: Vec<f32> = (-4000..=4000).map(|i| i as f32 * 0.003).collect();
        let x = tensor(&device, &values, [values.len()]);
        let ones = tensor(&device, &vec![1.0f32; values.len()], [values.len()]);
        for kind in [Activation::Silu, Activation::Gelu, Activation::GeluErf, Activation::QuickGelu] {
            let y = read(&activation::forward(&x, kind).unwrap());
            let slope = read(&activation::backward(ones.clone(), &x, kind).unwrap());
            for ((x, y), slope) in values.iter().zip(y).zip(slope) {
                let x = f64::from(*x);
                let truth = |x: f64| reference::activation(x, kind);
                assert!((y - truth(x)).abs() <= 4e-7 * x.abs().max(1e-3), "{kind:?}({x}) = {y}");
                let expected = (truth(x + 1e-5) - truth(x - 1e-5)) / 2e-5;
                assert!((slope - expected).abs() < 2e-6, "{kind:?}'({x}) = {slope}, not {expected}");
            }
            for (extreme, value, limit) in [(1e4f32, 1e4, 1.0), (-1e4, 0.0, 0.0)] {
                let (x, one) = (tensor(&device, &[extreme], [1]), tensor(&device, &[1.0f32], [1]));
                let y = read(&activation::forward(&x, kind).unwrap())[0];
                let slope = read(&activation::backward(one, &x, kind).unwrap())[0];
                assert!(
                    (y - value).abs() < 1e-30 && (slope - limit).abs() < 1e-25,
                    "{extreme}: {y}, {slope}"
                );
            }
        }
    }
}

#[test]
fn gradients_match_finite_differences_in_place_and_apart() {
    for case in devices() {
        let kinds = &Activation::ALL[1..];
        for (length, kind) in LENGTHS.into_iter().flat_map(|n| kinds.iter().map(move |kind| (n, *kind))) {
            let (x, x_wide) = case.operand("x", [length]);
            let (dy, dy_wide) = case.operand("dy", [length]);
            let saved = if kind == Activation::Relu { activation::forward(&x, kind).unwrap() } else { x };
            let apart = activation::backward(dy.clone(), &saved, kind).unwrap();
            assert_eq!(read(&dy), dy_wide, "a gradient with other views is not overwritten");
            let address = dy.region().buffer.address();
            let in_place = activation::backward(dy, &saved, kind).unwrap();
            assert_eq!(in_place.region().buffer.address(), address);
            assert_eq!(bits(&in_place), bits(&apart), "{kind:?} {length}");
            // The derivative is undefined at ReLU's corner.
            let smooth = |i: usize| kind != Activation::Relu || x_wide[i].abs() > 1e-2;
            let indices: Vec<usize> = (0..length).filter(|i| smooth(*i)).rev().take(100).collect();
            let point: Vec<f64> = indices.iter().map(|i| x_wide[*i]).collect();
            let all = read(&in_place);
            let gradient: Vec<f64> = indices.iter().map(|i| all[*i]).collect();
            // The terms of a derivative may cancel.
            let terms = indices.iter().map(|i| dy_wide[*i].powi(2)).sum::<f64>().sqrt();
            case.is_gradient_of_terms(&format!("{kind:?} {length}"), terms, &gradient, &point, |x| {
                indices.iter().zip(x).map(|(i, x)| dy_wide[*i] * reference::activation(*x, kind)).sum()
            });
        }
    }
}
