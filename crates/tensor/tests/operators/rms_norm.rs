use tensor::Tensor;
use tensor::ops::rms_norm;

use crate::norms::{EPSILON, Norm};
use crate::reference;
use crate::trial::Trial;

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

pub(crate) fn declared(trial: &mut Trial<'_>) {
    RMS_NORM.declared(trial, 0);
}
