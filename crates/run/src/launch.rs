//! The launch of a run: from a validated configuration to ranks, and to one report.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use collective::{Communicator, threads};
use system::{output, terminal};
use telemetry::units::{bytes, grouped};

use crate::endpoint;
use crate::error::{Result, RunError};
use crate::failure::{self, Lost};
use crate::history::Repetition;
use crate::memory_states;
use crate::newest_intact::{self, NewestIntact};
use crate::options::RunOptions;
use crate::placement::ChosenPlacement;
use crate::prediction;
use crate::rank::{Outcome, run_rank};
use crate::repetition;
use crate::restarts;
use crate::resume::{self, Resumption};
use crate::run_directory::{self, RunDirectory};
use crate::session::nothing_is_left;
use crate::sessions;
use crate::shared_memory;
use crate::spike_file;
use crate::startup::Startup;
use crate::summary;
use crate::train_report::{TrainReport, report};
use crate::weights;
use config::{RecomputePolicy, RunConfig};
use data::Tokenizer;
use nn::Examples;
use plan::Fit;
use plan::RankForm;
use plan::SharedMemory;
use plan::partition;
use plan::recompute;
use plan::remedy;
use plan::roles::{Plans, plan_all, plan_one, taken};
use worker::Placement;
use worker::dataset;
use worker::watch::planned::Expected;
use worker::{Setup, Start};

/// Trains in this process. Errors with exit status 2 occur before anything is allocated or written; a failed
/// rank ends the run. On GPUs, call it for one run at a time: the kernels of two can stop each other.
pub fn train(config: RunConfig, options: RunOptions) -> Result<TrainReport> {
    train_as(Startup::alone(), config, options)?.ok_or(RunError::Reported { status: 0 })
}

/// Trains in this process, which may be a rank of a job. `None` on ranks other than 0, which has the report.
///
/// # Errors
/// As for [`train`]; one rank of a job has the error to be printed.
pub fn train_as(
    startup: Startup,
    mut config: RunConfig,
    mut options: RunOptions,
) -> Result<Option<TrainReport>> {
    if startup.is_in_job() && config.train.halves_micro_batches() {
        let origin = config.origins.of("train.on_out_of_memory");
        let text =
            "train.on_out_of_memory = \"halve_micro_batch\" is for ranks of one process, as with --ranks";
        return Err(RunError::Refused(format!("{origin}: {text}")));
    }
    let is_in_job = startup.is_in_job();
    let mut startup = Some(startup);
    loop {
        let trained = train_once(startup.take().unwrap_or_else(Startup::alone), config.clone(), &options);
        let run_dir = match trained {
            Err(RunError::Repeatable { run_dir, reason }) => {
                config = repetition::halved(&config, &reason)?;
                run_dir
            }
            // A job has ended, and its launcher starts it again.
            Err(RunError::Rewound { run_dir, .. }) if !is_in_job => run_dir,
            trained => return trained,
        };
        options = RunOptions { resume: true, run_dir: Some(run_dir), step: None, ..options };
    }
}

