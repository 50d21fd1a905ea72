//! Progress of a run: lines, and a bar on a terminal. Only rank 0 shows progress.

use std::fmt;
use std::io::{IsTerminal, Write};
use std::sync::LazyLock;
use std::time::Instant;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::units::{bytes, duration, grouped, percent};

/// Progress bars on the terminal, hidden while other output is written.
static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// Writes to standard error without corrupting a progress bar.
pub(crate) fn write_beside_bars(text: &str) {
    BARS.suspend(|| {
        // A closed standard error leaves nowhere to report the failure.
        let _ = std::io::stderr().write_all(text.as_bytes());
    });
}

/// Values of a completed step; unknown or inapplicable ones are `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepFigures {
    /// Mean loss of the step.
    pub loss: Option<f32>,
    /// Mean loss in nats per byte of text.
    pub loss_per_byte: Option<f64>,
    /// Losses of the modules that predict later tokens.
    pub later_losses: Vec<f32>,
    /// For preference pairs: fraction whose chosen answer has the higher reward, and mean reward margin.
    pub rewards: Option<[f64; 2]>,
    /// Tokens (or samples) per second.
    pub throughput: Option<f64>,
    /// Model FLOPs utilization, as a fraction.
    pub mfu: Option<f64>,
    /// Measured and predicted seconds of the step.
    pub predicted: Option<[f64; 2]>,
    /// Bytes allocated after the step and at its peak, on the rank with the most.
    pub memory: Option<[u64; 2]>,
    /// Number of skipped updates so far; `None` without a loss scale.
    pub skipped: Option<u64>,
}

/// Returns whether step `step` (from 1) is reported in full: the process's first step, the last, and every
/// `every`-th.
pub fn is_reported(step: u64, first: u64, last: u64, every: u64) -> bool {
    step == first || step == last || step.is_multiple_of(every.max(1))
}

enum Output {
    Bar(ProgressBar),
    Lines(Box<dyn Write + Send>),
    Nowhere,
}

/// Progress of a run towards its last step.
pub struct Progress {
    output: Output,
    steps: u64,
    every: u64,
    unit: &'static str,
    first: Option<(u64, Instant)>,
}

impl Progress {
    /// Creates progress towards step `steps`. Rank 0 prints a line every `every` steps and, if standard error
    /// is a terminal, shows a bar below them. Other ranks show nothing.
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

    /// Creates progress that writes lines to `writer`: for the first step, the last, and every `every`-th. 0
    /// means every step.
    pub fn lines(writer: Box<dyn Write + Send>, steps: u64, every: u64) -> Self {
        Self::to(Output::Lines(writer), steps, every)
    }

    fn to(output: Output, steps: u64, every: u64) -> Self {
        Progress { output, steps, every: every.max(1), unit: "tokens/s", first: None }
    }

    /// Sets the unit of throughput; the default is tokens/s.
    #[must_use]
    pub fn in_units(self, unit: &'static str) -> Self {
        Progress { unit, ..self }
    }

    /// Shows that step `step` (from 1) is done, with its values.
    pub fn step(&mut self, step: u64, figures: &StepFigures) {
        let now = Instant::now();
        let (first, since) = *self.first.get_or_insert((step, now));
        let per_step = (now - since).as_secs_f64() / step.saturating_sub(first) as f64;
        let left = per_step * self.steps.saturating_sub(step) as f64;
        let message = format!("{}eta {}", self.in_words(figures), duration(left));
        let line = format!("step {}/{}  {message}", grouped(step), grouped(self.steps));
        let stays = is_reported(step, first, self.steps, self.every);
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

    /// Formats the known values, each followed by two spaces.
    fn in_words(&self, figures: &StepFigures) -> String {
        let StepFigures { loss, loss_per_byte, rewards, throughput, mfu, predicted, memory, skipped, .. } =
            *figures;
        let later: Vec<_> = figures.later_losses.iter().map(|loss| format!("{loss:.4}")).collect();
        let times = |[measured, predicted]: [f64; 2]| {
            format!("{:.1} ms, predicted {:.1}  ", 1e3 * measured, 1e3 * predicted)
        };
        let in_bytes = loss_per_byte.map_or(String::new(), |loss| format!(" ({loss:.4} a byte)"));
        let words = [
            loss.map(|loss| format!("loss {loss:.4}{in_bytes}  ")),
            (!later.is_empty()).then(|| format!("of later tokens {}  ", later.join(", "))),
            rewards
                .map(|[share, margin]| format!("reward accuracy {}, margin {margin:.4}  ", percent(share))),
            throughput.map(|rate| format!("{} {}  ", grouped(rate as u64), self.unit)),
            mfu.map(|share| format!("MFU {}  ", percent(share))),
            predicted.map(times),
            skipped.filter(|steps| *steps > 0).map(|steps| format!("skipped {}  ", grouped(steps))),
            memory.map(|[now, peak]| format!("memory {}, peak {}  ", bytes(now), bytes(peak))),
        ];
        words.into_iter().flatten().collect()
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
