//! `plimsoll bench step`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::error::CliError;
use bench::{BenchOptions, StepMeasure, bench_forward, bench_step};
use config::{OptimKind, RunConfig};
use nn::Examples;
use serde::Serialize;
use telemetry::table::aligned;
use telemetry::units::{bytes, grouped, percent};
use worker::DeviceChoice;

use crate::bench_model::{BenchModel, StepArgs, TraceArgs};
use crate::output::{print, print_json, rounded};

/// Measure a training step and, on a GPU, its kernels, each beside the time that its bytes and FLOPs would
/// take at the device's measured rates
#[derive(Debug, clap::Args)]
pub(crate) struct BenchStepArgs {
    /// Model: small (the quickstart's), gpt2-124m, gpt2-355m or gpt2-1558m (sizes of GPT-2 with 50304
    /// tokens), llama3-1b or llama3-8b (sizes of Llama 3), gemma3-1b, qwen3-30b-a3b (a GPU holds a few
    /// layers: --set model.layers=5), qwen3.5-1b (with linear attention), gpt-shakespeare (nanoGPT's small
    /// GPU model, with its dropout), or resnet50
    #[arg(long, default_value = "gpt2-124m")]
    model: String,
    #[command(flatten)]
    step: StepArgs,
    /// Token shards to read from disk, or globs of them, instead of random tokens
    #[arg(long, value_name = "FILE", num_args = 1..)]
    data: Vec<PathBuf>,
    /// Measure forward passes alone, as in evaluation, instead of training steps
    #[arg(long, conflicts_with = "trace")]
    forward: bool,
    #[command(flatten)]
    trace: TraceArgs,
    /// Print one line of JSON instead of tables
    #[arg(long)]
    json: bool,
}

/// Runs the command: measures and prints.
///
/// # Errors
/// The arguments are invalid, or a run fails.
pub(crate) fn run(args: &BenchStepArgs) -> Result<(), CliError> {
    let device = DeviceChoice::from_name(&args.step.device)?;
    let on_gpu = device != DeviceChoice::Cpu && device::cuda::availability().is_ok();
    let precision = args.step.precision.as_deref().unwrap_or(if on_gpu { "bf16" } else { "f32" });
    let text = BenchModel::named(&args.model)?.configuration(args.step.micro_batch_size, 1, precision)?;
    let sets = [data_settings(&args.data)?, args.step.overrides.clone()].concat();
    let config = RunConfig::parse(&text, "bench step", Path::new("/"), &sets)?;
    let options = BenchOptions {
        // Kernels are not part of the JSON.
        profile: !args.json,
        trace: args.trace.directory()?,
        ..args.step.options(device)
    };
    let shape = config.model.summary();
    let examples = match config.model.examples() {
        Examples::Tokens { .. } if args.data.is_empty() => "random tokens",
        Examples::Tokens { .. } => "tokens from disk",
        Examples::Numbers { .. } => "random numbers",
        Examples::Images { .. } => "made images",
    };
    let optimizer = match config.optim.kind {
        OptimKind::AdamW => "AdamW",
        OptimKind::Lion => "Lion",
        OptimKind::Sgd => "SGD",
        OptimKind::Muon => "Muon",
    };
    let settings = format!(
        "micro-batch {}, {} a step, {}, {}, clipping at {}",
        config.train.micro_batch_size,
        config.train.micro_batches(),
        config.precision.name(),
        optimizer,
        config.optim.clip_norm
    );
    let measure = match args.forward {
        true => bench_forward(config, &options)?,
        false => bench_step(config, &options)?,
    };
    let turns = measure.cycled.map_or_else(String::new, |count| format!(" ({count} micro-batches in turn)"));
    let head = format!("{}: {shape}, {examples}{turns}, {settings}", args.model);
    match args.json {
        true => print_json(&StepLine::from_measure(args, &measure)),
        false => print(&format!("{}{}", summary(&head, &measure), kernels(&measure))),
    }
}

/// Returns the settings with which a configuration reads these token shards; empty without files.
///
/// # Errors
/// A path is not UTF-8, or the current directory no longer exists.
fn data_settings(files: &[PathBuf]) -> Result<Vec<String>, CliError> {
    if files.is_empty() {
        return Ok(Vec::new());
    }
    let absolute = |path: &PathBuf| {
        let refused = |reason: String| CliError::Refused(format!("--data {}: {reason}", path.display()));
        let path = std::path::absolute(path).map_err(|error| refused(error.to_string()))?;
        path.into_os_string().into_string().map_err(|_| refused("its path is not UTF-8".to_owned()))
    };
    let paths = files.iter().map(absolute).collect::<Result<Vec<_>, _>>()?;
    // A JSON list of strings is also a TOML list.
    Ok(vec!["data.kind=tokens".to_owned(), format!("data.paths={}", serde_json::Value::from(paths))])
}

