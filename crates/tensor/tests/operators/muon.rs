//! Muon: its momentum, the orthogonalisation of matrices, and its step.

use device::{Category, Request};
use tensor::ops::optimizer::{self, Item, Stream, UpdateRule, blocks};
use tensor::ops::orthogonalise::{Matrix, NewtonSchulz, Workspace, flops, orthogonalise};
use tensor::ops::{StepState, Table};
use tensor::{DType, Tensor};

use crate::support::{Case, close, devices, half_precision, meta, read, tensor, typed};

const MOMENTUM: f32 = 0.95;
const RULE: UpdateRule = UpdateRule::MuonMomentum { momentum: MOMENTUM };
/// Number of elements: several chunks, and a partial block.
const LENGTH: usize = 2 * tensor::ops::norm::CHUNK + 77;

/// Returns the relative distance of `actual` from `expected` in the Euclidean norm.
fn distance(actual: &[f64], expected: &[f64]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let mut differences = actual.iter().zip(expected).map(|(actual, expected)| actual - expected);
    norm(&mut differences) / norm(&mut expected.iter().copied()).max(1e-30)
}

fn step_state(case: &Case, rate: f32) -> StepState {
    let state = StepState::new(&case.device).unwrap();
    state.set_learning_rate(rate).unwrap();
    state
}

#[test]
fn directions_follow_the_published_formula_in_every_type_of_state() {
    for case in devices() {
        for (dtype, tolerance) in [(DType::F32, 4e-3), (DType::Bf16, 1e-2), (DType::U8, 2e-2)] {
            let zeros = |dtype, count: usize| {
                let request = Request::new(Category::OptimizerState, "test");
                Tensor::zeros(&case.device, [count], dtype, request).unwrap()
            };
            let states = [zeros(dtype, LENGTH)];
            let maxima: Vec<_> =
                (dtype == DType::U8).then(|| zeros(DType::F32, blocks(LENGTH))).into_iter().collect();
            let direction = typed(&case.device, DType::Bf16, &vec![f32::NAN; LENGTH], [LENGTH]);
            let table = match dtype {
                DType::U8 => Table::of_quantised(&case.device, 1).unwrap(),
                _ => Table::of_parameters(&case.device, 1).unwrap(),
            };
            let state = step_state(&case, 0.1);
            state.set_norm(7.0, 0.5).unwrap();
            let mut mean = vec![0.0; LENGTH];
            for count in 0..4 {
                let (gradient, values) = case.operand(&format!("g{count}"), [LENGTH]);
                let item = Item {
                    weight: &direction,
                    gradient: &gradient,
                    states: &states,
                    maxima: &maxima,
                    compute: None,
                    decay: true,
                    stream: Stream::default(),
                };
                optimizer::begin(&RULE, &state).unwrap();
                optimizer::update(&table, &RULE, &[item], &state).unwrap();
                let mu = f64::from(MOMENTUM);
                let moved = |mean: f64, gradient: f64| mu * mean + (1.0 - mu) * 0.5 * gradient;
                mean.iter_mut().zip(&values).for_each(|(mean, gradient)| *mean = moved(*mean, *gradient));
                let expected: Vec<_> = mean.iter().zip(&values).map(|(m, g)| moved(*m, *g)).collect();
                let off = distance(&read(&direction), &expected);
                assert!(off < tolerance, "{}, {dtype}, update {count}: {off}", case.name());
            }
        }
    }
}

