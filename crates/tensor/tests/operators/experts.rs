//! Matmuls of groups of rows compared with f64, and their independence of the routing of other rows.

use device::{Backend, Category, DType, E4m3, E5m2, Fp8};
use tensor::Tensor;
use tensor::ops::Activation;
use tensor::ops::experts;
use tensor::ops::experts::ExpertFunction;
use tensor::ops::fp8_linear::{self, Cast, Input, Recipe, Scaled};
use tensor::ops::gate::Gate;
use tensor::ops::routing::{self, Routes, Routing, ScoreFunction};

use crate::reference::{self, transposed};
use crate::support::{Case, bits, devices, read, tensor};

/// Rows of each expert, outputs and inputs: experts without rows, odd sizes, whole vectors, several tiles,
/// and few outputs or inputs with several parts of rows.
const GROUPS: [(&[usize], [usize; 2]); 9] = [
    (&[1], [1, 1]),
    (&[3, 0, 5], [7, 33]),
    (&[0, 70, 1, 130, 0], [72, 200]),
    (&[64, 128, 256], [256, 64]),
    (&[300, 5, 0, 65], [520, 136]),
    (&[0, 0, 129], [264, 312]),
    (&[1100, 3, 0, 520], [4, 72]),
    (&[512, 0, 700], [70, 12]),
    (&[600, 1030], [72, 76]),
];

const ROUTING: Routing = Routing {
    experts: 1,
    per_token: 1,
    scores: ScoreFunction::Softmax,
    normalised: true,
    least_sum: 0.0,
    scale: 1.0,
    groups: 1,
    groups_per_token: 1,
    alignment: 1,
};

/// Returns routes with one choice of weight 1 per row, where `counts` has the number of rows of each expert.
fn routes(case: &Case, counts: &[usize]) -> Routes {
    let rows: usize = counts.iter().sum();
    let offsets: Vec<u32> =
        (0..=counts.len()).map(|expert| counts[..expert].iter().sum::<usize>() as u32).collect();
    let choices: Vec<u32> =
        counts.iter().enumerate().flat_map(|(expert, count)| vec![expert as u32; *count]).collect();
    let identity: Vec<u32> = (0..rows as u32).collect();
    Routes {
        token_counts: None,
        weights: tensor(&case.device, &vec![1.0f32; rows], [rows, 1]),
        choices: tensor(&case.device, &choices, [rows, 1]),
        slots: tensor(&case.device, &identity, [rows, 1]),
        sources: tensor(&case.device, &identity, [rows]),
        offsets: tensor(&case.device, &offsets, [counts.len() + 1]),
        counts: tensor(
            &case.device,
            &counts.iter().map(|count| *count as u32).collect::<Vec<_>>(),
            [counts.len()],
        ),
    }
}

/// Returns the range of rows of each expert.
fn groups(counts: &[usize]) -> Vec<std::ops::Range<usize>> {
    let end = |expert: usize| counts[..expert].iter().sum::<usize>();
    (0..counts.len()).map(|expert| end(expert)..end(expert + 1)).collect()
}

