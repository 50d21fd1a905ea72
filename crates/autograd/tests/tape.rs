//! The tape: the tensors it keeps, when it frees them, and the order of its calls.

use std::cell::RefCell;
use std::rc::Rc;

use autograd::{
    AutogradError, GradientSink, Gradients, Mode, Result, Rule, Saved, Tape, Target, UseId, ValueGradients,
    Var, Weight, ops,
};
use device::{Category, Device};
use tensor::Tensor;
use tensor::ops::Activation;

use crate::common::cpu;

fn tensor<const N: usize>(device: &Device, shape: [usize; N], seed: u64) -> Tensor {
    let elements = shape.iter().product::<usize>();
    let wave = |i: usize| ((i as f32 + seed as f32) * 0.7).sin();
    Tensor::from_host(device, &(0..elements).map(wave).collect::<Vec<_>>(), shape, Category::Input).unwrap()
}

/// Returns the weights of three linear layers with a residual connection around the second.
fn network(device: &Device) -> Vec<Weight> {
    (0..6_u32)
        .map(|i| {
            let values = if i % 2 == 0 {
                tensor(device, [8, 8], u64::from(i))
            } else {
                tensor(device, [8], u64::from(i))
            };
            Weight::new(values, UseId(i))
        })
        .collect()
}

fn loss(tape: &Tape, weights: &[Weight], x: Var, target: &Tensor) -> Result<Var> {
    let first = ops::linear(tape, x, &weights[0], Some(&weights[1]), Activation::Gelu)?;
    let branch = ops::linear(tape, first.clone(), &weights[2], Some(&weights[3]), Activation::Relu)?;
    let sum = ops::add(tape, first, branch)?;
    let last = ops::linear(tape, sum, &weights[4], Some(&weights[5]), Activation::None)?;
    ops::mse(tape, last, target, 1.0)
}

fn values(gradients: &Gradients) -> Vec<Vec<f32>> {
    gradients.iter().map(|(_, tensor)| tensor.to_vec().unwrap()).collect()
}

#[test]
fn backward_in_two_halves_gives_the_same_bits() {
    let device = cpu();
    let weights = network(&device);
    let target = tensor(&device, [4, 8], 9);
    let record = || {
        let tape = Tape::new(&device, Mode::Train);
        let x = tape.leaf(tensor(&device, [4, 8], 5));
        let loss = loss(&tape, &weights, x.clone(), &target).unwrap();
        (tape, x, loss)
    };
    let (tape, x, root) = record();
    let mut whole = Gradients::default();
    let dx = tape.backward(root, &mut whole).unwrap().take(x.source()).unwrap();

    let (tape, x, root) = record();
    let mut divided = Gradients::default();
    let (mut leaves, pending) = tape.backward_input(root).unwrap();
    assert_eq!(leaves.take(x.source()).unwrap().to_vec::<f32>().unwrap(), dx.to_vec::<f32>().unwrap());
    assert_eq!(divided.iter().count(), 0);
    pending.backward_weight(&mut divided).unwrap();
    assert_eq!(values(&whole), values(&divided));

    // Backward starts from a chosen gradient; the output has been freed by then.
    let (tape, x, root) = record();
    let one = Tensor::from_host(&device, &[1.0_f32], [1], Category::Other).unwrap();
    let one = one.reshape(root.tensor().shape()).unwrap();
    let mut divided = Gradients::default();
    let output = root.source();
    drop(root);
    let (mut leaves, pending) = tape.backward_input_from(vec![(output, one)]).unwrap();
    assert_eq!(leaves.take(x.source()).unwrap().to_vec::<f32>().unwrap(), dx.to_vec::<f32>().unwrap());
    pending.backward_weight(&mut divided).unwrap();
    assert_eq!(values(&whole), values(&divided));
}

#[test]
fn a_second_backward_adds_to_the_first() {
    let device = cpu();
    let weights = network(&device);
    let target = tensor(&device, [4, 8], 9);
    let mut gradients = Gradients::default();
    let pass = |gradients: &mut Gradients| {
        let tape = Tape::new(&device, Mode::Train);
        let x = tape.constant(tensor(&device, [4, 8], 5));
        let root = loss(&tape, &weights, x, &target).unwrap();
        tape.backward(root, gradients).unwrap();
    };
    pass(&mut gradients);
    let once = values(&gradients);
    pass(&mut gradients);
    for (once, twice) in once.iter().flatten().zip(values(&gradients).iter().flatten()) {
        assert!((2.0 * once - twice).abs() <= 1e-5 * once.abs().max(1e-3), "{once} {twice}");
    }
}

