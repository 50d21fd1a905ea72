use device::Category;
use tensor::Tensor;
use tensor::ops::batch_norm::{self, Affine, Passes, Saved};
use tensor::ops::running_average;

use crate::support::{Case, bits, close_sums, devices, dot, read, tensor, wide};

const EPSILON: f32 = 1e-5;
/// Rows and channels: single elements, whole vectors, several tiles, several runs, several turns of a block.
const SIZES: [[usize; 2]; 7] = [[7, 1], [100, 3], [64, 8], [300, 24], [1000, 64], [130, 520], [40_000, 8]];

/// Plain code: mean, biased variance and output.
fn normalised(
    x: &[f64],
    residual: Option<&[f64]>,
    weight: &[f64],
    bias: &[f64],
    relu: bool,
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let channels = weight.len();
    let rows = (x.len() / channels) as f64;
    let mean_of = |term: &dyn Fn(usize) -> f64| -> Vec<f64> {
        let mut sums = vec![0.0; channels];
        (0..x.len()).for_each(|at| sums[at % channels] += term(at) / rows);
        sums
    };
    let mean = mean_of(&|at| x[at]);
    let variance = mean_of(&|at| (x[at] - mean[at % channels]).powi(2));
    let value = |at: usize| {
        let channel = at % channels;
        let normal = (x[at] - mean[channel]) / (variance[channel] + f64::from(EPSILON)).sqrt();
        let sum = normal * weight[channel] + bias[channel] + residual.map_or(0.0, |residual| residual[at]);
        if relu { sum.max(0.0) } else { sum }
    };
    let output = (0..x.len()).map(value).collect();
    (mean, variance, output)
}

/// Operands of a case, as tensors and in f64.
struct Operands {
    tensors: [Tensor; 4],
    wide: [Vec<f64>; 4],
}

impl Operands {
    fn new(case: &Case, [rows, channels]: [usize; 2]) -> Self {
        let (x, x_wide) = case.operand("x", [rows, channels]);
        let (residual, residual_wide) = case.operand("residual", [rows, channels]);
        let (weight, weight_wide) = case.operand("weight", [channels]);
        let (bias, bias_wide) = case.operand("bias", [channels]);
        Operands {
            tensors: [x, residual, weight, bias],
            wide: [x_wide, residual_wide, weight_wide, bias_wide],
        }
    }

    fn affine(&self, relu: bool) -> Affine<'_> {
        Affine { weight: &self.tensors[2], bias: &self.tensors[3], epsilon: EPSILON, relu }
    }
}

#[test]
fn forward_normalises_every_channel_and_records_its_statistics() {
    for case in devices() {
        for size @ [rows, channels] in SIZES {
            let operands = Operands::new(&case, size);
            let [x, residual, ..] = &operands.tensors;
            let [x_wide, residual_wide, weight, bias] = &operands.wide;
            for (with_residual, relu) in [(false, false), (false, true), (true, true), (true, false)] {
                let record = tensor(&case.device, &vec![f32::NAN; 2 * channels], [2, channels]);
                let residual = with_residual.then_some(residual);
                let result = batch_norm::forward(x, residual, operands.affine(relu), Some(&record)).unwrap();
                let added = with_residual.then_some(&residual_wide[..]);
                let (mean, variance, output) = normalised(x_wide, added, weight, bias, relu);
                let what = |part: &str| format!("{part} of {size:?}, residual {with_residual}, ReLU {relu}");
                case.close(&what("output"), &read(&result.output), &output);
                // Terms of both signs cancel in a mean.
                let sizes: Vec<_> = mean.iter().zip(&variance).map(|(m, v)| (m * m + v).sqrt()).collect();
                close_sums(&format!("{}, {}", what("mean"), case.name()), &read(&result.mean), &mean, &sizes);
                let unbiased = rows as f64 / (rows as f64 - 1.0);
                let recorded: Vec<_> =
                    mean.iter().copied().chain(variance.iter().map(|v| v * unbiased)).collect();
                case.single().close(&what("record"), &read(&record), &recorded);
                let again = batch_norm::forward(x, residual, operands.affine(relu), None).unwrap();
                assert_eq!(bits(&again.output), bits(&result.output));
            }
        }
    }
}

/// With running averages that are the batch's statistics, evaluation gives the output of training.
#[test]
fn evaluation_uses_running_averages() {
    for case in devices() {
        for size @ [_, channels] in SIZES {
            let operands = Operands::new(&case, size);
            let [x, residual, ..] = &operands.tensors;
            let [x_wide, residual_wide, weight, bias] = &operands.wide;
            let (mean, variance, output) = normalised(x_wide, Some(residual_wide), weight, bias, true);
            let running =
                [mean, variance].map(|values| values.iter().map(|value| *value as f32).collect::<Vec<_>>());
            let [mean, variance] = running.map(|values| tensor(&case.device, &values, [channels]));
            let affine = operands.affine(true);
            let actual = batch_norm::evaluate(x, Some(residual), affine, [&mean, &variance]).unwrap();
            case.close(&format!("{size:?}"), &read(&actual), &output);
        }
    }
}

