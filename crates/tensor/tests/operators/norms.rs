//! Test bodies that layer norm and RMS norm share.

use tensor::Tensor;
use tensor::ops::GradientTarget;
use tensor::ops::rms_norm::Settings;

use crate::support::{Case, bits, devices, dot, half_precision, read};

/// Rows, width: every form of the kernels, and odd widths.
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

/// Output and statistics.
type Outputs = (Tensor, Vec<Tensor>);

/// The gradient of the input from dy, dsum, x, the parameters and the statistics.
type BackwardInput = fn(&Tensor, Option<&Tensor>, &Tensor, &[Tensor], &[Tensor]) -> Tensor;
/// Output and statistics of x and the parameters in f64.
type Reference = fn(&[f64], &[Vec<f64>]) -> Vec<Vec<f64>>;

/// A norm, with its parameters as a list.
pub(crate) struct Norm {
    pub(crate) parameters: &'static [&'static str],
    pub(crate) forward: fn(&Tensor, &[Tensor], Settings) -> Outputs,
    pub(crate) forward_residual: fn(&Tensor, &Tensor, &[Tensor]) -> (Tensor, Outputs),
    pub(crate) backward_input: BackwardInput,
    /// The gradients of the parameters from dy, x and the statistics.
    pub(crate) backward_weight: fn(&Tensor, &Tensor, &[Tensor], &[&GradientTarget]),
    pub(crate) reference: Reference,
}

impl Norm {
    /// Operands for the parameters, and their values.
    fn operands(&self, case: &Case, width: usize) -> (Vec<Tensor>, Vec<Vec<f64>>) {
        self.parameters.iter().map(|name| case.operand(name, [width])).unzip()
    }

    /// Compares the forward pass with the reference.
    pub(crate) fn forward_matches(&self) {
        for case in devices() {
            for [rows, width] in SIZES {
                let (x, x_wide) = case.operand("x", [rows, width]);
                let (parameters, wide) = self.operands(&case, width);
                let expected = (self.reference)(&x_wide, &wide);
                for block_per_row in [false, true] {
                    let settings = Settings { block_per_row, ..EPSILON.into() };
                    let (output, statistics) = (self.forward)(&x, &parameters, settings);
                    assert_eq!(expected.len(), 1 + statistics.len());
                    let results = [&output].into_iter().chain(&statistics).zip(&expected);
                    for (index, (actual, expected)) in results.enumerate() {
                        let what = format!("result {index} of {rows}x{width}, {block_per_row}");
                        case.close(&what, &read(actual), expected);
                    }
                }
            }
        }
    }

    /// Compares the residual form with the sum and then the plain form, to the bit.
    pub(crate) fn residual_form_equals_the_plain_form(&self) {
        for case in devices() {
            for [rows, width] in [[1, 1], [3, 33], [1200, 64], [7, 1600], [2, 5000]] {
                let what = format!("{rows}x{width}, {}", case.name());
                let (residual, residual_wide) = case.operand("residual", [rows, width]);
                let (branch, branch_wide) = case.operand("branch", [rows, width]);
                let (parameters, _) = self.operands(&case, width);
                let (sum, fused) = (self.forward_residual)(&residual, &branch, &parameters);
                let pairs = residual_wide.iter().zip(&branch_wide);
                let exact: Vec<f64> = pairs.map(|(a, b)| f64::from(case.round((a + b) as f32))).collect();
                assert_eq!(read(&sum), exact, "{what}");
                let plain = (self.forward)(&sum, &parameters, EPSILON.into());
                assert_eq!(bits(&fused.0), bits(&plain.0), "{what}");
                for (fused, plain) in fused.1.iter().zip(&plain.1) {
                    assert_eq!(bits(fused), bits(plain), "{what}");
                }
            }
        }
    }

    /// Compares all gradients with finite differences, with and without a gradient of the sum to add. In
    /// narrow rows the terms of dx nearly cancel: the tolerance is relative to the terms. Rows of fewer than
    /// `narrowest` elements are left out of dx.
    pub(crate) fn gradients_match_finite_differences(&self, narrowest: usize) {
        for case in devices() {
            for size in SIZES {
                [false, true].into_iter().for_each(|adds| self.gradients(&case, size, adds, narrowest));
            }
        }
    }

    fn gradients(&self, case: &Case, [rows, width]: [usize; 2], adds: bool, narrowest: usize) {
        let (x, x_wide) = case.operand("x", [rows, width]);
        let (parameters, wide) = self.operands(case, width);
        let (dy, dy_wide) = case.operand("dy", [rows, width]);
        let (dsum, dsum_wide) = case.operand("dsum", [rows, width]);
        let (_, statistics) = (self.forward)(&x, &parameters, EPSILON.into());
        let dx = (self.backward_input)(&dy, adds.then_some(&dsum), &x, &parameters, &statistics);
        let target = |name: &&str| case.target(&format!("d{name}"), [width], adds);
        let targets: Vec<GradientTarget> = self.parameters.iter().map(target).collect();
        (self.backward_weight)(&dy, &x, &statistics, &targets.iter().collect::<Vec<_>>());

        let value = |x: &[f64], parameters: &[Vec<f64>]| {
            let other = if adds { dot(&dsum_wide, x) } else { 0.0 };
            dot(&dy_wide, &(self.reference)(x, parameters)[0]) + other
        };
        if width >= narrowest {
            let terms = dy_wide.iter().map(|dy| dy * dy).sum::<f64>().sqrt();
            let what = format!("dx {rows}x{width}");
            case.is_gradient_of_terms(&what, terms, &read(&dx), &x_wide, |x| value(x, &wide));
        }
        for (index, (name, target)) in self.parameters.iter().zip(&targets).enumerate() {
            let gradient = case.added(target, &format!("d{name}"));
            let with = |changed: &[f64]| {
                let mut all = wide.clone();
                all[index] = changed.to_vec();
                value(&x_wide, &all)
            };
            case.is_gradient(&format!("d{name} {rows}x{width}"), &gradient, &wide[index], with);
        }
    }

    /// Compares gradients of the parameters in half precision with rounded f32 gradients.
    pub(crate) fn half_gradients_are_rounded(&self) {
        for case in half_precision() {
            for [rows, width] in SIZES.into_iter().chain([[9001, 24]]) {
                let (x, _) = case.operand("x", [rows, width]);
                let (parameters, _) = self.operands(&case, width);
                let (dy, _) = case.operand("dy", [rows, width]);
                let (_, statistics) = (self.forward)(&x, &parameters, EPSILON.into());
                for accumulate in [false, true] {
                    let names = self.parameters.iter().map(|name| format!("d{name}"));
                    let targets: Vec<_> =
                        names.clone().map(|name| case.targets(&name, [width], accumulate)).collect();
                    for half in [0, 1] {
                        let these: Vec<_> = targets.iter().map(|pair| &pair[half]).collect();
                        (self.backward_weight)(&dy, &x, &statistics, &these);
                    }
                    for (name, pair) in names.zip(&targets) {
                        case.is_rounded(&format!("{name} {rows}x{width} {accumulate}"), pair);
                    }
                }
            }
        }
    }
}
