//! Layers in configurations that no model uses: gradients by finite differences, and residual streams with
//! any norm.

use std::collections::BTreeSet;
use std::sync::Arc;

use autograd::{Gradients, Mode, Tape, Var, Weight, ops};
use device::{Category, DType, Device, DeviceOptions};
use nn::layers::{
    Activation, CausalSelfAttention, Embedding, Heads, Layer, LayerNorm, Linear, Norm, Qkv, Residual, Stack,
    Stream,
};
use nn::{Init, Parameters, Recompute, Result};
use tensor::Tensor;

const BATCH: usize = 2;
const TIME: usize = 5;
const WIDTH: usize = 12;

fn parameters() -> Parameters {
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    Parameters::new(&device, 3, DType::F32)
}

fn tensor<const N: usize>(device: &Device, name: &str, shape: [usize; N]) -> Tensor {
    let tensor = Tensor::from_host(device, &vec![0.0f32; shape.iter().product()], shape, Category::Input);
    let tensor = tensor.unwrap();
    tensor::ops::random::normal(&tensor, 7, name, 0.0, 1.0).unwrap();
    tensor
}

type Forward = Box<dyn Fn(&Tape) -> Result<Var>>;
type Build = fn(&mut Parameters) -> Result<Forward>;

/// Creates a constant input `[BATCH, TIME, WIDTH]`.
fn input(parameters: &Parameters) -> Tensor {
    tensor(parameters.device(), "x", [BATCH, TIME, WIDTH])
}

fn linear(parameters: &mut Parameters, name: &str, outputs: usize, bias: bool) -> Result<Linear> {
    let make = if bias { Linear::new } else { Linear::without_bias };
    make(parameters, name, WIDTH, outputs, Init::uniform_fan_in(WIDTH), Activation::None)
}

fn linear_without_bias(parameters: &mut Parameters) -> Result<Forward> {
    let x = input(parameters);
    let layer = linear(parameters, "plain", 7, false)?;
    assert_eq!(parameters.list().len(), 1);
    Ok(Box::new(move |tape| layer.forward(tape, tape.constant(x.clone()))))
}

fn tokens_alone(parameters: &mut Parameters) -> Result<Forward> {
    let ids: Vec<u32> = (0..BATCH * TIME).map(|at| (at * at % 7) as u32).collect();
    let tokens = Tensor::from_host(parameters.device(), &ids, [BATCH, TIME], Category::Input)?;
    let layer = Embedding::new(parameters, "tokens", [7, WIDTH], Init::Normal(1.0))?;
    assert_eq!(parameters.list().len(), 1);
    Ok(Box::new(move |tape| layer.forward(tape, &tokens)))
}

/// Builds attention with separate projections and `key_value` heads for 4 query heads.
fn separate(parameters: &mut Parameters, key_value: usize, bias: bool) -> Result<Forward> {
    let heads = Heads::grouped(4, key_value, WIDTH / 4);
    let x = input(parameters);
    let queries = linear(parameters, "q", heads.query_columns(), bias)?;
    let keys = linear(parameters, "k", heads.key_columns(), bias)?;
    let values = linear(parameters, "v", heads.value_columns(), bias)?;
    let output = linear(parameters, "o", WIDTH, false)?;
    let layer = CausalSelfAttention::new(Qkv::Separate([queries, keys, values]), output, heads);
    Ok(Box::new(move |tape| layer.forward(tape, tape.constant(x.clone()))))
}

/// Builds attention with one projection for 4 query heads and 2 key and value heads.
fn packed(parameters: &mut Parameters) -> Result<Forward> {
    let heads = Heads::grouped(4, 2, WIDTH / 4);
    let x = input(parameters);
    let qkv = linear(parameters, "qkv", heads.packed_columns(), true)?;
    let output = linear(parameters, "o", WIDTH, true)?;
    let layer = CausalSelfAttention::new(Qkv::Packed(qkv), output, heads);
    Ok(Box::new(move |tape| layer.forward(tape, tape.constant(x.clone()))))
}

