//! Buffers of a model: which passes may change them, and their memory category.

use autograd::{Gradients, Mode, Tape, Var, ops};
use device::{Category, DType, Device, DeviceOptions};
use nn::layers::{Activation, Layer, Linear, Stack};
use nn::{Init, ModelBuffer, Parameters, Recompute};
use tensor::Tensor;

const WIDTH: usize = 3;

/// A linear layer that counts its training passes, and stores the first element of the last input.
struct Counting {
    linear: Linear,
    passes: ModelBuffer,
    seen: ModelBuffer,
}

impl Counting {
    fn new(parameters: &mut Parameters, name: &str) -> nn::Result<Self> {
        let init = Init::uniform_fan_in(WIDTH);
        let linear = Linear::new(parameters, name, WIDTH, WIDTH, init, Activation::Gelu)?;
        let passes = parameters.create_buffer(&format!("{name}.passes"), [1], &[0u32])?;
        let seen = parameters.create_buffer(&format!("{name}.seen"), [1], &[f32::NAN])?;
        Ok(Counting { linear, passes, seen })
    }
}

impl Layer for Counting {
    type Stream = Var;

    fn forward(&self, tape: &Tape, x: Var) -> nn::Result<Var> {
        if let (Some(passes), Some(seen)) = (self.passes.to_update(tape), self.seen.to_update(tape)) {
            passes.set(&[passes.to_vec::<u32>()?[0] + 1])?;
            seen.set(&x.tensor().to_vec::<f32>()?[..1])?;
        }
        self.linear.forward(tape, x)
    }
}

fn device() -> Device {
    Device::cpu(0, &DeviceOptions::default()).unwrap()
}

#[test]
fn only_training_passes_change_buffers_and_recomputed_layers_count_once() {
    let device = device();
    let table = [
        (Mode::Train, Recompute::NONE, 1),
        (Mode::Train, Recompute::EACH, 1),
        (Mode::Train, Recompute::first(1, 1), 1),
        (Mode::Rehearse, Recompute::NONE, 0),
        (Mode::Rehearse, Recompute::EACH, 0),
        (Mode::Evaluate, Recompute::NONE, 0),
        (Mode::Evaluate, Recompute::EACH, 0),
    ];
    for (mode, recompute, counts) in table {
        let mut parameters = Parameters::new(&device, 1, DType::F32);
        let layer = |number: usize| Counting::new(&mut parameters, &number.to_string()).unwrap();
        let stack = Stack::new((0..2).map(layer).collect()).recomputing(recompute);
        for pass in 1..=2 {
            let tape = Tape::new(&device, mode);
            let values = [pass as f32; 2 * WIDTH];
            let x = Tensor::from_host(&device, &values, [2, WIDTH], Category::Input).unwrap();
            let targets = Tensor::from_host(&device, &values, [2, WIDTH], Category::Input).unwrap();
            let output = stack.forward(&tape, tape.leaf(x)).unwrap();
            let loss = ops::mse(&tape, output, &targets, 1.0).unwrap();
            if mode.is_training() {
                tape.backward(loss, &mut Gradients::default()).unwrap();
            }
            let [first, second] = [0, 2].map(|at| parameters.buffers()[at].tensor().to_vec::<u32>().unwrap());
            assert_eq!((first, second), (vec![counts * pass], vec![counts * pass]), "{mode:?} {recompute:?}");
            let seen = parameters.buffers()[1].tensor().to_vec::<f32>().unwrap()[0];
            assert!(if counts == 0 { seen.is_nan() } else { seen == pass as f32 }, "{mode:?} {recompute:?}");
        }
    }
}

#[test]
fn buffers_have_a_category_and_no_use() {
    let device = device();
    let mut parameters = Parameters::new(&device, 1, DType::F32);
    Counting::new(&mut parameters, "0").unwrap();
    let names: Vec<_> = parameters.buffers().iter().map(ModelBuffer::name).collect();
    assert_eq!(names, ["0.passes", "0.seen"]);
    assert_eq!((parameters.list().len(), parameters.uses().len()), (2, 2));
    assert_eq!(parameters.elements(), WIDTH * WIDTH + WIDTH);
    let live = device.with_allocator(|allocator| allocator.category_bytes());
    assert_eq!(live.get(Category::Buffer), 2 * 512);
}

#[test]
fn names_are_unique_and_values_match_the_shape() {
    let device = device();
    let mut parameters = Parameters::new(&device, 1, DType::F32);
    parameters.create_buffer("mean", [2], &[0.0f32; 2]).unwrap();
    parameters.create("weight", [2], Init::Constant(0.0)).unwrap();
    let message = |error: nn::NnError| error.to_string();
    let taken = "made twice";
    assert_eq!(
        message(parameters.create_buffer("mean", [2], &[0.0f32; 2]).unwrap_err()),
        format!("mean: {taken}")
    );
    assert_eq!(
        message(parameters.create_buffer("weight", [2], &[0u32; 2]).unwrap_err()),
        format!("weight: {taken}")
    );
    assert_eq!(
        message(parameters.create("mean", [2], Init::Constant(0.0)).unwrap_err()),
        format!("mean: {taken}")
    );
    let short = message(parameters.create_buffer("short", [2], &[0.0f32]).unwrap_err());
    assert!(short.starts_with("short: "), "{short}");
    assert_eq!(parameters.buffers().len(), 1);
}
