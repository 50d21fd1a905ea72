use tensor::ops::{Activation, activation, add, fill, mse, scale};

use crate::reference;
use crate::support::{bits, close, cpu, is_gradient, operand, read, tensor};

/// One element, odd lengths, and more than one piece.
const LENGTHS: [usize; 4] = [1, 33, 1000, 40_001];

#[test]
fn activations() {
    let device = cpu();
    for length in LENGTHS {
        let (x, x_wide) = operand(&device, "x", [length]);
        for kind in [Activation::Relu, Activation::Gelu] {
            let expected: Vec<f64> = x_wide.iter().map(|x| reference::activation(*x, kind)).collect();
            close("activation", &read(&activation::forward(&x, kind).unwrap()), &expected);
        }
        assert!(activation::forward(&x, Activation::None).unwrap().shares_storage(&x));
    }
}

#[test]
fn gelu_over_its_whole_range() {
    let device = cpu();
    let values: Vec<f32> = (-4000..=4000).map(|i| i as f32 * 0.003).collect();
    let x = tensor(&device, &values, [values.len()]);
    let ones = tensor(&device, &vec![1.0f32; values.len()], [values.len()]);
    let y = read(&activation::forward(&x, Activation::Gelu).unwrap());
    let slope = read(&activation::backward(ones, &x, Activation::Gelu).unwrap());
    for ((x, y), slope) in values.iter().zip(y).zip(slope) {
        let x = f64::from(*x);
        let gelu = |x: f64| reference::activation(x, Activation::Gelu);
        assert!((y - gelu(x)).abs() <= 4e-7 * x.abs().max(1e-3), "gelu({x}) = {y}");
        let expected = (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5;
        assert!((slope - expected).abs() < 2e-6, "gelu'({x}) = {slope}, not {expected}");
    }
    for (extreme, value, limit) in [(1e4f32, 1e4, 1.0), (-1e4, 0.0, 0.0)] {
        let (x, one) = (tensor(&device, &[extreme], [1]), tensor(&device, &[1.0f32], [1]));
        let y = read(&activation::forward(&x, Activation::Gelu).unwrap())[0];
        let slope = read(&activation::backward(one, &x, Activation::Gelu).unwrap())[0];
        assert!((y - value).abs() < 1e-30 && (slope - limit).abs() < 1e-25, "{extreme}: {y}, {slope}");
    }
}

#[test]
fn activation_gradients() {
    let device = cpu();
    for length in LENGTHS {
        for kind in [Activation::Relu, Activation::Gelu] {
            let (x, x_wide) = operand(&device, "x", [length]);
            let (dy, dy_wide) = operand(&device, "dy", [length]);
            let saved = if kind == Activation::Relu { activation::forward(&x, kind).unwrap() } else { x };
            let apart = activation::backward(dy.clone(), &saved, kind).unwrap();
            assert_eq!(read(&dy), dy_wide, "a gradient that others look at stays");
            let address = dy.region().buffer.address();
            let in_place = activation::backward(dy, &saved, kind).unwrap();
            assert_eq!(in_place.region().buffer.address(), address);
            assert_eq!(bits(&in_place), bits(&apart), "{kind:?} {length}");
            // Where ReLU has a corner within the step, a difference is no derivative.
            let smooth = |i: usize| kind == Activation::Gelu || x_wide[i].abs() > 1e-2;
            let kept: Vec<usize> = (0..length).filter(|i| smooth(*i)).take(100).collect();
            let point: Vec<f64> = kept.iter().map(|i| x_wide[*i]).collect();
            let gradient: Vec<f64> = kept.iter().map(|i| read_at(&in_place, *i)).collect();
            is_gradient(&format!("{kind:?} {length}"), &gradient, &point, |x| {
                kept.iter().zip(x).map(|(i, x)| dy_wide[*i] * reference::activation(*x, kind)).sum()
            });
        }
    }
}

fn read_at(tensor: &tensor::Tensor, index: usize) -> f64 {
    read(&tensor.view(index, [1]).unwrap())[0]
}

#[test]
fn mean_squared_error() {
    let device = cpu();
    for length in LENGTHS {
        let (prediction, wide) = operand(&device, "prediction", [length]);
        let (target, target_wide) = operand(&device, "target", [length]);
        let loss = mse::forward(&prediction, &target, 0.25).unwrap();
        close("mse", &read(&loss), &[0.25 * reference::mse(&wide, &target_wide)]);
        assert_eq!(loss.shape(), [].into());
        let gradient = mse::backward(&prediction, &target, 0.25).unwrap();
        is_gradient("mse", &read(&gradient), &wide, |p| 0.25 * reference::mse(p, &target_wide));
    }
}

#[test]
fn sums_scales_and_constants_are_exact() {
    let device = cpu();
    for length in LENGTHS {
        let (a, a_wide) = operand(&device, "a", [length]);
        let (b, b_wide) = operand(&device, "b", [length]);
        let rounded = |f: &dyn Fn(f64, f64) -> f64| -> Vec<f64> {
            a_wide.iter().zip(&b_wide).map(|(a, b)| f64::from(f(*a, *b) as f32)).collect()
        };
        assert_eq!(read(&add::forward(&a, &b).unwrap()), rounded(&|a, b| a + b));
        add::into(&a, &b).unwrap();
        assert_eq!(read(&a), rounded(&|a, b| a + b));
        scale::in_place(&b, 0.3).unwrap();
        assert_eq!(read(&b), rounded(&|_, b| b * f64::from(0.3f32)));
        fill::constant(&b, -2.5).unwrap();
        assert_eq!(read(&b), vec![-2.5; length]);
    }
}