#[test]
fn matmuls_of_groups_match_f64() {
    for case in devices() {
        for (counts, [outputs, inputs]) in GROUPS {
            let count = counts.len();
            let rows = counts.iter().sum::<usize>();
            let what = format!("{counts:?} {outputs}x{inputs}");
            let routes = routes(&case, counts);
            let groups = groups(counts);
            let (x, x_wide) = case.operand("x", [rows, inputs]);
            let (dy, dy_wide) = case.operand("dy", [rows, outputs]);
            let (weight, weight_wide) = case.operand("weight", [count * outputs, inputs]);
            let (bias, bias_wide) = case.operand("bias", [count * outputs]);
            let group_rows = |values: &[f64], columns: usize, rows: &std::ops::Range<usize>| {
                values[rows.start * columns..rows.end * columns].to_vec()
            };
            let matrix = |expert: usize| &weight_wide[expert * outputs * inputs..][..outputs * inputs];
            let forward = |bias: Option<&[f64]>| -> Vec<f64> {
                let of_expert = |(expert, rows)| {
                    let bias = bias.map(|bias| &bias[expert * outputs..][..outputs]);
                    reference::linear(&group_rows(&x_wide, inputs, rows), matrix(expert), bias, inputs)
                };
                groups.iter().enumerate().flat_map(of_expert).collect()
            };
            for dtype in [case.dtype, DType::F32] {
                let y = experts::forward(&x, &weight, None, &routes, dtype).unwrap();
                case.close(&what, &read(&y), &forward(None));
                let y = experts::forward(&x, &weight, Some(&bias), &routes, dtype).unwrap();
                case.close(&what, &read(&y), &forward(Some(&bias_wide)));
                let dx = experts::backward_input(&dy, &weight, &routes, dtype).unwrap();
                let of_expert = |(expert, rows)| {
                    let matrix = transposed(matrix(expert), inputs);
                    reference::linear(&group_rows(&dy_wide, outputs, rows), &matrix, None, outputs)
                };
                let expected: Vec<f64> = groups.iter().enumerate().flat_map(of_expert).collect();
                case.close(&what, &read(&dx), &expected);
            }
            let of_expert = |rows: &std::ops::Range<usize>| {
                let dy = transposed(&group_rows(&dy_wide, outputs, rows), outputs);
                let x = transposed(&group_rows(&x_wide, inputs, rows), inputs);
                match rows.is_empty() {
                    true => vec![0.0; outputs * inputs],
                    false => reference::linear(&dy, &x, None, rows.len()),
                }
            };
            let expected: Vec<f64> = groups.iter().flat_map(of_expert).collect();
            for accumulate in [false, true] {
                let targets = case.targets("weight", [count * outputs, inputs], accumulate);
                for target in &targets {
                    experts::backward_weight(&dy, &x, &routes, target).unwrap();
                }
                let before = case.normal("weight", count * outputs * inputs);
                let before = |at: usize| if accumulate { f64::from(before[at]) } else { 0.0 };
                let after: Vec<f64> = expected.iter().enumerate().map(|(at, sum)| sum + before(at)).collect();
                targets.iter().for_each(|target| case.close(&what, &read(&target.tensor), &after));
                case.is_rounded(&what, &targets);
            }
        }
    }
}

/// Sums over rows of groups of several parts, with and without weights of choices.
#[test]
fn gradients_of_biases_match_f64() {
    const COUNTS: [usize; 4] = [1100, 0, 3, 520];
    const OUTPUTS: usize = 300;
    for case in devices() {
        let rows = COUNTS.iter().sum::<usize>();
        let (dy, dy_wide) = case.operand("dy", [rows, OUTPUTS]);
        let weights = case.single().normal("weights", rows);
        let routes = Routes { weights: tensor(&case.device, &weights, [rows, 1]), ..routes(&case, &COUNTS) };
        for (is_weighted, accumulate) in [(false, false), (true, false), (true, true)] {
            let mut expected = Vec::new();
            for rows in groups(&COUNTS) {
                let weight = |row: usize| if is_weighted { f64::from(weights[row]) } else { 1.0 };
                let sum = |output: usize| {
                    rows.clone().map(|row| weight(row) * dy_wide[row * OUTPUTS + output]).sum::<f64>()
                };
                expected.extend((0..OUTPUTS).map(sum));
            }
            let bias = case.target("bias", [COUNTS.len() * OUTPUTS], accumulate);
            experts::backward_bias(&dy, &routes, is_weighted, &bias).unwrap();
            case.close("bias", &case.added(&bias, "bias"), &expected);
        }
    }
}

/// Rows of experts with as many as three stages of 64 rows on Hopper, none of them whole.
const UNEVEN: [usize; 8] = [154, 28, 53, 135, 179, 37, 93, 89];