#[test]
fn steps_leave_nothing_and_evaluation_keeps_nothing() {
    let device = cpu();
    let weights = network(&device);
    let target = tensor(&device, [4, 8], 9);
    let before = device.statistics().allocated();
    for mode in [Mode::Train, Mode::Rehearse, Mode::Evaluate] {
        let tape = Tape::new(&device, mode);
        let recording = mode.is_training();
        assert_eq!((tape.mode(), tape.is_recording()), (mode, recording));
        let x = tape.leaf(tensor(&device, [4, 8], 5));
        let root = loss(&tape, &weights, x, &target).unwrap();
        assert_eq!(tape.saved().is_empty(), !recording);
        assert_eq!(root.wants_gradient(), recording);
        if recording {
            let mut gradients = Gradients::default();
            tape.backward(root, &mut gradients).unwrap();
        } else {
            drop(root);
            assert_eq!(device.statistics().allocated(), before);
        }
    }
    assert_eq!(device.statistics().allocated(), before);
}

/// A sink that logs the allocated bytes at each gradient.
struct Watching {
    inner: Gradients,
    device: Device,
    seen: Vec<(UseId, u64)>,
}

impl GradientSink for Watching {
    fn target(&mut self, use_id: UseId, weight: &Weight) -> Result<Target> {
        self.inner.target(use_id, weight)
    }

    fn ready(&mut self, use_id: UseId) -> Result<()> {
        self.seen.push((use_id, self.device.statistics().allocated()));
        self.inner.ready(use_id)
    }
}

#[test]
fn backward_reports_gradients_last_layer_first_and_frees_saved_tensors() {
    let device = cpu();
    let weights: Vec<_> =
        (0..4).map(|i| Weight::new(tensor(&device, [64, 64], i), UseId(i as u32))).collect();
    let tape = Tape::new(&device, Mode::Train);
    let mut x = tape.constant(tensor(&device, [256, 64], 5));
    for weight in &weights {
        x = ops::linear(&tape, x, weight, None, Activation::Relu).unwrap();
    }
    let target = tensor(&device, [256, 64], 9);
    let root = ops::mse(&tape, x, &target, 1.0).unwrap();
    let mut sink = Watching { inner: Gradients::default(), device, seen: Vec::new() };
    tape.backward(root, &mut sink).unwrap();
    let order: Vec<u32> = sink.seen.iter().map(|(id, _)| id.0).collect();
    assert_eq!(order, [3, 2, 1, 0]);
    // Each rule's saved activation (64 KiB) is freed before the next gradient (16 KiB) is reported.
    assert!(sink.seen.windows(2).all(|pair| pair[1].1 < pair[0].1), "{:?}", sink.seen);
}

#[test]
fn hooks_see_every_gradient_and_may_stop_backward() {
    let device = cpu();
    let weights = network(&device);
    let target = tensor(&device, [4, 8], 9);
    let run = |gradients: &mut Gradients| {
        let tape = Tape::new(&device, Mode::Train);
        let x = tape.constant(tensor(&device, [4, 8], 5));
        let root = loss(&tape, &weights, x, &target).unwrap();
        tape.backward(root, gradients).map(|_| ())
    };
    let seen = Rc::new(RefCell::new(Vec::new()));
    let mut gradients = Gradients::default();
    let noted = Rc::clone(&seen);
    gradients.on_ready(move |id, gradient| {
        noted.borrow_mut().push((id.0, gradient.elements()));
        Ok(())
    });
    run(&mut gradients).unwrap();
    let mut all = seen.borrow().clone();
    all.sort_unstable();
    assert_eq!(all, [(0, 64), (1, 8), (2, 64), (3, 8), (4, 64), (5, 8)]);
    let mut failing = Gradients::default();
    failing.on_ready(|_, _| Err("no".into()));
    assert!(matches!(run(&mut failing), Err(AutogradError::Hook(_))));
}

#[test]
fn variables_of_another_tape_and_constants_are_refused() {
    let device = cpu();
    let one = Tape::new(&device, Mode::Train);
    let other = Tape::new(&device, Mode::Train);
    let here = one.leaf(tensor(&device, [4], 1));
    let there = other.leaf(tensor(&device, [4], 2));
    assert!(matches!(ops::add(&one, here, there), Err(AutogradError::ForeignVariable { operator: "add" })));
    let constant = one.constant(tensor(&device, [1], 1));
    assert!(matches!(one.backward(constant, &mut Gradients::default()), Err(AutogradError::NotRecorded)));
}