/// The measured step, printed as a line of JSON.
#[derive(Serialize)]
struct StepLine<'a> {
    model: &'a str,
    device: &'a str,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_milliseconds: Option<f64>,
    parameters: usize,
    tokens_per_second: f64,
    loss: f32,
    peak_allocated_bytes: u64,
    peak_reserved_bytes: u64,
    at_peak_bytes: BTreeMap<&'static str, u64>,
}

impl<'a> StepLine<'a> {
    fn from_measure(args: &'a BenchStepArgs, measure: &'a StepMeasure) -> Self {
        let (peak_allocated_bytes, peak_reserved_bytes) = measure.peaks;
        StepLine {
            model: &args.model,
            device: &measure.model,
            seconds: measure.median(),
            input_milliseconds: measure.input_milliseconds.map(|time| rounded(time, 3)),
            parameters: measure.parameters,
            tokens_per_second: rounded(measure.tokens_per_second(), 1),
            loss: measure.loss,
            peak_allocated_bytes,
            peak_reserved_bytes,
            at_peak_bytes: measure.at_peak.iter().map(|(category, bytes)| (category.name(), bytes)).collect(),
        }
    }
}

/// Describes the model, its median step and its peak memory.
fn summary(head: &str, measure: &StepMeasure) -> String {
    let separator = if measure.libraries.is_empty() { "" } else { ", " };
    let (least, most) =
        measure.seconds.iter().fold((f64::INFINITY, 0.0_f64), |(a, b), s| (a.min(*s), b.max(*s)));
    let (allocated, reserved) = measure.peaks;
    let inputs = measure.input_milliseconds.map_or_else(String::new, |time| format!(", inputs {time:.3}"));
    format!(
        "{}{separator}{}\n{head}\n{} parameters, on {}\n\nmedian step {:.2} ms ({:.2} to {:.2} over {}{inputs}), \
         {} {}, last loss {:.4}\npeak allocated {} ({}), peak reserved {} ({}): reserved is {:.3} \
         of allocated\n",
        measure.model,
        measure.libraries,
        grouped(measure.parameters as u64),
        measure.reason,
        1e3 * measure.median(),
        1e3 * least,
        1e3 * most,
        measure.seconds.len(),
        grouped(measure.tokens_per_second().round() as u64),
        measure.unit,
        measure.loss,
        grouped(allocated),
        bytes(allocated),
        grouped(reserved),
        bytes(reserved),
        reserved as f64 / allocated as f64
    )
}

/// Returns the device's measured rates and a row for each family of kernels; empty on the CPU.
fn kernels(measure: &StepMeasure) -> String {
    let (Some(rates), Some(utilisation)) = (measure.rates, measure.utilisation()) else {
        return String::new();
    };
    let mut rows = vec![["family", "launches", "ms", "floor ms", "ratio"].map(str::to_owned).to_vec()];
    let (mut launches, mut milliseconds, mut floor) = (0, 0.0, 0.0);
    for family in &measure.families {
        // A kernel shorter than a microsecond takes as long as its launch.
        let ratio =
            (family.floor_milliseconds > 1e-3).then(|| family.milliseconds / family.floor_milliseconds);
        rows.push(kernel_row(
            family.family,
            family.calls,
            (family.milliseconds, family.floor_milliseconds),
            ratio,
        ));
        launches += family.calls;
        milliseconds += family.milliseconds;
        floor += family.floor_milliseconds;
    }
    let end = rows.len();
    rows.push(kernel_row("all, each alone", launches, (milliseconds, floor), Some(milliseconds / floor)));
    format!(
        "the device's own rates: {:.0} TFLOP/s (bf16 matmul of 8192 × 8192 × 8192), {:.2} TB/s (copy); \
         MFU {}\n\n{}",
        rates.flops_per_second / 1e12,
        rates.bytes_per_second / 1e12,
        percent(utilisation),
        aligned(&rows, 1, &[1, end])
    )
}

fn kernel_row(
    name: &str,
    launches: usize,
    (milliseconds, floor): (f64, f64),
    ratio: Option<f64>,
) -> Vec<String> {
    vec![
        name.to_owned(),
        launches.to_string(),
        format!("{milliseconds:.3}"),
        format!("{floor:.3}"),
        ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
    ]
}
