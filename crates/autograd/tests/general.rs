//! Compositions of general operators give the values and gradients of fused operators.

use autograd::ops::AttentionMeasures;
use autograd::{Gradients, Mode, Result, Tape, UseId, Var, Weight, ops};
use device::{Category, Device};
use ops::{Pair, Pointwise};
use tensor::Tensor;
use tensor::ops::Activation;
use tensor::ops::attention::{Heads, Qkv};

use crate::common::{devices, tensor};

const EPSILON: f32 = 1e-5;

/// A function of a variable and weights.
type Layer<'a> = &'a dyn Fn(&Tape, Var, &[Weight]) -> Result<Var>;

/// Returns the values of a layer and the gradients of its input and weights, under a fixed weighting of the
/// output.
fn run(device: &Device, x: &Tensor, weights: &[Weight], layer: Layer<'_>) -> Vec<Vec<f32>> {
    let tape = Tape::new(device, Mode::Train);
    let input = tape.leaf(x.clone());
    let source = input.source();
    let output = layer(&tape, input, weights).unwrap();
    let values = output.tensor().to_vec().unwrap();
    let shape = output.tensor().shape();
    let flat = tensor(device, [shape.elements()], 3).reshape(shape).unwrap();
    let mut sink = Gradients::default();
    let mut leaves = tape.backward_from(vec![(output.source(), flat)], &mut sink).unwrap();
    let of_input = leaves.take(source).map(|gradient| gradient.to_vec().unwrap());
    let of_weights = sink.iter().map(|(_, gradient)| gradient.to_vec().unwrap());
    std::iter::once(values).chain(of_input).chain(of_weights).collect()
}

fn compare(x_shape: [usize; 3], weight_shapes: &[&[usize]], composed: Layer<'_>, fused: Layer<'_>) {
    for device in devices() {
        let x = tensor(&device, x_shape, 1);
        let weight = |(number, shape): (usize, &&[usize])| {
            let values = match **shape {
                [a] => tensor(&device, [a], number + 5),
                [a, b] => tensor(&device, [a, b], number + 5),
                _ => panic!("weights of these tests are vectors and matrices"),
            };
            Weight::new(values, UseId(number as u32))
        };
        let weights: Vec<_> = weight_shapes.iter().enumerate().map(weight).collect();
        let actual = run(&device, &x, &weights, composed);
        let expected = run(&device, &x, &weights, fused);
        assert_eq!(actual.len(), expected.len());
        for (position, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
            let size = expected.iter().map(|v| v * v).sum::<f32>().sqrt().max(1e-3);
            let error = actual.iter().zip(expected).map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt();
            assert!(
                actual.len() == expected.len() && error < 1e-5 * size,
                "{position}: off by {error} of {size}"
            );
        }
    }
}

#[test]
fn a_composed_rms_norm_matches_the_fused_one() {
    let composed = |tape: &Tape, x: Var, weights: &[Weight]| {
        let mean = ops::mean(tape, ops::pointwise(tape, x.clone(), Pointwise::Square)?, 2)?;
        let root =
            ops::pointwise(tape, ops::pointwise(tape, mean, Pointwise::Shift(EPSILON))?, Pointwise::Sqrt)?;
        let weight = ops::reshape(tape, ops::parameter(tape, &weights[0])?, [1, 1, 20])?;
        let normalised = ops::multiply(tape, x, ops::pointwise(tape, root, Pointwise::Reciprocal)?)?;
        ops::multiply(tape, normalised, weight)
    };
    let fused = |tape: &Tape, x: Var, weights: &[Weight]| ops::rms_norm(tape, x, &weights[0], EPSILON);
    compare([3, 7, 20], &[&[20]], &composed, &fused);
}

