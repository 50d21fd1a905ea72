//! Runs one rank from start to end.

use std::time::{Duration, Instant};

use collective::Communicator;
use system::fail_point;
use system::pace::Pace;
use telemetry::host_name;
use telemetry::log::rank_span;
use telemetry::run_files::Summary;
use telemetry::step_trace::RunPart;

use crate::answering::while_answering;
use crate::error::{Result, RunError};
use crate::failure;
use crate::history::History;
use crate::options::RunOptions;
use crate::reference;
use crate::reporter::{Reporter, RunFiles, Silent};
use crate::run_directory::RunDirectory;
use crate::sampler::Sample;
use crate::save::Saver;
use crate::session;
use crate::start_times::StartTimes;
use crate::summary;
use crate::views;
use checkpoint::CheckpointError;
use planned::{Findings, Writing};
use telemetry::status::{State, Status};
use worker::Placement;
use worker::agreed_hash;
use worker::{Setup, Start, Worker, WorkerError};

/// Kernel preparation shorter than this is not logged; cached kernels take less.
const QUIET_PREPARATION: Duration = Duration::from_millis(500);
/// Interval between progress messages while kernels are compiled.
const PREPARATION_INTERVAL: Duration = Duration::from_secs(2);

/// The results of a rank. All ranks have the same history; rank 0 also has the summary and the sample.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) history: History,
    /// The summary, on rank 0.
    pub(crate) summary: Option<Summary>,
    pub(crate) sample: Option<Sample>,
    /// Differences between each rank's memory and its plan, on rank 0.
    pub(crate) findings: Vec<Findings>,
    /// The error that prevented the last checkpoint from being written.
    pub(crate) unsaved: Option<CheckpointError>,
}

/// Runs one rank from start to end, and keeps its status file up to date.
pub(crate) fn run_rank(
    setup: &Setup,
    mut communicator: Communicator,
    options: &RunOptions,
    directory: &RunDirectory,
) -> Result<Outcome> {
    let rank = communicator.rank();
    let world_size = communicator.world_size();
    let _span = rank_span(rank).entered();
    let host = host_name();
    let model = setup.placement.description().model;
    let process = std::process::id();
    tracing::info!("rank {rank} of {world_size} on {host}, process {process}, computing on {model}");
    let status = Status::create(&directory.logs(), rank, &setup.blueprint.in_words(rank));
    status.observe(&mut communicator);
    let mut start = StartTimes::begin();
    prepare_kernels(setup)?;
    start.end("kernels");
    let device = setup.device(rank)?;
    start.end("device");
    let mut left = None;
    let outcome =
        Worker::on(device.clone(), setup, communicator).map_err(RunError::from).and_then(|mut worker| {
            start.end("model");
            // The process group may have changed.
            worker.report_to(&status);
            let outcome = train_rank(&mut worker, options, directory, start);
            if let Err(error) = &outcome {
                // Before the worker is dropped, and with it what it holds.
                if error.is_out_of_memory() {
                    let findings = worker.found_in_words();
                    left = Some(failure::memory_of(&device, rank, &directory.logs(), &findings));
                }
                // Reported before the connections close, so that no other rank waits for this one.
                worker.control().fail(&failure::sentence(error));
            }
            outcome
        });
    status.end(if outcome.is_ok() { State::Done } else { State::Failed });
    outcome.map_err(|error| match error.is_out_of_memory() {
        false => error,
        true => RunError::OutOfMemory {
            left: left.unwrap_or_else(|| failure::memory_of(&device, rank, &directory.logs(), &[])),
            source: Box::new(error),
        },
    })
}

/// Compiles the kernels that are not cached, and logs progress if it takes long.
pub fn prepare_kernels(setup: &Setup) -> Result<()> {
    let Placement::Cuda(gpus) = &setup.placement else { return Ok(()) };
    let first = gpus.ordinals.first().copied().unwrap_or(0);
    let pace = Pace::new(QUIET_PREPARATION, PREPARATION_INTERVAL);
    let progress = |done: usize, all: usize| {
        if pace.is_due() || done == all && pace.elapsed() > QUIET_PREPARATION {
            tracing::info!("compiling kernels for this GPU, once: {done} of {all} files done");
        }
    };
    device::cuda::prepare_kernels(first, tensor::ops::FAMILIES, &progress)
        .map_err(|error| RunError::Refused(error.to_string()))
}

