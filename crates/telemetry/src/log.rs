//! Logs with rank and step, written to standard error and to one file per rank in the run directory.
//!
//! Rank and step are fields of spans. A worker enters [`rank_span`] once and [`step_span`] for each step;
//! events inside, from any crate, are logged with both. A process that is one rank of a job sets the rank of
//! events outside these spans with [`Log::set_rank`].

use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use system::file_error::FileContext;
use system::terminal::visible;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Span, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry};

use crate::error::{Result, TelemetryError};
use crate::log_files::LogFiles;
use crate::progress::write_beside_bars;

/// Environment variable with the log filter, such as `debug` or `warn,collective=trace`.
pub const VARIABLE: &str = "PLIMSOLL_LOG";

/// Returns the span of a rank's work.
pub fn rank_span(rank: usize) -> Span {
    tracing::error_span!("rank", rank)
}

/// Returns the span of a step, to be entered inside the rank's span.
pub fn step_span(step: u64) -> Span {
    tracing::error_span!("step", step)
}

/// The log of a process. Clones share it.
///
/// Standard error gets the lines of rank 0, lines without a rank, and warnings and errors of other ranks.
/// Each rank's file gets all of the rank's lines.
#[derive(Clone, Debug)]
pub struct Log(Arc<State>);

#[derive(Debug)]
struct State {
    began: Instant,
    terminal: bool,
    sinks: Mutex<Sinks>,
}

/// Destinations of lines besides standard error.
#[derive(Debug, Default)]
struct Sinks {
    /// Rank of events outside a rank's span.
    rank: Option<usize>,
    files: Option<LogFiles>,
}

/// Maximum time to wait for the log's disk when a run ends.
const PATIENCE: Duration = Duration::from_secs(10);

impl Log {
    /// Creates a log that writes to standard error, and to files once [`Log::set_directory`] is called.
    pub fn new() -> Self {
        Log(Arc::new(State { began: Instant::now(), terminal: true, sinks: Mutex::default() }))
    }

    /// Creates a log that writes to files only.
    pub fn files_only() -> Self {
        Log(Arc::new(State { began: Instant::now(), terminal: false, sinks: Mutex::default() }))
    }

    /// Makes this the log of the process. [`VARIABLE`] sets the filter; the default is level `info`.
    ///
    /// # Errors
    /// The filter is invalid, or the process already has a log.
    pub fn install(&self) -> Result<()> {
        let text = std::env::var(VARIABLE).unwrap_or_default();
        let subscriber = self.subscriber(&text)?;
        subscriber.try_init().map_err(|_| TelemetryError::SecondLog)
    }

    /// Checks that the value of [`VARIABLE`] is a valid filter.
    pub fn check_variable() -> Result<()> {
        Self::files_only().subscriber(&std::env::var(VARIABLE).unwrap_or_default()).map(drop)
    }

    /// Returns a subscriber that writes to this log. An empty `filter` means `info`.
    pub fn subscriber(&self, filter: &str) -> Result<impl Subscriber + Send + Sync + use<>> {
        let wanted = if filter.is_empty() { "info" } else { filter };
        let refused =
            |reason: String| TelemetryError::Filter { variable: VARIABLE, text: filter.to_owned(), reason };
        // The filter would interpret a word that is not a level as a module, and log nothing.
        let word = |part: &&str| !part.contains('=') && part.parse::<LevelFilter>().is_err();
        if let Some(word) = wanted.split(',').map(str::trim).find(|part| word(part) && !part.contains('[')) {
            return Err(refused(format!("{word} is not error, warn, info, debug, trace or off")));
        }
        let filter = EnvFilter::try_new(wanted).map_err(|error| refused(error.to_string()))?;
        Ok(Registry::default().with(filter).with(RankLayer(self.clone())))
    }

    /// Sets the rank of events outside a rank's span.
    pub fn set_rank(&self, rank: usize) {
        self.sinks().rank = Some(rank);
    }

    /// Starts writing each rank's lines to `directory/rank-N.log`.
    pub fn set_directory(&self, directory: &Path) -> Result<()> {
        std::fs::create_dir_all(directory).context(directory, "create the directory")?;
        let files = LogFiles::start(directory.to_owned());
        self.sinks().files = Some(files.context(directory, "start a thread to write it")?);
        Ok(())
    }

    /// Waits until the files have all lines so far, up to a time limit.
    pub fn flush(&self) {
        let written = self.sinks().files.as_ref().map(LogFiles::flush);
        // Lines that are late are lost with the process; no result changes.
        let _ = written.map(|written| written.recv_timeout(PATIENCE));
    }

    fn sinks(&self) -> MutexGuard<'_, Sinks> {
        self.0.sinks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, level: Level, origin: Origin, text: &str) {
        let text = visible(text);
        let sinks = self.sinks();
        let rank = origin.rank.or(sinks.rank);
        let origin = Origin { rank, ..origin };
        if self.0.terminal && (rank.is_none_or(|rank| rank == 0) || level <= Level::WARN) {
            let seconds = self.0.began.elapsed().as_secs_f64();
            write_beside_bars(&format!("{seconds:9.3}s {level:>5} {origin}{text}\n"));
        }
        if let Some((rank, files)) = rank.zip(sinks.files.as_ref()) {
            let mut line = String::new();
            // Writing to a string cannot fail.
            let _ = SystemTime.format_time(&mut Writer::new(&mut line));
            files.write(rank, format!("{line} {level:>5} {origin}{text}\n"));
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self::new()
    }
}

/// Rank and step of a log event.
#[derive(Clone, Copy, Debug, Default)]
struct Origin {
    rank: Option<usize>,
    step: Option<u64>,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.rank, self.step) {
            (Some(rank), Some(step)) => write!(f, "rank {rank} step {step}: "),
            (Some(rank), None) => write!(f, "rank {rank}: "),
            (None, Some(step)) => write!(f, "step {step}: "),
            (None, None) => Ok(()),
        }
    }
}

impl Visit for Origin {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "rank" => self.rank = usize::try_from(value).ok(),
            "step" => self.step = Some(value),
            _ => {}
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        if let Ok(value) = u64::try_from(value) {
            self.record_u64(field, value);
        }
    }

    fn record_debug(&mut self, _field: &Field, _value: &dyn std::fmt::Debug) {}
}

/// Formatted event: the message, then the other fields.
#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let space = if self.0.is_empty() { "" } else { " " };
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, "{space}{name}={value:?}"),
        };
    }
}

struct RankLayer(Log);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for RankLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut origin = Origin::default();
        attributes.record(&mut origin);
        span.extensions_mut().insert(origin);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(origin) = span.extensions_mut().get_mut::<Origin>() {
            values.record(origin);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut origin = Origin::default();
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(outer) = span.extensions().get::<Origin>() {
                origin.rank = origin.rank.or(outer.rank);
                origin.step = origin.step.or(outer.step);
            }
        }
        let mut text = Text::default();
        event.record(&mut text);
        self.0.write(*event.metadata().level(), origin, &text.0);
    }
}
