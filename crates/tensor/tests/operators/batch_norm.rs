use tensor::Tensor;
use tensor::ops::batch_norm::{self, Affine, Output, Passes, Saved};
use tensor::ops::running_average;

use crate::support::{Case, bits, close_sums, devices, dot, read, tensor, wide};
use crate::trial::Trial;

const EPSILON: f32 = 1e-5;
/// Rows and channels: single elements, whole vectors, several tiles, several runs, and blocks that loop.
const SIZES: [[usize; 2]; 9] =
    [[7, 1], [40, 1], [60, 3], [100, 3], [64, 8], [300, 24], [1000, 64], [130, 520], [40_000, 8]];
/// Maximum number of elements for which gradients are compared with finite differences, which are slow.
const FEW: usize = 10_000;

/// Computes mean and biased variance of every channel in plain code.
fn statistics(x: &[f64], channels: usize) -> [Vec<f64>; 2] {
    let rows = (x.len() / channels) as f64;
    let mean_of = |term: &dyn Fn(usize) -> f64| -> Vec<f64> {
        let mut sums = vec![0.0; channels];
        (0..x.len()).for_each(|at| sums[at % channels] += term(at) / rows);
        sums
    };
    let mean = mean_of(&|at| x[at]);
    let variance = mean_of(&|at| (x[at] - mean[at % channels]).powi(2));
    [mean, variance]
}

/// Computes the output with these statistics in plain code.
fn normalised(
    x: &[f64],
    [mean, variance]: &[Vec<f64>; 2],
    residual: Option<&[f64]>,
    [weight, bias]: [&[f64]; 2],
    relu: bool,
) -> Vec<f64> {
    let value = |at: usize| {
        let channel = at % weight.len();
        let normal = (x[at] - mean[channel]) / (variance[channel] + f64::from(EPSILON)).sqrt();
        let sum = normal * weight[channel] + bias[channel] + residual.map_or(0.0, |residual| residual[at]);
        if relu { sum.max(0.0) } else { sum }
    };
    (0..x.len()).map(value).collect()
}

/// Operands of a case, as tensors and in f64.
struct Operands {
    tensors: [Tensor; 4],
    wide: [Vec<f64>; 4],
    /// Mean and biased variance, if values are compared.
    statistics: [Vec<f64>; 2],
}

impl Operands {
    fn new(trial: &Trial<'_>, [rows, channels]: [usize; 2]) -> Self {
        let (x, x_wide) = trial.operand("x", [rows, channels]);
        let (residual, residual_wide) = trial.operand("residual", [rows, channels]);
        let (weight, weight_wide) = trial.operand("weight", [channels]);
        let (bias, bias_wide) = trial.operand("bias", [channels]);
        let statistics = if trial.compares() { statistics(&x_wide, channels) } else { Default::default() };
        Operands {
            tensors: [x, residual, weight, bias],
            wide: [x_wide, residual_wide, weight_wide, bias_wide],
            statistics,
        }
    }

    fn affine(&self, relu: bool) -> Affine<'_> {
        Affine { weight: &self.tensors[2], bias: &self.tensors[3], epsilon: EPSILON, relu }
    }
}

pub(crate) fn declared(trial: &mut Trial<'_>) {
    for size in SIZES {
        let operands = Operands::new(trial, size);
        for [with_residual, relu] in [[false, false], [false, true], [true, true], [true, false]] {
            trial.label(format!("{size:?}, residual {with_residual}, ReLU {relu}"));
            let result = outputs(trial, &operands, [with_residual, relu]);
            gradients(trial, &operands, &result, [with_residual, relu]);
        }
    }
}