fn train_rank(
    worker: &mut Worker,
    options: &RunOptions,
    directory: &RunDirectory,
    mut start: StartTimes,
) -> Result<Outcome> {
    let setup = worker.setup().clone();
    let setup = &setup;
    let rank = worker.grid().rank();
    tracing::debug!("{} parameters on {:?}", worker.parameters(), worker.device());
    let began = Instant::now();
    worker.begin()?;
    start.end("state");
    let loaded = (!matches!(setup.start, Start::Drawn)).then(|| began.elapsed());
    worker.write_traces_to(directory.path());
    let opened = setup.clone();
    let run_dir = directory.path().to_owned();
    let predicts = !options.no_plan;
    let open = (rank == 0).then_some(move || RunFiles::open(&opened, &run_dir, loaded, predicts));
    let files = while_answering(worker.control(), open)?.transpose()?;
    start.end("files");
    let (history, files, mut saver) = train(worker, options, directory, files, start)?;
    if let Some(repetition) = history.repeats.clone() {
        report_files(saver.as_mut(), worker)?;
        let close = files.map(|files| move || files.leave(&repetition, saver));
        while_answering(worker.control(), close)?.transpose()?;
        return Ok(Outcome { history, summary: None, sample: None, findings: Vec::new(), unsaved: None });
    }
    options.interrupt.end_steps();
    fail_point::reach("steps done");
    write_views(worker, directory)?;
    let findings = worker.findings()?;
    let own = worker.statistics()?;
    let ranks = telemetry::gather(worker.control(), &own)?.unwrap_or_default();
    let weights_sha256 = agreed_hash(worker)?;
    report_files(saver.as_mut(), worker)?;
    let mut conclusion = None;
    if let Some(files) = files {
        let summary = summary::summarize(setup, &history, ranks, weights_sha256, &findings);
        let run_dir = directory.path().to_owned();
        // A session without a step leaves the record of the steps that were done.
        let earlier = directory.earlier_summary().filter(|_| history.steps == history.first);
        conclusion =
            Some(move || files.conclude(summary, earlier.as_ref().map(|text| &text[..]), &run_dir, saver));
    }
    let concluded = while_answering(worker.control(), conclusion)?.transpose()?;
    let (summary, unsaved) = concluded.map_or((None, None), |(summary, unsaved)| (Some(summary), unsaved));
    let sample = match &options.sampler {
        Some(sampler) if !history.is_lost() && history.steps > history.first => sampler.draw(worker)?,
        _ => None,
    };
    Ok(Outcome { history, summary, sample, findings, unsaved })
}

/// Trains. Returns the history, rank 0's files, and the saver that writes this rank's part of the last
/// checkpoint.
fn train(
    worker: &mut Worker,
    options: &RunOptions,
    directory: &RunDirectory,
    mut files: Option<RunFiles>,
    mut start: StartTimes,
) -> Result<(History, Option<RunFiles>, Option<Saver>)> {
    let setup = worker.setup().clone();
    let first = files.as_mut().and_then(RunFiles::take_saver);
    let mut saver = Saver::shared(&setup, directory.path(), first, worker.control())?;
    saver.as_mut().map_or(Ok(()), |saver| saver.prepare(worker))?;
    start.end("memory for checkpoints");
    worker.check_plan(RunPart::Start, 0)?;
    if worker.lacks_reference() {
        reference::score(worker, directory.path())?;
        start.end("scores of the reference model");
    }
    if let (Some(saver), Some(scores)) = (&saver, worker.reference_scores()) {
        saver.set_reference(&scores);
    }
    tracing::info!("ready to train after {}", start.in_words());
    fail_point::reach("training about to begin");
    Ok(match files {
        Some(files) => {
            let mut reporter = Reporter::new(&setup, options, files, saver);
            let history = session::run(worker, &options.interrupt, &mut reporter)?;
            let (files, saver) = reporter.into_files();
            (history, Some(files), saver)
        }
        None => {
            let mut silent = Silent(saver);
            (session::run(worker, &options.interrupt, &mut silent)?, None, silent.0)
        }
    })
}

/// Waits until every rank has written its file of the last checkpoint; rank 0 then completes the checkpoint.
fn report_files(saver: Option<&mut Saver>, worker: &mut Worker) -> Result<()> {
    saver.map_or(Ok(()), |saver| saver.report(worker.control()))
}

/// Writes this rank's traces and, if configured, charts of its memory. Every rank must call this.
fn write_views(worker: &mut Worker, directory: &RunDirectory) -> Result<()> {
    let wanted = worker.setup().config.memory.history > 0 && !worker.device().is_meta();
    let views = if wanted { views::memory_views(worker) } else { Vec::new() };
    let traces = worker.written_traces()?;
    let run_dir = directory.path().to_owned();
    let write = move || -> Result<()> {
        views::write(&views, &run_dir)?;
        Ok(traces.map_or(Ok(()), Writing::finish).map_err(WorkerError::from)?)
    };
    while_answering(worker.control(), Some(write))?.transpose()?;
    Ok(())
}
