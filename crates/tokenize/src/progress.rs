//! A progress bar of bytes read, with tokens per second and the remaining time.

use indicatif::{ProgressBar, ProgressStyle};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The progress of a job, drawn only if standard error is a terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    began: Instant,
}

/// Bytes read from the input files, counted by the reading thread.
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
    pub(crate) fn new(total_bytes: u64, is_shown: bool) -> Self {
        let bar = if is_shown { ProgressBar::new(total_bytes) } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes}, {msg}, {eta} left");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        Self { bar, began: Instant::now() }
    }

    pub(crate) fn update(&self, read: &BytesRead, tokens: u64) {
        let speed = tokens as f64 / self.began.elapsed().as_secs_f64().max(1e-3);
        self.bar.set_position(read.get());
        self.bar.set_message(format!("{:.2} M tokens/s", speed / 1e6));
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
