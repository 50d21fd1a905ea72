//! Progress of a run: lines, and a bar on a terminal; nothing on ranks other than 0.

use std::fmt;
use std::io::{IsTerminal, Write};
use std::sync::LazyLock;
use std::time::Instant;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::units::{duration, grouped};

/// Bars on this process's terminal. They are hidden while other output is written.
static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// Writes to standard error without damaging a bar.
pub(crate) fn write_beside_bars(text: &str) {
    BARS.suspend(|| {
        // A closed standard error leaves nowhere to report the failure.
        let _ = std::io::stderr().write_all(text.as_bytes());
    });
}

/// Destination of the progress.
enum Output {
    Bar(ProgressBar),
    Lines(Box<dyn Write + Send>),
    Nowhere,
}

/// The progress of a run towards its last step.
pub struct Progress {
    output: Output,
    steps: u64,
    every: u64,
    /// Unit of the throughput.
    unit: &'static str,
    first: Option<(u64, Instant)>,
}

impl Progress {
    /// Creates the progress of rank `rank` towards step `steps`. Rank 0 shows lines for every `every`-th step
    /// and, if standard error is a terminal, a bar below them. Other ranks show nothing.
    pub fn new(rank: usize, steps: u64, every: u64) -> Self {
        if rank != 0 {
            return Self::to(Output::Nowhere, steps, every);
        }
        if !std::io::stderr().is_terminal() {
            return Self::lines(Box::new(std::io::stderr()), steps, every);
        }
        let bar = BARS.add(ProgressBar::new(steps));
        // The template is constant and valid; if it were not, the default style would be used.
        if let Ok(style) = ProgressStyle::with_template("step {pos}/{len} {wide_bar} {msg}") {
            bar.set_style(style);
        }
        Self::to(Output::Bar(bar), steps, every)
    }

    /// Creates progress that writes lines to `writer`: for the first step, the last, and every `every`-th (0
    /// counts as 1).
    pub fn lines(writer: Box<dyn Write + Send>, steps: u64, every: u64) -> Self {
        Self::to(Output::Lines(writer), steps, every)
    }

    fn to(output: Output, steps: u64, every: u64) -> Self {
        Progress { output, steps, every: every.max(1), unit: "tokens/s", first: None }
    }

    /// Returns the progress with another unit of throughput than tokens/s.
    #[must_use]
    pub fn in_units(self, unit: &'static str) -> Self {
        Progress { unit, ..self }
    }

    /// Shows that step `step` (from 1) is done, with its loss (a token and a byte of text) and throughput if
    /// there are any.
    pub fn step(
        &mut self,
        step: u64,
        loss: Option<f32>,
        loss_per_byte: Option<f64>,
        throughput: Option<f64>,
    ) {
        let now = Instant::now();
        let (first, since) = *self.first.get_or_insert((step, now));
        let per_step = (now - since).as_secs_f64() / step.saturating_sub(first) as f64;
        let left = per_step * self.steps.saturating_sub(step) as f64;
        let rate = throughput.map(|rate| format!("  {} {}", grouped(rate as u64), self.unit));
        let in_bytes = loss_per_byte.map_or(String::new(), |loss| format!(" ({loss:.4} a byte)"));
        let loss = loss.map(|loss| format!("loss {loss:.4}{in_bytes}"));
        let rate = rate.unwrap_or_default();
        let message = format!("{}{rate}  eta {}", loss.unwrap_or_default(), duration(left));
        let line = format!("step {}/{}  {message}", grouped(step), grouped(self.steps));
        let stays = step == first || step == self.steps || step.is_multiple_of(self.every);
        match &mut self.output {
            Output::Bar(bar) => {
                // The line is printed above the bar and stays when the bar is removed.
                if stays {
                    bar.println(line);
                }
                bar.set_message(message);
                bar.set_position(step);
            }
            Output::Lines(writer) => {
                if stays {
                    // A closed standard error must not end the run.
                    let _ = writeln!(writer, "{line}");
                }
            }
            Output::Nowhere => {}
        }
    }

    /// Removes the bar.
    pub fn finish(self) {
        if let Output::Bar(bar) = self.output {
            bar.finish_and_clear();
        }
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Progress(to step {}, every {})", self.steps, self.every)
    }
}