/// Computes the output in training, and in evaluation with the statistics that training records.
fn outputs(trial: &mut Trial<'_>, operands: &Operands, [with_residual, relu]: [bool; 2]) -> Output {
    let [x, residual, ..] = &operands.tensors;
    let [x_wide, residual_wide, weight, bias] = &operands.wide;
    let [mean, variance] = &operands.statistics;
    let channels = weight.len();
    let rows = (x_wide.len() / weight.len()) as f64;
    let added = with_residual.then_some(&residual_wide[..]);
    let truth = |statistics: &[Vec<f64>; 2]| normalised(x_wide, statistics, added, [weight, bias], relu);

    let residual = with_residual.then_some(residual);
    let affine = operands.affine(relu);
    let record = tensor(&trial.device, &vec![f32::NAN; 2 * channels], [2, channels]);
    let result = batch_norm::forward(x, residual, affine, Some(&record)).unwrap();
    trial.output("output", &result.output, || truth(&operands.statistics));
    trial.result("mean", &result.mean);
    if trial.compares() {
        // Terms of both signs cancel in a mean.
        let sizes: Vec<_> = mean.iter().zip(variance).map(|(m, v)| (m * m + v).sqrt()).collect();
        let what = format!("{}, {}", trial.what("mean"), trial.name());
        close_sums(&what, &read(&result.mean), mean, &sizes);
    }
    trial.single_output("rstd", &result.rstd, || {
        variance.iter().map(|variance| 1.0 / (variance + f64::from(EPSILON)).sqrt()).collect()
    });
    // The recorded variance is unbiased.
    let recorded = [mean.clone(), variance.iter().map(|v| v * rows / (rows - 1.0)).collect()];
    trial.single_output("record", &record, || recorded.concat());
    let again = batch_norm::forward(x, residual, affine, None).unwrap();
    trial.same("output without a record", &again.output, &result.output);

    let running = [0, channels].map(|start| record.view(start, [channels]).unwrap());
    let evaluated = batch_norm::evaluate(x, residual, affine, running.each_ref()).unwrap();
    trial.output("evaluation", &evaluated, || truth(&recorded));
    result
}

fn gradients(trial: &mut Trial<'_>, operands: &Operands, result: &Output, [with_residual, relu]: [bool; 2]) {
    let [x, _, weight, bias] = &operands.tensors;
    let [x_wide, residual_wide, weight_wide, bias_wide] = &operands.wide;
    let channels = weight_wide.len();
    let (dy, dy_wide) = trial.operand("dy", [x_wide.len() / channels, channels]);
    let passes = if relu { Passes::ByOutput(&result.output) } else { Passes::Everywhere };
    let saved = Saved { x, passes, mean: &result.mean, rstd: &result.rstd };
    let back =
        |dy: Tensor, saved: Saved<'_>| batch_norm::backward_input(dy, saved, weight, with_residual).unwrap();
    let apart = back(dy.clone(), saved);
    if relu && !with_residual {
        let again = back(dy.clone(), Saved { passes: Passes::ByInput { bias }, ..saved });
        trial.same("dx by input", &again.input, &apart.input);
        trial.same("sums by input", &again.sums, &apart.sums);
    }
    let in_place = back(dy, saved);
    trial.same("dx in place", &in_place.input, &apart.input);
    trial.same("sums in place", &in_place.sums, &apart.sums);

    // The gradient passes where the output is positive: differences must not cross zero.
    let mut masked = dy_wide.clone();
    if relu && trial.compares() {
        let zeros = masked.iter_mut().zip(read(&result.output)).filter(|(_, y)| *y <= 0.0);
        zeros.for_each(|(dy, _)| *dy = 0.0);
    }
    assert_eq!(apart.residual.is_some(), with_residual);
    if let (Some(residual), Some(again)) = (&apart.residual, &in_place.residual) {
        trial.rounded_output("dresidual", residual, || masked.clone());
        trial.same("dresidual in place", again, residual);
    }
    if trial.compares() && x_wide.len() > FEW {
        return;
    }
    let loss = |x: &[f64], weight: &[f64], bias: &[f64]| {
        let residual = with_residual.then_some(&residual_wide[..]);
        dot(&masked, &normalised(x, &statistics(x, channels), residual, [weight, bias], false))
    };
    let terms = dot(&dy_wide, &dy_wide).sqrt();
    trial.gradient("dx", &apart.input, (x_wide, terms), |x| loss(x, weight_wide, bias_wide));
    for accumulate in [false, true] {
        let [dw, db] = ["dw", "db"].map(|name| trial.target(name, [channels], accumulate));
        batch_norm::backward_weight(&apart.sums, trial.dtype, &dw, &db).unwrap();
        trial.weight_gradient("dw", &dw, (weight_wide, terms), |weight| loss(x_wide, weight, bias_wide));
        trial.weight_gradient("db", &db, (bias_wide, terms), |bias| loss(x_wide, weight_wide, bias));
    }
}

