//! Recomputed segments give the same bits with any partition into segments, and use less memory.

use std::rc::Rc;

use autograd::ops::{self, FeedForwardWeights};
use autograd::{AutogradError, Gradients, Mode, Result, Segment, Tape, UseId, Var, Weight, recompute};
use device::{Category, Device};
use proptest::prelude::*;
use tensor::Tensor;
use tensor::ops::Activation;

use crate::common::cpu;

const WIDTH: usize = 6;
const ROWS: usize = 4;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Linear(Activation),
    FeedForward,
    /// Keeps the input as the second value too.
    Fork,
    /// Adds the second value.
    Join,
    /// Adds the second value and normalises the sum, which becomes the second value.
    Normalise,
}

#[derive(Debug)]
struct Layer {
    name: String,
    kind: Kind,
    weights: Vec<Weight>,
}

impl Layer {
    fn forward(&self, tape: &Tape, x: Var, aside: Option<Var>) -> Result<(Var, Option<Var>)> {
        let _scope = tape.device().module(&self.name);
        let w = &self.weights;
        Ok(match self.kind {
            Kind::Linear(activation) => (ops::linear(tape, x, &w[0], Some(&w[1]), activation)?, aside),
            Kind::FeedForward => {
                let expand = w[0].clone();
                let expand_bias = Some(w[1].clone());
                let project = w[2].clone();
                let project_bias = Some(w[3].clone());
                let weights = FeedForwardWeights { expand, expand_bias, project, project_bias };
                (ops::feed_forward(tape, x, &weights, Activation::Gelu)?, aside)
            }
            Kind::Fork => (x.clone(), Some(x)),
            Kind::Join => match aside {
                Some(aside) => (ops::add(tape, x, aside)?, None),
                None => (x, None),
            },
            Kind::Normalise => {
                let (sum, normalised) = ops::residual_layer_norm(tape, x, aside, &w[0], Some(&w[1]), 1e-5)?;
                (normalised, Some(sum))
            }
        })
    }
}

/// Layers that are recomputed together; if `nested`, as two halves that are recomputed separately.
struct LayerRange {
    layers: Rc<[Layer]>,
    range: std::ops::Range<usize>,
    nested: bool,
}

impl Segment for LayerRange {
    type Error = AutogradError;

    fn run(&self, tape: &Tape, inputs: Vec<Var>) -> Result<Vec<Var>> {
        let std::ops::Range { start, end } = self.range;
        if self.nested && end - start > 1 {
            let middle = (start + end) / 2;
            return [start..middle, middle..end].into_iter().try_fold(inputs, |inputs, range| {
                recompute(tape, LayerRange { layers: Rc::clone(&self.layers), range, nested: true }, inputs)
            });
        }
        let mut inputs = inputs.into_iter();
        let mut x = inputs.next().unwrap();
        let mut aside = inputs.next();
        for layer in &self.layers[self.range.clone()] {
            (x, aside) = layer.forward(tape, x, aside)?;
        }
        Ok(std::iter::once(x).chain(aside).collect())
    }
}

fn tensor<const N: usize>(device: &Device, shape: [usize; N], seed: usize) -> Tensor {
    let wave = |i: usize| ((i + 31 * seed) as f32 * 0.7).sin();
    let values: Vec<f32> = (0..shape.iter().product()).map(wave).collect();
    Tensor::from_host(device, &values, shape, Category::Input).unwrap()
}

fn layers(device: &Device, kinds: &[Kind]) -> Rc<[Layer]> {
    let mut uses = 0;
    let mut weight = |tensor: Tensor| {
        uses += 1;
        Weight::new(tensor, UseId(uses - 1))
    };
    let layer = |(index, kind): (usize, &Kind)| {
        let mut matrix = |rows, columns| weight(tensor(device, [rows, columns], index));
        let mut weights = Vec::new();
        match kind {
            Kind::Linear(_) => weights.push(matrix(WIDTH, WIDTH)),
            Kind::FeedForward => weights.extend([matrix(2 * WIDTH, WIDTH), matrix(WIDTH, 2 * WIDTH)]),
            _ => {}
        }
        let mut vector = |length| weight(tensor(device, [length], index + 7));
        match kind {
            Kind::Linear(_) => weights.push(vector(WIDTH)),
            Kind::FeedForward => {
                weights.insert(1, vector(2 * WIDTH));
                weights.push(vector(WIDTH));
            }
            Kind::Normalise => weights.extend([vector(WIDTH), vector(WIDTH)]),
            Kind::Fork | Kind::Join => {}
        }
        Layer { name: format!("layer{index}"), kind: *kind, weights }
    };
    kinds.iter().enumerate().map(layer).collect()
}

