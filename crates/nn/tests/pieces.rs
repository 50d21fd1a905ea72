//! Layers with a state over the sequence, on whole sequences and on pieces of them.

use autograd::{Dimension, Gradients, Mode, Pass, Pieces, Placement, SequencePiece, Tape, Var, ops};
use collective::Axis;
use device::{Category, DType, Device, DeviceOptions};
use nn::layers::{
    Activation, DeltaLayout, GatedDelta, GatedDeltaSizes, Layer, Linear, ShortConvolution,
    ShortConvolutionSizes, StateSpace, StateSpaceSizes,
};
use nn::{Init, Parameters, Result};
use tensor::Tensor;
use tensor::ops::gated_delta_rule::{DeltaHeads, DeltaSettings};
use tensor::ops::gated_rms_norm::GateFunction;
use tensor::ops::state_space_scan::StateHeads;

const BATCH: usize = 2;
const TIME: usize = 80;
const WIDTH: usize = 12;
const PIECES: usize = 4;
const INITS: [Init; 2] = [Init::Normal(0.3); 2];

type Mixer = Box<dyn Layer<Stream = Var>>;
type Make = fn(&mut Parameters) -> Result<Mixer>;

fn delta(parameters: &mut Parameters, by_channel: bool) -> Result<Mixer> {
    let heads = DeltaHeads { key: 2, value: 4, width: 6, value_width: 5 };
    let sizes = GatedDeltaSizes {
        settings: DeltaSettings { heads, by_channel, epsilon: 1e-6 },
        taps: 4,
        layout: DeltaLayout::Separate,
        gate_rank: 0,
        gate: GateFunction::Silu,
        negative_eigenvalues: true,
        epsilon: 1e-5,
    };
    Ok(Box::new(GatedDelta::new(parameters, "delta", WIDTH, sizes, INITS)?))
}

fn states(parameters: &mut Parameters) -> Result<Mixer> {
    let sizes = StateSpaceSizes {
        heads: StateHeads { heads: 4, groups: 2, width: 6, states: 5 },
        taps: 4,
        convolution_bias: true,
        bias: true,
        norm_groups: 2,
        norm_first: false,
        epsilon: 1e-5,
        limits: [0.0, f32::INFINITY],
        factors: [1.0; 5],
    };
    Ok(Box::new(StateSpace::new(parameters, "states", WIDTH, sizes, INITS)?))
}

fn convolution(parameters: &mut Parameters) -> Result<Mixer> {
    let sizes = ShortConvolutionSizes { taps: 3, bias: true };
    Ok(Box::new(ShortConvolution::new(parameters, "convolution", WIDTH, sizes, INITS)?))
}

/// Returns the start of each token's document in a sequence. Two of three documents cross pieces, and one
/// begins with a piece.
fn start(at: usize) -> i32 {
    [60, 33, 0].into_iter().find(|first| *first <= at).unwrap_or(0) as i32
}

/// Returns rows of every sequence in the order of `pieces`, each of an equal part.
fn dealt<T: Copy>(values: &[T], pieces: &[usize], columns: usize) -> Vec<T> {
    let each = TIME / pieces.len();
    let rows = |piece: usize, sequence: usize| {
        values[(sequence * TIME + piece * each) * columns..][..each * columns].to_vec()
    };
    let all = pieces.iter().flat_map(|piece| (0..BATCH).map(move |sequence| (*piece, sequence)));
    all.flat_map(|(piece, sequence)| rows(piece, sequence)).collect()
}

/// Returns the loss and the gradients of all parameters, with sequences in `pieces` pieces.
fn run(build: fn(&mut Parameters) -> Result<Mixer>, pieces: usize, packs: bool) -> (f32, Vec<Vec<f32>>) {
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    let mut parameters = Parameters::new(&device, 3, DType::F32);
    let init = Init::uniform_fan_in(WIDTH);
    let first = Linear::new(&mut parameters, "first", WIDTH, WIDTH, init, Activation::None).unwrap();
    let mixer = build(&mut parameters).unwrap();
    let random = |name: &str| -> Vec<f32> {
        let shape = [BATCH * TIME * WIDTH];
        let x = Tensor::from_host(&device, &vec![0.0f32; shape[0]], shape, Category::Input).unwrap();
        tensor::ops::random::normal(&x, 7, name, 0.0, 1.0).unwrap();
        x.to_vec().unwrap()
    };
    let order = Pieces::dealt(pieces);
    let each = TIME / pieces;
    let upload = |values: &[f32]| {
        let values = dealt(values, &order, WIDTH);
        Tensor::from_host(&device, &values, [pieces * BATCH, each, WIDTH], Category::Input).unwrap()
    };
    let documents = |piece: usize| {
        let first = (piece * each) as i32;
        let starts = (0..BATCH * each).map(|row| if packs { start(piece * each + row % each) } else { 0 });
        let starts: Vec<u32> = starts.map(|start| (start - first).cast_unsigned()).collect();
        Tensor::from_host(&device, &starts, [BATCH, each], Category::Input).unwrap()
    };
    let piece = |number: &usize| {
        let share = 1.0 / pieces as f32;
        SequencePiece { number: *number, share, documents: Some(documents(*number)) }
    };
    let here = order.iter().map(piece).collect();
    let of_pieces = Pieces { all: pieces, here, sums_over_ranks: false, masks_documents: packs };
    let pass = match pieces {
        1 => Pass { documents: Some(documents(0)), ..Pass::default() },
        _ => Pass { pieces: Some(of_pieces), ..Pass::default() },
    };
    let tape = Tape::new(&device, Mode::Train).with_pass(pass);
    let x = tape.constant(upload(&random("x")));
    let time = Placement::Shard(Dimension::Time);
    let x = x.redistribute(&tape, Axis::Context, time).unwrap();
    let y = mixer.forward(&tape, first.forward(&tape, x).unwrap()).unwrap();
    let y = y.redistribute(&tape, Axis::Context, Placement::Replicate).unwrap();
    let loss = ops::mse(&tape, y, &upload(&random("target")), 1.0).unwrap();
    let value = loss.tensor().to_vec::<f32>().unwrap()[0];
    let mut gradients = Gradients::default();
    tape.backward(loss, &mut gradients).unwrap();
    (value, gradients.iter().map(|(_, gradient)| gradient.to_vec().unwrap()).collect())
}

#[test]
fn pieces_have_the_losses_and_gradients_of_whole_sequences() {
    let layers: [(&str, Make); 4] = [
        ("delta rule", |parameters| delta(parameters, false)),
        ("delta rule by channel", |parameters| delta(parameters, true)),
        ("state spaces", states),
        ("short convolution", convolution),
    ];
    for (what, build) in layers {
        for packs in [false, true] {
            let (whole, expected) = run(build, 1, packs);
            let (divided, actual) = run(build, PIECES, packs);
            assert!((whole - divided).abs() <= 1e-6 * whole, "{what}: {whole} {divided}");
            assert_eq!(actual.len(), expected.len(), "{what}");
            for (index, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
                let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|x| x * x).sum::<f32>().sqrt();
                let difference = norm(&mut actual.iter().zip(expected).map(|(a, b)| a - b));
                let size = norm(&mut expected.iter().copied());
                assert!(difference <= 1e-4 * size, "{what}, {packs}, {index}: {difference} of {size}");
            }
        }
    }
}
