//! `plimsoll bench predict`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bench::{
    BenchOptions, GPU_WARM_UP, PredictCase, Prediction, PredictionErrors, RandomRanks, bench_prediction,
    cases_of, measures_gpu, random_configs,
};
use plan::PlanTarget;
use serde_json::json;
use system::pace::Pace;
use telemetry::table::aligned;
use worker::DeviceChoice;

use crate::arguments::{count, seconds};
use crate::error::CliError;
use crate::output::{note, print, print_json};

/// Compare predicted with measured steps, over a table of configurations or random ones
///
/// Predicts a step of every configuration as `plimsoll plan` does, and measures it. Prints both, the error,
/// and the part of the step whose time differs most from its prediction: a family of calls or, with several
/// ranks, a phase. Ends with the median error, the error that 19 of 20 do not exceed, and the largest.
/// Configurations that do not fit the device are left out. Random ones that fail are noted, and the exit
/// status is 1 then. On a CPU, a few tiny configurations are measured, without predictions.
///
/// With --random, on a GPU, the configurations have families, sizes, precisions, optimizers and
/// techniques that nobody chose, and with --ranks also grids. The same seed draws the same ones.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchPredictArgs {
    /// Device to measure: auto, cpu or cuda
    #[arg(long, default_value = "auto")]
    device: String,
    /// Description of that device, as written by `plimsoll plan --describe` [default: the one shipped with
    /// Plimsoll]
    #[arg(long, value_name = "FILE")]
    description: Option<String>,
    /// Compare with the steps in FILE, printed by --json on such a device, and measure nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["most", "skip", "steps", "warm_up_seconds"])]
    measured: Option<PathBuf>,
    /// Compare N random configurations that fit the device, instead of the table
    #[arg(long, value_name = "N", conflicts_with = "measured", value_parser = count::<usize>)]
    random: Option<usize>,
    /// Seed of the random configurations
    #[arg(long, value_name = "SEED", default_value_t = 1, requires = "random")]
    seed: u64,
    /// Compare only random configurations with a key that begins like this, as in --with model.kind=resnet or
    /// --with model.experts; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE", requires = "random")]
    with: Vec<String>,
    /// Number of ranks of random configurations, each with a GPU of this host
    #[arg(long, value_name = "N", default_value_t = 1, requires = "random", value_parser = count::<usize>)]
    ranks: usize,
    /// Let all ranks of random configurations share one GPU
    #[arg(long, requires = "random")]
    share_gpu: bool,
    /// Before each prediction, time calls of the configuration, as `plimsoll plan CONFIG --describe --quick`
    /// does
    #[arg(long, conflicts_with = "measured")]
    probe: bool,
    /// With --json, also print every kind and size of calls with predicted and measured seconds
    #[arg(long, requires = "json")]
    calls: bool,
    /// Skip the first N configurations
    #[arg(long, value_name = "N", default_value_t = 0)]
    skip: usize,
    /// Measure at most N configurations
    #[arg(long, value_name = "N", value_parser = count::<usize>)]
    most: Option<usize>,
    /// Number of timed steps per configuration
    #[arg(long, default_value_t = 10, value_parser = count::<u64>)]
    steps: u64,
    /// Minimum seconds of warm-up steps per configuration [default: 5 on a GPU, 0 otherwise]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    warm_up_seconds: Option<Duration>,
    /// Print a line of JSON for each configuration, and a summary line, instead of a table
    #[arg(long)]
    json: bool,
}

/// Minimum number of warm-up steps.
const WARM_UP: u64 = 3;
/// Maximum number of configurations drawn for --with.
const MOST_DRAWN: usize = 20_000;

/// Runs the command: predicts, measures and prints.
///
/// # Errors
/// The arguments are invalid, or the device is missing or fails.
pub(crate) fn run(args: &BenchPredictArgs) -> Result<(), CliError> {
    let target = match &args.description {
        Some(name) => PlanTarget::from_argument(name).map_err(|_| {
            CliError::Refused(format!("--description {name}: no such file or described device"))
        })?,
        None => PlanTarget::from_argument(&args.device)?,
    };
    let mut predictions = Vec::new();
    let mut left_out = 0;
    let mut failed = 0;
    let pace = Pace::of_files();
    let mut each = |prediction: Option<Prediction>| -> Result<bool, CliError> {
        let is_compared = prediction.is_some();
        match prediction {
            Some(mut prediction) => {
                if !args.calls {
                    prediction.calls.clear();
                }
                args.json.then(|| print_json(&prediction)).transpose()?;
                predictions.push(prediction);
            }
            None => left_out += 1,
        }
        if pace.is_due() {
            note(&format!("{} configurations compared", predictions.len() + left_out));
        }
        Ok(is_compared)
    };
    match &args.measured {
        Some(path) => {
            for prediction in measured_steps(path)? {
                each(prediction.again(&target)?)?;
            }
        }
        None => failed = measure(args, &target, &mut each)?,
    }
    let end = if failed > 0 { Err(CliError::Shown { status: 1 }) } else { Ok(()) };
    let errors = PredictionErrors::new(&predictions);
    if args.json {
        print_json(&json!({
            "configurations": predictions.len(),
            "left_out": left_out,
            "failed": failed,
            "median_error": errors.map(|errors| errors.median),
            "error_of_19_in_20": errors.map(|errors| errors.most),
            "largest_error": errors.map(|errors| errors.largest),
        }))?;
        return end;
    }
    let summary = match errors {
        Some(PredictionErrors { median, most, largest }) => {
            let [median, most, largest] = [median, most, largest].map(|error| 100.0 * error);
            format!("median error {median:.1} %, 19 of 20 within {most:.1} %, largest {largest:.1} %")
        }
        None => "no predictions: a CPU has no description of its calls".to_owned(),
    };
    let missing =
        if left_out > 0 { format!("; {left_out} do not fit and are left out") } else { String::new() };
    let failing =
        if failed > 0 { format!("; {failed} failed, with the errors above") } else { String::new() };
    let count = predictions.len();
    print(&format!("{}\n{count} configurations: {summary}{missing}{failing}", table(&predictions)))?;
    end
}

