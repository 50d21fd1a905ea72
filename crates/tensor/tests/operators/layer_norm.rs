use tensor::ops::layer_norm;

use crate::reference;
use crate::support::{added, bits, close, cpu, dot, is_gradient, operand, read, target, wide};

/// Rows, width. A width of 1 is left to its own test: its true gradient is zero.
const SIZES: [[usize; 2]; 6] = [[1, 2], [1, 33], [5, 7], [70, 65], [130, 32], [3, 1000]];
const EPSILON: f32 = 1e-5;

#[test]
fn forward_normalises_every_row() {
    let device = cpu();
    for [rows, width] in SIZES {
        let (x, x_wide) = operand(&device, "x", [rows, width]);
        let (gamma, gamma_wide) = operand(&device, "gamma", [width]);
        let (beta, beta_wide) = operand(&device, "beta", [width]);
        let made = layer_norm::forward(&x, &gamma, &beta, EPSILON).unwrap();
        let [output, mean, rstd] =
            reference::layer_norm(&x_wide, &gamma_wide, &beta_wide, f64::from(EPSILON));
        close("output", &read(&made.output), &output);
        close("mean", &read(&made.mean), &mean);
        close("rstd", &read(&made.rstd), &rstd);
    }
}

#[test]
fn the_residual_form_is_the_sum_and_then_the_plain_form_to_the_bit() {
    let device = cpu();
    for [rows, width] in [[1, 1], [3, 33], [1200, 64]] {
        let (residual, residual_wide) = operand(&device, "residual", [rows, width]);
        let (branch, branch_wide) = operand(&device, "branch", [rows, width]);
        let (gamma, _) = operand(&device, "gamma", [width]);
        let (beta, _) = operand(&device, "beta", [width]);
        let (sum, fused) = layer_norm::forward_residual(&residual, &branch, &gamma, &beta, EPSILON).unwrap();
        let exact: Vec<f64> =
            residual_wide.iter().zip(&branch_wide).map(|(a, b)| f64::from((a + b) as f32)).collect();
        assert_eq!(read(&sum), exact);
        let plain = layer_norm::forward(&sum, &gamma, &beta, EPSILON).unwrap();
        assert_eq!(bits(&fused.output), bits(&plain.output));
        assert_eq!(bits(&fused.mean), bits(&plain.mean));
        assert_eq!(bits(&fused.rstd), bits(&plain.rstd));
    }
}

#[test]
fn gradients_are_those_of_finite_differences() {
    let device = cpu();
    for [rows, width] in SIZES {
        for accumulate in [false, true] {
            let what = |name: &str| format!("{name} {rows}x{width}");
            let (x, x_wide) = operand(&device, "x", [rows, width]);
            let (gamma, gamma_wide) = operand(&device, "gamma", [width]);
            let (beta, beta_wide) = operand(&device, "beta", [width]);
            let (dy, dy_wide) = operand(&device, "dy", [rows, width]);
            let (dsum, dsum_wide) = operand(&device, "dsum", [rows, width]);
            let made = layer_norm::forward(&x, &gamma, &beta, EPSILON).unwrap();
            let dsum = accumulate.then_some(&dsum);
            let dx = layer_norm::backward_input(&dy, dsum, &x, &gamma, &made.mean, &made.rstd).unwrap();
            let dgamma = target(&device, "dgamma", [width], accumulate);
            let dbeta = target(&device, "dbeta", [width], accumulate);
            layer_norm::backward_weight(&dy, &x, &made.mean, &made.rstd, &dgamma, &dbeta).unwrap();

            let value = |x: &[f64], gamma: &[f64], beta: &[f64]| {
                let other = if accumulate { dot(&dsum_wide, x) } else { 0.0 };
                dot(&dy_wide, &reference::layer_norm(x, gamma, beta, f64::from(EPSILON))[0]) + other
            };
            // In a row of two elements the terms cancel all but epsilon's part: f32 cannot hold more.
            if width > 2 || accumulate {
                is_gradient(&what("dx"), &read(&dx), &x_wide, |x| value(x, &gamma_wide, &beta_wide));
            }
            let dgamma = added(&dgamma, "dgamma");
            is_gradient(&what("dgamma"), &dgamma, &gamma_wide, |gamma| value(&x_wide, gamma, &beta_wide));
            let dbeta = added(&dbeta, "dbeta");
            is_gradient(&what("dbeta"), &dbeta, &beta_wide, |beta| value(&x_wide, &gamma_wide, beta));
        }
    }
}

#[test]
fn a_row_of_one_element_is_beta_and_has_no_gradient() {
    let device = cpu();
    let (x, _) = operand(&device, "x", [4, 1]);
    let (gamma, _) = operand(&device, "gamma", [1]);
    let (beta, beta_wide) = operand(&device, "beta", [1]);
    let (dy, _) = operand(&device, "dy", [4, 1]);
    let made = layer_norm::forward(&x, &gamma, &beta, EPSILON).unwrap();
    assert_eq!(read(&made.output), vec![beta_wide[0]; 4]);
    let dx = layer_norm::backward_input(&dy, None, &x, &gamma, &made.mean, &made.rstd).unwrap();
    assert_eq!(read(&dx), [0.0; 4]);
}

#[test]
fn a_large_common_offset_costs_no_accuracy_beyond_the_inputs_own() {
    let device = cpu();
    let values: Vec<f32> = crate::support::normal("x", 300).iter().map(|v| v + 1000.0).collect();
    let x = crate::support::tensor(&device, &values, [3, 100]);
    let (gamma, gamma_wide) = operand(&device, "gamma", [100]);
    let (beta, beta_wide) = operand(&device, "beta", [100]);
    let made = layer_norm::forward(&x, &gamma, &beta, EPSILON).unwrap();
    let [output, ..] = reference::layer_norm(&wide(&values), &gamma_wide, &beta_wide, f64::from(EPSILON));
    let worst = read(&made.output).iter().zip(&output).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    // Half a unit in the last place of 1000 is 3e-5 of a deviation of 1, times gamma.
    assert!(worst < 2e-4, "{worst:e}");
}
