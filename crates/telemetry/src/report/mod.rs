//! A run, or the plan of a run, as one self-contained HTML page that needs no network and no other file.
//!
//! [`Report::to_html`] uses only the report's data. Each drawing is an SVG that is readable without a script;
//! the script shows the values under the pointer, or at the position selected with the arrow keys.
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
mod curves;
mod experts;
mod history;
mod kinds;
mod live;
mod operators;
mod page;
mod panels;
mod phases;
mod plot;
mod ranks;
mod section;
mod sessions;
mod stacked;
mod states;
#[cfg(test)]
mod tests;
mod treemap;

use crate::expert_loads::ExpertLoads;
use crate::operators::OperatorProfile;
use crate::step_trace::StepTrace;

/// Text near the start of every page. It identifies pages that this program wrote.
pub const MARK: &str = " · Plimsoll</title>";

/// The data of a page. Empty fields are left out.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Title: the name of the run directory or of the configuration.
    pub title: String,
    /// Line below the title: device, ranks, model.
    pub subtitle: String,
    /// Key figures at the top of the page.
    pub tiles: Vec<Tile>,
    /// Sentences at the top of the page.
    pub notices: Vec<Notice>,
    /// Memory of all ranks, in rank order; ranks known to be equal may share an entry.
    pub ranks: Vec<RankMemory>,
    /// The pipeline's schedule, if there is a pipeline.
    pub schedule: Option<SchedulePicture>,
    /// The processes that trained the run, in order.
    pub sessions: Vec<SessionRow>,
    /// Completed steps, in order.
    pub history: Vec<StepPoint>,
    /// Learning curves of several runs, drawn together.
    pub curves: Vec<Curve>,
    /// Unit of throughput: `Tokens` or `Samples`.
    pub unit: &'static str,
    /// Measured operators of a step.
    pub operators: Option<OperatorProfile>,
    /// Median time of each phase, per rank.
    pub phases: Vec<PhaseRow>,
    /// The step in which expert loads were counted, and the loads; empty without experts.
    pub expert_loads: (u64, Vec<ExpertLoads>),
    /// Differences from another run, one per line.
    pub differences: String,
    /// Resolved configuration, as TOML.
    pub configuration: String,
}

/// A key figure at the top of the page.
#[derive(Clone, Debug)]
pub struct Tile {
    /// Name.
    pub name: &'static str,
    /// Value, with its unit.
    pub value: String,
    /// Small print below the value, such as the exact number.
    pub note: String,
}

/// The schedule of a pipeline.
#[derive(Clone, Debug)]
pub struct SchedulePicture {
    /// The drawing, as an SVG.
    pub picture: String,
    /// End of the sentence that explains the drawing.
    pub note: String,
}

/// A sentence at the top of the page.
#[derive(Clone, Debug)]
pub struct Notice {
    /// Whether the sentence is good news.
    pub good: bool,
    /// The sentence.
    pub text: String,
}

/// Memory of one rank, or of each of several equal ranks.
#[derive(Clone, Debug)]
pub struct RankMemory {
    /// The ranks, in order.
    pub ranks: Vec<usize>,
    /// Name of the device, with its host if there are several hosts.
    pub device: String,
    /// Bytes allocated after the last step, bytes reserved, peak bytes allocated, peak bytes reserved.
    pub figures: [u64; 4],
    /// The trace of a measured steady step.
    pub measured: Option<StepTrace>,
    /// The trace of a planned steady step.
    pub planned: Option<StepTrace>,
    /// Maximum bytes that the rank may reserve, if limited.
    pub limit: Option<u64>,
}

/// Times of a rank's phases.
#[derive(Clone, Debug, Default)]
pub struct PhaseRow {
    /// The rank.
    pub rank: usize,
    /// Median microseconds of each phase, in the order of a step; the last entry is the whole step.
    pub microseconds: Vec<(String, u64)>,
}

/// One run's learning curve, drawn beside the curves of other runs.
#[derive(Clone, Debug, Default)]
pub struct Curve {
    /// Name of the run.
    pub name: String,
    /// Completed steps, in order.
    pub history: Vec<StepPoint>,
}

/// A process that trained the run.
#[derive(Clone, Debug, Default)]
pub struct SessionRow {
    /// Time at which it began.
    pub started: String,
    /// End state, steps, grid, throughput, peak allocated bytes, wall time and host.
    pub cells: [String; 7],
    /// Remarks, such as settings that have changed.
    pub notes: Vec<String>,
}

/// A completed step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepPoint {
    /// The step, from 1.
    pub step: u64,
    /// Mean loss over the step's micro-batches, if finite.
    pub loss: Option<f64>,
    /// Validation loss after the step, if validation ran.
    pub validation_loss: Option<f64>,
    /// Fraction of preference pairs whose chosen answer has the higher reward, in training and in validation.
    pub reward_accuracy: [Option<f64>; 2],
    /// Mean reward of chosen answers minus that of rejected ones, in training and in validation.
    pub reward_margin: [Option<f64>; 2],
    /// Tokens or samples per second, over all ranks.
    pub tokens_per_second: Option<f64>,
    /// Predicted tokens or samples per second.
    pub predicted_tokens_per_second: Option<f64>,
    /// Gradient norm before clipping.
    pub gradient_norm: Option<f64>,
    /// Learning rate of the update.
    pub learning_rate: Option<f64>,
    /// Whether loss and gradient norm are finite.
    pub is_finite: bool,
}

impl Default for StepPoint {
    fn default() -> Self {
        StepPoint {
            step: 0,
            loss: None,
            validation_loss: None,
            reward_accuracy: [None; 2],
            reward_margin: [None; 2],
            tokens_per_second: None,
            predicted_tokens_per_second: None,
            gradient_norm: None,
            learning_rate: None,
            is_finite: true,
        }
    }
}
