use tensor::DType;
use tensor::ops::{Activation, activation};

use crate::reference;
use crate::support::{LENGTHS, devices, read, tensor};
use crate::trial::Trial;

pub(crate) fn declared(trial: &mut Trial<'_>) {
    for (length, kind) in LENGTHS.into_iter().flat_map(|n| Activation::ALL.map(move |kind| (n, kind))) {
        trial.label(format!("{length} {kind:?}"));
        let (x, x_wide) = trial.operand("x", [length]);
        let y = activation::forward(&x, kind).unwrap();
        if kind == Activation::None {
            assert!(y.shares_storage(&x));
            continue;
        }
        trial.output("output", &y, || x_wide.iter().map(|x| reference::activation(*x, kind)).collect());
        let (dy, dy_wide) = trial.operand("dy", [length]);
        let saved = if kind == Activation::Relu { y } else { x };
        let apart = activation::backward(dy.clone(), &saved, kind).unwrap();
        let address = dy.region().buffer.address();
        if trial.compares() {
            assert_eq!(read(&dy), dy_wide, "a gradient with other views is not overwritten");
        }
        let overwritten = activation::backward(dy, &saved, kind).unwrap();
        assert_eq!(overwritten.region().buffer.address(), address);
        trial.same("gradient in place", &overwritten, &apart);
        // The derivative is undefined at ReLU's corner.
        let smooth = |i: usize| kind != Activation::Relu || x_wide[i].abs() > 1e-2;
        let indices: Vec<usize> = (0..length).filter(|i| smooth(*i)).rev().take(100).collect();
        trial.chosen_gradient("gradient", &apart, (&indices, &x_wide, &dy_wide), |x| {
            reference::activation(x, kind)
        });
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
                let x = tensor(&device, &[extreme], [1]);
                let one = tensor(&device, &[1.0f32], [1]);
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
