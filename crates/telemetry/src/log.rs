//! Logs with rank and step: to standard error, and to a file of each rank in the run directory.
//!
//! Rank and step are fields of spans. A worker enters [`rank_span`] for its life and [`step_span`] for each step;
//! whatever is logged inside, in any crate, carries them. A process that is one rank of many sets its rank once
//! ([`Log::set_rank`]), for what is logged outside of such spans.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Span, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry};

use crate::error::{Result, TelemetryError};
use crate::progress::write_beside_bars;

/// The environment variable that says what is logged, such as `debug` or `warn,collective=trace`.
pub const VARIABLE: &str = "PLIMSOLL_LOG";

/// The span of a rank's life.
pub fn rank_span(rank: usize) -> Span {
    tracing::error_span!("rank", rank)
}

/// The span of a step, inside that of its rank.
pub fn step_span(step: u64) -> Span {
    tracing::error_span!("step", step)
}

/// The log of a process. Cheap to clone; all clones are the same log.
///
/// Standard error has the lines of rank 0 and of no rank, and of other ranks warnings and errors; a rank's file
/// has all its lines.
#[derive(Clone, Debug)]
pub struct Log(Arc<State>);

#[derive(Debug)]
struct State {
    began: Instant,
    terminal: bool,
    target: Mutex<Target>,
}

/// Where lines go besides standard error.
#[derive(Debug, Default)]
struct Target {
    rank: Option<usize>,
    directory: Option<PathBuf>,
    /// By rank; `None` where a file could not be opened, which was said once.
    files: HashMap<usize, Option<File>>,
}

impl Log {
    /// A log that goes to standard error, and to files once there is a directory for them.
    pub fn new() -> Self {
        Log(Arc::new(State { began: Instant::now(), terminal: true, target: Mutex::default() }))
    }

    /// A log that goes to files only.
    pub fn files_only() -> Self {
        Log(Arc::new(State { began: Instant::now(), terminal: false, target: Mutex::default() }))
    }

    /// Makes it the log of this process, filtered by the environment, or from level `info` on. Errors: a filter
    /// that cannot be understood, or a second log.
    pub fn install(&self) -> Result<()> {
        let text = std::env::var(VARIABLE).unwrap_or_default();
        let subscriber = self.subscriber(&text)?;
        subscriber.try_init().map_err(|_| TelemetryError::SecondLog)
    }

    /// The log as a subscriber with a filter of its own; an empty one is `info`.
    pub fn subscriber(&self, filter: &str) -> Result<impl Subscriber + Send + Sync + use<>> {
        let wanted = if filter.is_empty() { "info" } else { filter };
        let filter = EnvFilter::try_new(wanted).map_err(|error| TelemetryError::Filter {
            variable: VARIABLE,
            text: filter.to_owned(),
            reason: error.to_string(),
        })?;
        Ok(Registry::default().with(filter).with(RankLayer(self.clone())))
    }

    /// The rank of what is logged outside of a rank's span.
    pub fn set_rank(&self, rank: usize) {
        self.target().rank = Some(rank);
    }

    /// From now on writes each rank's lines to `directory/rank-N.log` too, which it makes if need be.
    pub fn set_directory(&self, directory: &Path) -> Result<()> {
        std::fs::create_dir_all(directory).map_err(TelemetryError::file(directory, "make the directory"))?;
        let mut target = self.target();
        target.directory = Some(directory.to_owned());
        target.files.clear();
        Ok(())
    }

    fn target(&self) -> MutexGuard<'_, Target> {
        self.0.target.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, level: Level, place: Place, text: &str) {
        let mut target = self.target();
        let rank = place.rank.or(target.rank);
        let place = Place { rank, ..place };
        if self.0.terminal && (rank.is_none_or(|rank| rank == 0) || level <= Level::WARN) {
            let seconds = self.0.began.elapsed().as_secs_f64();
            write_beside_bars(&format!("{seconds:9.3}s {level:>5} {place}{text}\n"));
        }
        if let Some(file) = rank.and_then(|rank| target.file(rank)) {
            let mut line = String::new();
            // Writing to a string does not fail, and a full disk must not end the training.
            let _ = SystemTime.format_time(&mut Writer::new(&mut line));
            let _ = file.write_all(format!("{line} {level:>5} {place}{text}\n").as_bytes());
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self::new()
    }
}

impl Target {
    fn file(&mut self, rank: usize) -> Option<&mut File> {
        let path = self.directory.as_ref()?.join(format!("rank-{rank}.log"));
        let open = || {
            let file = OpenOptions::new().create(true).append(true).open(&path);
            file.map_err(|error| write_beside_bars(&format!("{}: cannot open it: {error}\n", path.display())))
                .ok()
        };
        self.files.entry(rank).or_insert_with(open).as_mut()
    }
}

/// Where in a run something was logged.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    rank: Option<usize>,
    step: Option<u64>,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.rank, self.step) {
            (Some(rank), Some(step)) => write!(f, "rank {rank} step {step}: "),
            (Some(rank), None) => write!(f, "rank {rank}: "),
            (None, Some(step)) => write!(f, "step {step}: "),
            (None, None) => Ok(()),
        }
    }
}

impl Visit for Place {
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

/// The message of an event, then its other fields.
#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let space = if self.0.is_empty() { "" } else { " " };
        // Writing to a string does not fail.
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
        let mut place = Place::default();
        attributes.record(&mut place);
        span.extensions_mut().insert(place);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(place) = span.extensions_mut().get_mut::<Place>() {
            values.record(place);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut place = Place::default();
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(outer) = span.extensions().get::<Place>() {
                place.rank = place.rank.or(outer.rank);
                place.step = place.step.or(outer.step);
            }
        }
        let mut text = Text::default();
        event.record(&mut text);
        self.0.write(*event.metadata().level(), place, &text.0);
    }
}