/// Kernels whose warps wait for each other in many tiles. One that lost a warp would never return.
#[test]
fn gradients_of_uneven_groups_are_added_often() {
    for case in devices() {
        // Blocks take several tiles each, and the last tile of a column has rows for one of two consumers.
        let is_gpu = case.device.backend() == Backend::Cuda;
        let [outputs, inputs, times] = if is_gpu { [544, 2112, 60] } else { [24, 16, 2] };
        let routes = routes(&case, &UNEVEN);
        let rows = UNEVEN.iter().sum();
        let (x, _) = case.operand("x", [rows, inputs]);
        let (dy, _) = case.operand("dy", [rows, outputs]);
        let shape = [UNEVEN.len() * outputs, inputs];
        let [one, other] = [(); 2].map(|()| case.targets("weight", shape, true));
        for targets in [&one, &other] {
            for target in targets {
                (0..times).for_each(|_| experts::backward_weight(&dy, &x, &routes, target).unwrap());
            }
        }
        for (one, other) in one.iter().zip(&other) {
            assert_eq!(bits(&one.tensor), bits(&other.tensor), "{}", case.name());
        }
    }
}

/// Rows of each expert, in groups that begin at multiples of 16, with outputs and inputs.
const ALIGNED: [(&[usize], [usize; 2]); 3] =
    [(&[16], [16, 16]), (&[0, 80, 16, 144, 0], [80, 208]), (&[304, 16, 0, 64], [272, 144])];

/// Returns the values of an FP8 matrix: its codes times their factors.
fn values(scaled: &Scaled) -> Vec<f64> {
    let codes: Vec<f32> = match scaled.values.dtype() {
        DType::E5m2 => scaled.values.to_vec::<E5m2>().unwrap().into_iter().map(Fp8::to_f32).collect(),
        _ => scaled.values.to_vec::<E4m3>().unwrap().into_iter().map(Fp8::to_f32).collect(),
    };
    let factors = scaled.scales.to_vec::<f32>().unwrap();
    let columns = scaled.values.shape().columns();
    let factor = |row: usize| f64::from(factors[if factors.len() == 1 { 0 } else { row }]);
    codes.iter().enumerate().map(|(at, code)| f64::from(*code) * factor(at / columns)).collect()
}

/// Returns the columns `range` of every row.
fn columns_of(values: &[f64], columns: usize, range: std::ops::Range<usize>) -> Vec<f64> {
    values.chunks(columns).flat_map(|row| row[range.clone()].to_vec()).collect()
}

#[test]
fn matmuls_of_groups_in_fp8_match_f64() {
    for case in crate::fp8_linear::cases() {
        for ((counts, [outputs, inputs]), recipe) in
            ALIGNED.into_iter().flat_map(|group| Recipe::ALL.map(|recipe| (group, recipe)))
        {
            let count = counts.len();
            let rows = counts.iter().sum::<usize>();
            let what = format!("{counts:?} {outputs}x{inputs} {recipe:?}");
            let routes = routes(&case, counts);
            let groups = groups(counts);
            let cast = |tensor: &Tensor, format| {
                let cast = Cast::new(format, recipe).stored().transposed();
                let cast = fp8_linear::quantise(tensor, Input::Plain, cast).unwrap();
                (cast.stored.unwrap(), cast.transposed.unwrap())
            };
            let (x, x_turned) = cast(&case.operand("x", [rows, inputs]).0, DType::E4m3);
            let (weight, weight_turned) =
                cast(&case.operand("weight", [count * outputs, inputs]).0, DType::E4m3);
            let (bias, bias_wide) = case.operand("bias", [count * outputs]);
            let group_rows = |values: &[f64], columns: usize, rows: &std::ops::Range<usize>| {
                values[rows.start * columns..rows.end * columns].to_vec()
            };
            for gradients in [DType::E4m3, DType::E5m2] {
                let (dy, dy_turned) = cast(&case.operand("dy", [rows, outputs]).0, gradients);
                for dtype in [case.dtype, DType::F32] {
                    if dtype == case.dtype {
                        let y = experts::fp8::forward(&x, &weight, Some(&bias), &routes, dtype).unwrap();
                        let of_expert = |(expert, rows)| {
                            let matrix = group_rows(
                                &values(&weight),
                                inputs,
                                &(expert * outputs..(expert + 1) * outputs),
                            );
                            let bias = &bias_wide[expert * outputs..][..outputs];
                            reference::linear(
                                &group_rows(&values(&x), inputs, rows),
                                &matrix,
                                Some(bias),
                                inputs,
                            )
                        };
                        let expected: Vec<f64> = groups.iter().enumerate().flat_map(of_expert).collect();
                        case.close(&what, &read(&y), &expected);
                    }
                    let dx = experts::fp8::backward_input(&dy, &weight_turned, &routes, dtype).unwrap();
                    let of_expert = |(expert, rows)| {
                        let own = expert * outputs..(expert + 1) * outputs;
                        let matrix = columns_of(&values(&weight_turned), count * outputs, own);
                        reference::linear(&group_rows(&values(&dy), outputs, rows), &matrix, None, outputs)
                    };
                    let expected: Vec<f64> = groups.iter().enumerate().flat_map(of_expert).collect();
                    case.close(&what, &read(&dx), &expected);
                }
                let of_expert = |group: &std::ops::Range<usize>| match group.is_empty() {
                    true => vec![0.0; outputs * inputs],
                    false => {
                        let [dy, x] = [&dy_turned, &x_turned]
                            .map(|operand| columns_of(&values(operand), rows, group.clone()));
                        reference::linear(&dy, &x, None, group.len())
                    }
                };
                let expected: Vec<f64> = groups.iter().flat_map(of_expert).collect();
                for accumulate in [false, true] {
                    let targets = case.targets("weight", [count * outputs, inputs], accumulate);
                    for target in &targets {
                        experts::fp8::backward_weight(&dy_turned, &x_turned, &routes, target).unwrap();
                    }
                    let before = case.normal("weight", count * outputs * inputs);
                    let before = |at: usize| if accumulate { f64::from(before[at]) } else { 0.0 };
                    let after: Vec<f64> =
                        expected.iter().enumerate().map(|(at, sum)| sum + before(at)).collect();
                    targets.iter().for_each(|target| case.close(&what, &read(&target.tensor), &after));
                }
            }
        }
    }
}

