//! Text from a model, on the host: its weights on a device of their own, so that a run's figures stay.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use autograd::{Mode, Tape};
use checkpoint::Target;
use data::{MicroBatch, Source, Tokenizer};
use device::{Category, DType, Device, DeviceOptions};
use nn::{Examples, Input, Model, Stage};
use tensor::Tensor;

use crate::error::{Result, RunError};
use crate::resume::check_model;
use crate::run_report::configuration_of;
use crate::weights;
use config::{self, DataKind, RunConfig};
use worker::Worker;
use worker::build;
use worker::state;

/// Tokens of the held-out text that the sample at the end of a run starts from.
const PROMPT: usize = 24;
/// Longest time that the sample at the end of a run takes.
const LIMIT: Duration = Duration::from_secs(10);
/// Probabilities are sharpened a little: the usual compromise between dull and wild.
const TEMPERATURE: f64 = 0.8;

/// Options of sampling from a run's checkpoint.
#[derive(Clone, Debug)]
pub struct SampleOptions {
    /// The run.
    pub run_dir: PathBuf,
    /// The step of the checkpoint; `None`: the newest.
    pub step: Option<u64>,
    /// The prompt.
    pub prompt: String,
    /// Number of tokens to add.
    pub tokens: usize,
    /// Divisor of the logits; 0: always the likeliest token.
    pub temperature: f64,
    /// Seed of the draws; `None`: the run's own.
    pub seed: Option<u64>,
}

impl Default for SampleOptions {
    fn default() -> Self {
        let (run_dir, prompt) = (PathBuf::new(), "\n".to_owned());
        SampleOptions { run_dir, step: None, prompt, tokens: 320, temperature: TEMPERATURE, seed: None }
    }
}

/// Continues a prompt with the model of a run's checkpoint, on the CPU, and hands the text to `print`
/// as it comes, the prompt first.
///
/// # Errors
/// No run or no checkpoint there, one that is damaged or not of the run's `config.toml`; a model without
/// text; a prompt that it has no tokens for; what `print` refuses.
pub fn sample(
    options: &SampleOptions,
    print: &mut dyn FnMut(&str) -> std::result::Result<(), std::io::Error>,
) -> Result<()> {
    let run_dir = &options.run_dir;
    let refused = |what: String| RunError::Refused(format!("{}: {what}", run_dir.display()));
    if !(options.temperature.is_finite() && options.temperature >= 0.0) {
        let text = format!("--temperature {}: it is a finite number, 0 or more", options.temperature);
        return Err(RunError::Refused(text));
    }
    let config = configuration_of(run_dir, &[])?;
    let (false, Examples::Tokens { vocabulary, context }) =
        (config.data.kind == DataKind::Synthetic, config.model.examples())
    else {
        return Err(refused("it trained no model of text".to_owned()));
    };
    if config.tokenizer == Tokenizer::None {
        return Err(refused("it has data.tokenizer = \"none\", which makes no text of tokens".to_owned()));
    }
    let checkpoint = checkpoint::find(run_dir, options.step)?;
    check_model(&config, &checkpoint)?;
    let mut sampler = Sampler::new(&config, context)?;
    sampler.tokens = prompt_tokens(&options.prompt, &config.tokenizer, vocabulary)?;
    sampler.temperature = options.temperature;
    sampler.key = key(options.seed.unwrap_or(config.train.seed));
    state::load_model(&*sampler.model, &*weights::complete(checkpoint, &config)?)?;
    let failed = |source| RunError::File { path: PathBuf::from("standard output"), source };
    print(&options.prompt).map_err(failed)?;
    sampler.run(options.tokens, None, &mut |text| print(text).map_err(failed))
}

/// Errors: a prompt without tokens, or with some that the model does not have.
fn prompt_tokens(prompt: &str, tokenizer: &Tokenizer, vocabulary: usize) -> Result<Vec<u32>> {
    let tokens = tokenizer.encode(prompt)?;
    if tokens.is_empty() {
        return Err(RunError::Refused("--prompt: a sample goes on from at least one token".to_owned()));
    }
    match tokens.iter().find(|token| **token as usize >= vocabulary) {
        None => Ok(tokens),
        Some(token) => Err(RunError::Refused(format!(
            "--prompt: token {token} is not among the {vocabulary} of the model"
        ))),
    }
}

