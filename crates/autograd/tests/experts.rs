//! Mixtures of experts against dense layers of all experts, and routing against differences in f64.

use autograd::ops::{ExpertWeights, RouterState, RouterWeights};
use autograd::{Gradients, Mode, Pass, Result, Tape, UseId, Var, Weight, ops};
use device::{Category, Device};
use ops::Pair;
use tensor::Tensor;
use tensor::ops::Activation;
use tensor::ops::experts::ExpertFunction;
use tensor::ops::gate::Gate;
use tensor::ops::routing::{self, Balance, Routing, ScoreFunction, TokenRows};

use crate::common::{devices, tensor};

const ROWS: usize = 21;
const WIDTH: usize = 20;
const HIDDEN: usize = 12;
const EXPERTS: usize = 6;

const ROUTING: Routing = Routing {
    experts: EXPERTS,
    per_token: 2,
    scores: ScoreFunction::Softmax,
    normalised: true,
    least_sum: 0.0,
    scale: 1.0,
    groups: 1,
    groups_per_token: 1,
    alignment: 1,
};

/// A function of a variable and weights.
type Layer<'a> = &'a dyn Fn(&Tape, Var, &[Weight]) -> Result<Var>;

/// Returns the values of a layer and the gradients of its input and weights, under a fixed weighting of the
/// output. An expert's first layer has `parts` outputs for each input of its second.
fn run(device: &Device, parts: usize, layer: Layer<'_>) -> Vec<Vec<f32>> {
    let shapes: [tensor::Shape; 6] = [
        [EXPERTS, WIDTH].into(),
        [EXPERTS].into(),
        [EXPERTS * parts * HIDDEN, WIDTH].into(),
        [EXPERTS * parts * HIDDEN].into(),
        [EXPERTS * WIDTH, HIDDEN].into(),
        [EXPERTS * WIDTH].into(),
    ];
    let weight =
        |(id, shape): (usize, &tensor::Shape)| Weight::new(tensor(device, *shape, id + 5), UseId(id as u32));
    let weights: Vec<Weight> = shapes.iter().enumerate().map(weight).collect();
    let tape = Tape::new(device, Mode::Train);
    let x = tape.leaf(tensor(device, [ROWS, WIDTH], 1));
    let source = x.source();
    let y = layer(&tape, x, &weights).unwrap();
    let values = y.tensor().to_vec().unwrap();
    let mut sink = Gradients::default();
    let of_output = tensor(device, [ROWS, WIDTH], 3);
    let mut leaves = tape.backward_from(vec![(y.source(), of_output)], &mut sink).unwrap();
    let input = leaves.take(source).unwrap().to_vec().unwrap();
    let of_weights = sink.iter().map(|(_, gradient)| gradient.to_vec().unwrap());
    [values, input].into_iter().chain(of_weights).collect()
}

/// Returns ones at the two largest logits of each row, and zeros elsewhere.
fn chosen(logits: &Tensor) -> Tensor {
    let mut ones = vec![0.0f32; logits.elements()];
    for (row, logits) in logits.to_vec::<f32>().unwrap().chunks(EXPERTS).enumerate() {
        let mut order: Vec<usize> = (0..EXPERTS).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        order[..2].iter().for_each(|expert| ones[row * EXPERTS + expert] = 1.0);
    }
    Tensor::from_host(logits.device(), &ones, logits.shape(), Category::Input).unwrap()
}

#[test]
fn a_mixture_matches_dense_layers_of_all_experts() {
    compare_with_dense(Gate::from(Activation::Silu).into());
    compare_with_dense(ExpertFunction::Plain(Activation::ReluSquared));
}