/// Trains until the end of the run, or until a step is to be repeated with smaller micro-batches
/// ([`RunError::Repeatable`]).
fn train_once(mut startup: Startup, config: RunConfig, options: &RunOptions) -> Result<Option<TrainReport>> {
    let first = startup.rank() == 0;
    if let Some(log) = options.log.as_ref().filter(|_| startup.is_in_job()) {
        log.set_rank(startup.rank());
    }
    startup.begins("complete the states in memory");
    let memory = match memory_states::of_process().filter(|_| options.resume) {
        Some(directory) => memory_states::complete(&mut startup, &directory)?,
        // Ranks may have other options, which is reported below.
        None => None,
    };
    let found = match options.run_dir.as_deref().filter(|_| options.resume && restarts::is_restarted()) {
        Some(run_dir) if options.step_to_resume().is_none() => {
            startup.begins("find the newest intact state");
            newest_intact::find(&mut startup, run_dir, memory.as_ref())?
        }
        _ => None,
    };
    startup.begins("open its data and what it goes on from");
    let prepared = prepare(&startup, config, options, found.as_ref());
    let (setup, resumption) = startup.agree(prepared)?;
    options.interrupt.end_preparation();
    startup.begins("tell its data and settings");
    let same = startup.check_same(&setup, &options.shared());
    startup.agree(same)?;
    let complete = if first { complete(&setup, options) } else { Ok(None) };
    let complete = startup.agree(complete)?;
    let is_complete = complete.as_ref().map_or("", |_| "complete").to_owned();
    if !startup.of_rank_zero(is_complete)?.is_empty() {
        startup.finish()?;
        return Ok(complete);
    }
    startup.begins("read the spikes that it has met");
    let left_out = startup.agree(left_out(&setup, options, first))?;
    let left_out = startup.of_rank_zero(left_out)?;
    startup.begins("choose what is computed again");
    let settled = if first { recompute::settle(setup) } else { Ok(setup) };
    let setup = startup.agree(settled.map_err(RunError::from))?;
    let mut setup = {
        let chosen = startup.of_rank_zero(recompute::encode(&setup.config.memory))?;
        recompute::adopt(setup, &chosen)?
    };
    startup.begins("plan its memory");
    let shared = match setup.placement {
        Placement::Cpu => shared_memory::find(&mut startup)?,
        _ => Vec::new(),
    };
    let planned = match options.no_plan {
        true => Ok(Default::default()),
        false => plan_ranks(&startup, &setup, shared),
    };
    let (plans, expected) = startup.agree(planned)?;
    // Plans are made of many small allocations, which the run would otherwise keep.
    device::heap::return_free_pages();
    setup = setup.expecting(expected);
    setup.left_out = Arc::new(left_out.split_whitespace().filter_map(|step| step.parse().ok()).collect());
    startup.begins("open the run directory");
    let directory = if first { open_directory(&setup, options, resumption).map(Some) } else { Ok(None) };
    let directory = startup.agree(directory)?;
    let directory = startup.share_directory(directory)?;
    if first {
        announce(&setup, &directory, &plans);
        resume::announce(&setup, options, directory.path());
    }
    if let Some(log) = &options.log {
        log.set_directory(&directory.logs())?;
    }
    let run_dir = directory.path().to_owned();
    let conclude = |outcomes: Vec<Outcome>| {
        let stopped_by = outcomes.first().map(|outcome| outcome.history.stopped_by).unwrap_or_default();
        if let Some(repetition) = outcomes.iter().find_map(|outcome| outcome.history.repeats.clone()) {
            let run_dir = directory.path().to_owned();
            return Err(match repetition {
                Repetition::Halved(reason) => RunError::Repeatable { run_dir, reason },
                Repetition::Rewound(spike) => RunError::Rewound { run_dir, spike },
            });
        }
        let report = first.then(|| report(&setup, outcomes, directory.clone(), &plans)).transpose()?;
        Ok((report, stopped_by))
    };
    // mpirun would end rank 0, which prints the report, when another rank ends with a status of its own.
    let has_status = startup.rank_form() != RankForm::Processes { mpi: true };
    let reported = launch(startup, &setup, options, &directory, conclude);
    if let Some(log) = &options.log {
        log.flush();
    }
    if let Err(error) = reported.as_ref()
        && first
    {
        sessions::fail(&run_dir, error);
    }
    match reported? {
        (None, stopped_by) if has_status && stopped_by.status() > 0 => {
            Err(RunError::Reported { status: stopped_by.status() })
        }
        (report, _) => Ok(report),
    }
}

/// Returns on rank 0 the steps whose samples the run leaves out, in the order of the data, as words.
///
/// # Errors
/// A file of spikes that cannot be read, or lacks some that the checkpoint's run had met.
fn left_out(setup: &Setup, options: &RunOptions, first: bool) -> Result<String> {
    let run_dir = options.run_dir.as_deref().filter(|_| first && options.resume);
    let before = setup.resumed().map_or(&[][..], |point| point.checkpoint.left_out());
    let steps = run_dir.map(|run_dir| spike_file::left_out(run_dir, before)).transpose()?.unwrap_or_default();
    Ok(steps.iter().map(u64::to_string).collect::<Vec<_>>().join(" "))
}

