//! Loss, gradients and ten training steps of the recorded models, compared with transformers in float64.

use std::collections::BTreeMap;

use device::{DType, Device};
use nn::{Input, Model};
use optim::{GradientNorm, Optimizer, Slot, UpdateRule};
use serde_json::Value;
use tensor::Tensor;

use super::support::{
    IN_F32, MODELS, batch, by_parameter, config, devices, expected, folder, layout, load, pass,
};

/// Maximum relative errors in f32: of the loss, of a gradient's norm, of the loss in a later step.
const LOSS: f64 = 1e-6;
const NORM: f64 = 1e-4;
const LATER: f64 = 1e-4;
/// As `LATER`, for a model whose loss in the tenth step moves by as much if one weight moves by one bit.
const LATER_IF_SENSITIVE: (&str, f64) = ("families/gemma4", 1e-3);
/// Maximum relative error of a loss in half precision.
const ROUGH: f64 = 1e-2;

fn distance(actual: f64, expected: &Value) -> f64 {
    let expected = expected.as_f64().unwrap();
    (actual - expected).abs() / expected.abs()
}

#[test]
fn losses_and_gradients_match_transformers() {
    for (name, device) in
        MODELS.iter().chain(IN_F32).flat_map(|name| devices().into_iter().map(move |d| (name, d)))
    {
        let expected = expected(name);
        let model = load(&folder(name), &device, DType::F32);
        let (loss, gradients) = pass(&*model, &batch(name, &device));
        let error = distance(loss.into(), &expected["loss"]);
        assert!(error < LOSS, "{name} on {device:?}: loss {loss}, {error}");
        let gradients = by_parameter(&*model, &gradients);
        let tensors = layout(&config(&folder(name)).unwrap()).tensors;
        let mut squares = BTreeMap::<String, f64>::new();
        for tensor in &tensors {
            // The corrections of routers are no parameters.
            let Some(parameter) = model.parameters().find(&tensor.parameter) else { continue };
            let gradient = &gradients[parameter.0];
            let [rows, columns] = tensor.rows_and_columns();
            let part = gradient.view(tensor.first_row * columns, [rows * columns]).unwrap();
            let own = part.to_vec::<f32>().unwrap().iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
            let mut recorded = recorded_name(&tensor.name);
            if *name == "families/kimi-linear" {
                let decays = ["A_log", "dt_bias", "f_a_proj", "f_b_proj"];
                for part in decays.map(|part| format!("self_attn.{part}")) {
                    recorded = recorded.replace(&part, &part.replace('.', ".forget_gate."));
                }
            }
            *squares.entry(recorded).or_default() += own;
        }
        assert_eq!(squares.len(), expected["gradient_norms"].as_object().unwrap().len());
        for (tensor, squares) in squares {
            let error = distance(squares.sqrt(), &expected["gradient_norms"][&tensor]);
            assert!(error < NORM, "{name} on {device:?}: {tensor}: {error}");
        }
    }
}

/// Returns the name under which the norm of a tensor's gradient is recorded: transformers join the experts of
/// a layer, and the convolutions of queries, keys and values.
fn recorded_name(name: &str) -> String {
    let renamed = [
        ("block_sparse_moe", "mlp"),
        ("attention_layer_norm", "input_layernorm"),
        ("feedforward_layer_norm", "post_attention_layernorm"),
        ("q_conv1d", "conv1d"),
        ("k_conv1d", "conv1d"),
        ("v_conv1d", "conv1d"),
        ("backbone.", "model."),
    ];
    // Nemotron-H has experts without gates.
    let first = if name.starts_with("backbone.") { "up_proj" } else { "gate_up_proj" };
    let name = renamed.into_iter().fold(name.to_owned(), |name, (part, other)| name.replace(part, other));
    let Some((layer, tensor)) = name.split_once(".experts.") else { return name };
    let part = match tensor.split('.').nth(1) {
        Some("gate_proj" | "up_proj" | "w1" | "w3") => first,
        Some("down_proj" | "w2") => "down_proj",
        _ => tensor,
    };
    format!("{layer}.experts.{part}")
}

