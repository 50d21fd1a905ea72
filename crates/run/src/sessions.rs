//! `sessions.json` in a run directory: a record of each process that trained the run.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use config::Train;
use serde::{Deserialize, Serialize};
use system::{input, threads};
use telemetry::report::SessionRow;
use telemetry::run_files::{Summary, atomic_write};
use telemetry::units::{bytes, counted, duration, grouped};
use telemetry::{GridSizes, Statistic, host_name};
use worker::{Setup, Start};

use crate::cause::Cause;
use crate::error::{Result, RunError};
use crate::history::Repetition;
use crate::{failure, resume, utc};

/// Maximum bytes read of the file.
const MOST_BYTES: u64 = 64 << 20;

/// How a session ended. A session is one process's part of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ending {
    /// The process is training.
    Running,
    /// All steps are done.
    Complete,
    /// Stopped before the last step.
    Interrupted,
    /// A loss or gradient norm was not finite.
    NonFinite,
    /// A gradient norm spike ended the run, as configured.
    Spike,
    /// A step had a gradient norm spike; the next session restarts from the last checkpoint.
    Rewound,
    /// A step ran out of memory; the next session repeats it with smaller micro-batches.
    OutOfMemory,
    /// Ended with this error.
    Failed(String),
    /// The session recorded no end: the process was killed, or the machine stopped.
    Lost,
}

/// Results of a session that ended with a summary.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Results {
    /// Steps completed at the end of the session, including steps of earlier sessions.
    steps: u64,
    /// Tokens (or samples) per second over all ranks.
    tokens_per_second: f64,
    /// Peak allocated bytes, the maximum over ranks.
    peak_allocated_bytes: u64,
    /// Peak reserved bytes, the maximum over ranks.
    peak_reserved_bytes: u64,
    wall_seconds: f64,
    /// Seconds taken to read the state before the first step, on rank 0; absent if nothing was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    load_seconds: Option<f64>,
    /// The longest time in which a checkpoint blocked training, on rank 0; absent without checkpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    longest_save_stall_seconds: Option<f64>,
}

/// A setting that affects results and changed at the start of the session.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Changed {
    from: Option<String>,
    to: Option<String>,
}

/// The restart that began a session.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Restarted {
    /// Number of the restart in its job, from 1.
    number: u64,
    /// Why the previous session ended.
    cause: String,
    /// Number of completed steps that this session has to repeat.
    steps_repeated: u64,
    /// Seconds from the lost rank's last report until the first step of this session was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seconds_to_next_step: Option<f64>,
    /// Seconds from the lost rank's last report until the repeated steps were done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seconds_lost: Option<f64>,
}

/// A record of one session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Session {
    pub(crate) started: String,
    ended: Option<String>,
    pub(crate) ending: Ending,
    host: String,
    version: String,
    device_model: String,
    libraries: String,
    grid: GridSizes,
    /// Steps completed by earlier sessions.
    after_step: u64,
    /// Sequences or samples per micro-batch; absent in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    micro_batch_size: Option<usize>,
    /// The checkpoint or model folder of the initial weights.
    weights_from: Option<String>,
    /// Changed settings that affect results, by key: bits may differ after `after_step`.
    changed: BTreeMap<String, Changed>,
    /// Differences from the software that wrote the checkpoint: bits may differ after `after_step`.
    warnings: Vec<String>,
    /// The restart that began this session, if the job restarted automatically.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    restart: Option<Restarted>,
    results: Option<Results>,
}

impl Restarted {
    fn from_cause(cause: &Cause, first_step: u64) -> Self {
        Restarted {
            number: cause.restart,
            cause: cause.reason.clone(),
            steps_repeated: cause.steps.saturating_sub(first_step),
            seconds_to_next_step: None,
            seconds_lost: None,
        }
    }

    fn in_words(&self) -> String {
        let Restarted { number, cause, steps_repeated, .. } = self;
        let seconds = |value: Option<f64>| value.map_or("no".to_owned(), |value| format!("{value:.1} s"));
        format!(
            "restart {number}, after: {cause}; {} to the next step, {} lost, {} repeated",
            seconds(self.seconds_to_next_step),
            seconds(self.seconds_lost),
            counted(*steps_repeated, "step")
        )
    }
}

impl Ending {
    /// Returns the state of a session as a word. A session without a recorded end is `killed`, unless its
    /// process still trains.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Ending::Running | Ending::Lost => "killed",
            Ending::Complete => "complete",
            Ending::Interrupted => "stopped",
            Ending::NonFinite => "not finite",
            Ending::Spike => "spike",
            Ending::Rewound => "rewound",
            Ending::OutOfMemory => "out of memory",
            Ending::Failed(_) => "failed",
        }
    }
}

