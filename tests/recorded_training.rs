//! Compares a two-layer GPT-2 and the five-layer MLP with recordings of PyTorch.

use crate::common::devices::computing;
use crate::common::{Recording, relative, tokens};
use autograd::{Gradients, Mode, Tape, UseId};
use device::{Backend, Category, DType, Device, DeviceOptions};
use nn::models::{Gpt, GptSizes, Mlp, MlpSizes, PositionKind};
use nn::{Input, Model, Parameters, Stage};
use optim::{Decay, GradientNorm, Optimizer, Schedule, Slot, StepState, UpdateRule};
use tensor::Tensor;
use tensor::ops::{self, Activation};

const SIZES: GptSizes = GptSizes {
    layers: 2,
    heads: 4,
    width: 32,
    context: 16,
    max_context: 0,
    positions: PositionKind::Learned,
    biases: true,
    tied: true,
    activation: Activation::Gelu,
    dropout: 0.0,
    vocabulary: 96,
    logit_soft_cap: 0.0,
    loss_pieces: 1,
    base_width: 0,
    base_head_width: 0,
};
const BATCH: usize = 3;
const POSITIONS: usize = 16;

fn tiny_gpt(device: &Device, recording: &Recording) -> Gpt {
    let gpt = Gpt::new(Parameters::new(device, 1, DType::F32), SIZES, &Stage::whole(SIZES.layers)).unwrap();
    recording.load(gpt.parameters(), "init.");
    gpt
}

fn slots(parameters: &Parameters) -> Vec<Slot> {
    let slot = |p: &nn::Parameter| Slot {
        name: p.name.clone(),
        weight: p.weight.tensor().unwrap(),
        decay: !p.role.is_vector(),
    };
    parameters.list().iter().map(slot).collect()
}

/// Returns the gradient of each parameter: the sum over its uses, in order.
fn by_parameter(parameters: &Parameters, gradients: &Gradients) -> Vec<Tensor> {
    let mut sums: Vec<Option<Tensor>> = vec![None; parameters.list().len()];
    for used in parameters.uses() {
        let gradient = gradients.get(used.id).unwrap();
        match &sums[used.parameter.0] {
            Some(sum) => ops::add::into(sum, gradient).unwrap(),
            None => sums[used.parameter.0] = Some(gradient.clone()),
        }
    }
    sums.into_iter().map(Option::unwrap).collect()
}

/// Returns a packed bias without the keys' part, whose true gradient is zero.
fn without_keys(values: &[f32]) -> Vec<f32> {
    let third = values.len() / 3;
    [&values[..third], &values[2 * third..]].concat()
}

#[test]
fn logits_loss_and_every_gradient_of_the_gpt_match_the_recording() {
    computing().iter().for_each(logits_loss_and_gradients);
}

fn logits_loss_and_gradients(device: &Device) {
    let recording = Recording::open();
    let gpt = tiny_gpt(device, &recording);
    let count = BATCH * POSITIONS;
    let inputs = tokens(device, &recording.integers("tokens")[..count], BATCH, POSITIONS);
    let targets = tokens(device, &recording.integers("targets")[..count], BATCH, POSITIONS);

    let tape = Tape::new(device, Mode::Evaluate);
    let prediction = gpt.forward(&tape, Input::Batch(inputs.clone())).unwrap();
    let logits = gpt.scores(&tape, prediction).unwrap().tensor().to_vec::<f32>().unwrap();
    assert!(relative(&logits, &recording.values("logits")) < 2e-5);
    let tape = Tape::new(device, Mode::Train);
    let prediction = gpt.forward(&tape, Input::Batch(inputs)).unwrap();
    let loss = gpt.loss(&tape, prediction, &targets, 1.0).unwrap();
    let loss_values = loss.tensor().to_vec::<f32>().unwrap();
    assert!(relative(&loss_values, &recording.values("loss_f64")) < 2e-5);

    let mut gradients = Gradients::default();
    tape.backward(loss, &mut gradients).unwrap();
    let summed = by_parameter(gpt.parameters(), &gradients);
    for (parameter, gradient) in gpt.parameters().list().iter().zip(&summed) {
        let mut actual = gradient.to_vec::<f32>().unwrap();
        let mut expected = recording.values(&format!("grad_f64.{}", parameter.name));
        if parameter.name.ends_with("attn_qkv.bias") {
            let third = expected.len() / 3;
            assert!(actual[third..2 * third].iter().all(|v| v.abs() < 1e-6), "{}", parameter.name);
            actual = without_keys(&actual);
            expected = [&expected[..third], &expected[2 * third..]].concat();
        }
        let error = relative(&actual, &expected);
        assert!(error < 2e-5, "{}: {error}", parameter.name);
    }
}

#[test]
fn twenty_adamw_steps_of_the_gpt_match_the_recording() {
    computing().iter().for_each(twenty_adamw_steps);
}

/// Returns the allowed distance from the recording, which PyTorch made on the CPU.
fn tolerance(device: &Device) -> f64 {
    if device.backend() == Backend::Cpu { 5e-6 } else { 2e-5 }
}