#[test]
fn gradients_match_finite_differences() {
    for case in devices() {
        for size @ [rows, channels] in [[40, 1], [60, 3], [64, 8], [300, 24]] {
            let operands = Operands::new(&case, size);
            let [x, residual, weight, bias] = &operands.tensors;
            let [x_wide, residual_wide, weight_wide, bias_wide] = &operands.wide;
            let (dy, dy_wide) = case.operand("dy", size);
            for (with_residual, relu) in [(false, false), (false, true), (true, true), (true, false)] {
                let added = with_residual.then_some(residual);
                let result = batch_norm::forward(x, added, operands.affine(relu), None).unwrap();
                let passes = if relu { Passes::ByOutput(&result.output) } else { Passes::Everywhere };
                let saved = Saved { x, passes, mean: &result.mean, rstd: &result.rstd };
                let what = format!("{size:?}, residual {with_residual}, ReLU {relu}");
                let back = |dy: Tensor| batch_norm::backward_input(dy, saved, weight, with_residual).unwrap();
                let apart = back(dy.clone());
                let own = Tensor::zeros(
                    &case.device,
                    size,
                    case.dtype,
                    device::Request::new(Category::Input, "test"),
                )
                .unwrap();
                own.copy_from(&dy).unwrap();
                let in_place = back(own);
                assert_eq!(bits(&apart.input), bits(&in_place.input), "{what}");
                assert_eq!(bits(&apart.sums), bits(&in_place.sums), "{what}");
                if relu && !with_residual {
                    let saved = Saved { passes: Passes::ByInput { bias }, ..saved };
                    let again = batch_norm::backward_input(dy.clone(), saved, weight, false).unwrap();
                    assert_eq!(bits(&again.input), bits(&apart.input), "{what}, by input");
                    assert_eq!(bits(&again.sums), bits(&apart.sums), "{what}, by input");
                }
                // The gradient passes where the output is positive: differences must not cross zero.
                let masked: Vec<f64> = (dy_wide.iter().zip(read(&result.output)))
                    .map(|(dy, y)| if relu && y <= 0.0 { 0.0 } else { *dy })
                    .collect();
                let loss = |x: &[f64], residual: &[f64], weight: &[f64], bias: &[f64]| {
                    let residual = with_residual.then_some(residual);
                    dot(&masked, &normalised(x, residual, weight, bias, false).2)
                };
                let terms = dy_wide.iter().map(|dy| dy * dy).sum::<f64>().sqrt();
                case.is_gradient_of_terms(&format!("x of {what}"), terms, &read(&apart.input), x_wide, |x| {
                    loss(x, residual_wide, weight_wide, bias_wide)
                });
                if let (Some(residual), Some(again)) = (&apart.residual, &in_place.residual) {
                    assert_eq!(bits(residual), bits(again), "{what}");
                    assert_eq!(read(residual), masked, "{what}");
                }
                assert_eq!(apart.residual.is_some(), with_residual);
                for accumulate in [false, true] {
                    let targets = ["dw", "db"].map(|name| case.target(name, [channels], accumulate));
                    batch_norm::backward_weight(&apart.sums, case.dtype, &targets[0], &targets[1]).unwrap();
                    let [dw, db] = [case.added(&targets[0], "dw"), case.added(&targets[1], "db")];
                    case.is_gradient_of_terms(
                        &format!("weight of {what}"),
                        terms,
                        &dw,
                        weight_wide,
                        |weight| loss(x_wide, residual_wide, weight, bias_wide),
                    );
                    case.is_gradient_of_terms(&format!("bias of {what}"), terms, &db, bias_wide, |bias| {
                        loss(x_wide, residual_wide, weight_wide, bias)
                    });
                }
                assert!(rows > 0);
            }
        }
    }
}

/// Outputs so small that they round to 0 do not pass a gradient, whether the output or the input tells.
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

/// The squares of values around 1000 have no bits left for their differences.
#[test]
fn statistics_of_channels_far_from_zero() {
    for case in devices().iter().map(Case::single) {
        let values: Vec<f32> = case.normal("x", 3000).iter().map(|value| 1000.0 + value).collect();
        let x = case.tensor(&values, [1000, 3]);
        let ones = case.tensor(&[1.0; 3], [3]);
        let affine = Affine { weight: &ones, bias: &ones, epsilon: EPSILON, relu: false };
        let result = batch_norm::forward(&x, None, affine, None).unwrap();
        let (_, _, output) = normalised(&wide(&values), None, &[1.0; 3], &[1.0; 3], false);
        let worst = read(&result.output).iter().zip(&output).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(worst < 2e-3, "{worst:e}, {}", case.name());
    }
}

#[test]
fn running_averages_add_micro_batches_in_order() {
    for case in devices().iter().map(Case::single) {
        let (rows, width) = (7, 5000);
        let (averages, before) = case.operand("averages", [width]);
        let (values, values_wide) = case.operand("values", [rows, width]);
        let counters = tensor(&case.device, &[3u32, 9], [2]);
        running_average::fold(&averages, &counters, &values, 0.1).unwrap();
        let fold = |at: usize| {
            (0..rows).fold(before[at], |average, row| 0.9 * average + 0.1 * values_wide[row * width + at])
        };
        case.close("averages", &read(&averages), &(0..width).map(fold).collect::<Vec<_>>());
        assert_eq!(counters.to_vec::<u32>().unwrap(), [10, 16]);
        // One call of seven rows gives the bits of seven calls of one.
        let (apart, _) = case.operand("averages", [width]);
        for row in 0..rows {
            let value = values.view(row * width, [1, width]).unwrap();
            running_average::fold(&apart, &counters, &value, 0.1).unwrap();
        }
        assert_eq!(bits(&apart), bits(&averages));
    }
}
