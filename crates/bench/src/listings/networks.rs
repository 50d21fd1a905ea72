//! Memory listings of small networks: of a forward pass, of kept graphs, and of ten epochs of training.

use autograd::{Gradients, Mode, Tape, Var};
use device::{Category, DType, Device};
use nn::models::{Mlp, MlpSizes};
use nn::{Input, Model, Parameter, Parameters, Stage};
use optim::{Optimizer, Slot, StepState, UpdateRule};
use tensor::Tensor;
use tensor::ops::Activation;

use super::taken::{Listing, PyTorchFigures, Taken, computed, measured, printed};
use crate::error::Result;

/// Number of graphs in a listing: one keeps them, another frees each in backward.
const GRAPHS: usize = 4;
const EPOCHS: usize = 10;
/// Bytes of the smallest segment that the allocator takes from the driver.
const SEGMENT: u64 = 2_097_152;

fn network(device: &Device, sizes: &[usize], activation: Activation) -> Result<Mlp> {
    let mlp_sizes = MlpSizes { sizes: sizes.to_vec(), activation };
    let stage = Stage::whole(sizes.len().saturating_sub(1));
    Ok(Mlp::new(Parameters::new(device, 1, DType::F32), &mlp_sizes, &stage)?)
}

fn five(device: &Device) -> Result<Mlp> {
    network(device, &[3, 300, 300, 400, 300, 100], Activation::Relu)
}

/// Copies constant inputs and targets of `rows` samples to the device.
fn batch(device: &Device, rows: usize, inputs: usize, targets: usize) -> Result<(Tensor, Tensor)> {
    let values = |count: usize, value: f32| vec![value; rows * count];
    let copy =
        |values: &[f32], count: usize| Tensor::from_host(device, values, [rows, count], Category::Input);
    Ok((copy(&values(inputs, 0.5), inputs)?, copy(&values(targets, 0.25), targets)?))
}

pub(super) fn five_layers(device: &Device) -> Result<Listing> {
    let mut taken = Taken::begin(device, "a network of five layers: 10 × 3 inputs, 10 × 100 targets")?;
    let (inputs, targets) = batch(device, 10, 3, 100)?;
    taken.row("inputs and targets", measured(4_608, SEGMENT));
    let before = taken.now();
    let model = five(device)?;
    taken.count("parameters, bytes", printed(1_449_200, None), taken.now().requested - before.requested);
    taken.row("and the network", measured(1_457_152, SEGMENT));
    let before = taken.now();
    let tape = Tape::new(device, Mode::Train);
    let prediction = model.forward(&tape, Input::Batch(inputs))?;
    taken.row("after the forward pass", printed(1_514_496, None));
    let grown = taken.now();
    let activations = grown.requested - before.requested;
    taken.count("activations, elements", printed(14_000, None), activations / DType::F32.bytes() as u64);
    taken.count("activations, bytes", printed(56_000, None), activations);
    taken.count("activations, bytes of blocks", measured(57_344, None), grown.allocated - before.allocated);
    let loss = model.loss(&tape, prediction, &targets, 1.0)?;
    taken.row("with the loss", computed(1_514_496 + 512, SEGMENT));
    let mut gradients = Gradients::default();
    tape.backward(loss, &mut gradients)?;
    drop((gradients, targets));
    taken.row("after backward, without batch and gradients", computed(1_457_152 - 4_608, None));
    Ok(taken.listing)
}

/// Runs a step of the five-layer network up to its loss.
fn forward(device: &Device, model: &Mlp) -> Result<(Tape, Var)> {
    let (inputs, targets) = batch(device, 10, 3, 100)?;
    let tape = Tape::new(device, Mode::Train);
    let prediction = model.forward(&tape, Input::Batch(inputs))?;
    let loss = model.loss(&tape, prediction, &targets, 1.0)?;
    Ok((tape, loss))
}