fn twenty_adamw_steps(device: &Device) {
    let tolerance = tolerance(device);
    let recording = Recording::open();
    let gpt = tiny_gpt(device, &recording);
    let slots = slots(gpt.parameters());
    let rule = UpdateRule::AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };
    let optimizer = Optimizer::new(device, &slots, rule).unwrap();
    let norm = GradientNorm::new(device, &slots, 1.0).unwrap();
    let schedule =
        Schedule { peak: 1e-3, start: 0, warmup_steps: 5, decay: Decay::Cosine { minimum: 1e-4, steps: 20 } };
    let count = BATCH * POSITIONS;
    let all_inputs = recording.integers("tokens");
    let all_targets = recording.integers("targets");
    let mut losses = Vec::new();
    let mut norms = Vec::new();
    for step in 0..20 {
        let range = step * count..(step + 1) * count;
        let inputs = tokens(device, &all_inputs[range.clone()], BATCH, POSITIONS);
        let targets = tokens(device, &all_targets[range], BATCH, POSITIONS);
        let tape = Tape::new(device, Mode::Train);
        let logits = gpt.forward(&tape, Input::Batch(inputs)).unwrap();
        let loss = gpt.loss(&tape, logits, &targets, 1.0).unwrap();
        losses.push(loss.tensor().to_vec::<f32>().unwrap()[0]);
        let mut gradients = Gradients::default();
        tape.backward(loss, &mut gradients).unwrap();
        let gradients = by_parameter(gpt.parameters(), &gradients);
        norm.measure(&gradients).unwrap();
        norms.push(norm.state().norm().unwrap());
        norm.state().set_learning_rate(schedule.rate(step as u64)).unwrap();
        optimizer.step(&gradients, norm.state()).unwrap();
    }
    let error = relative(&losses, &recording.values("adamw.losses"));
    assert!(error < tolerance, "losses {error}");
    let error = relative(&norms, &recording.values("adamw.grad_norms"));
    assert!(error < tolerance, "norms {error}");
    for parameter in gpt.parameters().list() {
        let actual = parameter.weight.tensor().unwrap().to_vec::<f32>().unwrap();
        let expected = recording.values(&format!("adamw.final.{}", parameter.name));
        if parameter.name.ends_with("attn_qkv.bias") {
            // The keys' true gradient is zero, so Adam amplifies rounding there.
            let third = expected.len() / 3;
            let keys = third..2 * third;
            let error = relative(&actual[keys.clone()], &expected[keys.clone()]);
            assert!(error < 1e-3, "{} keys: {error}", parameter.name);
            let rest = [&expected[..third], &expected[2 * third..]].concat();
            let error = relative(&without_keys(&actual), &rest);
            assert!(error < tolerance, "{}: {error}", parameter.name);
        } else {
            let error = relative(&actual, &expected);
            assert!(error < tolerance, "{}: {error}", parameter.name);
        }
    }
}

#[test]
fn ten_sgd_steps_of_the_mlp_match_the_recording() {
    computing().iter().for_each(ten_sgd_steps);
}

fn ten_sgd_steps(device: &Device) {
    let tolerance = tolerance(device);
    let recording = Recording::open();
    let sizes = MlpSizes { sizes: vec![3, 300, 300, 400, 300, 100], activation: Activation::None };
    let mlp = Mlp::new(Parameters::new(device, 1, DType::F32), &sizes, &Stage::whole(5)).unwrap();
    recording.load(mlp.parameters(), "mlp.init.");
    let slots = slots(mlp.parameters());
    let rule = UpdateRule::Sgd { momentum: 0.9, weight_decay: 0.0 };
    let optimizer = Optimizer::new(device, &slots, rule).unwrap();
    let state = StepState::new(device).unwrap();
    state.set_learning_rate(0.01).unwrap();
    let x = Tensor::from_host(device, &recording.floats("mlp.x"), [10, 3], Category::Input).unwrap();
    let y = Tensor::from_host(device, &recording.floats("mlp.y"), [10, 100], Category::Input).unwrap();
    let mut losses = Vec::new();
    for _ in 0..10 {
        let tape = Tape::new(device, Mode::Train);
        let prediction = mlp.forward(&tape, Input::Batch(x.clone())).unwrap();
        let loss = mlp.loss(&tape, prediction, &y, 1.0).unwrap();
        losses.push(loss.tensor().to_vec::<f32>().unwrap()[0]);
        let mut gradients = Gradients::default();
        tape.backward(loss, &mut gradients).unwrap();
        optimizer.step(&by_parameter(mlp.parameters(), &gradients), &state).unwrap();
    }
    let error = relative(&losses, &recording.values("mlp.losses"));
    assert!(error < tolerance, "losses {error}: {losses:?} {:?}", recording.values("mlp.losses"));
    for parameter in mlp.parameters().list() {
        let actual = parameter.weight.tensor().unwrap().to_vec::<f32>().unwrap();
        let error = relative(&actual, &recording.values(&format!("mlp.final.{}", parameter.name)));
        assert!(error < tolerance, "{}: {error}", parameter.name);
    }
}

#[test]
fn uses_of_a_tied_weight_keep_separate_gradients() {
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    let gpt = Gpt::new(Parameters::new(&device, 1, DType::F32), SIZES, &Stage::whole(SIZES.layers)).unwrap();
    let table = gpt.parameters().find("wte.weight").unwrap();
    let uses: Vec<UseId> =
        gpt.parameters().uses().iter().filter(|used| used.parameter == table).map(|used| used.id).collect();
    let count = gpt.parameters().uses().len() as u32;
    assert_eq!(uses, [UseId(0), UseId(count - 1)]);
}