/// Slots between the experts' rows are zeros and change no result.
#[test]
fn aligned_experts_have_the_results_of_others() {
    const ROWS: usize = 77;
    const EXPERTS: usize = 5;
    for case in devices() {
        let logits = tensor(&case.device, &case.single().normal("logits", ROWS * EXPERTS), [ROWS, EXPERTS]);
        let (x, _) = case.operand("x", [ROWS, 24]);
        let (weight, _) = case.operand("weight", [EXPERTS * 16, 24]);
        let run = |alignment: usize| {
            let routing = Routing { experts: EXPERTS, per_token: 2, alignment, ..ROUTING };
            let routes = routing::forward(&logits, None, &routing, None, None).unwrap();
            let offsets = routes.offsets.to_vec::<u32>().unwrap();
            assert!(offsets.iter().all(|offset| (*offset as usize).is_multiple_of(alignment)));
            assert_eq!(offsets[EXPERTS] as usize, routing.slots(ROWS));
            let rows = experts::gather(&x, &routes, Category::Activation).unwrap();
            let y = experts::forward(&rows, &weight, None, &routes, case.dtype).unwrap();
            let sum = experts::combine(&y, None, &routes, [ROWS, 16], case.dtype).unwrap();
            let target = case.target("weight", [EXPERTS * 16, 24], false);
            experts::backward_weight(&y, &rows, &routes, &target).unwrap();
            let bias = case.target("bias", [EXPERTS * 16], false);
            experts::backward_bias(&y, &routes, true, &bias).unwrap();
            // The gate takes y for gate and up, and dy for the gradient of its results.
            let (dy, _) = case.operand("dy", [ROWS, 8]);
            let dy = experts::gather(&dy, &routes, Category::Activation).unwrap();
            let of_rows = experts::gate_backward(&y, &dy, &routes, Gate::from(Activation::Silu)).unwrap();
            let of_choices = experts::weight_gradients(&of_rows, None, &routes).unwrap();
            let equal = (bits(&sum), bits(&of_choices), routes.counts.to_vec::<u32>().unwrap());
            (equal, read(&target.tensor), read(&bias.tensor))
        };
        let aligned = run(16);
        let others = run(1);
        assert!(aligned.0 == others.0, "{}", case.name());
        case.close("weight", &aligned.1, &others.1);
        case.close("bias", &aligned.2, &others.2);
    }
}

