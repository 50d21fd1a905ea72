//! Frozen weights: backward computes only the gradients that trained weights need, with the same bits.

use autograd::ops::{FeedForwardWeights, GatedFeedForwardWeights};
use autograd::{Gradients, Mode, Segment, Tape, UseId, Var, Weight, ops, recompute};
use device::{Category, Description, Device, DeviceOptions};
use tensor::Tensor;
use tensor::ops::Activation;

const WIDTH: usize = 6;
const WEIGHTS: usize = 14;

/// A model of embedding with positions, layer norm, linear, feed-forward, RMS norm and gated feed-forward
/// layers.
#[derive(Clone)]
struct Layers {
    weights: Vec<Weight>,
}

fn values(device: &Device, shape: &[usize], seed: usize) -> Tensor {
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|i| ((i * 7 + seed * 13) % 11) as f32 / 11.0 - 0.4).collect();
    let tensor = Tensor::from_host(device, &values, [count], Category::Parameter).unwrap();
    match shape {
        [rows, columns] => tensor.reshape([*rows, *columns]).unwrap(),
        _ => tensor,
    }
}

impl Layers {
    /// Builds the layers; weight i is trained if bit i of `mask` is set.
    fn new(device: &Device, mask: usize) -> Self {
        let hidden = 2 * WIDTH;
        let shapes: [&[usize]; WEIGHTS] = [
            &[5, WIDTH],
            &[4, WIDTH],
            &[WIDTH],
            &[WIDTH],
            &[WIDTH, WIDTH],
            &[WIDTH],
            &[hidden, WIDTH],
            &[hidden],
            &[WIDTH, hidden],
            &[WIDTH],
            &[WIDTH],
            &[2 * hidden, WIDTH],
            &[WIDTH, hidden],
            &[WIDTH],
        ];
        let weight = |(index, shape): (usize, &&[usize])| {
            let tensor = values(device, shape, index);
            match mask >> index & 1 {
                1 => Weight::new(tensor, UseId(index as u32)),
                _ => Weight::frozen(tensor),
            }
        };
        Layers { weights: shapes.iter().enumerate().map(weight).collect() }
    }

    fn start(&self, tape: &Tape, tokens: &Tensor) -> Var {
        let positions = ops::Positions::Learned(&self.weights[1]);
        let table = ops::TokenTable::Whole(&self.weights[0]);
        ops::embedding(tape, tokens, table, Some(positions), None).unwrap()
    }
}

impl Segment for Layers {
    type Error = autograd::AutogradError;

    fn run(&self, tape: &Tape, mut inputs: Vec<Var>) -> Result<Vec<Var>, Self::Error> {
        let w = &self.weights;
        let x = inputs.pop().unwrap();
        let x = ops::layer_norm(tape, x, &w[2], Some(&w[3]), 1e-5)?;
        let x = ops::linear(tape, x, &w[4], Some(&w[5]), Activation::Relu)?;
        let feed_forward = FeedForwardWeights {
            expand: w[6].clone(),
            expand_bias: Some(w[7].clone()),
            project: w[8].clone(),
            project_bias: Some(w[9].clone()),
        };
        let x = ops::feed_forward(tape, x, &feed_forward, Activation::Gelu)?;
        let x = ops::rms_norm(tape, x, &w[10], 1e-5)?;
        let gated = GatedFeedForwardWeights {
            gate_up: w[11].clone(),
            down: w[12].clone(),
            biases: [None, None],
            adapters: [None, None],
            is_partial: false,
        };
        let x = ops::gated_feed_forward(tape, x, &gated, Activation::Silu)?;
        let scale = ops::parameter(tape, &w[13])?;
        Ok(vec![ops::multiply(tape, x, ops::reshape(tape, scale, [1, 1, WIDTH])?)?])
    }
}

