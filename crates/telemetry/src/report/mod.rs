//! A run, or the plan of one, as one page that needs nothing else: no network, no file beside it.
//!
//! Data in, text out: [`Report::to_html`] draws what it is given and reads nothing. Each picture is an SVG that can be
//! read without a script; the script adds what is under the pointer, or under the arrow keys.
//!
//! ```
//! use telemetry::report::{Report, StepPoint};
//! let report = Report {
//!     title: "tiny".to_owned(),
//!     history: vec![StepPoint { step: 1, loss: Some(5.5), ..StepPoint::default() }],
//!     configuration: "[train]\nsteps = 1".to_owned(),
//!     ..Report::default()
//! };
//! let page = report.to_html();
//! assert!(page.starts_with("<!doctype html>") && page.contains("steps = 1"));
//! ```

mod chart;
mod history;
mod live;
mod page;
mod ranks;
mod stacked;
#[cfg(test)]
mod tests;
mod treemap;

use crate::step_trace::StepTrace;

/// What a page shows. What is empty is left out of it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What was run or planned: the run's directory, the configuration's name.
    pub title: String,
    /// One line below: device, ranks, model.
    pub subtitle: String,
    /// The figures that are looked at first.
    pub tiles: Vec<Tile>,
    /// What is to be known before anything else.
    pub notices: Vec<Notice>,
    /// The memory of every rank, in their order; ranks that are known to be alike may share an entry.
    pub ranks: Vec<RankMemory>,
    /// The pipeline's schedule.
    pub schedule: Option<SchedulePicture>,
    /// The steps that were run.
    pub history: Vec<StepPoint>,
    /// What a step's tokens are: tokens, or samples.
    pub unit: &'static str,
    /// The resolved configuration, as TOML.
    pub configuration: String,
}

/// A figure.
#[derive(Clone, Debug)]
pub struct Tile {
    /// What it is.
    pub name: &'static str,
    /// As it is read.
    pub value: String,
    /// Below it: the exact number, for example.
    pub note: String,
}

/// A pipeline's schedule.
#[derive(Clone, Debug)]
pub struct SchedulePicture {
    /// An SVG.
    pub picture: String,
    /// How it is drawn, as the end of a sentence.
    pub note: String,
}

/// A sentence at the head of the page.
#[derive(Clone, Debug)]
pub struct Notice {
    /// Whether it says that all is well.
    pub good: bool,
    /// The sentence.
    pub text: String,
}

/// What a rank used, or will, or each of several alike.
#[derive(Clone, Debug)]
pub struct RankMemory {
    /// The ranks, in their order.
    pub ranks: Vec<usize>,
    /// The device, on its host.
    pub device: String,
    /// Bytes allocated and reserved after the last step, and the peaks of both.
    pub figures: [u64; 4],
    /// A step like those that follow it, as it was measured.
    pub measured: Option<StepTrace>,
    /// The same as it was planned.
    pub planned: Option<StepTrace>,
    /// Bytes that it may reserve, where that is limited.
    pub limit: Option<u64>,
}

/// A completed step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepPoint {
    /// From 1.
    pub step: u64,
    /// Mean loss over its micro-batches, if it is finite.
    pub loss: Option<f64>,
    /// Of the validation after it, if there was one.
    pub validation_loss: Option<f64>,
    /// Tokens, or samples, of all ranks a second.
    pub tokens_per_second: Option<f64>,
    /// Before clipping.
    pub gradient_norm: Option<f64>,
    /// What the optimizer used.
    pub learning_rate: Option<f64>,
}

impl RankMemory {
    /// The trace that is drawn: the measured one, where there is one.
    fn trace(&self) -> Option<&StepTrace> {
        self.measured.as_ref().or(self.planned.as_ref())
    }

    /// Whether the plan is drawn beside what was measured: where they differ.
    fn other_plan(&self) -> Option<&StepTrace> {
        let (measured, planned) = (self.measured.as_ref()?, self.planned.as_ref()?);
        (!measured.repeats(planned)).then_some(planned)
    }

    fn looks_like(&self, other: &RankMemory) -> bool {
        let alike = |a: &Option<StepTrace>, b: &Option<StepTrace>| match (a, b) {
            (Some(a), Some(b)) => a.repeats(b),
            (None, None) => true,
            _ => false,
        };
        alike(&self.measured, &other.measured)
            && alike(&self.planned, &other.planned)
            && (self.figures, self.limit) == (other.figures, other.limit)
    }
}
