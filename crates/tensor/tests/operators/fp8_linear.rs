//! FP8 matmuls compared with f64 code that models the quantisation: the kernels are tested, not the formats.

use device::{Backend, E4m3, E5m2, Fp8};
use tensor::ops::fp8_linear::{self, Cast, Input, Quantised, Recipe, Scaled};
use tensor::ops::{Activation, gate};
use tensor::{DType, Tensor};

use crate::reference;
use crate::support::{Case, devices, read};

/// Rows, inputs, outputs: rows that are no multiple of 16, several tiles and chunks, and inputs for which
/// cuBLASLt adds a bias only without a workspace.
const SIZES: [[usize; 3]; 6] =
    [[1, 16, 16], [33, 48, 64], [130, 144, 272], [300, 1040, 128], [257, 64, 3088], [40, 6144, 48]];

/// Returns the CPU cases, and bf16 on a GPU, the only type with kernels there.
pub(crate) fn cases() -> Vec<Case> {
    let has = |case: &Case| case.device.backend() == Backend::Cpu || case.dtype == DType::Bf16;
    devices().into_iter().filter(has).collect()
}

/// Returns the codes of an FP8 matrix as numbers, and the factors.
fn codes(scaled: &Scaled) -> (Vec<f32>, Vec<f32>) {
    let values = match scaled.values.dtype() {
        DType::E5m2 => scaled.values.to_vec::<E5m2>().unwrap().into_iter().map(Fp8::to_f32).collect(),
        _ => scaled.values.to_vec::<E4m3>().unwrap().into_iter().map(Fp8::to_f32).collect(),
    };
    (values, scaled.scales.to_vec().unwrap())
}

/// Returns the values of an FP8 matrix: its codes times their factors.
fn values(scaled: &Scaled) -> Vec<f64> {
    let (codes, factors) = codes(scaled);
    let columns = scaled.values.shape().columns();
    let factor = |row: usize| f64::from(factors[if factors.len() == 1 { 0 } else { row }]);
    codes.iter().enumerate().map(|(at, code)| f64::from(*code) * factor(at / columns)).collect()
}

/// Models a cast: returns codes and factors of `[rows, columns]` values, with one factor per row or one for
/// all.
fn model<F: Fp8>(values: &[f32], columns: usize, recipe: Recipe) -> (Vec<f32>, Vec<f32>) {
    let factor = |values: &[f32]| {
        let largest = values.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        if largest == 0.0 { 1.0 } else { largest.max(2f32.powi(-100)) / F::LARGEST }
    };
    let rows = values.chunks(columns);
    let factors: Vec<f32> = match recipe {
        Recipe::Tensorwise => vec![factor(values)],
        Recipe::Rowwise => rows.clone().map(factor).collect(),
    };
    let inverse_factor = |row: usize| 1.0 / factors[if factors.len() == 1 { 0 } else { row }];
    let codes = rows.enumerate().flat_map(|(row, values)| {
        let scale = inverse_factor(row);
        values.iter().map(move |value| F::from_f32(value * scale).to_f32())
    });
    (codes.collect(), factors)
}

fn transposed(values: &[f32], columns: usize, padded: usize) -> Vec<f32> {
    let rows = values.len() / columns;
    let at = |i: usize| if i % padded < rows { values[i % padded * columns + i / padded] } else { 0.0 };
    (0..columns * padded).map(at).collect()
}

pub(crate) fn check_cast<F: Fp8>(
    what: &str,
    values: &[f32],
    columns: usize,
    recipe: Recipe,
    output: &Quantised,
) {
    let padded = (values.len() / columns).next_multiple_of(16);
    assert_eq!(codes(output.stored.as_ref().unwrap()), model::<F>(values, columns, recipe), "{what}");
    let turned = transposed(values, columns, padded);
    let expected = model::<F>(&turned, padded, recipe);
    assert_eq!(codes(output.transposed.as_ref().unwrap()), expected, "{what}, transposed");
}

pub(crate) fn wide(case: &Case, tensor: &Tensor) -> Vec<f32> {
    read(tensor).into_iter().map(|value| case.round(value as f32)).collect()
}