#[test]
fn a_skipped_step_leaves_mean_and_weight() {
    for case in half_precision().filter(|case| case.dtype == DType::Bf16) {
        let state = step_state(&case, 0.1);
        state.set_skip(true).unwrap();
        let (gradient, _) = case.operand("g", [LENGTH]);
        let mean = tensor(&case.device, &[0.5; LENGTH], [LENGTH]);
        let (weight, values) = case.single().operand("w", [LENGTH]);
        let direction = typed(&case.device, DType::Bf16, &[1.0; LENGTH], [LENGTH]);
        let table = Table::of_parameters(&case.device, 1).unwrap();
        let item = |weight, states| Item {
            weight,
            gradient: &gradient,
            states,
            maxima: &[],
            compute: None,
            decay: true,
            stream: Stream::default(),
        };
        let means = [mean];
        for (rule, item) in [
            (RULE, item(&direction, &means)),
            (UpdateRule::MuonStep { weight_decay: 0.1 }, item(&weight, &[])),
        ] {
            optimizer::begin(&rule, &state).unwrap();
            optimizer::update(&table, &rule, &[item], &state).unwrap();
        }
        assert_eq!((read(&means[0]), read(&weight)), (vec![0.5; LENGTH], values), "{}", case.name());
        assert_eq!(state.updates().unwrap(), 0);
    }
}

#[test]
fn steps_follow_the_published_formula() {
    let rule = UpdateRule::MuonStep { weight_decay: 0.1 };
    for case in half_precision().filter(|case| case.dtype == DType::Bf16) {
        for decay in [true, false] {
            let state = step_state(&case, 0.02);
            let (weight, values) = case.single().operand("w", [LENGTH]);
            let (direction, directions) = case.operand("d", [LENGTH]);
            let copy = typed(&case.device, DType::Bf16, &vec![f32::NAN; LENGTH], [LENGTH]);
            let table = Table::of_parameters(&case.device, 1).unwrap();
            let item = Item {
                weight: &weight,
                gradient: &direction,
                states: &[],
                maxima: &[],
                compute: Some(&copy),
                decay,
                stream: Stream::default(),
            };
            optimizer::begin(&rule, &state).unwrap();
            optimizer::update(&table, &rule, &[item], &state).unwrap();
            let rate = f64::from(0.02f32);
            let keep = if decay { 1.0 - rate * f64::from(0.1f32) } else { 1.0 };
            let expected: Vec<_> = values.iter().zip(&directions).map(|(w, d)| w * keep - rate * d).collect();
            close("weight", &read(&weight), &expected);
            assert!(distance(&read(&copy), &expected) < 4e-3);
        }
    }
}

/// Returns the product of `a [m, k]` and `b [k, n]`.
fn product(a: &[f64], b: &[f64], [m, k, n]: [usize; 3]) -> Vec<f64> {
    let sum = |row: usize, column: usize| (0..k).map(|i| a[row * k + i] * b[i * n + column]).sum();
    (0..m * n).map(|index| sum(index / n, index % n)).collect()
}

fn transposed(x: &[f64], [m, n]: [usize; 2]) -> Vec<f64> {
    (0..m * n).map(|index| x[index % m * n + index / m]).collect()
}

/// Computes the iterations in f64, on the transposed matrix if it has more rows than columns.
fn reference(x: &[f64], [m, n]: [usize; 2]) -> Vec<f64> {
    if m > n {
        return transposed(&reference(&transposed(x, [m, n]), [n, m]), [n, m]);
    }
    let rules = NewtonSchulz::default();
    let [a, b, c] = rules.coefficients.map(f64::from);
    let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt().max(f64::from(rules.epsilon));
    let mut x: Vec<_> = x.iter().map(|x| x / norm).collect();
    for _ in 0..rules.iterations {
        let gram = product(&x, &transposed(&x, [m, n]), [m, n, m]);
        let square = product(&gram, &gram, [m, m, m]);
        let polynomial: Vec<_> = gram.iter().zip(&square).map(|(g, s)| b * g + c * s).collect();
        let moved = product(&polynomial, &x, [m, m, n]);
        x = x.iter().zip(moved).map(|(x, moved)| a * x + moved).collect();
    }
    x
}

fn orthogonalised(matrix: &Matrix, scale: f32) -> Vec<f64> {
    let workspace = Workspace::new(matrix.elements.device(), [matrix.shape].into_iter()).unwrap();
    orthogonalise(&NewtonSchulz::default(), matrix, scale, &workspace).unwrap();
    read(&matrix.elements)
}