/// Kind of backward to run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Backward {
    Whole,
    Divided,
}

/// Returns the bits of every gradient and of the loss. Layers before the first cut and after the last are
/// recorded; layers between two cuts are recomputed.
fn gradients(
    device: &Device,
    layers: &Rc<[Layer]>,
    cuts: &[usize],
    nested: bool,
    backward: Backward,
) -> Vec<Vec<u32>> {
    let tape = Tape::new(device, Mode::Train);
    let input = tape.leaf(tensor(device, [ROWS, WIDTH], 3));
    let part = |range| LayerRange { layers: Rc::clone(layers), range, nested };
    let first = cuts.first().copied().unwrap_or(0);
    let last = cuts.last().copied().unwrap_or(0);
    let mut flow = LayerRange { nested: false, ..part(0..first) }.run(&tape, vec![input.clone()]).unwrap();
    for pair in cuts.windows(2) {
        flow = recompute(&tape, part(pair[0]..pair[1]), flow).unwrap();
    }
    let flow = LayerRange { nested: false, ..part(last..layers.len()) }.run(&tape, flow).unwrap();
    let output = flow.into_iter().reduce(|x, aside| ops::add(&tape, x, aside).unwrap()).unwrap();
    let loss = ops::mse(&tape, output, &tensor(device, [ROWS, WIDTH], 9), 1.0).unwrap();
    let mut all = vec![loss.tensor().to_vec().unwrap()];
    let mut sink = Gradients::default();
    let mut leaves = match backward {
        Backward::Whole => tape.backward(loss, &mut sink).unwrap(),
        Backward::Divided => {
            let (leaves, pending) = tape.backward_input(loss).unwrap();
            assert_eq!(sink.iter().count(), 0);
            pending.backward_weight(&mut sink).unwrap();
            leaves
        }
    };
    all.extend(leaves.take(input.source()).map(|gradient| gradient.to_vec::<f32>().unwrap()));
    all.extend(sink.iter().map(|(_, gradient)| gradient.to_vec::<f32>().unwrap()));
    all.iter().map(|values| values.iter().map(|value| value.to_bits()).collect()).collect()
}

fn kinds() -> impl Strategy<Value = Vec<Kind>> {
    let kind = prop_oneof![
        Just(Kind::Linear(Activation::None)),
        Just(Kind::Linear(Activation::Relu)),
        Just(Kind::Linear(Activation::Gelu)),
        Just(Kind::FeedForward),
        Just(Kind::Fork),
        Just(Kind::Join),
        Just(Kind::Normalise),
    ];
    prop::collection::vec(kind, 1..9)
}

proptest! {
    #[test]
    fn any_segments_give_the_same_bits(
        kinds in kinds(),
        positions in prop::collection::vec(0.0..=1.0_f64, 0..5),
        nested: bool,
        divided: bool,
    ) {
        let device = cpu();
        let layers = layers(&device, &kinds);
        let before = device.statistics().allocated();
        let mut cuts: Vec<usize> =
            positions.iter().map(|position| (position * layers.len() as f64).round() as usize).collect();
        cuts.sort_unstable();
        let backward = if divided { Backward::Divided } else { Backward::Whole };
        let plain = gradients(&device, &layers, &[], false, backward);
        let again = gradients(&device, &layers, &cuts, nested, backward);
        prop_assert_eq!(plain, again);
        prop_assert_eq!(device.statistics().allocated(), before);
    }
}

#[test]
fn segments_keep_only_their_inputs() {
    let device = cpu();
    let layers = layers(&device, &[Kind::FeedForward, Kind::Normalise, Kind::Linear(Activation::Gelu)]);
    let part = |range| LayerRange { layers: Rc::clone(&layers), range, nested: false };
    let tape = Tape::new(&device, Mode::Train);
    let x = tape.leaf(tensor(&device, [ROWS, WIDTH], 3));
    let flow = recompute(&tape, part(0..2), vec![x]).unwrap();
    let flow = recompute(&tape, part(2..3), flow).unwrap();
    assert_eq!(flow.len(), 2);
    let bytes = ROWS * WIDTH * 4;
    let saved: Vec<_> = tape.saved().iter().map(|s| (s.operator, s.name, s.bytes)).collect();
    assert_eq!(saved, vec![("recompute", "input", bytes); 3]);
    // In evaluation nothing is kept or recomputed.
    let silent = Tape::new(&device, Mode::Evaluate);
    let before = device.statistics().allocated();
    let x = silent.constant(tensor(&device, [ROWS, WIDTH], 3));
    drop(recompute(&silent, part(0..3), vec![x]).unwrap());
    assert_eq!((silent.saved().len(), device.statistics().allocated()), (0, before));
}

