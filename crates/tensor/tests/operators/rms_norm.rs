use tensor::Tensor;
use tensor::ops::rms_norm;

use crate::norms::{EPSILON, Norm};
use crate::reference;

const RMS_NORM: Norm = Norm {
    parameters: &["weight"],
    forward: |x, parameters, settings| outputs(rms_norm::forward(x, &parameters[0], settings).unwrap()),
    forward_residual: |residual, branch, parameters| {
        let (sum, output) = rms_norm::forward_residual(residual, branch, &parameters[0], EPSILON).unwrap();
        (sum, outputs(output))
    },
    backward_input: |dy, dsum, x, parameters, statistics| {
        rms_norm::backward_input(dy, dsum, x, &parameters[0], &statistics[0], false).unwrap()
    },
    backward_weight: |dy, x, statistics, targets| {
        rms_norm::backward_weight(dy, x, &statistics[0], targets[0]).unwrap();
    },
    reference: |x, parameters| reference::rms_norm(x, &parameters[0], f64::from(EPSILON)).to_vec(),
};

fn outputs(output: rms_norm::Output) -> (Tensor, Vec<Tensor>) {
    (output.output, vec![output.rstd])
}

#[test]
fn forward_normalises_every_row() {
    RMS_NORM.forward_matches();
}

#[test]
fn the_residual_form_equals_the_sum_then_the_plain_form_to_the_bit() {
    RMS_NORM.residual_form_equals_the_plain_form();
}

#[test]
fn gradients_match_finite_differences() {
    RMS_NORM.gradients_match_finite_differences(0);
}

#[test]
fn gradients_in_half_precision_are_rounded_f32_gradients() {
    RMS_NORM.half_gradients_are_rounded();
}
