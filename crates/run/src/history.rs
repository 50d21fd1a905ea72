//! Losses, validations and other results of the steps of a run.

use std::fmt;
use std::time::Duration;

use crate::spikes::{Norms, Spike};
use crate::stop_signal::StopSignal;
use checkpoint::Validations;
use telemetry::{ExpertLoads, RankStep};
use worker::{Accuracy, PreferenceFigures, Setup, StepMemory, StepScalars, Validation, build};

/// Results of a completed step, as rank 0 reports them.
#[derive(Clone, Debug)]
pub(crate) struct StepReport {
    /// Index of the step, from 0.
    pub(crate) step: u64,
    pub(crate) scalars: StepScalars,
    /// Gradient norms of groups of parameters, by name.
    pub(crate) group_norms: Vec<(String, f32)>,
    /// Losses of the modules that predict later tokens.
    pub(crate) later_losses: Vec<f32>,
    pub(crate) learning_rate: f32,
    /// Time since the previous step ended. `None` for the first step, which warms up, and on a GPU for a step
    /// after a validation or checkpoint, which starts on an idle device.
    pub(crate) duration: Option<Duration>,
    /// The validation after the step, if it had one.
    pub(crate) validation: Option<Validation>,
    /// Number of updates skipped in the run so far; `None` without a loss scale.
    pub(crate) skipped_steps: Option<u64>,
    /// Memory use of this rank.
    pub(crate) memory: StepMemory,
    /// The gradient norm spike of this step, if it was one.
    pub(crate) spike: Option<Spike>,
    /// Records of all ranks. Filled on rank 0 in steps with a full report, otherwise empty.
    pub(crate) ranks: Vec<RankStep>,
    /// Load of each expert. Filled on rank 0 in steps with a full report, if the model has experts.
    pub(crate) expert_loads: Vec<ExpertLoads>,
}

/// A step with a loss or gradient norm that is not finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NonFinite {
    /// The step, from 1.
    pub step: u64,
    /// Loss of the step.
    pub loss: f32,
    /// Gradient norm before clipping.
    pub gradient_norm: f32,
}

impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NonFinite { step, loss, gradient_norm } = self;
        write!(f, "step {step}: the loss is {loss} and the gradient norm {gradient_norm}")
    }
}

/// Why another session repeats steps.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Repetition {
    /// A step ran out of memory; it is retried with smaller micro-batches.
    Halved(String),
    /// A step had a gradient norm spike; training restarts from the last checkpoint.
    Rewound(String),
}

/// Results of a run's steps. Equal on all ranks, except for times.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Steps completed by earlier processes.
    pub(crate) first: u64,
    /// Steps completed, including steps of earlier processes.
    pub(crate) steps: u64,
    /// Loss of each completed step.
    pub(crate) losses: Vec<f32>,
    /// Losses of the modules that predict later tokens, in the last completed step.
    pub(crate) later_losses: Vec<f32>,
    /// Losses of the validations.
    pub(crate) validations: Validations,
    /// Accuracy in this session's last validation, for image models.
    pub(crate) accuracy: Option<Accuracy>,
    /// Preference figures in this session's last validation, for pairs of answers.
    pub(crate) preference: Option<PreferenceFigures>,
    /// Whether the last step was validated with the lowest loss so far and its state is to be kept.
    pub(crate) is_best: bool,
    /// Number of steps with a known duration, and the sum of these durations.
    pub(crate) timed_steps: u64,
    pub(crate) seconds: f64,
    /// Whether the run stopped before its last step.
    pub(crate) interrupted: bool,
    /// The signal that stopped the run.
    pub(crate) stopped_by: StopSignal,
    /// Why another session repeats steps; `None` if none does.
    pub(crate) repeats: Option<Repetition>,
    /// Recent gradient norms.
    pub(crate) norms: Norms,
    /// The gradient norm spike that ended the session.
    pub(crate) spike: Option<Spike>,
    /// Number of updates skipped because gradients overflowed, including those of earlier processes; `None`
    /// without a loss scale.
    pub(crate) skipped_steps: Option<u64>,
    /// Number of consecutive steps up to now with a non-finite loss or norm. Skipped updates are excluded.
    nonfinite_steps: u64,
    /// Value of `nonfinite_steps` that ends the run.
    most_nonfinite_steps: u64,
    /// The last step, if its loss or norm was not finite.
    last_nonfinite: Option<NonFinite>,
    /// The step whose non-finite loss or norm ended the run, or made its last state unfit to be saved.
    pub(crate) lost: Option<NonFinite>,
}