const SHAPES: [[usize; 2]; 6] = [[1, 1], [8, 8], [5, 33], [64, 16], [48, 96], [130, 70]];

#[test]
fn iterations_agree_with_f64() {
    for case in half_precision().filter(|case| case.dtype == DType::Bf16) {
        for (shape, scale) in SHAPES.into_iter().zip([1.0, 1.0, 0.5, 2.0, 1.5, 1.0]) {
            let (elements, values) = case.operand(&format!("{shape:?}"), shape);
            let actual = orthogonalised(&Matrix { elements, shape, parts: 1 }, scale);
            let expected: Vec<_> = reference(&values, shape).iter().map(|x| x * f64::from(scale)).collect();
            let off = distance(&actual, &expected);
            assert!(off < 5e-2, "{shape:?}, {}: {off}", case.name());
        }
        let zero = Matrix { elements: case.tensor(&[0.0; 12], [3, 4]), shape: [3, 4], parts: 1 };
        assert_eq!(orthogonalised(&zero, 1.0), [0.0; 12]);
    }
}

/// A matrix gives the same bits whole, at an odd address, and in parts of its columns.
#[test]
fn bits_depend_on_the_matrix_alone() {
    for case in half_precision().filter(|case| case.dtype == DType::Bf16) {
        for shape @ [m, n] in [[8, 8], [48, 96], [130, 72]] {
            let values = case.normal("x", m * n);
            let whole = Matrix { elements: case.tensor(&values, [m, n]), shape, parts: 1 };
            let expected = orthogonalised(&whole, 1.0);
            let moved = case.tensor(&[vec![0.0], values.clone()].concat(), [m * n + 1]);
            let moved = Matrix { elements: moved.view(1, [m * n]).unwrap(), shape, parts: 1 };
            assert_eq!(orthogonalised(&moved, 1.0), expected, "{shape:?}, {}", case.name());
            for parts in [2, 4] {
                let width = n / parts;
                let columns = |values: &[f64]| -> Vec<f64> {
                    let part =
                        |part: usize| (0..m * width).map(move |i| (i / width) * n + part * width + i % width);
                    (0..parts).flat_map(part).map(|index| values[index]).collect()
                };
                let wide: Vec<f64> = values.iter().map(|value| f64::from(*value)).collect();
                let stored: Vec<f32> = columns(&wide).iter().map(|value| *value as f32).collect();
                let matrix = Matrix { elements: case.tensor(&stored, [m * n]), shape, parts };
                assert_eq!(orthogonalised(&matrix, 1.0), columns(&expected), "{shape:?} in {parts}");
            }
        }
    }
}

#[test]
fn work_is_counted_and_bad_operands_are_refused() {
    let device = meta(&device::Description::host());
    let empty = |dtype| Tensor::empty(&device, [12], dtype, Request::new(Category::Other, "test")).unwrap();
    let workspace = Workspace::new(&device, [[3, 4]].into_iter()).unwrap();
    let rules = NewtonSchulz::default();
    let refused = |dtype, shape, parts| {
        let matrix = Matrix { elements: empty(dtype), shape, parts };
        orthogonalise(&rules, &matrix, 1.0, &workspace).map_err(|error| error.to_string())
    };
    assert_eq!(refused(DType::Bf16, [3, 4], 2), Ok(()));
    for (dtype, shape, parts) in [
        (DType::F32, [3, 4], 1),
        (DType::Bf16, [3, 5], 1),
        (DType::Bf16, [3, 4], 3),
        (DType::Bf16, [3, 4], 0),
    ] {
        assert!(refused(dtype, shape, parts).unwrap_err().starts_with("orthogonalise: "));
    }
    assert_eq!(flops(&rules, [3, 4]), 5 * (4 * 9 * 4 + 2 * 27));
    assert_eq!(flops(&rules, [4, 3]), flops(&rules, [3, 4]));
}