fn compare_with_dense(function: ExpertFunction) {
    let parts = function.parts();
    let dense = |tape: &Tape, x: Var, weights: &[Weight]| {
        let parameter = |index: usize, start: usize, rows: usize| {
            ops::slice(tape, ops::parameter(tape, &weights[index])?, 0, start, rows)
        };
        let affine = |x: Var, first: usize, start: usize, rows: usize| {
            let bias = ops::reshape(tape, parameter(first + 1, start, rows)?, [1, rows])?;
            ops::pair(tape, ops::matmul_transposed(tape, x, parameter(first, start, rows)?)?, bias, Pair::Add)
        };
        let logits = affine(x.clone(), 0, 0, EXPERTS)?;
        let mask = tape.constant(chosen(logits.tensor()));
        let of_chosen = ops::multiply(tape, ops::softmax(tape, logits)?, mask)?;
        let of_experts = ops::divide(tape, of_chosen.clone(), ops::sum(tape, of_chosen, 1)?)?;
        let mut sum = None;
        for expert in 0..EXPERTS {
            let first = affine(x.clone(), 2, parts * expert * HIDDEN, HIDDEN)?;
            let hidden = match function {
                ExpertFunction::Plain(activation) => ops::activation(tape, first, activation)?,
                ExpertFunction::Gated(gate) => {
                    let up = affine(x.clone(), 2, (parts * expert + 1) * HIDDEN, HIDDEN)?;
                    ops::multiply(tape, ops::activation(tape, first, gate.activation)?, up)?
                }
            };
            let y = affine(hidden, 4, expert * WIDTH, WIDTH)?;
            let weighted = ops::multiply(tape, y, ops::slice(tape, of_experts.clone(), 1, expert, 1)?)?;
            sum = Some(match sum {
                Some(sum) => ops::add(tape, sum, weighted)?,
                None => weighted,
            });
        }
        Ok(sum.unwrap())
    };
    let mixture = |tape: &Tape, x: Var, weights: &[Weight]| {
        let shared = |index: usize| weights[index].clone();
        let router = RouterWeights { weight: shared(0), bias: Some(shared(1)) };
        let logits = ops::router(tape, x.clone(), &router)?;
        let choices = ops::routing(tape, logits, &ROUTING, RouterState::default())?;
        let experts = ExpertWeights {
            gate_up: weights[2].clone(),
            down: weights[4].clone(),
            gate_up_bias: Some(weights[3].clone()),
            down_bias: Some(shared(5)),
            adapters: [None, None],
            is_first: true,
            is_partial: false,
            fp8: [None, None],
        };
        ops::experts(tape, x, choices, &experts, function)
    };
    for device in devices() {
        let expected = run(&device, parts, &dense);
        let actual = run(&device, parts, &mixture);
        assert_eq!(expected.len(), actual.len());
        for (index, (expected, actual)) in expected.iter().zip(&actual).enumerate() {
            let size = expected.iter().map(|x| x * x).sum::<f32>().sqrt();
            let error = expected.iter().zip(actual).map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt();
            assert!(expected.len() == actual.len() && error < 1e-5 * size, "{index}: {error} of {size}");
        }
    }
}

/// Computes the weights of a row's chosen experts in f64.
fn weights(logits: &[f64], choices: &[u32], routing: &Routing) -> Vec<f64> {
    let scores = scores(logits, routing.scores);
    let own: Vec<f64> = choices.iter().map(|expert| scores[*expert as usize]).collect();
    let least = f64::from(routing.least_sum);
    let sum = if routing.normalised { own.iter().sum::<f64>().max(least) } else { 1.0 };
    own.iter().map(|score| score / sum * f64::from(routing.scale)).collect()
}

fn scores(logits: &[f64], function: ScoreFunction) -> Vec<f64> {
    match function {
        ScoreFunction::Softmax => {
            let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
            logits.iter().map(|logit| logit.exp() / sum).collect()
        }
        ScoreFunction::Sigmoid => logits.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect(),
    }
}

/// Returns whether a row is a token rather than padding.
fn is_token(row: usize) -> bool {
    row % 4 < 3
}