#[test]
fn logits_match_transformers() {
    for (name, device) in
        MODELS.iter().chain(IN_F32).flat_map(|name| devices().into_iter().map(move |d| (name, d)))
    {
        let expected = expected(name);
        let model = load(&folder(name), &device, DType::F32);
        let tape = autograd::Tape::new(&device, autograd::Mode::Evaluate);
        let [inputs, _] = batch(name, &device);
        let [rows, context] = [inputs.shape().dims()[0], inputs.shape().dims()[1]];
        let prediction = model.forward(&tape, Input::Batch(inputs)).unwrap();
        let logits = model.scores(&tape, prediction).unwrap().into_tensor();
        let classes = logits.shape().columns();
        let values = logits.to_vec::<f32>().unwrap();
        let last: Vec<_> =
            (0..context).map(|at| &values[((rows - 1) * context + at) * classes..][..classes]).collect();
        let first: Vec<_> = (0..context).map(|at| &values[at * classes..][..classes]).collect();
        let likeliest = |row: &&[f32]| (0..classes).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
        let actual = |rows: &[&[f32]]| rows.iter().map(likeliest).map(Value::from).collect::<Vec<_>>();
        let argmax = expected["argmax"].as_array().unwrap();
        assert!([actual(&first), actual(&last)].contains(argmax), "{name} on {device:?}");
        let logits = expected["last_logits"].as_array().unwrap();
        let near = |row: &[f32]| {
            row.iter().zip(logits).all(|(v, e)| (f64::from(*v) - e.as_f64().unwrap()).abs() < 1e-4)
        };
        assert!(near(first[context - 1]) || near(last[context - 1]), "{name} on {device:?}");
    }
}

/// Models that are trained on the CPU too: whole runs (`tests/hugging_face`) train all of them there.
const TRAINED: [&str; 3] = ["gpt2", "qwen3", "families/deepseek-v3"];

#[test]
fn ten_steps_of_adamw_match_transformers() {
    let trained = |(name, device): &(&&str, Device)| device.is_cuda_like() || TRAINED.contains(*name);
    let all = MODELS.iter().chain(IN_F32).flat_map(|name| devices().into_iter().map(move |d| (name, d)));
    for (name, device) in all.filter(trained) {
        let expected = expected(name);
        let model = load(&folder(name), &device, DType::F32);
        let batch = batch(name, &device);
        let losses = adamw(&*model, &batch, &expected["adamw"]);
        for (step, (loss, expected)) in
            losses.iter().zip(expected["adamw"]["losses"].as_array().unwrap()).enumerate()
        {
            let error = distance(f64::from(*loss), expected);
            let (sensitive, later) = LATER_IF_SENSITIVE;
            let most = if *name == sensitive { later } else { LATER };
            assert!(error < most, "{name} on {device:?}: step {step}: {loss}, {error}");
        }
    }
}

fn adamw(model: &dyn Model, batch: &[Tensor; 2], options: &Value) -> Vec<f32> {
    let number = |key: &str| options[key].as_f64().unwrap() as f32;
    let slot = |p: &nn::Parameter| Slot {
        name: p.name.clone(),
        weight: p.weight.tensor().unwrap(),
        decay: !p.role.is_vector(),
    };
    let slots: Vec<_> = model.parameters().list().iter().map(slot).collect();
    let rule = UpdateRule::AdamW {
        beta1: 0.9,
        beta2: number("beta2"),
        epsilon: 1e-8,
        weight_decay: number("weight_decay"),
    };
    let optimizer = Optimizer::new(batch[0].device(), &slots, rule).unwrap();
    let norm = GradientNorm::new(batch[0].device(), &slots, number("clip")).unwrap();
    let step = |_| {
        let (loss, gradients) = pass(model, batch);
        let gradients = by_parameter(model, &gradients);
        norm.measure(&gradients).unwrap();
        norm.state().set_learning_rate(number("lr")).unwrap();
        optimizer.step(&gradients, norm.state()).unwrap();
        loss
    };
    (0..options["losses"].as_array().unwrap().len()).map(step).collect()
}

#[test]
fn losses_in_half_precision_are_close() {
    for (name, device) in MODELS.iter().flat_map(|name| devices().into_iter().map(move |d| (name, d))) {
        for dtype in [DType::Bf16, DType::F16] {
            let model = load(&folder(name), &device, dtype);
            let [inputs, targets] = batch(name, &device);
            let tape = autograd::Tape::new(&device, autograd::Mode::Evaluate);
            let prediction = model.forward(&tape, Input::Batch(inputs)).unwrap();
            let loss = model.loss(&tape, prediction, &targets, 1.0).unwrap();
            let loss = loss.tensor().to_vec::<f32>().unwrap()[0];
            let error = distance(loss.into(), &expected(name)["loss"]);
            assert!(error < ROUGH, "{name} in {dtype} on {device:?}: loss {loss}, {error}");
        }
    }
}
