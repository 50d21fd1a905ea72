use tensor::Backend;
use tensor::ops::layer_norm;

use crate::reference;
use crate::support::{Case, bits, devices, dot, half_precision, read, wide};

/// Rows, width: every form of the kernels, and odd widths. Width 1 has its own test: its true gradient is
/// zero.
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
            let (bias, bias_wide) = case.operand("bias", [width]);
            let made = layer_norm::forward(&x, &weight, Some(&bias), EPSILON).unwrap();
            let [output, mean, rstd] =
                reference::layer_norm(&x_wide, &weight_wide, &bias_wide, f64::from(EPSILON));
            case.close(&what("output"), &read(&made.output), &output);
            case.close(&what("mean"), &read(&made.mean), &mean);
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
            let (bias, _) = case.operand("bias", [width]);
            let (sum, fused) =
                layer_norm::forward_residual(&residual, &branch, &weight, Some(&bias), EPSILON).unwrap();
            let pairs = residual_wide.iter().zip(&branch_wide);
            let exact: Vec<f64> = pairs.map(|(a, b)| f64::from(case.round((a + b) as f32))).collect();
            assert_eq!(read(&sum), exact, "{rows}x{width}, {}", case.name());
            let plain = layer_norm::forward(&sum, &weight, Some(&bias), EPSILON).unwrap();
            assert_eq!(bits(&fused.output), bits(&plain.output), "{rows}x{width}, {}", case.name());
            assert_eq!(bits(&fused.mean), bits(&plain.mean));
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
    let (bias, bias_wide) = case.operand("bias", [width]);
    let (dy, dy_wide) = case.operand("dy", [rows, width]);
    let (dsum, dsum_wide) = case.operand("dsum", [rows, width]);
    let made = layer_norm::forward(&x, &weight, Some(&bias), EPSILON).unwrap();
    let dsum = accumulate.then_some(&dsum);
    let dx = layer_norm::backward_input(&dy, dsum, &x, &weight, &made.mean, &made.rstd).unwrap();
    let dweight = case.target("dweight", [width], accumulate);
    let dbias = case.target("dbias", [width], accumulate);
    layer_norm::backward_weight(&dy, &x, &made.mean, &made.rstd, &dweight, Some(&dbias)).unwrap();

    let value = |x: &[f64], weight: &[f64], bias: &[f64]| {
        let other = if accumulate { dot(&dsum_wide, x) } else { 0.0 };
        dot(&dy_wide, &reference::layer_norm(x, weight, bias, f64::from(EPSILON))[0]) + other
    };
    // In a row of two elements the terms cancel up to epsilon, which f32 cannot resolve.
    if width > 2 {
        case.is_gradient(&what("dx"), &read(&dx), &x_wide, |x| value(x, &weight_wide, &bias_wide));
    }
    let dweight = case.added(&dweight, "dweight");
    case.is_gradient(&what("dweight"), &dweight, &weight_wide, |weight| value(&x_wide, weight, &bias_wide));
    let dbias = case.added(&dbias, "dbias");
    case.is_gradient(&what("dbias"), &dbias, &bias_wide, |bias| value(&x_wide, &weight_wide, bias));
}

#[test]
fn gradients_of_parameters_over_many_rows() {
    for case in devices() {
        let [rows, width] = [9001, 24];
        let (x, x_wide) = case.operand("x", [rows, width]);
        let (weight, _) = case.operand("weight", [width]);
        let (dy, dy_wide) = case.operand("dy", [rows, width]);
        let made = layer_norm::forward(&x, &weight, Some(&weight), EPSILON).unwrap();
        let (dweight, dbias) = (case.target("", [width], false), case.target("", [width], false));
        layer_norm::backward_weight(&dy, &x, &made.mean, &made.rstd, &dweight, Some(&dbias)).unwrap();
        let ones = vec![1.0; width];
        let [normal, ..] = reference::layer_norm(&x_wide, &ones, &vec![0.0; width], f64::from(EPSILON));
        let (mut weight, mut bias) = (vec![0.0; width], vec![0.0; width]);
        for (index, (dy, normal)) in dy_wide.iter().zip(normal).enumerate() {
            weight[index % width] += dy * normal;
            bias[index % width] += dy;
        }
        case.close("dweight", &read(&dweight.tensor), &weight);
        case.close("dbias", &read(&dbias.tensor), &bias);
    }
}