/// Continues the opening of the held-out text by `count` tokens: (prompt, continuation). `None` for a model
/// or data without text, and on ranks other than 0, which bring in what they keep of the weights. Tokens are
/// drawn from Philox keyed by the run's seed, so a model always says the same.
pub(crate) fn sample_of_run(worker: &mut Worker, count: usize) -> Result<Option<(String, String)>> {
    let setup = worker.setup().clone();
    let (Some(source), Examples::Tokens { context, .. }) =
        (&setup.dataset.tokens, setup.config.model.examples())
    else {
        return Ok(None);
    };
    if worker.device().is_meta() || *source.tokenizer() == Tokenizer::None {
        return Ok(None);
    }
    let (trained, buffers) = (state::masters(worker), state::buffers(worker));
    if worker.grid().rank() != 0 {
        trained.iter().chain(&buffers).try_for_each(|array| array.bring(worker, &mut []))?;
        return Ok(None);
    }
    let mut sampler = Sampler::new(&setup.config, context)?;
    for (copy, array) in sampler.model.parameters().list().iter().zip(&trained) {
        let mut bytes = vec![0; array.bytes()];
        array.bring(worker, &mut bytes)?;
        Target::whole(array.name.clone(), array.dtype, copy.tensor.clone()).take(0, &bytes)?;
    }
    for array in &buffers {
        let mut bytes = vec![0; array.bytes()];
        array.bring(worker, &mut bytes)?;
        // Code around the model of the run may have buffers that the sampled model has not.
        if let Some(copy) = sampler.model.buffers().iter().find(|copy| copy.name() == array.name) {
            copy.tensor().set_bytes(&bytes)?;
        }
    }
    let mut batch = MicroBatch::default();
    if let Err(error) = source.validation(0, &mut batch) {
        // The run is complete without a sample.
        tracing::warn!("no sample: {error}");
        return Ok(None);
    }
    sampler.tokens = batch.inputs.tokens()?[..PROMPT.min(context)].to_vec();
    let prompt = source.tokenizer().decode(&sampler.tokens);
    let mut continuation = String::new();
    tracing::info!("drawing a sample of at most {count} tokens, for at most {} s", LIMIT.as_secs());
    sampler.run(count, Some(LIMIT), &mut |text| {
        continuation.push_str(text);
        Ok(())
    })?;
    Ok(Some((prompt, continuation)))
}

fn key(seed: u64) -> [u32; 2] {
    philox::key_of_name(seed, "sample")
}

/// A model that continues `tokens`.
struct Sampler {
    device: Device,
    model: Box<dyn Model>,
    context: usize,
    tokenizer: Tokenizer,
    tokens: Vec<u32>,
    temperature: f64,
    key: [u32; 2],
}

impl Sampler {
    /// A sampler with initial weights, no tokens and the default temperature.
    fn new(config: &RunConfig, context: usize) -> Result<Self> {
        let device = Device::cpu(0, &DeviceOptions::default())?;
        // On the host in f32, whatever the run computed in.
        let model = build::model(config, &device, DType::F32, &Stage::whole(config.layers()))?;
        let (tokenizer, tokens, key) = (config.tokenizer.clone(), Vec::new(), key(config.train.seed));
        Ok(Sampler { device, model, context, tokenizer, tokens, temperature: TEMPERATURE, key })
    }

    /// Adds `count` tokens, or those that can be drawn within `limit`, and hands over their text as soon as
    /// it is certain.
    fn run(
        mut self,
        count: usize,
        limit: Option<Duration>,
        print: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<()> {
        let (began, mut unprinted) = (Instant::now(), Unprinted::default());
        for index in 0..count {
            if limit.is_some_and(|limit| began.elapsed() >= limit) {
                break;
            }
            let window = &self.tokens[self.tokens.len().saturating_sub(self.context)..];
            let logits = last_logits(&self.device, &*self.model, window)?;
            let word = philox::philox4x32(self.key, [index as u32, 0, 0, 0])[0];
            let token = draw(&logits, self.temperature, philox::uniform(word));
            self.tokens.push(token);
            print(&unprinted.add(&self.tokenizer, token))?;
        }
        print(&unprinted.rest(&self.tokenizer))
    }
}

/// Tokens that were drawn, whose last text may not be certain yet: it may end inside of a character, which
/// the next ones complete.
#[derive(Default)]
struct Unprinted {
    tokens: Vec<u32>,
    /// Number of bytes of their text that have been returned.
    given: usize,
}

impl Unprinted {
    /// Adds a token and returns the text that is now certain.
    fn add(&mut self, tokenizer: &Tokenizer, token: u32) -> String {
        self.tokens.push(token);
        let text = tokenizer.decode(&self.tokens);
        match text.strip_suffix(char::REPLACEMENT_CHARACTER) {
            Some(certain) => {
                let new = certain[self.given..].to_owned();
                self.given = certain.len();
                new
            }
            None => text[std::mem::replace(&mut self.given, text.len())..].to_owned(),
        }
    }

