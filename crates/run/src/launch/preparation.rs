//! The part of start-up that each process does alone: checks, opening the data, and finding the state to
//! resume.

use std::path::{Path, PathBuf};

use config::RunConfig;
use data::Tokenizer;
use system::output;
use worker::{Setup, Start, dataset};

use crate::endpoint;
use crate::error::Result;
use crate::failure;
use crate::newest_intact::NewestIntact;
use crate::options::RunOptions;
use crate::placement::ChosenPlacement;
use crate::prediction;
use crate::resume::{self, Resumption};
use crate::run_directory::{self, RunDirectory};
use crate::run_report::configuration_of;
use crate::session::nothing_is_left;
use crate::spike_file;
use crate::startup::Startup;
use crate::summary;
use crate::train_report::TrainReport;
use crate::weights;

/// Checks the settings that need no other process, and opens the data and the state to resume.
pub(super) fn prepare(
    startup: &Startup,
    mut config: RunConfig,
    options: &RunOptions,
    found: Option<&NewestIntact>,
) -> Result<(Setup, Option<Resumption>)> {
    startup.check_ranks(&config, options.ranks)?;
    if startup.rank() == 0 {
        endpoint::check(&config)?;
        prediction::check(&config)?;
    }
    let ChosenPlacement { placement, reason } =
        ChosenPlacement::find(options.device, &mut config, startup, options.ranks)?;
    let (config, context) = plan::resolve(config, &placement.description())?;
    let mut config = match options.run_dir.as_deref().filter(|_| options.resume) {
        // A configuration that cannot be read is refused with its checkpoint.
        Some(run_dir) => match configuration_of(run_dir, &[]) {
            Ok(earlier) => config.continuing(&earlier),
            Err(_) => config,
        },
        None => config,
    };
    if let Some(context) = context {
        tracing::info!("{context}");
    }
    if let Some(run_dir) = options.run_dir.as_deref()
        && config.data.cache.as_os_str().is_empty()
        && config.tokenizer != Tokenizer::Bytes
    {
        config.data.cache = token_cache(run_dir);
    }
    let share = startup.share();
    let find = || Resumption::find(&config, options, startup.rank() == 0, (share, found));
    let resumption = options.resume.then(find).transpose()?;
    let continues = resumption.as_ref().is_some_and(|resumption| resumption.point.is_some());
    let start = match &options.from {
        _ if continues => Start::Drawn,
        Some(from) => resume::weights_from(from, options.step, &config, share)?,
        None => weights::start(&config)?,
    };
    let point = resumption.as_ref().and_then(|resumption| resumption.point.as_deref());
    let base = match (&options.from, point) {
        (_, Some(point)) => weights::base_of(&point.checkpoint, &config)?,
        (Some(_), None) => None,
        (None, None) => weights::base(&config)?,
    };
    let setup = plan::prepare(config, placement)?.with_hook(options.model_hook.clone())?;
    let tensor_hook = options.tensor_hook.clone();
    let step_hook = options.step_hook.clone();
    let leaves_out_frozen = base.is_some();
    let mut setup = Setup { reason, start, base, leaves_out_frozen, tensor_hook, step_hook, ..setup };
    if let Some(resumption) = &resumption {
        resumption.apply(&mut setup)?;
    }
    Ok((setup, resumption))
}

/// Returns the directory of the token cache: beside the run directory, where other runs find it, or inside it
/// if its parent is read-only.
fn token_cache(run_dir: &Path) -> PathBuf {
    let beside = run_dir.parent().unwrap_or(Path::new("")).join(dataset::CACHE);
    if output::is_writable(&beside) { beside } else { run_dir.join(dataset::CACHE) }
}

/// Returns a list of the steps whose samples the run skips, in data order; empty except on rank 0.
///
/// # Errors
/// The file of spikes cannot be read, or lacks spikes of the run that wrote the checkpoint.
pub(super) fn left_out(setup: &Setup, options: &RunOptions, first: bool) -> Result<String> {
    let run_dir = options.run_dir.as_deref().filter(|_| first && options.resume);
    let before = setup.resumed().map_or(&[][..], |point| point.checkpoint.left_out());
    let steps = run_dir.map(|run_dir| spike_file::left_out(run_dir, before)).transpose()?.unwrap_or_default();
    Ok(steps.iter().map(u64::to_string).collect::<Vec<_>>().join(" "))
}

/// Returns the report of the run to resume if it is already complete, and leaves its record unchanged.
///
/// # Errors
/// Files left by killed processes cannot be deleted.
pub(super) fn complete(setup: &Setup, options: &RunOptions) -> Result<Option<TrainReport>> {
    let Some(run_dir) = options.run_dir.as_deref() else { return Ok(None) };
    let Some(summary) = summary::of_complete_run(setup, run_dir) else { return Ok(None) };
    run_directory::tidy(setup, run_dir)?;
    let steps = setup.config.train.steps;
    tracing::info!(
        "{}",
        match setup.resumed() {
            Some(point) if summary.steps < steps => {
                nothing_is_left(summary.steps, point.checkpoint.validations().since_best)
            }
            _ => format!("nothing is left to do: all {steps} steps are done"),
        }
    );
    Ok(Some(TrainReport::of_record(setup, summary, run_dir.to_owned())))
}

/// Opens the run directory, a new one or the resumed run's.
///
/// # Errors
/// The directory cannot be created or written.
pub(super) fn open_directory(
    setup: &Setup,
    options: &RunOptions,
    resumption: Option<Resumption>,
) -> Result<RunDirectory> {
    let directory = match resumption.and_then(|resumption| resumption.lock) {
        Some(lock) => RunDirectory::reopen(setup, lock)?,
        None => RunDirectory::create(&setup.config, options.run_dir.clone(), &options.name)?,
    };
    failure::forget(&directory.logs());
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use super::token_cache;

    #[test]
    fn tokens_lie_beside_the_run_directory_if_they_can() {
        let directory = tempfile::tempdir().unwrap();
        let beside = directory.path().join(".tokens");
        assert_eq!(token_cache(&directory.path().join("run")), beside);
        // Below a file nobody can write.
        let run_dir = directory.path().join("file").join("run");
        std::fs::write(directory.path().join("file"), "").unwrap();
        assert_eq!(token_cache(&run_dir), run_dir.join(".tokens"));
    }
}