impl Session {
    fn row(&self, unit: &str) -> SessionRow {
        let ending = match &self.ending {
            Ending::Running => "not ended".to_owned(),
            Ending::Failed(text) => format!("failed: {text}"),
            ended => ended.name().to_owned(),
        };
        let from = grouped(self.after_step);
        let result_text =
            |text: &dyn Fn(&Results) -> String| self.results.as_ref().map_or_else(String::new, text);
        let steps = self.results.as_ref().map_or_else(
            || format!("after {from}"),
            |results| format!("{from} to {}", grouped(results.steps)),
        );
        let cells = [
            ending,
            steps,
            self.grid.to_string(),
            result_text(&|results| format!("{} {unit}", grouped(results.tokens_per_second.round() as u64))),
            result_text(&|results| bytes(results.peak_allocated_bytes)),
            result_text(&|results| duration(results.wall_seconds)),
            self.host.clone(),
        ];
        let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
        let changed = self.changed.iter().map(|(key, Changed { from: before, to })| {
            format!("{key} is {} and was {}: bits may differ after step {from}", value(to), value(before))
        });
        let weights = self.weights_from.iter().map(|path| format!("weights from {path}"));
        let restart = self.restart.iter().map(Restarted::in_words);
        let notes = restart.chain(weights).chain(changed).chain(self.warnings.iter().cloned()).collect();
        SessionRow { started: self.started.clone(), cells, notes }
    }
}

/// The records of a run directory. The last is this process's.
#[derive(Debug)]
pub(crate) struct Sessions {
    path: PathBuf,
    all: Vec<Session>,
    began: Instant,
    /// Time taken to read the state before the first step, if one was read.
    loaded: Option<Duration>,
    /// The cause of the restart that began this session, until the repeated steps are done.
    cause: Option<Cause>,
    /// The thread that writes the file during training.
    writing: Option<JoinHandle<()>>,
}

impl Sessions {
    /// Adds a record for the starting session. `loaded` is the time taken to read its state.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub(crate) fn begin(run_dir: &Path, setup: &Setup, loaded: Option<Duration>) -> Result<Self> {
        let path = run_dir.join("sessions.json");
        let mut all = read(&path)?;
        for session in all.iter_mut().filter(|session| session.ending == Ending::Running) {
            session.ending = Ending::Lost;
        }
        let description = setup.placement.description();
        let size = setup.config.train.micro_batch_size;
        let changes = resume::changes(setup).into_iter();
        let changed = changes.map(|change| (change.key, Changed { from: change.from, to: change.to }));
        let mut changed: BTreeMap<_, _> = changed.collect();
        // A first step that ran out of memory left no checkpoint to compare with.
        let repeated = all.last().filter(|last| last.ending == Ending::OutOfMemory);
        let before = repeated.and_then(|last| last.micro_batch_size).filter(|before| *before != size);
        if let Some(before) = before.filter(|_| setup.resumed().is_none()) {
            let change = Changed { from: Some(before.to_string()), to: Some(size.to_string()) };
            changed.insert(Train::micro_batch_size.to_owned(), change);
        }
        let warnings = setup.resumed().map_or_else(Vec::new, |point| resume::warnings(setup, point));
        let cause = Cause::of_process();
        all.push(Session {
            started: utc::rfc3339(SystemTime::now()),
            ended: None,
            ending: Ending::Running,
            host: host_name(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            device_model: description.model,
            libraries: description.libraries,
            grid: setup.config.parallel.grid().named().collect(),
            after_step: setup.first_step(),
            micro_batch_size: Some(size),
            weights_from: match &setup.start {
                Start::Weights(weights) => Some(weights.path().to_string_lossy().into_owned()),
                Start::Drawn | Start::Resumed(_) => None,
            },
            changed,
            warnings,
            restart: cause.as_ref().map(|cause| Restarted::from_cause(cause, setup.first_step())),
            results: None,
        });
        let sessions = Sessions { path, all, began: Instant::now(), loaded, cause, writing: None };
        sessions.write()?;
        Ok(sessions)
    }

    /// Records the cost of a restart when `steps` completes its first step or its repeated steps. A separate
    /// thread writes the file. A write error is ignored, because the end of the session is written too.
    pub(crate) fn step(&mut self, steps: u64) {
        let Some(cause) = &self.cause else { return };
        let Some(restart) = self.all.last_mut().and_then(|session| session.restart.as_mut()) else { return };
        let is_first = restart.seconds_to_next_step.is_none();
        let is_last = steps >= cause.steps;
        if !is_first && !is_last {
            return;
        }
        let seconds = cause.seconds_since();
        restart.seconds_to_next_step.get_or_insert(seconds);
        if is_last {
            restart.seconds_lost = Some(seconds);
            self.cause = None;
        }
        self.finish_writing();
        let path = self.path.clone();
        let text = self.text();
        let write = move || drop(text.map(|text| atomic_write(&path, &text)));
        self.writing = threads::spawn("sessions", write).ok();
    }