#[test]
fn casts_round_and_transpose_by_the_largest_magnitude() {
    for case in cases() {
        for ([rows, columns, _], recipe) in SIZES.into_iter().flat_map(|size| Recipe::ALL.map(|r| (size, r)))
        {
            let what = format!("{rows}x{columns} {recipe:?} {}", case.name());
            let (x, _) = case.operand("x", [rows, columns]);
            let plain = wide(&case, &x);
            let cast = |format| Cast::new(format, recipe).stored().transposed();
            let output = fp8_linear::quantise(&x, Input::Plain, cast(DType::E4m3)).unwrap();
            check_cast::<E4m3>(&what, &plain, columns, recipe, &output);
            let (gradient, sums) = fp8_linear::quantise_gradient(&x, cast(DType::E5m2), true).unwrap();
            check_cast::<E5m2>(&what, &plain, columns, recipe, &gradient);
            let scales = &gradient.transposed.as_ref().unwrap().scales;
            let again = fp8_linear::quantise_with(&x, DType::E5m2, scales).unwrap();
            assert_eq!(codes(&again), codes(gradient.transposed.as_ref().unwrap()), "{what}, again");

            for accumulate in [false, true] {
                let bias = case.target("bias", [columns], accumulate);
                fp8_linear::finish_sums(sums.as_ref().unwrap(), &bias).unwrap();
                let expected: Vec<f64> = (0..columns)
                    .map(|column| (0..rows).map(|row| f64::from(plain[row * columns + column])).sum())
                    .collect();
                case.single().close(&what, &case.added(&bias, "bias"), &expected);
            }
        }
    }
}

#[test]
fn activations_and_gates_are_cast_as_if_they_were_stored() {
    for case in cases() {
        for activation in Activation::ALL {
            for recipe in Recipe::ALL {
                let (x, _) = case.operand("x", [70, 160]);
                let cast = Cast::new(DType::E4m3, recipe).stored().transposed();
                let stored = tensor::ops::activation::forward(&x, activation).unwrap();
                let gated = gate::forward(&x, activation).unwrap();
                for (input, stored) in
                    [(Input::Activated(activation), stored), (Input::Gated(activation), gated)]
                {
                    let fused = fp8_linear::quantise(&x, input, cast).unwrap();
                    let apart = fp8_linear::quantise(&stored, Input::Plain, cast).unwrap();
                    for (fused, apart) in fused.layouts().zip(apart.layouts()) {
                        // Operators that store may use another arithmetic, so a rounding may differ.
                        let what = format!("{input:?} {recipe:?}");
                        case.close(&what, &values(fused), &values(apart));
                    }
                }
            }
        }
    }
}

/// The largest value of an activation is not always at the largest input.
#[test]
fn activations_are_measured_wherever_their_largest_value_lies() {
    let (rows, columns) = (130, 160);
    let ramp =
        |low: f32, high: f32| move |i: usize| low + (high - low) * (i * 7919 % 20_800) as f32 / 20_800.0;
    let planted = |value: f32| move |i: usize| if i == 9_999 { value } else { ramp(-3.0, 0.01)(i) };
    let tables: [(&str, Vec<f32>); 8] = [
        ("below zero", (0..rows * columns).map(ramp(-8.0, -0.2)).collect()),
        ("near zero", (0..rows * columns).map(ramp(-1e-3, 1e-3)).collect()),
        ("mostly below zero", (0..rows * columns).map(planted(0.05)).collect()),
        ("one large", (0..rows * columns).map(planted(700.0)).collect()),
        ("one large below zero", (0..rows * columns).map(planted(-700.0)).collect()),
        ("NaN", (0..rows * columns).map(planted(f32::NAN)).collect()),
        ("infinite", (0..rows * columns).map(planted(f32::INFINITY)).collect()),
        ("zero", vec![0.0; rows * columns]),
    ];
    for case in cases() {
        for (name, x) in &tables {
            let x = case.tensor(&x.iter().map(|x| case.round(*x)).collect::<Vec<_>>(), [rows, columns]);
            for activation in Activation::ALL {
                let cast = Cast::new(DType::E4m3, Recipe::Tensorwise).stored();
                let stored = tensor::ops::activation::forward(&x, activation).unwrap();
                let factor = |tensor, input| {
                    let layout = fp8_linear::quantise(tensor, input, cast).unwrap().stored.unwrap();
                    f64::from(layout.scales.to_vec::<f32>().unwrap()[0])
                };
                let [actual, expected] =
                    [factor(&x, Input::Activated(activation)), factor(&stored, Input::Plain)];
                let what = format!("{activation:?}, {name}, {}: {actual} and {expected}", case.name());
                assert_eq!(actual.is_finite(), expected.is_finite(), "{what}");
                // Operators that store may use another arithmetic.
                assert!(!actual.is_finite() || (actual / expected - 1.0).abs() < 0.01, "{what}");
            }
        }
    }
}

/// Computes `[m, k]` times `[n, k]` transposed, in f64.
fn product(a: &[f64], b: &[f64], k: usize) -> Vec<f64> {
    reference::linear(a, b, None, k)
}