impl History {
    /// Returns the history at the start of a session: empty, or restored from the checkpoint.
    pub(crate) fn begin(setup: &Setup) -> Self {
        // Meta computes no losses.
        let most_nonfinite_steps = match setup.placement.is_meta() {
            true => u64::MAX,
            false => setup.config.train.max_nonfinite_steps,
        };
        let is_scaled = build::scale_rule(&setup.config).is_some();
        let fresh = History {
            most_nonfinite_steps,
            skipped_steps: is_scaled.then_some(0),
            norms: Norms::new(&setup.config.train, 0, &[]),
            ..History::default()
        };
        // Meta computes no norms.
        if setup.placement.is_meta() {
            return History { norms: Norms::default(), ..fresh };
        }
        let Some(point) = setup.resumed() else { return fresh };
        let step = point.checkpoint.step();
        let skipped_steps = is_scaled.then(|| step.saturating_sub(point.checkpoint.updates().into()));
        let validations = point.checkpoint.validations();
        History {
            first: step,
            steps: step,
            losses: point.losses.clone(),
            validations,
            skipped_steps,
            norms: Norms::new(&setup.config.train, step, point.checkpoint.gradient_norms()),
            ..fresh
        }
    }

    /// Returns the number of skipped updates after a step with these scalars.
    pub(crate) fn skipped_with(&self, scalars: &StepScalars) -> Option<u64> {
        self.skipped_steps.map(|steps| steps + u64::from(scalars.is_skipped()))
    }

    /// Returns whether the last step ended the session, by a non-finite loss or norm or by a spike.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is_some() || self.spike.is_some()
    }

    /// Adds a completed step.
    pub(crate) fn add(&mut self, report: &StepReport) {
        self.later_losses.clone_from(&report.later_losses);
        self.spike = report.spike.clone().filter(Spike::ends);
        let StepScalars { loss, gradient_norm, .. } = report.scalars;
        self.losses.push(loss);
        self.skipped_steps = report.skipped_steps;
        self.timed_steps += u64::from(report.duration.is_some());
        self.seconds += report.duration.map_or(0.0, |duration| duration.as_secs_f64());
        let nonfinite = NonFinite { step: report.step + 1, loss, gradient_norm };
        self.last_nonfinite = report.scalars.is_lost().then_some(nonfinite);
        self.nonfinite_steps = self.last_nonfinite.map_or(0, |_| self.nonfinite_steps + 1);
        if self.nonfinite_steps == self.most_nonfinite_steps {
            self.lost = self.last_nonfinite;
        }
    }

    /// Records whether the run stops before its last step, and which signal requested it.
    pub(crate) fn stop(&mut self, stops: bool, signal: StopSignal) {
        (self.interrupted, self.stopped_by) = (stops, if stops { signal } else { StopSignal::default() });
    }

    /// Ends the history. A last step with a non-finite loss or norm becomes [`lost`](History::lost), because
    /// its state must not be saved.
    pub(crate) fn end(&mut self) {
        self.lost = self.lost.or(self.last_nonfinite);
    }

    /// Returns whether the state may be saved: the last step's loss and norm are finite, or its update was
    /// skipped.
    pub(crate) fn is_finite(&self) -> bool {
        self.nonfinite_steps == 0
    }
}
