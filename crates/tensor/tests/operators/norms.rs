//! Tests that layer norm and RMS norm share.

use tensor::ops::GradientTarget;
use tensor::ops::rms_norm::Settings;
use tensor::{DType, Tensor};

use crate::support::{Case, dot};
use crate::trial::Trial;

/// Rows and width: every variant of the kernels, and odd widths.
pub(crate) const SIZES: [[usize; 2]; 13] = [
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
pub(crate) const EPSILON: f32 = 1e-5;

/// Names of the results of a forward pass.
const RESULTS: [&str; 3] = ["output", "first statistic", "second statistic"];

/// Output, and statistics of rows.
type Outputs = (Tensor, Vec<Tensor>);

/// Computes the gradient of the input from dy, dsum, x, the parameters and the statistics.
type BackwardInput = fn(&Tensor, Option<&Tensor>, &Tensor, &[Tensor], &[Tensor]) -> Tensor;
/// Computes output and statistics from x and the parameters in f64.
type Reference = fn(&[f64], &[Vec<f64>]) -> Vec<Vec<f64>>;

/// A norm under test, with its parameters as a list.
pub(crate) struct Norm {
    pub(crate) parameters: &'static [&'static str],
    pub(crate) forward: fn(&Tensor, &[Tensor], Settings) -> Outputs,
    pub(crate) forward_residual: fn(&Tensor, &Tensor, &[Tensor]) -> (Tensor, Outputs),
    pub(crate) backward_input: BackwardInput,
    /// Computes the gradients of the parameters from dy, x and the statistics.
    pub(crate) backward_weight: fn(&Tensor, &Tensor, &[Tensor], &[&GradientTarget]),
    pub(crate) reference: Reference,
}

impl Norm {
    /// Returns random parameters, as tensors and in f64.
    fn operands(&self, case: &Case, width: usize) -> (Vec<Tensor>, Vec<Vec<f64>>) {
        self.parameters.iter().map(|name| case.operand(name, [width])).unzip()
    }

    /// Tests the norm. In narrow rows the terms of dx nearly cancel, so the tolerance is relative to the
    /// terms. dx is not compared in rows of fewer than `narrowest` elements.
    pub(crate) fn declared(&self, trial: &mut Trial<'_>, narrowest: usize) {
        for [rows, width] in SIZES {
            let (x, x_wide) = trial.operand("x", [rows, width]);
            let (parameters, wide) = self.operands(trial, width);
            let expected =
                if trial.compares() { (self.reference)(&x_wide, &wide) } else { vec![Vec::new(); 3] };
            for block_per_row in [false, true] {
                trial.label(format!("{rows}x{width}, {block_per_row}"));
                let settings = Settings { block_per_row, ..EPSILON.into() };
                let (output, statistics) = (self.forward)(&x, &parameters, settings);
                assert!(!trial.compares() || expected.len() == 1 + statistics.len());
                let results = [&output].into_iter().chain(&statistics);
                for ((part, actual), expected) in RESULTS.into_iter().zip(results).zip(&expected) {
                    trial.output(part, actual, || expected.clone());
                }
            }
            for adds in [false, true] {
                trial.label(format!("{rows}x{width}, {adds}"));
                self.gradients(trial, (&x, &x_wide), (&parameters, &wide), adds, width >= narrowest);
            }
        }
        for [rows, width] in [[1, 1], [3, 33], [1200, 64], [7, 1600], [2, 5000]] {
            trial.label(format!("{rows}x{width}"));
            self.residual_form(trial, [rows, width]);
        }
        for [rows, width] in SIZES.into_iter().chain([[9001, 24]]) {
            trial.label(format!("{rows}x{width}"));
            if trial.dtype != DType::F32 {
                self.half_gradients(trial, [rows, width]);
            }
        }
    }

    /// Tests that the residual form has the bits of the rounded sum followed by the plain form.
    fn residual_form(&self, trial: &mut Trial<'_>, [rows, width]: [usize; 2]) {
        let (residual, residual_wide) = trial.operand("residual", [rows, width]);
        let (branch, branch_wide) = trial.operand("branch", [rows, width]);
        let (parameters, _) = self.operands(trial, width);
        let (sum, fused) = (self.forward_residual)(&residual, &branch, &parameters);
        trial.rounded_output("sum", &sum, || {
            residual_wide.iter().zip(&branch_wide).map(|(a, b)| a + b).collect()
        });
        let plain = (self.forward)(&sum, &parameters, EPSILON.into());
        trial.same("residual form's output", &fused.0, &plain.0);
        for (fused, plain) in fused.1.iter().zip(&plain.1) {
            trial.same("residual form's statistics", fused, plain);
        }
    }

    /// Tests all gradients, with and without a gradient of the residual sum.
    fn gradients(
        &self,
        trial: &mut Trial<'_>,
        (x, x_wide): (&Tensor, &[f64]),
        (parameters, wide): (&[Tensor], &[Vec<f64>]),
        adds: bool,
        of_input: bool,
    ) {
        let [rows, width] = [x_wide.len() / wide[0].len(), wide[0].len()];
        let (dy, dy_wide) = trial.operand("dy", [rows, width]);
        let (dsum, dsum_wide) = trial.operand("dsum", [rows, width]);
        let (_, statistics) = (self.forward)(x, parameters, EPSILON.into());
        let dx = (self.backward_input)(&dy, adds.then_some(&dsum), x, parameters, &statistics);
        let targets: Vec<GradientTarget> =
            self.parameters.iter().map(|name| trial.target(name, [width], adds)).collect();
        (self.backward_weight)(&dy, x, &statistics, &targets.iter().collect::<Vec<_>>());

        let value = |x: &[f64], parameters: &[Vec<f64>]| {
            let other = if adds { dot(&dsum_wide, x) } else { 0.0 };
            dot(&dy_wide, &(self.reference)(x, parameters)[0]) + other
        };
        if of_input {
            let terms = dot(&dy_wide, &dy_wide).sqrt();
            trial.gradient("dx", &dx, (x_wide, terms), |x| value(x, wide));
        }
        for (index, (name, target)) in self.parameters.iter().zip(&targets).enumerate() {
            trial.weight_gradient(name, target, (&wide[index], 0.0), |changed| {
                let mut all = wide.to_vec();
                all[index] = changed.to_vec();
                value(x_wide, &all)
            });
        }
    }

    /// Tests that gradients of the parameters in half precision are rounded f32 gradients.
    fn half_gradients(&self, trial: &mut Trial<'_>, [rows, width]: [usize; 2]) {
        let (x, _) = trial.operand("x", [rows, width]);
        let (parameters, _) = self.operands(trial, width);
        let (dy, _) = trial.operand("dy", [rows, width]);
        let (_, statistics) = (self.forward)(&x, &parameters, EPSILON.into());
        for accumulate in [false, true] {
            let pairs: Vec<_> =
                self.parameters.iter().map(|name| trial.targets(name, [width], accumulate)).collect();
            for half in [0, 1] {
                let these: Vec<_> = pairs.iter().map(|pair| &pair[half]).collect();
                (self.backward_weight)(&dy, &x, &statistics, &these);
            }
            pairs.iter().for_each(|pair| trial.rounded("half gradients of parameters", pair));
        }
    }
}