#[test]
fn a_composed_linear_layer_matches_the_fused_one() {
    let composed = |tape: &Tape, x: Var, weights: &[Weight]| {
        let flat = ops::reshape(tape, x, [21, 20])?;
        let weight = ops::parameter(tape, &weights[0])?;
        let bias = ops::reshape(tape, ops::parameter(tape, &weights[1])?, [1, 12])?;
        let sum = ops::pair(tape, ops::matmul_transposed(tape, flat, weight)?, bias, Pair::Add)?;
        ops::reshape(tape, sum, [3, 7, 12])
    };
    let fused = |tape: &Tape, x: Var, weights: &[Weight]| {
        ops::linear(tape, x, &weights[0], Some(&weights[1]), Activation::None)
    };
    compare([3, 7, 20], &[&[12, 20], &[12]], &composed, &fused);
}

#[test]
fn composed_attention_matches_the_fused_one() {
    const HEADS: usize = 2;
    const WIDTH: usize = 16;
    let heads = Heads::multi(HEADS, WIDTH);
    let (batch, time) = (3, 9);
    let composed = |tape: &Tape, qkv: Var, _: &[Weight]| {
        // [batch, time, heads · width] to [batch · heads, time, width].
        let part = |number: usize| {
            let own = ops::slice(tape, qkv.clone(), 2, number * HEADS * WIDTH, HEADS * WIDTH)?;
            let split = ops::reshape(tape, own, [batch, time, HEADS, WIDTH])?;
            ops::reshape(tape, ops::transpose(tape, split, 1, 2)?, [batch * HEADS, time, WIDTH])
        };
        let keys = ops::transpose(tape, part(1)?, 1, 2)?;
        let scores = ops::matmul(tape, part(0)?, keys)?;
        let scaled = ops::pointwise(tape, scores, Pointwise::Scale(1.0 / (WIDTH as f32).sqrt()))?;
        let later = |at: usize| if at % time > at / time { -1e9 } else { 0.0 };
        let mask: Vec<f32> = (0..time * time).map(later).collect();
        let mask = Tensor::from_host(tape.device(), &mask, [1, time, time], Category::Input)?;
        let masked = ops::pair(tape, scaled, tape.constant(mask), Pair::Add)?;
        let mixed = ops::matmul(tape, ops::softmax(tape, masked)?, part(2)?)?;
        let split = ops::reshape(tape, mixed, [batch, HEADS, time, WIDTH])?;
        ops::reshape(tape, ops::transpose(tape, split, 1, 2)?, [batch, time, HEADS * WIDTH])
    };
    let fused = |tape: &Tape, qkv: Var, _: &[Weight]| {
        ops::attention(tape, Qkv::Packed(qkv), heads, None, AttentionMeasures::default())
    };
    compare([batch, time, 3 * HEADS * WIDTH], &[], &composed, &fused);
}

#[test]
fn a_norm_with_an_offset_weight_matches_one_of_the_sum() {
    let composed = |tape: &Tape, x: Var, weights: &[Weight]| {
        let one = Tensor::from_host(tape.device(), &[1.0f32; 20], [20], Category::Input)?;
        let sum = ops::pair(tape, ops::parameter(tape, &weights[0])?, tape.constant(one), Pair::Add)?;
        let unit = Weight::frozen(Tensor::from_host(tape.device(), &[1.0f32; 20], [20], Category::Input)?);
        let normalised = ops::rms_norm(tape, x, &unit, EPSILON)?;
        ops::multiply(tape, normalised, ops::reshape(tape, sum, [1, 1, 20])?)
    };
    let fused = |tape: &Tape, x: Var, weights: &[Weight]| {
        ops::rms_norm(tape, x, &weights[0].clone().plus(1.0), EPSILON)
    };
    compare([3, 7, 20], &[&[20]], &composed, &fused);
}

