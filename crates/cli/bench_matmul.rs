//! `plimsoll bench matmul`: the matmuls of a training step with the library's choices of algorithms, and the table of
//! the best ones that the program is built with.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use bench::{MatmulMeasure, MatmulOptions, bench_matmul};
use config::RunConfig;
use device::matmul_table::MatmulTable;
use worker::{DeviceChoice, TrainError};

use crate::bench_model::{BenchModel, StepArgs, seconds};

/// The arguments of `plimsoll bench matmul`.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchMatmulArgs {
    /// Which model: small (the quickstart's), gpt2-124m, gpt2-355m or gpt2-1558m
    #[arg(long, default_value = "gpt2-124m")]
    model: String,
    #[command(flatten)]
    step: StepArgs,
    /// Algorithms that are tried for each matmul, at most
    #[arg(long, value_name = "N", default_value_t = 16)]
    candidates: usize,
    /// Calls each for that long without a pause, twice, as short of power as in a step [default: a few calls, in turns]
    #[arg(long, value_name = "S", value_parser = seconds)]
    sustained_seconds: Option<Duration>,
    /// Brings the choices into this table; those of other matmuls stay, if it is for the same device and library
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
}

/// Measures, prints and writes. 0: done; 1: the run failed; 2: arguments that are wrong.
pub(crate) fn run(args: &BenchMatmulArgs) -> ExitCode {
    match measure(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "plimsoll: {error}");
            ExitCode::from(error.exit_status())
        }
    }
}

fn measure(args: &BenchMatmulArgs) -> Result<(), TrainError> {
    let device = DeviceChoice::from_name(&args.step.device)?;
    let before = args.write.as_deref().map(read).transpose()?.flatten();
    let precision = args.step.precision.as_deref().unwrap_or("bf16");
    let text = BenchModel::named(&args.model)?.configuration(args.step.micro_batch, 1, precision);
    let config = RunConfig::parse(&text, "bench matmul", Path::new("/"), &args.step.overrides)?;
    let head = format!(
        "{}, micro-batch {}, {} a step, {}",
        args.model,
        config.train.micro_batch_size,
        config.train.micro_batches(),
        config.precision.name()
    );
    let tried = MatmulOptions { candidates: args.candidates.max(1), sustained: args.sustained_seconds };
    let found = bench_matmul(config, &args.step.options(device), tried)?;
    print(&head, &found).map_err(|source| TrainError::File { path: "standard output".into(), source })?;
    let Some(path) = &args.write else { return Ok(()) };
    let text = merged(before, &found).to_string();
    std::fs::write(path, text).map_err(|source| TrainError::File { path: path.clone(), source })
}

/// The table in a file; none where there is no file. Errors: a file that is no table.
fn read(path: &Path) -> Result<Option<MatmulTable>, TrainError> {
    match std::fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TrainError::File { path: path.to_path_buf(), source }),
        Ok(text) => MatmulTable::parse(&text)
            .map(Some)
            .map_err(|error| TrainError::Refused(format!("--write {}: {error}", path.display()))),
    }
}

/// What was there, for the same device and library, with what was found for the matmuls that were measured.
fn merged(before: Option<MatmulTable>, found: &MatmulMeasure) -> MatmulTable {
    let same =
        |table: &MatmulTable| (&table.device, table.library) == (&found.table.device, found.table.library);
    let mut table = found.table.clone();
    if let Some(before) = before.filter(same) {
        let measured = |key| found.matmuls.iter().any(|time| time.key == key);
        table.choices.extend(before.choices.into_iter().filter(|(key, _)| !measured(*key)));
    }
    table
}

fn print(head: &str, found: &MatmulMeasure) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}, {}\n{head}\n", found.model, found.libraries)?;
    let titles = ["matmul", "calls", "tried", "first ms", "best ms", "ratio"];
    let [key, calls, tried, first, best, ratio] = titles;
    writeln!(out, "{key:<66} {calls:>5} {tried:>5} {first:>9} {best:>9} {ratio:>6}  choice")?;
    let (mut all_first, mut all_chosen) = (0.0, 0.0);
    for time in &found.matmuls {
        let chosen = if time.choice.is_some() { time.best } else { time.first };
        all_first += time.calls as f64 * time.first;
        all_chosen += time.calls as f64 * chosen;
        let note = time.choice.as_ref().and_then(|choice| choice.note.split_once(": "));
        writeln!(
            out,
            "{:<66} {:>5} {:>5} {:>9.4} {:>9.4} {:>6.3}  {}",
            time.key.to_string(),
            time.calls,
            time.tried,
            time.first,
            time.best,
            time.best / time.first,
            note.map_or("the first", |(_, note)| note)
        )?;
    }
    let (without, with) = found.medians();
    writeln!(
        out,
        "\nall of a step, each alone: {all_first:.3} ms with the first choices, {all_chosen:.3} with the table, ratio {:.3}",
        all_chosen / all_first
    )?;
    writeln!(
        out,
        "median step: {:.2} ms with the first choices, {:.2} with the table, ratio {:.3}",
        1e3 * without,
        1e3 * with,
        with / without
    )
}