/// Rows of experts without a gate, among them gaps, against f64.
#[test]
fn activations_of_experts_without_a_gate_match_f64() {
    const ROWS: usize = 77;
    const EXPERTS: usize = 5;
    const COLUMNS: usize = 24;
    let function = ExpertFunction::Plain(Activation::ReluSquared);
    for case in devices() {
        let logits = tensor(&case.device, &case.single().normal("logits", ROWS * EXPERTS), [ROWS, EXPERTS]);
        let routing = Routing { experts: EXPERTS, per_token: 2, alignment: 16, ..ROUTING };
        let routes = routing::forward(&logits, None, &routing, None, None).unwrap();
        let weights = routes.weights.to_vec::<f32>().unwrap();
        let sources = routes.sources.to_vec::<u32>().unwrap();
        let slots = sources.len();
        let weight = |slot: usize| weights.get(sources[slot] as usize).map_or(0.0, |own| f64::from(*own));
        let (x, x_wide) = case.operand("x", [slots, COLUMNS]);
        let (dy, dy_wide) = case.operand("dy", [slots, COLUMNS]);
        let each = |map: &dyn Fn(f64, f64, f64) -> f64| -> Vec<f64> {
            let values = x_wide.iter().zip(&dy_wide).enumerate();
            values.map(|(at, (x, dy))| map(x.max(0.0), *dy, weight(at / COLUMNS))).collect()
        };
        let hidden = experts::gate_forward(&x, &routes, function).unwrap();
        let value = each(&|x, _, weight| x * x * weight);
        case.close("hidden", &read(&hidden), &value);
        let again = experts::gate_forward_again(&x, function).unwrap();
        assert_eq!((again.shape(), again.dtype()), (hidden.shape(), hidden.dtype()));
        let of_rows = experts::gate_backward(&x, &dy, &routes, function).unwrap();
        case.close("x", &read(&x), &each(&|x, dy, weight| 2.0 * x * dy * weight));
        case.close("hidden again", &read(&dy), &value);
        let products = each(&|x, dy, _| x * x * dy);
        let sums: Vec<f64> = products.chunks(COLUMNS).map(|row| row.iter().sum()).collect();
        case.close("weights", &read(&of_rows), &sums);
    }
}

#[test]
fn results_of_an_expert_do_not_depend_on_the_rows_of_others() {
    const OUTPUTS: usize = 136;
    const INPUTS: usize = 72;
    const OWN: usize = 150;
    for case in devices() {
        let (own, _) = case.operand("own", [OWN, INPUTS]);
        let (own_dy, _) = case.operand("own dy", [OWN, OUTPUTS]);
        let (weight, _) = case.operand("weight", [3 * OUTPUTS, INPUTS]);
        // The same rows of expert 1 between other rows, some of them infinite.
        let run = |before: usize, after: usize| {
            let rows = before + OWN + after;
            let around = |own: &Tensor, columns: usize| {
                let whole = vec![f32::INFINITY; rows * columns];
                let whole = case.tensor(&whole, [rows, columns]);
                whole.view(before * columns, [OWN, columns]).unwrap().copy_from(own).unwrap();
                whole
            };
            let x = around(&own, INPUTS);
            let dy = around(&own_dy, OUTPUTS);
            let routes = routes(&case, &[before, OWN, after]);
            let y = experts::forward(&x, &weight, None, &routes, case.dtype).unwrap();
            let dx = experts::backward_input(&dy, &weight, &routes, case.dtype).unwrap();
            let target = case.target("gradient", [3 * OUTPUTS, INPUTS], false);
            experts::backward_weight(&dy, &x, &routes, &target).unwrap();
            [
                bits(&y.view(before * OUTPUTS, [OWN, OUTPUTS]).unwrap()),
                bits(&dx.view(before * INPUTS, [OWN, INPUTS]).unwrap()),
                bits(&target.tensor.view(OUTPUTS * INPUTS, [OUTPUTS, INPUTS]).unwrap()),
            ]
        };
        let alone = run(0, 0);
        for (before, after) in [(1, 0), (0, 1), (37, 300), (128, 64)] {
            assert!(run(before, after) == alone, "{before} and {after} others, {}", case.name());
        }
    }
}
