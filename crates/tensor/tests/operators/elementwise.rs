use device::{Category, Request};
use tensor::ops::{Activation, activation, add, cast, fill, mse, scale};
use tensor::{DType, Tensor};

use crate::reference;
use crate::support::{bits, close, devices, read, tensor, typed};

/// One element, odd lengths, and more than one piece.
const LENGTHS: [usize; 5] = [1, 33, 1000, 40_001, 65_536];

#[test]
fn activations() {
    for case in devices() {
        for length in LENGTHS {
            let (x, x_wide) = case.operand("x", [length]);
            for kind in [Activation::Relu, Activation::Gelu] {
                let expected: Vec<f64> = x_wide.iter().map(|x| reference::activation(*x, kind)).collect();
                case.close("activation", &read(&activation::forward(&x, kind).unwrap()), &expected);
            }
            assert!(activation::forward(&x, Activation::None).unwrap().shares_storage(&x));
        }
    }
}

#[test]
fn gelu_over_its_whole_range() {
    for device in devices().into_iter().filter(|case| case.dtype == DType::F32).map(|case| case.device) {
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
}

#[test]
fn activation_gradients() {
    for case in devices() {
        for (length, kind) in LENGTHS.into_iter().flat_map(|n| [(n, Activation::Relu), (n, Activation::Gelu)])
        {
            let (x, x_wide) = case.operand("x", [length]);
            let (dy, dy_wide) = case.operand("dy", [length]);
            let saved = if kind == Activation::Relu { activation::forward(&x, kind).unwrap() } else { x };
            let apart = activation::backward(dy.clone(), &saved, kind).unwrap();
            assert_eq!(read(&dy), dy_wide, "a gradient that others look at stays");
            let address = dy.region().buffer.address();
            let in_place = activation::backward(dy, &saved, kind).unwrap();
            assert_eq!(in_place.region().buffer.address(), address);
            assert_eq!(bits(&in_place), bits(&apart), "{kind:?} {length}");
            // Where ReLU has a corner within the step, a difference is no derivative.
            let smooth = |i: usize| kind == Activation::Gelu || x_wide[i].abs() > 1e-2;
            let kept: Vec<usize> = (0..length).filter(|i| smooth(*i)).rev().take(100).collect();
            let point: Vec<f64> = kept.iter().map(|i| x_wide[*i]).collect();
            let all = read(&in_place);
            let gradient: Vec<f64> = kept.iter().map(|i| all[*i]).collect();
            // Both terms of GELU's derivative may cancel.
            let terms = kept.iter().map(|i| dy_wide[*i].powi(2)).sum::<f64>().sqrt();
            case.is_gradient_of_terms(&format!("{kind:?} {length}"), terms, &gradient, &point, |x| {
                kept.iter().zip(x).map(|(i, x)| dy_wide[*i] * reference::activation(*x, kind)).sum()
            });
        }
    }
}

#[test]
fn mean_squared_error() {
    for case in devices() {
        for length in LENGTHS {
            let (prediction, wide) = case.operand("prediction", [length]);
            let (target, target_wide) = case.operand("target", [length]);
            let loss = mse::forward(&prediction, &target, 0.25).unwrap();
            close("mse", &read(&loss), &[0.25 * reference::mse(&wide, &target_wide)]);
            assert_eq!(loss.shape(), [].into());
            let gradient = mse::backward(&prediction, &target, 0.25).unwrap();
            case.is_gradient("mse", &read(&gradient), &wide, |p| 0.25 * reference::mse(p, &target_wide));
        }
    }
}

#[test]
fn sums_scales_and_constants_are_exact() {
    for case in devices() {
        for length in LENGTHS {
            let (a, a_wide) = case.operand("a", [length]);
            let (b, b_wide) = case.operand("b", [length]);
            let rounded = |f: &dyn Fn(f64, f64) -> f64| -> Vec<f64> {
                a_wide.iter().zip(&b_wide).map(|(a, b)| f64::from(case.round(f(*a, *b) as f32))).collect()
            };
            assert_eq!(read(&add::forward(&a, &b).unwrap()), rounded(&|a, b| a + b));
            add::into(&a, &b).unwrap();
            assert_eq!(read(&a), rounded(&|a, b| a + b));
            scale::in_place(&b, 0.3).unwrap();
            assert_eq!(read(&b), rounded(&|_, b| b * f64::from(0.3f32)));
            let factor = tensor(&case.device, &[-4.0f32], []);
            scale::by(&b, &factor).unwrap();
            let scaled = |b: f64| -4.0 * f64::from(case.round((b * f64::from(0.3f32)) as f32));
            assert_eq!(read(&b), rounded(&|_, b| scaled(b)));
            fill::constant(&b, -2.5).unwrap();
            assert_eq!(read(&b), vec![-2.5; length]);
        }
    }
}

#[test]
fn views_at_any_element_are_written_from_their_first_to_their_last() {
    for case in devices() {
        for (start, length) in [(1, 1), (1, 100), (2, 1001), (3, 4099), (4, 9000)] {
            let (all, before) = case.operand("all", [length + 10]);
            let (b, b_wide) = case.operand("b", [length]);
            add::into(&all.view(start, [length]).unwrap(), &b).unwrap();
            let expected: Vec<f64> = (0..length + 10)
                .map(|i| match i.checked_sub(start).and_then(|i| b_wide.get(i)) {
                    Some(b) => f64::from(case.round((before[i] + b) as f32)),
                    None => before[i],
                })
                .collect();
            assert_eq!(read(&all), expected, "{start} {length}, {}", case.name());
        }
    }
}

#[test]
fn casts_round_to_the_nearest_and_back_exactly() {
    let mut devices: Vec<_> = devices().into_iter().map(|case| case.device).collect();
    devices.dedup_by_key(|device| device.backend());
    for device in devices {
        for length in LENGTHS {
            // Ties above and below, both signs, subnormal, overflow to infinity, the largest, zeros.
            let special = [
                f32::from_bits(0x3f80_8000),
                f32::from_bits(0x3f81_8000),
                f32::from_bits(0xbf80_8001),
                f32::from_bits(0x0000_ffff),
                f32::MAX,
                f32::from_bits(0x7f7f_0000),
                -0.0,
                f32::NEG_INFINITY,
            ];
            let mut values = crate::support::normal("cast", length);
            values.iter_mut().rev().zip(special).for_each(|(value, special)| *value = special);
            let source = tensor(&device, &values, [length]);
            let empty = |dtype| {
                Tensor::empty(&device, [length], dtype, Request::new(Category::Other, "test")).unwrap()
            };
            let (narrow, back) = (empty(DType::Bf16), empty(DType::F32));
            cast::into(&source, &narrow).unwrap();
            assert_eq!(bits(&narrow), bits(&typed(&device, DType::Bf16, &values, [length])));
            cast::into(&narrow, &back).unwrap();
            assert_eq!(read(&back), read(&narrow));
        }
        let (nan, narrow) = (tensor(&device, &[f32::NAN], [1]), typed(&device, DType::Bf16, &[0.0], [1]));
        cast::into(&nan, &narrow).unwrap();
        assert!(read(&narrow)[0].is_nan());
    }
}