    /// Returns the rest of the text when no more tokens come.
    fn rest(&self, tokenizer: &Tokenizer) -> String {
        tokenizer.decode(&self.tokens)[self.given..].to_owned()
    }
}

fn last_logits(device: &Device, model: &dyn Model, window: &[u32]) -> Result<Vec<f32>> {
    let tokens = Tensor::from_host(device, window, [1, window.len()], Category::Input)?;
    let tape = Tape::new(device, Mode::Evaluate);
    let prediction = model.forward(&tape, Input::Batch(tokens))?;
    let logits = model.scores(&tape, prediction)?.into_tensor();
    let classes = logits.shape().columns();
    Ok(logits.view(logits.elements() - classes, [classes])?.to_vec::<f32>()?)
}

/// The class at `point`, in 0..1, of the cumulated softmax at this temperature; at 0, the first of the
/// likeliest.
fn draw(logits: &[f32], temperature: f64, point: f32) -> u32 {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |logit: &f32| match temperature {
        0.0 => f64::from(u8::from(*logit == top)),
        _ => (f64::from(logit - top) / temperature).exp(),
    };
    let all = logits.iter().map(weight).sum::<f64>();
    let mut left = if temperature == 0.0 { 0.0 } else { f64::from(point) * all };
    for (class, logit) in logits.iter().enumerate() {
        let weight = weight(logit);
        left -= weight;
        if left <= 0.0 && weight > 0.0 {
            return class as u32;
        }
    }
    logits.len().saturating_sub(1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_drawn_by_their_weight() {
        let logits = [0.0, 1.0_f32.exp().ln() + 1.0, -50.0, 2.0];
        // At temperature 1 the classes weigh 1, e², 0 and e².
        let table: [(f64, f32, u32); 6] =
            [(1.0, 0.0, 0), (1.0, 0.05, 0), (1.0, 0.07, 1), (1.0, 0.6, 3), (0.0, 0.9, 1), (0.1, 0.0001, 1)];
        for (temperature, point, class) in table {
            assert_eq!(draw(&logits, temperature, point), class, "{temperature} {point}");
        }
    }

    #[test]
    fn text_that_comes_in_pieces_is_the_text() {
        let pieces: [&[u8]; 6] = [
            b"abc",
            "h\u{E9}\u{20AC}\u{1F600}!".as_bytes(),
            &[0xE2, 0x82, 65],
            &[0xFF, 0xFF, 0xC3, 0xA9],
            &[0xC3],
            &[],
        ];
        for bytes in pieces {
            let tokens: Vec<u32> = bytes.iter().map(|byte| u32::from(*byte)).collect();
            let mut unprinted = Unprinted::default();
            let mut text = String::new();
            for token in &tokens {
                text += &unprinted.add(&Tokenizer::Bytes, *token);
                assert!(Tokenizer::Bytes.decode(&tokens).starts_with(&text), "{bytes:?}");
            }
            text += &unprinted.rest(&Tokenizer::Bytes);
            assert_eq!(text, Tokenizer::Bytes.decode(&tokens));
        }
    }

    #[test]
    fn prompts_without_tokens_and_with_unknown_ones_are_refused() {
        assert_eq!(prompt_tokens("hi", &Tokenizer::Bytes, 256).unwrap(), [104, 105]);
        for (prompt, vocabulary) in [("", 256), ("hi", 105)] {
            let error = prompt_tokens(prompt, &Tokenizer::Bytes, vocabulary).unwrap_err();
            assert_eq!(error.exit_status(), 2);
            assert!(error.to_string().contains("--prompt"), "{error}");
        }
    }
}