/// Returns the gradients of the trained weights by number, and the bytes that the tape kept for backward.
fn gradients(device: &Device, mask: usize, recomputed: bool) -> (Vec<(u32, Vec<f32>)>, usize) {
    let layers = Layers::new(device, mask);
    let tokens = Tensor::from_host(device, &[1u32, 4, 0, 1, 3, 2, 2, 1], [2, 4], Category::Input).unwrap();
    let tape = Tape::new(device, Mode::Train);
    let x = layers.start(&tape, &tokens);
    let output = match recomputed {
        true => recompute(&tape, layers.clone(), vec![x]),
        false => layers.run(&tape, vec![x]),
    };
    let output = output.unwrap().pop().unwrap();
    let target = Tensor::from_host(device, &[0.25f32; 8 * WIDTH], [2, 4, WIDTH], Category::Input).unwrap();
    let loss = ops::mse(&tape, output, &target, 1.0).unwrap();
    let bytes = tape.saved().iter().map(|saved| saved.bytes).sum();
    let mut sink = Gradients::default();
    if mask != 0 {
        tape.backward(loss, &mut sink).unwrap();
    }
    (sink.iter().map(|(id, tensor)| (id.0, tensor.to_vec().unwrap())).collect(), bytes)
}

#[test]
fn trained_weights_have_the_gradients_that_they_have_among_others() {
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    let all = (1 << WEIGHTS) - 1;
    let (full, _) = gradients(&device, all, false);
    assert_eq!(full.len(), WEIGHTS);
    // Each weight alone, all but each, each with the next, and patterns.
    let alone = (0..WEIGHTS).flat_map(|bit| [1 << bit, all ^ (1 << bit), all & (3 << bit)]);
    for mask in alone.chain([0b10_1010_1010_1010, 0b01_0101_0101_0101]) {
        let expected: Vec<_> = full.iter().filter(|(id, _)| mask >> id & 1 == 1).cloned().collect();
        for recomputed in [false, true] {
            let (actual, _) = gradients(&device, mask, recomputed);
            assert_eq!(actual, expected, "{mask:b}, recomputed {recomputed}");
        }
    }
}

#[test]
fn nothing_is_kept_or_computed_below_the_first_trained_weight() {
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    let bytes = |mask| gradients(&device, mask, false).1;
    let recomputed = |mask| gradients(&device, mask, true).1;
    let all = (1 << WEIGHTS) - 1;
    // If only the last weight is trained, its own operands and the loss's are kept.
    assert!(bytes(1 << (WEIGHTS - 1)) < bytes(1 << 12) && bytes(1 << 12) < bytes(1) && bytes(1) < bytes(all));
    assert_eq!(bytes(0), 0);
    // A segment is not recorded if neither it nor anything before or after it is trained.
    assert_eq!(recomputed(0), 0);

    let meta = Device::meta(0, Description::host(), &DeviceOptions::default()).unwrap();
    let flops = |trained: usize| {
        let before = meta.flops();
        let weight = |index| {
            let tensor = Tensor::zeros(&meta, [8, 8], device::DType::F32, request()).unwrap();
            if trained >> index & 1 == 1 { Weight::new(tensor, UseId(index)) } else { Weight::frozen(tensor) }
        };
        let weights: Vec<_> = (0..3).map(weight).collect();
        let tape = Tape::new(&meta, Mode::Train);
        let mut x = tape.constant(Tensor::zeros(&meta, [4, 8], device::DType::F32, request()).unwrap());
        for weight in &weights {
            x = ops::linear(&tape, x, weight, None, Activation::None).unwrap();
        }
        let target = Tensor::zeros(&meta, [4, 8], device::DType::F32, request()).unwrap();
        let loss = ops::mse(&tape, x, &target, 1.0).unwrap();
        tape.backward(loss, &mut Gradients::default()).unwrap();
        (meta.flops() - before) / (2 * 4 * 8 * 8)
    };
    // Three forward matmuls, and in backward the matmuls of trained weights and of the inputs that lead to
    // them.
    assert_eq!([0b111, 0b001, 0b010, 0b100, 0b101].map(flops), [8, 6, 5, 4, 7]);
}

fn request() -> device::Request {
    device::Request::new(Category::Parameter, "test")
}