#[test]
fn gradients_in_half_precision_are_rounded_f32_gradients() {
    for case in half_precision() {
        for [rows, width] in SIZES.into_iter().chain([[9001, 24]]) {
            let (x, _) = case.operand("x", [rows, width]);
            let (weight, _) = case.operand("weight", [width]);
            let (dy, _) = case.operand("dy", [rows, width]);
            let made = layer_norm::forward(&x, &weight, Some(&weight), EPSILON).unwrap();
            for accumulate in [false, true] {
                let dweight = case.targets("dweight", [width], accumulate);
                let dbias = case.targets("dbias", [width], accumulate);
                for (dweight, dbias) in dweight.iter().zip(&dbias) {
                    layer_norm::backward_weight(&dy, &x, &made.mean, &made.rstd, dweight, Some(dbias))
                        .unwrap();
                }
                case.is_rounded(&format!("dweight {rows}x{width} {accumulate}"), &dweight);
                case.is_rounded(&format!("dbias {rows}x{width} {accumulate}"), &dbias);
            }
        }
    }
}

#[test]
fn without_a_bias_the_results_equal_those_with_a_zero_bias() {
    for case in devices() {
        for [rows, width] in SIZES {
            let (x, _) = case.operand("x", [rows, width]);
            let (weight, _) = case.operand("weight", [width]);
            let (dy, _) = case.operand("dy", [rows, width]);
            let zeros = case.tensor(&vec![0.0; width], [width]);
            let [plain, other] =
                [None, Some(&zeros)].map(|bias| layer_norm::forward(&x, &weight, bias, EPSILON).unwrap());
            assert_eq!(read(&plain.output), read(&other.output), "{rows}x{width}, {}", case.name());
            let gradients = [false, true].map(|with_bias| {
                let (weight, bias) = (case.target("", [width], false), case.target("", [width], false));
                let bias = with_bias.then_some(&bias);
                layer_norm::backward_weight(&dy, &x, &plain.mean, &plain.rstd, &weight, bias).unwrap();
                bits(&weight.tensor)
            });
            assert_eq!(gradients[0], gradients[1], "{rows}x{width}, {}", case.name());
        }
    }
}

#[test]
fn a_row_of_one_element_is_the_bias_and_has_no_gradient() {
    for case in devices() {
        let (x, _) = case.operand("x", [4, 1]);
        let (weight, _) = case.operand("weight", [1]);
        let (bias, bias_wide) = case.operand("bias", [1]);
        let (dy, _) = case.operand("dy", [4, 1]);
        let made = layer_norm::forward(&x, &weight, Some(&bias), EPSILON).unwrap();
        assert_eq!(read(&made.output), vec![bias_wide[0]; 4]);
        let dx = layer_norm::backward_input(&dy, None, &x, &weight, &made.mean, &made.rstd).unwrap();
        // Two roundings of one number may differ, and 1/√epsilon multiplies the difference.
        assert!(read(&dx).iter().all(|dx| dx.abs() < 1e-4), "{:?}", read(&dx));
    }
}

#[test]
fn a_large_common_offset_loses_no_accuracy() {
    for case in devices() {
        // bf16 has a resolution of 4 at 1000 and of a quarter at 50.
        let offset = if case.dtype == tensor::DType::F32 { 1000.0 } else { 50.0 };
        let values: Vec<f32> = case.normal("x", 300).iter().map(|v| case.round(v + offset)).collect();
        let x = case.tensor(&values, [3, 100]);
        let (weight, weight_wide) = case.operand("weight", [100]);
        let (bias, bias_wide) = case.operand("bias", [100]);
        let made = layer_norm::forward(&x, &weight, Some(&bias), EPSILON).unwrap();
        let [output, ..] =
            reference::layer_norm(&wide(&values), &weight_wide, &bias_wide, f64::from(EPSILON));
        let worst = read(&made.output).iter().zip(&output).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        // Half a unit in the last place of 1000 is 3e-5 of a standard deviation of 1, times weight, and one
        // of a sum near 100,000 is a hundredth of 4e-3, at each of the few levels of a GPU's sum; a bf16
        // output near 8 has 2e-2.
        let limit = match (case.dtype, case.device.backend()) {
            (tensor::DType::F32, Backend::Cpu) => 2e-4,
            (tensor::DType::F32, _) => 2e-3,
            _ => 5e-2,
        };
        assert!(worst < limit, "{worst:e}, {}", case.name());
    }
}