/// Returns a loss with the gradients of all parameters, in order.
fn loss(parameters: &Parameters, forward: impl Fn(&Tape) -> Result<Var>) -> (f64, Vec<Vec<f32>>) {
    let tape = Tape::new(parameters.device(), Mode::Train);
    let prediction = forward(&tape).unwrap();
    let target = tensor(parameters.device(), "target", [prediction.tensor().elements()]);
    let target = target.reshape(prediction.tensor().shape()).unwrap();
    let loss = ops::mse(&tape, prediction, &target, 1.0).unwrap();
    let value = f64::from(loss.tensor().to_vec::<f32>().unwrap()[0]);
    let mut gradients = Gradients::default();
    tape.backward(loss, &mut gradients).unwrap();
    (value, gradients.iter().map(|(_, gradient)| gradient.to_vec().unwrap()).collect())
}

#[test]
fn gradients_match_finite_differences() {
    let table: [(&str, Build); 6] = [
        ("linear without bias", linear_without_bias),
        ("tokens without positions", tokens_alone),
        ("a key and value head each", |parameters| separate(parameters, 4, true)),
        ("grouped heads", |parameters| separate(parameters, 2, true)),
        ("one key and value head, no biases", |parameters| separate(parameters, 1, false)),
        ("grouped heads, packed", packed),
    ];
    for (what, build) in table {
        let mut parameters = parameters();
        let forward = build(&mut parameters).unwrap();
        let (_, gradients) = loss(&parameters, &forward);
        assert_eq!(gradients.len(), parameters.list().len(), "{what}");
        for (parameter, gradient) in parameters.list().iter().zip(&gradients) {
            const STEP: f32 = 1e-2;
            let start: Vec<f32> = parameter.weight.tensor().unwrap().to_vec().unwrap();
            let direction: Vec<f32> =
                tensor(parameters.device(), "direction", [start.len()]).to_vec().unwrap();
            let at = |step: f32| {
                let moved: Vec<f32> = start.iter().zip(&direction).map(|(s, d)| s + step * d).collect();
                parameter.weight.tensor().unwrap().set(&moved).unwrap();
                loss(&parameters, &forward).0
            };
            // Fourth order, so that the step is large enough for f32 rounding not to matter.
            let near = at(STEP) - at(-STEP);
            let far = at(2.0 * STEP) - at(-2.0 * STEP);
            parameter.weight.tensor().unwrap().set(&start).unwrap();
            let expected = (8.0 * near - far) / (12.0 * f64::from(STEP));
            let actual: f64 = gradient.iter().zip(&direction).map(|(g, d)| f64::from(g * d)).sum();
            let size = gradient.iter().map(|g| f64::from(g * g)).sum::<f64>().sqrt();
            let name = &parameter.name;
            assert!((actual - expected).abs() <= 1e-3 * size.max(0.1), "{what} {name}: {actual} {expected}");
        }
    }
}

/// A user-defined norm that adds the branch in a separate operator.
struct TwoOperators {
    weight: Weight,
    bias: Weight,
}

impl Norm for TwoOperators {
    fn forward_residual(&self, tape: &Tape, residual: Var, branch: Option<Var>) -> Result<(Var, Var)> {
        let sum = match branch {
            Some(branch) => ops::add(tape, residual, branch)?,
            None => residual,
        };
        Ok((sum.clone(), ops::layer_norm(tape, sum, &self.weight, Some(&self.bias), 1e-5)?))
    }
}

/// A block unlike GPT-2's: one branch after any norm.
struct OneBranch<N> {
    norm: N,
    branch: Linear,
}

impl<N: Norm> Layer for OneBranch<N> {
    type Stream = Residual;

    fn forward(&self, tape: &Tape, stream: Residual) -> Result<Residual> {
        let (sum, normalised) = stream.normalise(tape, &self.norm)?;
        Ok(Residual::pending(sum, self.branch.forward(tape, normalised)?))
    }
}