/// Computes Σ dw · weights plus the balancing losses in f64. The losses cover all rows; with `tokens`, only
/// token rows, as means over that number.
fn objective(
    logits: &[f64],
    choices: &[u32],
    dw: &[f32],
    (routing, balance): (&Routing, Balance),
    tokens: Option<u32>,
) -> f64 {
    let experts = routing.experts;
    let chosen = routing.per_token;
    let (mut sum, mut log_sums) = (0.0, 0.0);
    let mut shares = vec![0.0; experts];
    let mut means = vec![0.0; experts];
    let own = logits.len() / experts;
    let counted = (0..own).filter(|row| tokens.is_none() || is_token(*row)).count();
    let rows = tokens.map_or(own as f64, f64::from);
    for (row, logits) in logits.chunks(experts).enumerate() {
        let own = row * chosen..(row + 1) * chosen;
        let weights = weights(logits, &choices[own.clone()], routing);
        sum += weights.iter().zip(&dw[own.clone()]).map(|(w, dw)| w * f64::from(*dw)).sum::<f64>();
        if tokens.is_some() && !is_token(row) {
            continue;
        }
        choices[own].iter().for_each(|expert| shares[*expert as usize] += 1.0 / (counted * chosen) as f64);
        let scores = scores(logits, routing.scores);
        let all: f64 = scores.iter().sum();
        means.iter_mut().zip(scores).for_each(|(mean, score)| *mean += score / all / rows);
        log_sums += logits.iter().map(|logit| logit.exp()).sum::<f64>().ln().powi(2) / rows;
    }
    let load: f64 = shares.iter().zip(&means).map(|(share, mean)| share * mean).sum();
    sum + f64::from(balance.load) * experts as f64 * load + f64::from(balance.logits) * log_sums
}

#[test]
fn routing_and_its_gradients_match_those_in_f64() {
    let sigmoid = Routing { scores: ScoreFunction::Sigmoid, ..ROUTING };
    let none = Balance::default();
    for (routing, balance) in [
        (ROUTING, none),
        (Routing { normalised: false, ..ROUTING }, none),
        (Routing { per_token: 3, scale: 2.5, ..sigmoid }, none),
        (Routing { least_sum: 0.45, ..ROUTING }, none),
        (Routing { normalised: false, ..sigmoid }, Balance { load: 0.7, logits: 0.3 }),
        (Routing { groups: 3, groups_per_token: 2, ..sigmoid }, none),
        (ROUTING, Balance { load: 0.7, logits: 0.0 }),
        (ROUTING, Balance { load: 0.0, logits: 0.3 }),
    ] {
        for tokens in [None, Some(100)] {
            devices().iter().for_each(|device| compare_in_f64(device, &routing, balance, tokens));
        }
    }
}

/// Compares weights and gradients of a routing with f64 results.
fn compare_in_f64(device: &Device, routing: &Routing, balance: Balance, count: Option<u32>) {
    let logits = tensor(device, [ROWS, EXPERTS], 2);
    let words = |values: &[u32]| Tensor::from_host(device, values, [values.len()], Category::Input).unwrap();
    let mask: Vec<u32> = (0..ROWS).map(|row| is_token(row).into()).collect();
    let tokens = count.map(|count| TokenRows { mask: words(&mask), count: words(&[count]) });
    let pass = Pass { balance: Some(balance), tokens, ..Pass::default() };
    let tape = Tape::new(device, Mode::Train).with_pass(pass);
    let leaf = tape.leaf(logits.clone());
    let source = leaf.source();
    let state = RouterState { balances: true, ..RouterState::default() };
    let (of_choices, routes) = ops::routing(&tape, leaf, routing, state).unwrap();
    let dw = tensor(device, [ROWS, routing.per_token], 4);
    let mut sink = Gradients::default();
    let mut leaves = tape.backward_from(vec![(of_choices.source(), dw.clone())], &mut sink).unwrap();
    let gradient: Vec<f32> = leaves.take(source).unwrap().to_vec().unwrap();
    let choices = routes.choices.to_vec::<u32>().unwrap();
    let dw = dw.to_vec::<f32>().unwrap();
    let mut wide: Vec<f64> = logits.to_vec::<f32>().unwrap().into_iter().map(f64::from).collect();
    let actual = of_choices.tensor().to_vec::<f32>().unwrap();
    for (row, logits) in wide.chunks(EXPERTS).enumerate() {
        let own = row * routing.per_token..(row + 1) * routing.per_token;
        let expected = weights(logits, &choices[own.clone()], routing);
        for (actual, expected) in actual[own].iter().zip(expected) {
            assert!((f64::from(*actual) - expected).abs() < 1e-6, "{routing:?}: {actual} of {expected}");
        }
    }
    for (index, gradient) in gradient.iter().enumerate() {
        let mut at = |step: f64| {
            let own = wide[index];
            wide[index] = own + step;
            let value = objective(&wide, &choices, &dw, (routing, balance), count);
            wide[index] = own;
            value
        };
        let expected = (at(1e-5) - at(-1e-5)) / 2e-5;
        let error = (f64::from(*gradient) - expected).abs();
        assert!(error < 1e-6, "{routing:?} {balance:?} {index}: {gradient} of {expected}");
    }
}

