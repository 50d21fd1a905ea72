use tensor::Tensor;
use tensor::{Backend, ops::layer_norm};

use crate::norms::{EPSILON, Norm, SIZES};
use crate::reference;
use crate::support::{bits, devices, read, wide};
use crate::trial::Trial;

const LAYER_NORM: Norm = Norm {
    parameters: &["weight", "bias"],
    forward: |x, parameters, settings| {
        outputs(layer_norm::forward(x, &parameters[0], Some(&parameters[1]), settings).unwrap())
    },
    forward_residual: |residual, branch, parameters| {
        let weight = &parameters[0];
        let bias = Some(&parameters[1]);
        let (sum, output) = layer_norm::forward_residual(residual, branch, weight, bias, EPSILON).unwrap();
        (sum, outputs(output))
    },
    backward_input: |dy, dsum, x, parameters, statistics| {
        layer_norm::backward_input(dy, dsum, x, &parameters[0], &statistics[0], &statistics[1], false)
            .unwrap()
    },
    backward_weight: |dy, x, statistics, targets| {
        let mean = &statistics[0];
        let rstd = &statistics[1];
        layer_norm::backward_weight(dy, x, mean, rstd, targets[0], Some(targets[1])).unwrap();
    },
    reference: |x, parameters| {
        reference::layer_norm(x, &parameters[0], &parameters[1], f64::from(EPSILON)).to_vec()
    },
};

fn outputs(output: layer_norm::Output) -> (Tensor, Vec<Tensor>) {
    (output.output, vec![output.mean, output.rstd])
}

/// In a row of two elements the terms of dx cancel up to epsilon, which f32 cannot resolve. Width 1, whose
/// true gradient is zero, has its own test.
pub(crate) fn declared(trial: &mut Trial<'_>) {
    LAYER_NORM.declared(trial, 3);
}

#[test]
fn gradients_of_parameters_over_many_rows() {
    for case in devices() {
        let [rows, width] = [9001, 24];
        let (x, x_wide) = case.operand("x", [rows, width]);
        let (weight, _) = case.operand("weight", [width]);
        let (dy, dy_wide) = case.operand("dy", [rows, width]);
        let result = layer_norm::forward(&x, &weight, Some(&weight), EPSILON).unwrap();
        let dweight = case.target("", [width], false);
        let dbias = case.target("", [width], false);
        layer_norm::backward_weight(&dy, &x, &result.mean, &result.rstd, &dweight, Some(&dbias)).unwrap();
        let ones = vec![1.0; width];
        let [normal, ..] = reference::layer_norm(&x_wide, &ones, &vec![0.0; width], f64::from(EPSILON));
        let mut weight = vec![0.0; width];
        let mut bias = vec![0.0; width];
        for (index, (dy, normal)) in dy_wide.iter().zip(normal).enumerate() {
            weight[index % width] += dy * normal;
            bias[index % width] += dy;
        }
        case.close("dweight", &read(&dweight.tensor), &weight);
        case.close("dbias", &read(&dbias.tensor), &bias);
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
                let weight = case.target("", [width], false);
                let bias = case.target("", [width], false);
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
        let result = layer_norm::forward(&x, &weight, Some(&bias), EPSILON).unwrap();
        assert_eq!(read(&result.output), vec![bias_wide[0]; 4]);
        let dx =
            layer_norm::backward_input(&dy, None, &x, &weight, &result.mean, &result.rstd, false).unwrap();
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
        let result = layer_norm::forward(&x, &weight, Some(&bias), EPSILON).unwrap();
        let [output, ..] =
            reference::layer_norm(&wide(&values), &weight_wide, &bias_wide, f64::from(EPSILON));
        let worst = read(&result.output).iter().zip(&output).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        // Half a unit in the last digit of 1000 is 3e-5 of a standard deviation of 1, times weight, and one
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