#[test]
fn composed_norms_of_all_queries_and_keys_match_the_fused_one() {
    let heads = Heads::grouped(4, 2, 8);
    let composed = |tape: &Tape, qkv: Var, weights: &[Weight]| {
        let part = |first, count| ops::slice(tape, qkv.clone(), 2, first, count);
        let queries = ops::rms_norm(tape, part(0, 32)?, &weights[0], EPSILON)?;
        let keys = ops::rms_norm(tape, part(32, 16)?, &weights[1], EPSILON)?;
        ops::concatenate(tape, &[queries, keys, part(48, 16)?], 2)
    };
    let fused = |tape: &Tape, qkv: Var, weights: &[Weight]| {
        let weights = ops::QkNormWeights { query: weights[0].clone(), key: weights[1].clone() };
        ops::row_qk_norm(tape, qkv, heads, &[weights], [0, 0], EPSILON)
    };
    compare([3, 7, 64], &[&[32], &[16]], &composed, &fused);
}

#[test]
fn a_composed_gated_layer_with_biases_matches_the_fused_one() {
    let composed = |tape: &Tape, x: Var, weights: &[Weight]| {
        let linear = |x, number: usize| {
            let [weight, bias] = [&weights[2 * number], &weights[2 * number + 1]];
            ops::linear(tape, x, weight, Some(bias), Activation::None)
        };
        let pair = linear(x, 0)?;
        let gate = ops::activation(tape, ops::slice(tape, pair.clone(), 2, 0, 12)?, Activation::Silu)?;
        linear(ops::multiply(tape, gate, ops::slice(tape, pair, 2, 12, 12)?)?, 1)
    };
    let fused = |tape: &Tape, x: Var, weights: &[Weight]| {
        let weight = |number: usize| weights[number].clone();
        let biases = [Some(weight(1)), Some(weight(3))];
        let weights = ops::GatedFeedForwardWeights {
            gate_up: weight(0),
            down: weight(2),
            biases,
            adapters: [None, None],
            is_partial: false,
        };
        ops::gated_feed_forward(tape, x, &weights, Activation::Silu)
    };
    compare([3, 7, 20], &[&[24, 20], &[24], &[20, 12], &[20]], &composed, &fused);
}

#[test]
fn gathered_rows_match_an_embedding() {
    let tokens = |tape: &Tape| {
        let indices: Vec<u32> = (0..15).map(|i| i * i % 7).collect();
        Tensor::from_host(tape.device(), &indices, [3, 5], Category::Input)
    };
    let composed = |tape: &Tape, x: Var, weights: &[Weight]| {
        let rows = ops::gather(tape, ops::parameter(tape, &weights[0])?, &tokens(tape)?)?;
        ops::pair(tape, rows, x, Pair::Add)
    };
    let fused = |tape: &Tape, x: Var, weights: &[Weight]| {
        let rows = ops::embedding(tape, &tokens(tape)?, ops::TokenTable::Whole(&weights[0]), None, None)?;
        ops::add(tape, rows, x)
    };
    compare([3, 5, 8], &[&[7, 8]], &composed, &fused);
}

/// Computes log Σ e^x from maxima, sums and differences of two halves, and compares its gradient with
/// softmax.
#[test]
fn log_sum_exp_has_the_softmax_as_its_gradient() {
    let composed = |tape: &Tape, x: Var, _: &[Weight]| {
        let halves = [ops::slice(tape, x.clone(), 1, 0, 3)?, ops::slice(tape, x, 1, 3, 4)?];
        let joined = ops::concatenate(tape, &halves, 1)?;
        let largest = ops::maximum(tape, joined.clone(), 2)?;
        let small = ops::pointwise(tape, ops::subtract(tape, joined, largest.clone())?, Pointwise::Exp)?;
        let log = ops::pointwise(tape, ops::sum(tape, small, 2)?, Pointwise::Log)?;
        ops::pair(tape, log, largest, Pair::Add)
    };
    for device in devices() {
        let x = tensor(&device, [2, 7, 33], 1);
        let results = run(&device, &x, &[], &composed);
        let y = tensor::ops::softmax::forward(&x).unwrap().to_vec::<f32>().unwrap();
        let values = tensor(&device, [14], 3).to_vec::<f32>().unwrap();
        for (position, (gradient, y)) in results[1].iter().zip(&y).enumerate() {
            assert!((gradient - values[position / 33] * y).abs() < 1e-6, "{position}");
        }
    }
}
