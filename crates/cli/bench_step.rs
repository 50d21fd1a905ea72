//! `plimsoll bench step`: the median training step, and on a GPU one step kernel family by kernel family, each beside what
//! its bytes and operations take at the device's own measured rates.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use bench::{BenchOptions, StepMeasure, bench_step};
use config::{Model, RunConfig};
use telemetry::units::{bytes, grouped};
use worker::{DeviceChoice, TrainError};

use crate::bench_model::{BenchModel, StepArgs, TraceArgs};

/// The arguments of `plimsoll bench step`.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchStepArgs {
    /// Which model: small (the quickstart's), gpt2-124m, gpt2-355m or gpt2-1558m; the sizes of GPT-2 with 50304 tokens
    #[arg(long, default_value = "gpt2-124m")]
    model: String,
    #[command(flatten)]
    step: StepArgs,
    #[command(flatten)]
    trace: TraceArgs,
    /// One line of JSON instead of tables
    #[arg(long)]
    json: bool,
}

/// Measures and prints. 0: done; 1: the run failed; 2: arguments that are wrong.
pub(crate) fn run(args: &BenchStepArgs) -> ExitCode {
    match measure(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "plimsoll: {error}");
            ExitCode::from(error.exit_status())
        }
    }
}

fn measure(args: &BenchStepArgs) -> Result<(), TrainError> {
    let device = DeviceChoice::from_name(&args.step.device)?;
    let on_gpu = device != DeviceChoice::Cpu && device::cuda::availability().is_ok();
    let precision = args.step.precision.as_deref().unwrap_or(if on_gpu { "bf16" } else { "f32" });
    let text = BenchModel::named(&args.model)?.configuration(args.step.micro_batch, 1, precision);
    let config = RunConfig::parse(&text, "bench step", Path::new("/"), &args.step.overrides)?;
    let options = BenchOptions { trace: args.trace.directory()?, ..args.step.options(device) };
    let shape = match &config.model {
        Model::Gpt(gpt) => format!("{gpt:?}"),
        Model::Mlp(mlp) => format!("{mlp:?}"),
    };
    let head = format!(
        "{}: {shape}, micro-batch {}, {} a step, {}, AdamW, clipping at {}",
        args.model,
        config.train.micro_batch_size,
        config.train.micro_batches(),
        config.precision.name(),
        config.optim.clip_norm
    );
    let found = bench_step(config, &options)?;
    let printed = if args.json { print_json(args, &found) } else { print_tables(&head, &found) };
    printed.map_err(|source| TrainError::File { path: "standard output".into(), source })
}

fn print_json(args: &BenchStepArgs, found: &StepMeasure) -> std::io::Result<()> {
    let (allocated, reserved) = found.peaks;
    writeln!(
        std::io::stdout(),
        "{{\"model\": \"{}\", \"device\": \"{}\", \"seconds\": {}, \"tokens_per_second\": {:.1}, \"loss\": {}, \
         \"peak_allocated_bytes\": {allocated}, \"peak_reserved_bytes\": {reserved}}}",
        args.model,
        found.model,
        found.median(),
        found.tokens_per_second(),
        found.loss
    )
}

fn print_tables(head: &str, found: &StepMeasure) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let separator = if found.libraries.is_empty() { "" } else { ", " };
    writeln!(out, "{}{separator}{}", found.model, found.libraries)?;
    writeln!(out, "{head}\n{} parameters, computing on {}", grouped(found.parameters as u64), found.reason)?;
    let (least, most) =
        found.seconds.iter().fold((f64::INFINITY, 0.0_f64), |(a, b), s| (a.min(*s), b.max(*s)));
    writeln!(
        out,
        "\nmedian step {:.2} ms ({:.2} to {:.2} over {}), {:.0} tokens/s, last loss {:.4}",
        1e3 * found.median(),
        1e3 * least,
        1e3 * most,
        found.seconds.len(),
        found.tokens_per_second(),
        found.loss
    )?;
    let (allocated, reserved) = found.peaks;
    writeln!(
        out,
        "peak allocated {} ({}), peak reserved {} ({}): reserved is {:.3} of allocated",
        grouped(allocated),
        bytes(allocated),
        grouped(reserved),
        bytes(reserved),
        reserved as f64 / allocated as f64
    )?;
    let (Some(rates), Some(utilisation)) = (found.rates, found.utilisation()) else { return Ok(()) };
    writeln!(
        out,
        "the device's own rates: {:.0} TFLOP/s (bf16 matmul of 8192 × 8192 × 8192), {:.2} TB/s (copy); \
         model FLOP utilisation {:.1} %",
        rates.flops_per_second / 1e12,
        rates.bytes_per_second / 1e12,
        100.0 * utilisation
    )?;
    writeln!(out, "\n{:<20} {:>8} {:>10} {:>10} {:>7}", "family", "launches", "ms", "floor ms", "ratio")?;
    let (mut launches, mut milliseconds, mut floor) = (0, 0.0, 0.0);
    for family in &found.families {
        // Beside less than a microsecond, a launch is all that takes time.
        let ratio = (family.floor_milliseconds > 1e-3)
            .then(|| format!("{:.2}", family.milliseconds / family.floor_milliseconds));
        writeln!(
            out,
            "{:<20} {:>8} {:>10.3} {:>10.3} {:>7}",
            family.family,
            family.calls,
            family.milliseconds,
            family.floor_milliseconds,
            ratio.unwrap_or_default()
        )?;
        launches += family.calls;
        milliseconds += family.milliseconds;
        floor += family.floor_milliseconds;
    }
    let ratio = milliseconds / floor;
    writeln!(out, "{:<20} {launches:>8} {milliseconds:>10.3} {floor:>10.3} {ratio:>7.2}", "all, each alone")
}
