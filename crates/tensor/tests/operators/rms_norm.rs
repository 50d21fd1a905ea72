use tensor::ops::rms_norm;

use crate::reference;
use crate::support::{Case, bits, devices, dot, half_precision, read};

/// Rows, width: every form of the kernels, and odd widths.
const SIZES: [[usize; 2]; 13] = [
    [40, 2],
    [1, 33],
    [5, 7],
    [70, 65],
    [130, 32],
    [3, 1000],
    [9, 512],
    [17, 768],
    [5, 1600],
    [2, 3000],
    [3, 4104],
    [2, 12_800],
    [2, 12_801],
];
const EPSILON: f32 = 1e-5;

#[test]
fn forward_normalises_every_row() {
    for case in devices() {
        for [rows, width] in SIZES {
            let what = |name: &str| format!("{name} {rows}x{width}");
            let (x, x_wide) = case.operand("x", [rows, width]);
            let (weight, weight_wide) = case.operand("weight", [width]);
            let made = rms_norm::forward(&x, &weight, EPSILON).unwrap();
            let [output, rstd] = reference::rms_norm(&x_wide, &weight_wide, f64::from(EPSILON));
            case.close(&what("output"), &read(&made.output), &output);
            case.close(&what("rstd"), &read(&made.rstd), &rstd);
        }
    }
}

#[test]
fn the_residual_form_equals_the_sum_then_the_plain_form_to_the_bit() {
    for case in devices() {
        for [rows, width] in [[1, 1], [3, 33], [1200, 64], [7, 1600], [2, 5000]] {
            let (residual, residual_wide) = case.operand("residual", [rows, width]);
            let (branch, branch_wide) = case.operand("branch", [rows, width]);
            let (weight, _) = case.operand("weight", [width]);
            let (sum, fused) = rms_norm::forward_residual(&residual, &branch, &weight, EPSILON).unwrap();
            let pairs = residual_wide.iter().zip(&branch_wide);
            let exact: Vec<f64> = pairs.map(|(a, b)| f64::from(case.round((a + b) as f32))).collect();
            assert_eq!(read(&sum), exact, "{rows}x{width}, {}", case.name());
            let plain = rms_norm::forward(&sum, &weight, EPSILON).unwrap();
            assert_eq!(bits(&fused.output), bits(&plain.output), "{rows}x{width}, {}", case.name());
            assert_eq!(bits(&fused.rstd), bits(&plain.rstd));
        }
    }
}

#[test]
fn gradients_match_finite_differences() {
    for case in devices() {
        for size in SIZES {
            [false, true].into_iter().for_each(|accumulate| gradients(&case, size, accumulate));
        }
    }
}

fn gradients(case: &Case, [rows, width]: [usize; 2], accumulate: bool) {
    let what = |name: &str| format!("{name} {rows}x{width}");
    let (x, x_wide) = case.operand("x", [rows, width]);
    let (weight, weight_wide) = case.operand("weight", [width]);
    let (dy, dy_wide) = case.operand("dy", [rows, width]);
    let (dsum, dsum_wide) = case.operand("dsum", [rows, width]);
    let made = rms_norm::forward(&x, &weight, EPSILON).unwrap();
    let dsum = accumulate.then_some(&dsum);
    let dx = rms_norm::backward_input(&dy, dsum, &x, &weight, &made.rstd).unwrap();
    let dweight = case.target("dweight", [width], accumulate);
    rms_norm::backward_weight(&dy, &x, &made.rstd, &dweight).unwrap();

    let value = |x: &[f64], weight: &[f64]| {
        let other = if accumulate { dot(&dsum_wide, x) } else { 0.0 };
        dot(&dy_wide, &reference::rms_norm(x, weight, f64::from(EPSILON))[0]) + other
    };
    // In narrow rows the terms of dx nearly cancel: the tolerance is relative to the terms.
    let terms = dy_wide.iter().map(|dy| dy * dy).sum::<f64>().sqrt();
    case.is_gradient_of_terms(&what("dx"), terms, &read(&dx), &x_wide, |x| value(x, &weight_wide));
    let dweight = case.added(&dweight, "dweight");
    case.is_gradient(&what("dweight"), &dweight, &weight_wide, |weight| value(&x_wide, weight));
}

#[test]
fn gradients_in_half_precision_are_rounded_f32_gradients() {
    for case in half_precision() {
        for [rows, width] in SIZES.into_iter().chain([[9001, 24]]) {
            let (x, _) = case.operand("x", [rows, width]);
            let (weight, _) = case.operand("weight", [width]);
            let (dy, _) = case.operand("dy", [rows, width]);
            let made = rms_norm::forward(&x, &weight, EPSILON).unwrap();
            for accumulate in [false, true] {
                let dweight = case.targets("dweight", [width], accumulate);
                for dweight in &dweight {
                    rms_norm::backward_weight(&dy, &x, &made.rstd, dweight).unwrap();
                }
                case.is_rounded(&format!("dweight {rows}x{width} {accumulate}"), &dweight);
            }
        }
    }
}