/// Returns loss and gradients of four blocks, divided into segments by `recompute`.
fn blocks<N: Norm + 'static>(
    norm: impl Fn(&mut Parameters, &str) -> Result<N>,
    recompute: Recompute,
) -> (f64, Vec<Vec<f32>>) {
    let mut parameters = parameters();
    let block = |number: usize| {
        let norm = norm(&mut parameters, &format!("{number}.norm"))?;
        let branch = linear(&mut parameters, &format!("{number}.branch"), WIDTH, false)?;
        Ok(OneBranch { norm, branch })
    };
    let stack = Stack::new((0..4).map(block).collect::<Result<Vec<_>>>().unwrap()).recomputing(recompute);
    let x = input(&parameters);
    loss(&parameters, |tape| stack.forward(tape, Residual::new(tape.constant(x.clone())))?.close(tape))
}

#[test]
fn streams_with_any_norm_may_be_cut_between_blocks() {
    let fused = |parameters: &mut Parameters, name: &str| LayerNorm::new(parameters, name, WIDTH);
    let apart = |parameters: &mut Parameters, name: &str| {
        let weight = parameters.create(&format!("{name}.weight"), [WIDTH], Init::Constant(1.0))?;
        let bias = parameters.create(&format!("{name}.bias"), [WIDTH], Init::Constant(0.0))?;
        Ok(TwoOperators { weight, bias })
    };
    let whole_fused = blocks(fused, Recompute::NONE);
    let whole_apart = blocks(apart, Recompute::NONE);
    assert_eq!(whole_fused.0, whole_apart.0, "a fused sum rounds like a separate one");
    for recompute in [Recompute::EACH, Recompute::first(4, 2), Recompute::first(3, 1)] {
        assert_eq!(blocks(fused, recompute), whole_fused, "fused, {recompute:?}");
        assert_eq!(blocks(apart, recompute), whole_apart, "apart, {recompute:?}");
    }
}

/// Blocks that change the shape, as in a convolutional network.
#[test]
fn blocks_may_change_the_shape_of_the_stream() {
    let mut parameters = parameters();
    let widths = [WIDTH, 20, 20, 6, 3];
    let layer = |(number, pair): (usize, &[usize])| {
        let init = Init::uniform_fan_in(pair[0]);
        Linear::new(&mut parameters, &number.to_string(), pair[0], pair[1], init, Activation::Relu)
    };
    let layers: Vec<_> = widths.windows(2).enumerate().map(layer).collect::<Result<_>>().unwrap();
    let x = input(&parameters);
    let stack = Stack::new(layers);
    let run = |stack: &Stack<Linear>| {
        loss(&parameters, |tape| {
            let out = stack.forward(tape, tape.constant(x.clone()))?;
            assert_eq!(out.tensor().shape(), [BATCH, TIME, 3].into());
            out.close(tape)
        })
    };
    let whole = run(&stack);
    assert_eq!(run(&stack.recomputing(Recompute::EACH)), whole);
}

#[test]
fn values_that_are_replaced_are_not_drawn_and_others_do_not_change() {
    let values = |undrawn: &[&str]| {
        let names: BTreeSet<String> = undrawn.iter().map(ToString::to_string).collect();
        let mut parameters = parameters().without_drawing(Arc::new(names));
        for name in ["first", "second", "third"] {
            parameters.create(name, [WIDTH, WIDTH], Init::uniform_fan_in(WIDTH)).unwrap();
        }
        let values = |parameter: &nn::Parameter| parameter.weight.tensor().unwrap().to_vec::<f32>().unwrap();
        parameters.list().iter().map(values).collect::<Vec<_>>()
    };
    let [drawn, partly] = [values(&[]), values(&["second", "other"])];
    assert_eq!([&partly[0], &partly[2]], [&drawn[0], &drawn[2]]);
    assert!(partly[1].iter().all(|value| *value == 0.0));
    assert!(drawn[1].iter().any(|value| *value != 0.0));
}