/// Returns the memory requests of backward: category, module and operator, in order.
fn requests(cuts: &[usize], kinds: &[Kind]) -> Vec<(Category, String, &'static str)> {
    let device = cpu();
    let layers = layers(&device, kinds);
    device.with_allocator(|allocator| allocator.record_history(10_000));
    let scope = device.module("model");
    gradients(&device, &layers, cuts, false, Backward::Whole);
    drop(scope);
    let snapshot = device.with_allocator(|allocator| allocator.snapshot());
    let events = snapshot.events.iter().filter(|event| event.action == memory::Action::Alloc);
    let names = |tag: memory::Tag| (tag.category, snapshot.labels.name(tag.module).to_owned(), tag.operator);
    events.map(|event| names(event.tag)).collect()
}

#[test]
fn segments_request_memory_as_without_recomputation() {
    let kinds = [Kind::FeedForward, Kind::Normalise, Kind::Linear(Activation::Gelu)];
    let plain = requests(&[], &kinds);
    let again = requests(&[0, 2, 3], &kinds);
    // Gradients are requested in the same order by the same modules, and activations again by the same
    // modules.
    let select = |all: &[(Category, String, &'static str)], activations: bool| -> Vec<_> {
        all.iter()
            .filter(|(category, ..)| (*category == Category::Activation) == activations)
            .cloned()
            .collect()
    };
    assert_eq!(select(&plain, false), select(&again, false));
    let plain = select(&plain, true);
    let again = select(&again, true);
    assert!(plain.iter().any(|(_, module, _)| module == "model.layer1"), "{plain:?}");
    let (forward, backward) = again.split_at(plain.len());
    assert_eq!(forward, plain);
    let inside = |layers: &[usize]| -> Vec<_> {
        let names: Vec<String> = layers.iter().map(|layer| format!("model.layer{layer}")).collect();
        plain.iter().filter(|(_, module, _)| names.contains(module)).cloned().collect()
    };
    assert_eq!(backward, [inside(&[2]), inside(&[0, 1])].concat());
}

/// A segment that fails when it is recomputed.
struct Once(std::cell::Cell<bool>);

impl Segment for Once {
    type Error = AutogradError;

    fn run(&self, _: &Tape, inputs: Vec<Var>) -> Result<Vec<Var>> {
        if self.0.replace(true) { Err(AutogradError::NotRecorded) } else { Ok(inputs) }
    }
}

#[test]
fn failures_during_recomputation_are_reported() {
    let device = cpu();
    let tape = Tape::new(&device, Mode::Train);
    let x = tape.leaf(tensor(&device, [ROWS, WIDTH], 3));
    let x = recompute(&tape, Once(false.into()), vec![x]).unwrap().remove(0);
    let loss = ops::mse(&tape, x, &tensor(&device, [ROWS, WIDTH], 9), 1.0).unwrap();
    let error = tape.backward(loss, &mut Gradients::default()).unwrap_err();
    assert!(matches!(error, AutogradError::Recompute(_)) && error.to_string().starts_with("recomputation: "));
}

/// A segment that logs, for each run, the mode and whether the run is recorded.
struct Modes(Rc<std::cell::RefCell<Vec<(Mode, bool)>>>, LayerRange);

impl Segment for Modes {
    type Error = AutogradError;

    fn run(&self, tape: &Tape, inputs: Vec<Var>) -> Result<Vec<Var>> {
        self.0.borrow_mut().push((tape.mode(), tape.is_recording()));
        self.1.run(tape, inputs)
    }
}

#[test]
fn segments_are_told_the_mode_of_each_run() {
    let device = cpu();
    let first = |mode| [(mode, false), (Mode::Recompute, true)];
    let table = [
        (Mode::Train, first(Mode::Train).to_vec()),
        (Mode::Rehearse, first(Mode::Rehearse).to_vec()),
        (Mode::Evaluate, vec![(Mode::Evaluate, false)]),
    ];
    for (mode, expected) in table {
        let modes: Rc<std::cell::RefCell<Vec<_>>> = Rc::default();
        let layers = layers(&device, &[Kind::Linear(Activation::Gelu)]);
        let part = LayerRange { layers, range: 0..1, nested: false };
        let tape = Tape::new(&device, mode);
        let x = tape.leaf(tensor(&device, [ROWS, WIDTH], 3));
        let x = recompute(&tape, Modes(Rc::clone(&modes), part), vec![x]).unwrap().remove(0);
        let loss = ops::mse(&tape, x, &tensor(&device, [ROWS, WIDTH], 9), 1.0).unwrap();
        if mode.is_training() {
            tape.backward(loss, &mut Gradients::default()).unwrap();
        }
        assert_eq!(*modes.borrow(), expected, "{mode:?}");
    }
}
