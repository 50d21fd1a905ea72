//! `plimsoll bench sample`.

use std::path::Path;

use bench::{SampleBenchOptions, SampleMeasure, bench_sample};
use config::RunConfig;
use serde::Serialize;
use telemetry::units::{bytes, grouped, percent};
use worker::DeviceChoice;

use crate::arguments::count;
use crate::bench_model::BenchModel;
use crate::error::CliError;
use crate::output::{print, print_json, rounded};

/// Measure sampling with random weights: tokens/s, and the fraction of the memory bandwidth that steps reach
#[derive(Debug, clap::Args)]
pub(crate) struct BenchSampleArgs {
    /// Model, as for bench step
    #[arg(long, default_value = "llama3-1b")]
    model: String,
    /// Number of prompts at once, at most 64 on a GPU and 8 on a CPU
    #[arg(long, value_name = "N", default_value_t = 1)]
    batch: usize,
    /// Number of tokens in each prompt [default: 128, or a third of a shorter context]
    #[arg(long, value_name = "N")]
    prompt_tokens: Option<usize>,
    /// Number of tokens to generate for each prompt [default: 256, or two thirds of a shorter context]
    #[arg(long, value_name = "N")]
    new_tokens: Option<usize>,
    /// Number of complete generations; the median is reported
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = count::<usize>)]
    rounds: usize,
    /// Compute dtype: f32 or bf16 [default: bf16 on a GPU, f32 otherwise]
    #[arg(long)]
    precision: Option<String>,
    /// Device: auto, cpu or cuda
    #[arg(long, default_value = "auto")]
    device: String,
    /// Override a key of the configuration, as in --set train.graphs=off
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    overrides: Vec<String>,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command: measures and prints.
///
/// # Errors
/// The arguments are invalid, or generation fails.
pub(crate) fn run(args: &BenchSampleArgs) -> Result<(), CliError> {
    let device = DeviceChoice::from_name(&args.device)?;
    let on_gpu = device != DeviceChoice::Cpu && device::cuda::availability().is_ok();
    let most = generation::Generator::most_slots(on_gpu);
    let precision = args.precision.as_deref().unwrap_or(if on_gpu { "bf16" } else { "f32" });
    let text = BenchModel::named(&args.model)?.configuration(Some(1), 1, precision)?;
    let config = RunConfig::parse(&text, "bench sample", Path::new("/"), &args.overrides)?;
    let third = config.model.examples().units() / 3;
    let prompt_tokens = args.prompt_tokens.unwrap_or(third.clamp(1, 128));
    let new_tokens = args.new_tokens.unwrap_or((2 * third).clamp(2, 256));
    if args.batch == 0 || args.batch > most || prompt_tokens == 0 || new_tokens < 2 {
        let text = format!("--batch is 1 to {most} here, with at least 1 prompt token and 2 new ones");
        return Err(CliError::Refused(text));
    }
    let config = config.with(&config.model.with_context(prompt_tokens + new_tokens)).map_err(|error| {
        let text = format!("--prompt-tokens {prompt_tokens}, --new-tokens {new_tokens}: {error}");
        CliError::Refused(text)
    })?;
    let batch = args.batch;
    let rounds = args.rounds.max(1);
    let options = SampleBenchOptions { device, batch, prompt_tokens, new_tokens, rounds };
    let measure = bench_sample(config, &options)?;
    match args.json {
        true => print_json(&SampleLine::from_measure(&args.model, &options, &measure)),
        false => print(&summary((&args.model, precision), &options, &measure)),
    }
}

/// The measurement, printed as a line of JSON.
#[derive(Serialize)]
struct SampleLine<'a> {
    model: &'a str,
    device: &'a str,
    batch: usize,
    seconds: f64,
    tokens_per_second: f64,
    step_seconds: f64,
    prompt_seconds: f64,
    step_bytes: u64,
    bandwidth_share: Option<f64>,
    peak_allocated_bytes: u64,
}

impl<'a> SampleLine<'a> {
    fn from_measure(model: &'a str, options: &SampleBenchOptions, measure: &'a SampleMeasure) -> Self {
        SampleLine {
            model,
            device: &measure.model,
            batch: options.batch,
            seconds: measure.seconds,
            tokens_per_second: rounded(tokens_per_second(options, measure), 1),
            step_seconds: measure.step_seconds,
            prompt_seconds: measure.prompt_seconds,
            step_bytes: measure.step_bytes,
            bandwidth_share: share(measure).map(|share| rounded(share, 4)),
            peak_allocated_bytes: measure.bytes.peak_allocated,
        }
    }
}

fn tokens_per_second(options: &SampleBenchOptions, measure: &SampleMeasure) -> f64 {
    (options.batch * options.new_tokens) as f64 / measure.seconds
}

/// Returns the achieved fraction of a large copy's bandwidth.
fn share(measure: &SampleMeasure) -> Option<f64> {
    Some(measure.bytes_per_second() / measure.rates?.bytes_per_second)
}

fn summary(
    (model, precision): (&str, &str),
    options: &SampleBenchOptions,
    measure: &SampleMeasure,
) -> String {
    let SampleBenchOptions { batch, prompt_tokens, new_tokens, .. } = options;
    let of_copy = share(measure)
        .map_or_else(String::new, |share| format!(", {} of the rate of a large copy", percent(share)));
    format!(
        "{}\n{model}, {precision}, {batch} prompts of {prompt_tokens} tokens, {new_tokens} new tokens each\n\n\
         {} tokens/s with the prompts, {:.3} ms a step of {batch} tokens after {:.2} ms for the prompts\n\
         {} read in a step: {:.3} TB/s{of_copy}\nweights {}, cache {}, peak allocated {}\n",
        measure.model,
        grouped(tokens_per_second(options, measure).round() as u64),
        1e3 * measure.step_seconds,
        1e3 * measure.prompt_seconds,
        bytes(measure.step_bytes),
        measure.bytes_per_second() / 1e12,
        bytes(measure.bytes.weights),
        bytes(measure.bytes.cache),
        bytes(measure.bytes.peak_allocated)
    )
}