#[test]
fn experts_are_chosen_in_groups_by_corrected_scores() {
    devices().iter().for_each(choose_in_groups);
}

fn choose_in_groups(device: &Device) {
    let values = |values: &[f32]| Tensor::from_host(device, values, [values.len()], Category::Input).unwrap();
    let logits = values(&[3.0, 0.0, 2.0, 2.5, 0.1, 0.2]).reshape([1, EXPERTS]).unwrap();
    let scores = ScoreFunction::Sigmoid;
    let in_groups = Routing { groups: 3, groups_per_token: 1, scores, ..ROUTING };
    for (routing, correction, expected) in [
        (ROUTING, None, [0, 3]),
        // The second group has the largest two scores together.
        (in_groups, None, [3, 2]),
        (ROUTING, Some([0.0, 0.0, 0.0, 0.0, 9.0, 0.0]), [4, 0]),
        (in_groups, Some([0.0, 0.0, 0.0, 0.0, 9.0, 0.0]), [4, 5]),
    ] {
        let correction = correction.map(|correction| values(&correction));
        let routes = routing::forward(&logits, correction.as_ref(), &routing, None, None).unwrap();
        assert_eq!(routes.choices.to_vec::<u32>().unwrap(), expected, "{routing:?}");
    }
}

#[test]
fn loads_are_counted_and_corrections_move_towards_equal_ones() {
    devices().iter().for_each(count_loads);
}

fn count_loads(device: &Device) {
    let zeros = |values: usize| vec![0u32; values];
    let loads = Tensor::from_host(device, &zeros(EXPERTS), [EXPERTS], Category::Input).unwrap();
    let logits = tensor(device, [ROWS, EXPERTS], 2);
    for passes in 1..3 {
        let routes = routing::forward(&logits, None, &ROUTING, Some(&loads), None).unwrap();
        let choices = routes.choices.to_vec::<u32>().unwrap();
        let load = |expert: u32| passes * choices.iter().filter(|own| **own == expert).count() as u32;
        assert_eq!(loads.to_vec::<u32>().unwrap(), (0..EXPERTS as u32).map(load).collect::<Vec<_>>());
        // The rows of experts contain every choice once, in the order of experts.
        let sources = routes.sources.to_vec::<u32>().unwrap();
        let order: Vec<_> = sources.iter().map(|source| (choices[*source as usize], *source)).collect();
        assert!(order.is_sorted() && order.len() == ROWS * ROUTING.per_token, "{order:?}");
    }
    // Padding adds no load.
    let words = |values: &[u32]| Tensor::from_host(device, values, [values.len()], Category::Input).unwrap();
    let mask: Vec<u32> = (0..ROWS).map(|row| is_token(row).into()).collect();
    let loads = words(&zeros(EXPERTS));
    let tokens = TokenRows { mask: words(&mask), count: words(&[9]) };
    let routes = routing::forward(&logits, None, &ROUTING, Some(&loads), Some(&tokens)).unwrap();
    let choices = routes.choices.to_vec::<u32>().unwrap();
    let rows = choices.chunks(ROUTING.per_token).enumerate().filter(|(row, _)| is_token(*row));
    let own: Vec<u32> = rows.flat_map(|(_, choices)| choices.to_vec()).collect();
    let load = |expert: u32| own.iter().filter(|own| **own == expert).count() as u32;
    assert_eq!(loads.to_vec::<u32>().unwrap(), (0..EXPERTS as u32).map(load).collect::<Vec<_>>());
    let ranks = Tensor::from_host(device, &[1u32, 5, 0, 2, 1, 0], [2, 3], Category::Input).unwrap();
    let sums = Tensor::from_host(device, &zeros(3), [3], Category::Input).unwrap();
    let correction = Tensor::from_host(device, &[0.5f32, 0.0, 0.0], [3], Category::Input).unwrap();
    routing::sum_loads(&ranks, &sums).unwrap();
    assert_eq!(sums.to_vec::<u32>().unwrap(), [3, 6, 0]);
    routing::move_correction(&correction, &sums, 0.25).unwrap();
    assert_eq!(correction.to_vec::<f32>().unwrap(), [0.5, -0.25, 0.25]);
}