/// Tests running averages over micro-batches, which are in order and in f32 for every type.
pub(crate) fn running_averages(trial: &mut Trial<'_>) {
    let (rows, width) = (7, 5000);
    trial.label(format!("{rows}x{width}"));
    let case = trial.single();
    let (averages, before) = case.operand("averages", [width]);
    let (values, values_wide) = case.operand("values", [rows, width]);
    let counters = tensor(&trial.device, &[3u32, 9], [2]);
    running_average::fold(&averages, &counters, &values, 0.1).unwrap();
    trial.single_output("averages", &averages, || {
        let fold = |at: usize| {
            (0..rows).fold(before[at], |average, row| 0.9 * average + 0.1 * values_wide[row * width + at])
        };
        (0..width).map(fold).collect()
    });
    if trial.compares() {
        assert_eq!(counters.to_vec::<u32>().unwrap(), [10, 16]);
    }
    // One call of seven rows gives the bits of seven calls of one.
    let (apart, _) = case.operand("averages", [width]);
    for row in 0..rows {
        let value = values.view(row * width, [1, width]).unwrap();
        running_average::fold(&apart, &counters, &value, 0.1).unwrap();
    }
    trial.same("averages row by row", &apart, &averages);
}

/// Outputs so small that they round to 0 pass no gradient, whether the mask comes from the output or the
/// input.
#[test]
fn outputs_that_vanish_pass_no_gradient() {
    for case in devices() {
        for exponent in [-150, -134, -133, -126, -30, -25, -24, 0] {
            let (x, _) = case.operand("x", [64, 8]);
            let (dy, _) = case.operand("dy", [64, 8]);
            let [weight, bias] = [2.0_f32.powi(exponent), 0.0].map(|value| case.tensor(&[value; 8], [8]));
            let affine = Affine { weight: &weight, bias: &bias, epsilon: EPSILON, relu: true };
            let result = batch_norm::forward(&x, None, affine, None).unwrap();
            let back = |passes| {
                let saved = Saved { x: &x, passes, mean: &result.mean, rstd: &result.rstd };
                bits(&batch_norm::backward_input(dy.clone(), saved, &weight, false).unwrap().sums)
            };
            let by_input = back(Passes::ByInput { bias: &bias });
            assert_eq!(by_input, back(Passes::ByOutput(&result.output)), "2^{exponent}, {}", case.name());
        }
    }
}

/// Squares of values around 1000 would leave no bits for their differences.
#[test]
fn statistics_of_channels_far_from_zero() {
    for case in devices().iter().map(Case::single) {
        let values: Vec<f32> = case.normal("x", 3000).iter().map(|value| 1000.0 + value).collect();
        let x = case.tensor(&values, [1000, 3]);
        let ones = case.tensor(&[1.0; 3], [3]);
        let affine = Affine { weight: &ones, bias: &ones, epsilon: EPSILON, relu: false };
        let result = batch_norm::forward(&x, None, affine, None).unwrap();
        let x_wide = wide(&values);
        let output = normalised(&x_wide, &statistics(&x_wide, 3), None, [&[1.0; 3]; 2], false);
        let worst = read(&result.output).iter().zip(&output).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(worst < 2e-3, "{worst:e}, {}", case.name());
    }
}