/// A user-defined operator: y = x · x.
struct Square {
    x: Tensor,
}

impl Rule for Square {
    fn operator(&self) -> &'static str {
        "square"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        vec![Saved::new("x", &self.x)]
    }

    fn backward_input(&mut self, outputs: ValueGradients, _: &[bool]) -> Result<ValueGradients> {
        let gradient = outputs.into_iter().flatten().next().unwrap().to_vec::<f32>()?;
        let x = self.x.to_vec::<f32>()?;
        let dx: Vec<f32> = x.iter().zip(&gradient).map(|(x, g)| 2.0 * x * g).collect();
        Ok(vec![Some(Tensor::from_host(self.x.device(), &dx, [dx.len()], Category::ActivationGradient)?)])
    }
}

#[test]
fn user_defined_operators_work_and_fan_out_gradients_add_up() {
    let device = cpu();
    let tape = Tape::new(&device, Mode::Train);
    let x = tape.leaf(tensor(&device, [3], 1));
    let squared: Vec<f32> = x.tensor().to_vec::<f32>().unwrap().iter().map(|v| v * v).collect();
    let y = Tensor::from_host(&device, &squared, [3], Category::Activation).unwrap();
    let saved = x.tensor().clone();
    let y = tape.record_one(&[x.source()], y, || Square { x: saved }).unwrap();
    // The mean squared error of (x² + x²) + x² against 0: mse' = 2/3 · 3x² · 3 · 2x.
    let twice = ops::add(&tape, y.clone(), y.clone()).unwrap();
    let thrice = ops::add(&tape, twice, y).unwrap();
    let zero = Tensor::from_host(&device, &[0.0_f32; 3], [3], Category::Input).unwrap();
    let root = ops::mse(&tape, thrice, &zero, 1.0).unwrap();
    let values = x.tensor().to_vec::<f32>().unwrap();
    let mut leaves = tape.backward(root, &mut Gradients::default()).unwrap();
    let gradient = leaves.take(x.source()).unwrap().to_vec::<f32>().unwrap();
    for (x, g) in values.iter().zip(&gradient) {
        let expected = 12.0 * x.powi(3);
        assert!((g - expected).abs() < 1e-5, "{g} {expected}");
    }
    assert!(leaves.take(x.source()).is_none());
}

/// A [`Square`] that adds its gradient to the offered sum.
struct AddingSquare {
    square: Square,
    sum: Option<Tensor>,
    offers: Rc<RefCell<usize>>,
}

impl Rule for AddingSquare {
    fn operator(&self) -> &'static str {
        "adding_square"
    }

    fn saved(&self) -> Vec<Saved<'_>> {
        self.square.saved()
    }

    fn take_sum(&mut self, sum: Tensor) -> Option<Tensor> {
        *self.offers.borrow_mut() += 1;
        self.sum = Some(sum);
        None
    }

    fn backward_input(&mut self, outputs: ValueGradients, wanted: &[bool]) -> Result<ValueGradients> {
        let own = self.square.backward_input(outputs, wanted)?;
        let Some(sum) = self.sum.take() else { return Ok(own) };
        own.iter().flatten().try_for_each(|own| tensor::ops::add::into(&sum, own))?;
        Ok(vec![Some(sum)])
    }
}

#[test]
fn rules_that_add_to_other_gradients_give_the_same_sum() {
    let device = cpu();
    let offers = Rc::new(RefCell::new(0));
    let gradient = |adds: bool| {
        let tape = Tape::new(&device, Mode::Train);
        let x = tape.leaf(tensor(&device, [3], 1));
        let squares = [0, 1].map(|_| {
            let y = tensor(&device, [3], 2);
            let square = Square { x: x.tensor().clone() };
            let recorded = match adds {
                true => tape.record_one(&[x.source()], y, || AddingSquare {
                    square,
                    sum: None,
                    offers: Rc::clone(&offers),
                }),
                false => tape.record_one(&[x.source()], y, || square),
            };
            recorded.unwrap()
        });
        let [one, other] = squares;
        let sum = ops::add(&tape, one, other).unwrap();
        let root = ops::mse(&tape, sum, &tensor(&device, [3], 3), 1.0).unwrap();
        let mut leaves = tape.backward(root, &mut Gradients::default()).unwrap();
        leaves.take(x.source()).unwrap().to_vec::<f32>().unwrap()
    };
    assert_eq!(gradient(true), gradient(false));
    // The rule that runs first finds no other gradient.
    assert_eq!(*offers.borrow(), 1);
}