/// Returns the report of the run to be resumed if no step of it is left, and leaves its record unchanged.
///
/// # Errors
/// Files left by killed processes cannot be deleted.
fn complete(setup: &Setup, options: &RunOptions) -> Result<Option<TrainReport>> {
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

/// Returns on rank 0 the plans of all ranks, and on every process the plans of its own ranks, found at the
/// same time.
fn plan_ranks(startup: &Startup, setup: &Setup, shared: Vec<SharedMemory>) -> Result<(Plans, Expected)> {
    if startup.rank() > 0 {
        let plan = plan_one(setup, startup.rank())?;
        return Ok((Plans::default(), Expected::from([(plan.rank, plan.parts)])));
    }
    let plans = plan_that_fits(startup, setup, shared)?;
    let expected = plans.by_rank().map(|(rank, plan)| (rank, Arc::clone(&plan.parts))).collect();
    Ok((plans, expected))
}

/// Returns the plan of every rank of a job whose processes share these memories.
///
/// # Errors
/// Errors of the run; a run that does not fit, with the nearest that would.
fn plan_that_fits(startup: &Startup, setup: &Setup, shared: Vec<SharedMemory>) -> Result<Plans> {
    let plans = plan_all(setup)?;
    // On Meta no host memory is used, and the ranks of a job may be on several hosts.
    let form = match &setup.placement {
        Placement::Cpu => startup.rank_form(),
        _ => RankForm::Processes { mpi: false },
    };
    let fit = Fit::of(setup, &plans, taken(setup)?, form).in_shared(setup, &plans, shared);
    if !fit.fits {
        return Err(remedy::refusal(setup, &fit).into());
    }
    if matches!(setup.placement, Placement::Cpu) {
        tracing::info!("planned: {}", fit.figures());
    }
    if fit.retries {
        tracing::warn!("this run nearly fills its device: {fit}");
    }
    Ok(plans)
}

/// Checks what a process can check alone, and opens the data.
fn prepare(
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
    if let Some(run_dir) = options.run_dir.as_deref()
        && config.data.cache.as_os_str().is_empty()
        && config.tokenizer != Tokenizer::Bytes
    {
        config.data.cache = token_cache(run_dir);
    }
    let share = startup.share();
    let look = || Resumption::look(&config, options, startup.rank() == 0, (share, found));
    let resumption = options.resume.then(look).transpose()?;
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
    let (tensor_hook, step_hook) = (options.tensor_hook.clone(), options.step_hook.clone());
    let leaves_out_frozen = base.is_some();
    let mut setup = Setup { reason, start, base, leaves_out_frozen, tensor_hook, step_hook, ..setup };
    if let Some(resumption) = &resumption {
        resumption.apply(&mut setup)?;
    }
    Ok((setup, resumption))
}

/// Returns the directory of cached tokens: beside the run directory, where other runs find them, or in it if
/// its parent cannot be written.
fn token_cache(run_dir: &Path) -> PathBuf {
    let beside = run_dir.parent().unwrap_or(Path::new("")).join(dataset::CACHE);
    if output::is_writable(&beside) { beside } else { run_dir.join(dataset::CACHE) }
}

fn open_directory(
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

/// Runs this process's ranks to the end, each on its own thread if there are several, and passes their
/// results to `conclude`.
fn launch<T>(
    startup: Startup,
    setup: &Setup,
    options: &RunOptions,
    directory: &RunDirectory,
    conclude: impl FnOnce(Vec<Outcome>) -> Result<T>,
) -> Result<T> {
    let world_size = setup.config.world_size();
    let (timeout_seconds, in_job) = (setup.config.parallel.timeout_seconds, startup.is_in_job());
    let (run_dir, repeats) = (directory.path().to_owned(), repetition::is_from_checkpoint(&setup.config));
    let outcomes = match startup.into_job() {
        Some(job) => {
            job.watch(&directory.logs())?;
            // Results are written before MPI is finalized, because a rank can fail there.
            let body = |communicator| {
                run_rank(setup, communicator, options, directory).and_then(|outcome| conclude(vec![outcome]))
            };
            return job
                .run(timeout_seconds, body)
                .map_err(|lost| lost_rank(directory, world_size, in_job, &lost));
        }
        None if world_size == 1 => {
            let body = || run_rank(setup, Communicator::solo(), options, directory);
            match catch_unwind(AssertUnwindSafe(body)) {
                Ok(Ok(outcome)) => Ok(vec![outcome]),
                Ok(Err(error)) if error.exit_status() != 1 => return Err(error),
                Ok(Err(error)) => Err(Lost::here(0, failure::sentence(&error))),
                Err(payload) => Err(Lost::here(0, failure::panic_text(&*payload))),
            }
        }
        None => {
            let timeout = Duration::from_secs(timeout_seconds);
            let waits = threads::Options { timeout, ..threads::Options::default() };
            let (setup, options, directory) = (setup.clone(), options.clone(), directory.clone());
            let ran_out = Arc::new(AtomicBool::new(false));
            let noted = Arc::clone(&ran_out);
            let body = move |communicator| {
                let ran = run_rank(&setup, communicator, &options, &directory);
                if ran.as_ref().is_err_and(RunError::is_out_of_memory) {
                    noted.store(true, Ordering::Relaxed);
                }
                ran
            };
            match threads::run(world_size, waits, body) {
                Err(error) if ran_out.load(Ordering::Relaxed) && repeats => {
                    let reason = failure::one_line(&error.to_string());
                    return Err(RunError::Repeatable { run_dir, reason });
                }
                ran => {
                    ran.map_err(|error| Lost::here(error.rank, failure::one_line(&error.cause.to_string())))
                }
            }
        }
    };
    conclude(outcomes.map_err(|lost| lost_rank(directory, world_size, in_job, &lost))?)
}

/// Reports that a rank failed, unless another rank has.
fn lost_rank(directory: &RunDirectory, world_size: usize, in_job: bool, lost: &Lost) -> RunError {
    match failure::report(&directory.logs(), world_size, lost) {
        Some(report) if in_job => {
            // At once: a launcher gives the ranks of a job about a second.
            terminal::say(&format!("plimsoll: {report}"));
            RunError::Reported { status: 1 }
        }
        Some(report) => RunError::Failed(report),
        None => RunError::Reported { status: 1 },
    }
}

/// Returns the relation of vocabulary and tokenizer in words, if the vocabulary is larger.
fn vocabulary_in_words(config: &RunConfig) -> Option<String> {
    let Examples::Tokens { vocabulary, .. } = config.model.examples() else { return None };
    let (name, tokens) = (config.tokenizer.name(), config.tokenizer.vocabulary());
    (tokens > 0 && vocabulary > tokens)
        .then(|| format!("vocabulary {vocabulary}: the {tokens} tokens of {name}, padded"))
}

/// Logs the settings of the run and its planned memory.
fn announce(setup: &Setup, directory: &RunDirectory, plans: &Plans) {
    let config = &setup.config;
    tracing::info!(ranks = config.world_size(), "computing on {}", setup.reason);
    for warning in setup.device.settings.warnings() {
        tracing::warn!("memory.allocator: {warning}");
    }
    if let Some(warning) = config.tokenizer_warning() {
        tracing::warn!("{warning}");
    }
    for warning in config.dropout_warning().into_iter().chain(config.adapters_warning()) {
        tracing::warn!("{warning}");
    }
    for note in config.folder_notes() {
        tracing::info!("{note}");
    }
    for sentence in plan::without_effect(setup) {
        tracing::warn!("{sentence}");
    }
    if config.memory.preallocate && plans.roles().is_empty() {
        tracing::warn!("memory.preallocate has no effect without a plan");
    }
    let advice = config.model.advice(config.precision.compute);
    for advice in advice.into_iter().chain(config.context_advice()) {
        tracing::warn!("{advice}");
    }
    if let Some(figures) = setup.dataset.tokens.as_ref().and_then(|tokens| tokens.packing()) {
        let indices = figures.sequences * config.model.examples().units() as u64;
        tracing::info!(
            "packed {} documents into {} sequences, of which {:.1} % is padding; {} are longer and are cut",
            grouped(figures.documents),
            grouped(figures.sequences),
            100.0 * (1.0 - figures.tokens as f64 / indices as f64),
            grouped(figures.longer)
        );
    }
    if let Some(words) = vocabulary_in_words(config) {
        tracing::info!("{words}");
    }
    tracing::info!("run directory {}", directory.path().display());
    if config.memory.recompute != RecomputePolicy::None {
        tracing::info!("activations are recomputed in backward: {}", recompute::in_words(&config.memory));
    }
    if config.stages() > 1 {
        let layers = setup.blueprint.layers_of_stages();
        tracing::info!("layers of each stage: {layers}, {}", partition::in_words(config));
    }
    if let Some(plan) = plans.largest() {
        let both = |count: u64| format!("{} bytes ({})", grouped(count), bytes(count));
        let (allocated, reserved) = (plan.statistics.peak_allocated(), plan.statistics.peak_reserved());
        tracing::info!(
            "planned: every rank allocates at most {} and reserves at most {}",
            both(allocated),
            both(reserved)
        );
    }
    if let Some(outlived) = plans.roles().iter().find_map(|plan| plan.parts.outlived()) {
        let grows =
            if plans.roles().iter().any(|plan| plan.parts.grows()) { ", more with every step" } else { "" };
        tracing::warn!("planned: {outlived}{grows}");
    }
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
