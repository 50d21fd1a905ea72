//! `plimsoll bench matmul`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::CliError;
use bench::{MatmulMeasure, MatmulOptions, bench_matmul};
use config::RunConfig;
use device::matmul_table::MatmulTable;
use system::input;
use system::output::{OutputFile, Replace};
use telemetry::table::aligned;
use worker::DeviceChoice;

use crate::arguments::{count, seconds};
use crate::bench_model::{BenchModel, StepArgs};
use crate::output::print;

/// Measure every matmul of a training step with each of the library's algorithms, and write a table of the
/// fastest
#[derive(Debug, clap::Args)]
pub(crate) struct BenchMatmulArgs {
    /// Model: small (the quickstart's), gpt2-124m, gpt2-355m, gpt2-1558m,
    /// llama3-1b, llama3-8b, gemma3-1b, qwen3-30b-a3b, qwen3.5-1b, gpt-shakespeare or resnet50
    #[arg(long, default_value = "gpt2-124m")]
    model: String,
    #[command(flatten)]
    step: StepArgs,
    /// Maximum number of algorithms to try for each matmul
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = count::<usize>)]
    candidates: usize,
    /// Call each algorithm for S seconds without a pause, twice, so that the GPU reaches its power limit as
    /// in a training step [default: a few calls, alternating]
    #[arg(long, value_name = "S", value_parser = seconds)]
    sustained_seconds: Option<Duration>,
    /// Merge the choices into the table FILE. Choices for other matmuls are kept if FILE is for the same
    /// device and library
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
}

/// Runs the command: measures, prints and writes.
///
/// # Errors
/// The arguments are invalid, there is no GPU, or a run fails.
pub(crate) fn run(args: &BenchMatmulArgs) -> Result<(), CliError> {
    let device = DeviceChoice::from_name(&args.step.device)?;
    let before = args.write.as_deref().map(read).transpose()?.flatten();
    // An existing file is a table, whose other choices are kept.
    let output = args.write.as_deref().map(output).transpose()?;
    let precision = args.step.precision.as_deref().unwrap_or("bf16");
    let text = BenchModel::named(&args.model)?.configuration(args.step.micro_batch_size, 1, precision)?;
    let config = RunConfig::parse(&text, "bench matmul", Path::new("/"), &args.step.overrides)?;
    let head = format!(
        "{}, micro-batch {}, {} a step, {}",
        args.model,
        config.train.micro_batch_size,
        config.train.micro_batches(),
        config.precision.name()
    );
    let tried = MatmulOptions { candidates: args.candidates.max(1), sustained: args.sustained_seconds };
    let measure = bench_matmul(config, &args.step.options(device), tried)?;
    print(&report(&head, &measure))?;
    let Some(output) = output else { return Ok(()) };
    let path = output.path().to_owned();
    let text = merged(before, &measure).to_string();
    output.write(text.as_bytes()).map_err(|source| CliError::File { path, source })
}

/// Checks that `path` can be written.
///
/// # Errors
/// The path cannot be written.
fn output(path: &Path) -> Result<OutputFile, CliError> {
    let refused = |error| CliError::Refused(format!("--write {}: {error}", path.display()));
    OutputFile::new(path, Replace::Anything).map_err(refused)
}

/// Maximum size of a table in bytes.
const MOST_BYTES: u64 = 16 << 20;

/// Reads the table in `path`; `None` if there is no such file.
///
/// # Errors
/// The file is not a table.
fn read(path: &Path) -> Result<Option<MatmulTable>, CliError> {
    match input::read_text(path, MOST_BYTES) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(CliError::Refused(format!("--write {}: {error}", path.display()))),
        Ok(text) => MatmulTable::parse(&text)
            .map(Some)
            .map_err(|error| CliError::Refused(format!("--write {}: {error}", path.display()))),
    }
}

/// Returns the measured table, merged with `before`. If `before` is for the same device and library, its
/// choices for matmuls that were not measured are kept.
fn merged(before: Option<MatmulTable>, measure: &MatmulMeasure) -> MatmulTable {
    let mut table = measure.table.clone();
    let same = |other: &MatmulTable| (&other.device, other.library) == (&table.device, table.library);
    if let Some(before) = before.filter(same) {
        let measured = |key| measure.matmuls.iter().any(|time| time.key == key);
        table.choices.extend(before.choices.into_iter().filter(|(key, _)| !measured(*key)));
    }
    table
}

/// Formats a row for each matmul, and the times of a step with and without the table.
fn report(head: &str, measure: &MatmulMeasure) -> String {
    let titles = ["matmul", "choice", "calls", "tried", "first ms", "best ms", "ratio"];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    let (mut all_first, mut all_chosen) = (0.0, 0.0);
    for time in &measure.matmuls {
        let chosen = if time.choice.is_some() { time.best } else { time.first };
        all_first += time.calls as f64 * time.first;
        all_chosen += time.calls as f64 * chosen;
        let note = time.choice.as_ref().and_then(|choice| choice.note.split_once(": "));
        rows.push(vec![
            time.key.to_string(),
            note.map_or("the first", |(_, note)| note).to_owned(),
            time.calls.to_string(),
            time.tried.to_string(),
            format!("{:.4}", time.first),
            format!("{:.4}", time.best),
            format!("{:.3}", time.best / time.first),
        ]);
    }
    let (without, with) = measure.medians();
    format!(
        "{}, {}\n{head}\n\n{}\nall matmuls of a step, each alone: {all_first:.3} ms with the library's first \
         algorithms, {all_chosen:.3} ms with the table, ratio {:.3}\nmedian step: {:.2} ms with the \
         library's first algorithms, {:.2} ms with the table, ratio {:.3}",
        measure.model,
        measure.libraries,
        aligned(&rows, 2, &[1]),
        all_chosen / all_first,
        1e3 * without,
        1e3 * with,
        with / without
    )
}
