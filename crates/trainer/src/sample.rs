//! Text from a model, on the host: a copy of its weights on a device of their own, so that the run's figures stay.

use autograd::Tape;
use data::{MicroBatch, Source, TextSource};
use device::{Category, Device, DeviceOptions};
use nn::{Input, Model, Parameters};
use tensor::Tensor;

use crate::build;
use crate::config::{self, RunConfig};
use crate::error::Result;

/// Tokens of the held-out text that a sample starts from.
const PROMPT: usize = 24;
/// Probabilities are sharpened a little: the usual compromise between dull and wild.
const TEMPERATURE: f64 = 0.8;

/// Continues the opening of the held-out text by `count` tokens: (prompt, continuation). `None` for a model or data
/// without text. Tokens are drawn from Philox keyed by the run's seed, so a model always says the same.
pub(crate) fn sample(
    config: &RunConfig,
    text: Option<&TextSource>,
    trained: &Parameters,
    count: usize,
) -> Result<Option<(String, String)>> {
    let (Some(text), config::Model::Gpt(gpt)) = (text, &config.model) else { return Ok(None) };
    let device = Device::cpu(0, &DeviceOptions::default())?;
    let model = build::model(config, &device)?;
    for (copy, original) in model.parameters().list().iter().zip(trained.list()) {
        copy.tensor.set(&original.tensor.to_vec::<f32>()?)?;
    }
    let mut batch = MicroBatch::default();
    text.validation(0, &mut batch)?;
    let mut tokens = batch.inputs.tokens()?[..PROMPT.min(gpt.context)].to_vec();
    let prompt = text.tokenizer().decode(&tokens);
    let start = tokens.len();
    let key = philox::key_of_name(config.train.seed, "sample");
    for index in 0..count {
        let window = &tokens[tokens.len().saturating_sub(gpt.context)..];
        let logits = last_logits(&device, &*model, window)?;
        let word = philox::philox4x32(key, [index as u32, 0, 0, 0])[0];
        tokens.push(draw(&logits, philox::uniform(word)));
    }
    Ok(Some((prompt, text.tokenizer().decode(&tokens[start..]))))
}

fn last_logits(device: &Device, model: &dyn Model, window: &[u32]) -> Result<Vec<f32>> {
    let tokens = Tensor::from_host(device, window, [1, window.len()], Category::Input)?;
    let tape = Tape::no_grad(device);
    let logits = model.forward(&tape, Input::Batch(tokens))?.into_tensor();
    let classes = logits.shape().columns();
    Ok(logits.view(logits.elements() - classes, [classes])?.to_vec::<f32>()?)
}

/// The class at `point`, in 0..1, of the cumulated softmax at the sampling temperature.
fn draw(logits: &[f32], point: f32) -> u32 {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |logit: &f32| (f64::from(logit - top) / TEMPERATURE).exp();
    let mut left = f64::from(point) * logits.iter().map(weight).sum::<f64>();
    for (class, logit) in logits.iter().enumerate() {
        left -= weight(logit);
        if left <= 0.0 {
            return class as u32;
        }
    }
    logits.len().saturating_sub(1) as u32
}
