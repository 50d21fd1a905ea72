//! Shows progress in bytes read, with tokens per second and the remaining time: as a bar on a terminal,
//! otherwise as lines.

use indicatif::{HumanBytes, HumanDuration, ProgressBar, ProgressStyle};
use std::cell::Cell;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Jobs of at least this many bytes print a first line at once, because they may take long.
const LONG: u64 = 1 << 20;
/// Interval between two progress lines if standard error is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// The progress of a job, on standard error.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    total_bytes: u64,
    began: Instant,
    /// Time at which the last line was written; `None` on a terminal.
    last_line: Option<Cell<Instant>>,
}

/// Bytes read from the input files, updated by the reading thread.
#[derive(Debug, Default)]
pub(crate) struct BytesRead(AtomicU64);

impl BytesRead {
    pub(crate) fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Progress {
    /// Begins the progress of a job on `total_bytes` bytes that writes the directory `output`.
    pub(crate) fn new(total_bytes: u64, is_shown: bool, output: &Path) -> Self {
        if is_shown && total_bytes >= LONG {
            let total = HumanBytes(total_bytes);
            // A closed standard error must not end the job, here and below.
            let _ = writeln!(std::io::stderr(), "tokenizing {total} into {}", output.display());
        }
        let bar = if is_shown { ProgressBar::new(total_bytes) } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes}, {msg}, {eta} left");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        let began = Instant::now();
        let last_line = (is_shown && !std::io::stderr().is_terminal()).then(|| Cell::new(began));
        Self { bar, total_bytes, began, last_line }
    }

    pub(crate) fn update(&self, read: &BytesRead, tokens: u64) {
        let seconds = self.began.elapsed().as_secs_f64().max(1e-3);
        let bytes = read.get();
        let speed = format!("{:.2} M tokens/s", tokens as f64 / seconds / 1e6);
        if let Some(last_line) = self.last_line.as_ref().filter(|last| last.get().elapsed() >= LINE_EVERY) {
            last_line.set(Instant::now());
            let left = seconds * self.total_bytes.saturating_sub(bytes) as f64 / bytes.max(1) as f64;
            let left = HumanDuration(Duration::try_from_secs_f64(left).unwrap_or(Duration::MAX));
            let done = HumanBytes(bytes);
            let total = HumanBytes(self.total_bytes);
            let _ = writeln!(std::io::stderr(), "{done} of {total}, {speed}, {left} left");
        }
        self.bar.set_position(bytes);
        self.bar.set_message(speed);
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