#[test]
fn matmuls_multiply_what_the_codes_stand_for() {
    for case in cases() {
        let formats = [DType::E4m3, DType::E5m2];
        let of_size = |size| Recipe::ALL.into_iter().flat_map(move |r| formats.map(|f| (size, r, f)));
        for ([rows, inputs, outputs], recipe, gradients) in SIZES.into_iter().flat_map(of_size) {
            let what = |name: &str| format!("{name} {rows}x{inputs}x{outputs} {recipe:?} {gradients}");
            let (x, _) = case.operand("x", [rows, inputs]);
            let (weight, _) = case.operand("weight", [outputs, inputs]);
            let (dy, _) = case.operand("dy", [rows, outputs]);
            let (bias, bias_wide) = case.operand("bias", [outputs]);
            let cast = |format| Cast::new(format, recipe).stored().transposed();
            let quantised =
                |tensor: &Tensor, format| fp8_linear::quantise(tensor, Input::Plain, cast(format)).unwrap();
            let x8 = quantised(&x, DType::E4m3);
            let w8 = quantised(&weight, DType::E4m3);
            let dy8 = quantised(&dy, gradients);
            let x_stored = x8.stored.unwrap();
            let x_turned = x8.transposed.unwrap();
            let w_stored = w8.stored.unwrap();
            let w_turned = w8.transposed.unwrap();
            let dy_stored = dy8.stored.unwrap();
            let dy_turned = dy8.transposed.unwrap();
            let padded = rows.next_multiple_of(16);

            for bias in [None, Some((&bias, &bias_wide[..]))] {
                let y = fp8_linear::forward(&x_stored, &w_stored, bias.map(|b| b.0), x.shape(), case.dtype);
                let expected =
                    reference::linear(&values(&x_stored), &values(&w_stored), bias.map(|b| b.1), inputs);
                case.close(&what("y"), &read(&y.unwrap()), &expected);
            }
            let dx = fp8_linear::backward_input(&dy_stored, &w_turned, dy.shape(), case.dtype).unwrap();
            assert_eq!(dx.shape(), x.shape());
            case.close(&what("dx"), &read(&dx), &product(&values(&dy_stored), &values(&w_turned), outputs));
            for accumulate in [false, true] {
                let expected = product(&values(&dy_turned), &values(&x_turned), padded);
                let dw = case.target("dw", [outputs, inputs], accumulate);
                fp8_linear::backward_weight(&dy_turned, &x_turned, &dw).unwrap();
                case.close(&what("dw"), &case.added(&dw, "dw"), &expected);
            }
            let dw = case.targets("dw", [outputs, inputs], false);
            for target in &dw {
                fp8_linear::backward_weight(&dy_turned, &x_turned, target).unwrap();
            }
            case.close(&what("dw in the compute type"), &read(&dw[1].tensor), &read(&dw[0].tensor));
        }
    }
}

#[test]
fn zeros_stay_zeros_and_what_is_not_finite_reaches_every_result() {
    for case in cases() {
        for (recipe, value) in Recipe::ALL
            .into_iter()
            .flat_map(|recipe| [0.0, f32::INFINITY, f32::NAN].map(|value| (recipe, value)))
        {
            let mut planted = vec![0.0f32; 64 * 32];
            planted[5 * 32 + 7] = value;
            let x = case.tensor(&planted, [64, 32]);
            let (weight, _) = case.operand("weight", [48, 32]);
            let cast = Cast::new(DType::E4m3, recipe).stored();
            let quantised =
                |tensor| fp8_linear::quantise(tensor, Input::Plain, cast).unwrap().stored.unwrap();
            let x8 = quantised(&x);
            let w8 = quantised(&weight);
            let y = read(&fp8_linear::forward(&x8, &w8, None, x.shape(), case.dtype).unwrap());
            let what = format!("{recipe:?} {value} {}", case.name());
            if value == 0.0 {
                assert!(y.iter().all(|y| *y == 0.0), "{what}");
                continue;
            }
            let rows: Vec<bool> = y.chunks(48).map(|row| row.iter().all(|y| !y.is_finite())).collect();
            assert!(rows[5], "{what}");
            assert!(recipe == Recipe::Rowwise || rows.iter().all(|row| *row), "{what}");
        }
    }
}

#[test]
fn tiny_and_huge_tensors_keep_their_size() {
    // f16 has none of these sizes.
    for case in cases().into_iter().filter(|case| case.dtype != DType::F16) {
        for size in [2f32.powi(-110), 1e-30, 1e-6, 1e6, 1e37] {
            let values: Vec<f32> =
                (0..32 * 16).map(|i| case.round(size * (1.0 + (i % 7) as f32 / 8.0))).collect();
            let x = case.tensor(&values, [32, 16]);
            let cast = Cast::new(DType::E5m2, Recipe::Tensorwise).stored();
            let layout = fp8_linear::quantise(&x, Input::Plain, cast).unwrap().stored.unwrap();
            let actual = self::values(&layout);
            let wrong = |(actual, value): (&f64, &f32)| (actual / f64::from(*value) - 1.0).abs() > 0.13;
            let least = if size < 2f32.powi(-100) { f64::from(size) } else { 0.0 };
            assert!(least > 0.0 || !actual.iter().zip(&values).any(wrong), "{size} {}", case.name());
            assert!(actual.iter().all(|value| value.is_finite() && *value > 0.0), "{size}");
        }
    }
}