pub(super) fn graphs(device: &Device) -> Result<Listing> {
    let mut taken =
        Taken::begin(device, "losses of that network: their graphs kept, and consumed by backward")?;
    let model = five(device)?;
    let before = taken.now().allocated;
    let mut graphs = Vec::new();
    for number in 1..=GRAPHS {
        graphs.push(forward(device, &model)?);
        taken.count(format!("growth with {number} kept"), None, taken.now().allocated - before);
    }
    drop(graphs);
    for number in 1..=GRAPHS {
        let (tape, loss) = forward(device, &model)?;
        tape.backward(loss, &mut Gradients::default())?;
        let growth = taken.now().allocated - before;
        taken.count(format!("growth with {number} consumed"), computed(0, None), growth);
    }
    Ok(taken.listing)
}

/// Moments of an epoch, each with the bytes that PyTorch has allocated beyond the network and its optimizer.
const MOMENTS: [(&str, u64); 6] = [
    ("forward", 7_168),
    ("loss", 7_680),
    ("backward", 4_608),
    ("step", 4_608),
    ("loss and output dropped", 3_584),
    ("zero_grad", 0),
];

pub(super) fn ten_epochs(device: &Device) -> Result<Listing> {
    let mut taken =
        Taken::begin(device, "a network of 10–50–1 without activations, 32 samples, SGD, ten epochs")?;
    let batch = batch(device, 32, 10, 1)?;
    taken.row("inputs and targets", computed(2_048, SEGMENT));
    let before = taken.now().allocated;
    let model = network(device, &[10, 50, 1], Activation::None)?;
    taken.count("growth with the network", measured(3_584, None), taken.now().allocated - before);
    let slot = |p: &Parameter| {
        Ok(Slot { name: p.name.clone(), weight: p.weight.tensor()?, decay: !p.role.is_vector() })
    };
    let slots = model.parameters().list().iter().map(slot).collect::<Result<Vec<_>>>()?;
    let optimizer = Optimizer::new(device, &slots, UpdateRule::Sgd { momentum: 0.0, weight_decay: 0.0 })?;
    let state = StepState::new(device)?;
    state.set_learning_rate(0.01)?;
    let before = taken.now().allocated;
    let mut epochs = Vec::new();
    for _ in 0..EPOCHS {
        epochs.push(epoch(&taken, (&model, &optimizer, &state), &batch)?);
    }
    for (index, (moment, pytorch)) in MOMENTS.into_iter().enumerate() {
        let growth: Vec<u64> = epochs.iter().map(|epoch| epoch[index] - before).collect();
        rows_of_epochs(&mut taken, moment, measured(pytorch, None), &growth);
    }
    Ok(taken.listing)
}

/// Trains one epoch of one step. Returns the bytes allocated at each of [`MOMENTS`].
fn epoch(
    taken: &Taken<'_>,
    (model, optimizer, state): (&Mlp, &Optimizer, &StepState),
    (inputs, targets): &(Tensor, Tensor),
) -> Result<[u64; MOMENTS.len()]> {
    let now = || taken.now().allocated;
    let tape = Tape::new(taken.device, Mode::Train);
    let prediction = model.forward(&tape, Input::Batch(inputs.clone()))?;
    let forward = now();
    // As in a program with local variables, output and loss outlive the graph.
    let output = prediction.tensor().clone();
    let loss = model.loss(&tape, prediction, targets, 1.0)?;
    let with_loss = now();
    let value = loss.tensor().clone();
    let mut gradients = Gradients::default();
    tape.backward(loss, &mut gradients)?;
    let backward = now();
    let list: Vec<Tensor> = gradients.iter().map(|(_, tensor)| tensor.clone()).collect();
    optimizer.step(&list, state)?;
    let step = now();
    drop((output, value));
    let dropped = now();
    drop((list, gradients));
    Ok([forward, with_loss, backward, step, dropped, now()])
}

/// Adds one row for each range of epochs with equal figures.
fn rows_of_epochs(taken: &mut Taken<'_>, moment: &str, pytorch: Option<PyTorchFigures>, growth: &[u64]) {
    let mut first = 1;
    for equal in growth.chunk_by(|a, b| a == b) {
        let last = first + equal.len() - 1;
        let epochs =
            if first == last { format!("epoch {first}") } else { format!("epochs {first} to {last}") };
        taken.count(format!("growth, {epochs}: {moment}"), pytorch, equal[0]);
        first = last + 1;
    }
}
