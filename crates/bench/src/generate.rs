//! Measures sampling: reading prompts, and generating one token per prompt at a time.

use std::time::Instant;

use collective::Communicator;
use config::RunConfig;
use generation::{Generator, GeneratorBytes, GeneratorOptions, Line};
use run::{ChosenPlacement, Startup};
use tensor::ops::choose::Choice;
use worker::DeviceChoice;

use crate::error::Result;
use crate::options::median;
use crate::rates::{Rates, rates};

/// Options of a sampling measurement.
#[derive(Clone, Copy, Debug)]
pub struct SampleBenchOptions {
    /// The device to measure.
    pub device: DeviceChoice,
    /// Number of prompts at once.
    pub batch: usize,
    /// Number of tokens in each prompt.
    pub prompt_tokens: usize,
    /// Number of tokens to generate for each prompt.
    pub new_tokens: usize,
    /// Number of timed generations, whose median is reported; one more warms up.
    pub rounds: usize,
}

/// Result of a sampling measurement.
#[derive(Clone, Debug)]
pub struct SampleMeasure {
    /// Model of the device.
    pub model: String,
    /// Seconds from the prompts to their last new token, median over rounds.
    pub seconds: f64,
    /// Seconds of a step after the first, median over all steps.
    pub step_seconds: f64,
    /// Seconds of reading the prompts and drawing the first token of each, median over rounds.
    pub prompt_seconds: f64,
    /// Bytes that a step halfway through reads: the weights, and the cached keys and values.
    pub step_bytes: u64,
    /// Memory of the generator in bytes.
    pub bytes: GeneratorBytes,
    /// Measured rates of the device; only on a GPU.
    pub rates: Option<Rates>,
}

impl SampleMeasure {
    /// Returns the bytes per second that steps read.
    pub fn bytes_per_second(&self) -> f64 {
        self.step_bytes as f64 / self.step_seconds
    }
}

/// Generates text from random tokens with random weights.
///
/// # Errors
/// Generation fails, or a step has too few rows for the prompts.
pub fn bench_sample(mut config: RunConfig, options: &SampleBenchOptions) -> Result<SampleMeasure> {
    let SampleBenchOptions { batch, prompt_tokens, new_tokens, .. } = *options;
    let ChosenPlacement { placement, .. } =
        ChosenPlacement::find(options.device, &mut config, &Startup::alone(), None)?;
    let setup = plan::prepare(config, placement)?;
    run::prepare_kernels(&setup)?;
    let capacity = prompt_tokens + new_tokens;
    let choice = Choice { temperature: 1.0, top_k: 0, top_p: 1.0, repetition_penalty: 1.0 };
    let sizes = GeneratorOptions { slots: batch, capacity, longest: prompt_tokens, choice };
    let mut generator = Generator::new(&setup, Communicator::solo(), sizes, None)?;
    let mut whole = Vec::new();
    let mut steps = Vec::new();
    let mut prompts = Vec::new();
    for round in 0..=options.rounds {
        let times = generate(&mut generator, options)?;
        if round > 0 {
            whole.push(times.iter().sum());
            prompts.extend(times.first());
            steps.extend(times.iter().skip(1));
        }
    }
    let bytes = generator.bytes();
    let weights = generator.weight_bytes_read();
    // Halfway through, the cache holds the prompt and half of the new tokens.
    let cached = bytes.cache * (prompt_tokens + new_tokens / 2) as u64 / capacity as u64;
    let device = generator.device().clone();
    drop(generator);
    let rates = if device.is_cuda_like() { Some(rates(&device)?) } else { None };
    Ok(SampleMeasure {
        model: device.description().model.clone(),
        seconds: median(&whole),
        step_seconds: median(&steps),
        prompt_seconds: median(&prompts),
        step_bytes: weights + cached,
        bytes,
        rates,
    })
}

/// Returns the seconds of each step of a generation; the first step reads the prompts.
fn generate(generator: &mut Generator, options: &SampleBenchOptions) -> Result<Vec<f64>> {
    let SampleBenchOptions { batch, prompt_tokens, new_tokens, .. } = *options;
    let prompt = |row: usize| (0..prompt_tokens).map(|at| (row * 31 + at * 7) as u32 % 251).collect();
    let mut texts: Vec<Vec<u32>> = (0..batch).map(prompt).collect();
    let mut times = Vec::with_capacity(new_tokens);
    for number in 0..new_tokens as u32 {
        let line = |(row, tokens)| {
            let key = [row as u32, 1];
            Some(Line { tokens, is_new: number == 0, seen: None, number, key })
        };
        let began = Instant::now();
        let lines: Vec<_> = texts.iter().map(Vec::as_slice).enumerate().map(line).collect();
        let chosen = generator.step(std::slice::from_ref(&lines))?;
        times.push(began.elapsed().as_secs_f64());
        let drawn = chosen.into_iter().flatten();
        texts.iter_mut().zip(drawn).for_each(|(text, token)| text.push(token));
    }
    Ok(times)
}