    fn finish_writing(&mut self) {
        // A thread that panicked has written nothing.
        let _ = self.writing.take().map(JoinHandle::join);
    }

    /// Completes the record of this session. `longest_stall` is the longest time in which a checkpoint
    /// blocked training.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn end(&mut self, summary: &Summary, longest_stall: Option<Duration>) -> Result<()> {
        let most = |statistic: Statistic| summary.ranks.iter().map(|rank| rank.get(statistic)).max();
        let results = Results {
            steps: summary.steps,
            tokens_per_second: summary.tokens_per_second,
            peak_allocated_bytes: most(Statistic::PeakAllocatedBytes).unwrap_or(0),
            peak_reserved_bytes: most(Statistic::PeakReservedBytes).unwrap_or(0),
            wall_seconds: self.began.elapsed().as_secs_f64(),
            load_seconds: self.loaded.map(|time| time.as_secs_f64()),
            longest_save_stall_seconds: longest_stall.map(|time| time.as_secs_f64()),
        };
        let ending = match (summary.more.contains_key("nonfinite"), summary.more["interrupted"].as_bool()) {
            (true, _) => Ending::NonFinite,
            _ if summary.more.contains_key("spike") => Ending::Spike,
            (false, Some(true)) => Ending::Interrupted,
            (false, _) => Ending::Complete,
        };
        self.close(ending, Some(results))
    }

    /// Completes the record of a session whose last steps are repeated by the next session.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn leave(&mut self, repetition: &Repetition) -> Result<()> {
        let ending = match repetition {
            Repetition::Halved(_) => Ending::OutOfMemory,
            Repetition::Rewound(_) => Ending::Rewound,
        };
        self.close(ending, None)
    }

    fn close(&mut self, ending: Ending, results: Option<Results>) -> Result<()> {
        self.finish_writing();
        if let Some(session) = self.all.last_mut() {
            (session.ending, session.results) = (ending, results);
            session.ended = Some(utc::rfc3339(SystemTime::now()));
        }
        self.write()
    }

    fn write(&self) -> Result<()> {
        Ok(atomic_write(&self.path, &self.text()?)?)
    }

    fn text(&self) -> Result<Vec<u8>> {
        let mut text = serde_json::to_vec_pretty(&self.all).map_err(|error| self.failed(error.into()))?;
        text.push(b'\n');
        Ok(text)
    }

    fn failed(&self, source: std::io::Error) -> RunError {
        RunError::File { path: self.path.clone(), source }
    }
}

/// Completes the record of a failed session. A write error is ignored, because the failure itself is
/// reported.
pub(crate) fn fail(run_dir: &Path, error: &RunError) {
    let path = run_dir.join("sessions.json");
    let Ok(all) = read(&path) else { return };
    if all.last().is_some_and(|session| session.ending == Ending::Running) {
        let text = error.to_string();
        let reported = failure::reported(&run_dir.join("logs"));
        let ending = match error {
            RunError::Repeatable { .. } => Ending::OutOfMemory,
            RunError::Reported { .. } => reported.map_or(Ending::Lost, Ending::Failed),
            _ => Ending::Failed(text.lines().next().unwrap_or_default().to_owned()),
        };
        let began = Instant::now();
        let _ = Sessions { path, all, began, loaded: None, cause: None, writing: None }.close(ending, None);
    }
}

/// Returns the records of a run for its report page; empty if the file is missing or unreadable. `unit` is
/// the unit of throughput.
pub(crate) fn rows(run_dir: &Path, unit: &str) -> Vec<SessionRow> {
    all(run_dir).iter().map(|session| session.row(unit)).collect()
}

/// Returns the records of a run; empty if the file is missing or unreadable.
pub(crate) fn all(run_dir: &Path) -> Vec<Session> {
    let text = input::read(&run_dir.join("sessions.json"), MOST_BYTES).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// Reads the records; empty if there is no file. A damaged file is renamed with a warning.
fn read(path: &Path) -> Result<Vec<Session>> {
    let failed = |source| RunError::File { path: path.to_owned(), source };
    let sessions = match input::read(path, MOST_BYTES) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) if error.kind() == ErrorKind::FileTooLarge => Err(error),
        text => serde_json::from_slice(&text.map_err(failed)?).map_err(std::io::Error::from),
    };
    sessions.or_else(|error| {
        let aside = path.with_extension("damaged.json");
        std::fs::rename(path, &aside).map_err(failed)?;
        tracing::warn!("{}: {error}: it is now {}", path.display(), aside.display());
        Ok(Vec::new())
    })
}