/// Predicts and measures each configuration. Returns the number of random configurations that failed, after
/// noting their errors.
fn measure(
    args: &BenchPredictArgs,
    target: &PlanTarget,
    each: &mut impl FnMut(Option<Prediction>) -> Result<bool, CliError>,
) -> Result<usize, CliError> {
    let device = DeviceChoice::from_name(&args.device)?;
    if args.random.is_some() && !measures_gpu(device) {
        let text = "--random: the configurations are for GPUs, and take hours on a CPU: use --device cuda on a \
                    host with a GPU";
        return Err(CliError::Refused(text.to_owned()));
    }
    if args.probe && !measures_gpu(device) {
        let text = "--probe: calls are timed on a GPU: use --device cuda on a host with a GPU";
        return Err(CliError::Refused(text.to_owned()));
    }
    let default = if measures_gpu(device) { GPU_WARM_UP } else { Duration::ZERO };
    let warm_up_time = args.warm_up_seconds.unwrap_or(default);
    let options = BenchOptions {
        device,
        steps: args.steps.max(1),
        warm_up: WARM_UP,
        warm_up_time,
        profile: true,
        trace: None,
    };
    let most = args.random.unwrap_or(usize::MAX).min(args.most.unwrap_or(usize::MAX));
    let random = RandomRanks { ranks: args.ranks, share_gpu: args.share_gpu };
    let cases: Box<dyn Iterator<Item = _>> = match args.random {
        Some(_) => {
            let has = |sets: &[String], with: &String| sets.iter().any(|set| set.starts_with(with));
            let most = if args.with.is_empty() { usize::MAX } else { MOST_DRAWN };
            let drawn = random_configs(args.seed, random).take(most);
            let drawn = drawn.filter(move |drawn| args.with.iter().all(|with| has(&drawn.sets, with)));
            Box::new(drawn.map(|drawn| PredictCase::random(drawn.family, drawn.sets)))
        }
        None => Box::new(cases_of(device).into_iter()),
    };
    let mut compared = 0;
    let mut failed = 0;
    for case in cases.skip(args.skip) {
        if compared == most {
            break;
        }
        let prediction = match bench_prediction(&case, target, args.probe, &options) {
            Err(error) if args.random.is_some() => {
                note(&format!("{} {} failed: {error}", case.model, case.sets.join(" ")));
                failed += 1;
                compared += 1;
                continue;
            }
            prediction => prediction?,
        };
        let is_compared = each(prediction)?;
        // Of random configurations, as many as asked for are compared.
        compared += usize::from(is_compared || args.random.is_none());
    }
    if compared == 0 && !args.with.is_empty() {
        let text = format!("--with {}: no random configuration has that", args.with.join(" --with "));
        return Err(CliError::Refused(text));
    }
    Ok(failed)
}

/// Reads the measured steps from a file written by `--json`; skips its summary line.
pub(crate) fn measured_steps(path: &Path) -> Result<Vec<Prediction>, CliError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| CliError::Refused(format!("{}: {error}", path.display())))?;
    let lines = text.lines().enumerate().filter(|(_, line)| line.contains("measured_step_seconds"));
    let parsed = lines.map(|(index, line)| {
        serde_json::from_str(line).map_err(|error| {
            CliError::Refused(format!("{}, line {}: no measured step: {error}", path.display(), index + 1))
        })
    });
    parsed.collect()
}

fn table(predictions: &[Prediction]) -> String {
    let titles = ["model", "keys", "predicted, ms", "measured, ms", "error", "furthest part"];
    let milliseconds = |seconds: f64| format!("{:.2}", 1e3 * seconds);
    let row = |prediction: &Prediction| {
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        vec![
            prediction.model.to_owned(),
            prediction.set.join(" "),
            or_none(prediction.predicted_step_seconds.map(milliseconds)),
            milliseconds(prediction.measured_step_seconds),
            or_none(prediction.error().map(|error| format!("{:+.1} %", 100.0 * error))),
            or_none(prediction.families.first().map(|family| {
                let predicted = family.predicted_seconds;
                let measured = family.measured_seconds;
                format!("{} {} for {}", family.family, milliseconds(predicted), milliseconds(measured))
            })),
        ]
    };
    let rows: Vec<_> =
        std::iter::once(titles.map(str::to_owned).to_vec()).chain(predictions.iter().map(row)).collect();
    aligned(&rows, 2, &[1])
}
