//! The history of a run's steps.

use std::fmt;
use std::time::Duration;

use crate::spikes::{Norms, Spike};
use crate::stop_signal::StopSignal;
use checkpoint::Validations;
use telemetry::{ExpertLoads, RankStep};
use worker::{Accuracy, PreferenceFigures, Setup, StepMemory, StepScalars, Validation, build};

/// A completed step, as rank 0 reports it.
#[derive(Clone, Debug)]
pub(crate) struct StepReport {
    /// The step, from 0.
    pub(crate) step: u64,
    pub(crate) scalars: StepScalars,
    pub(crate) learning_rate: f32,
    /// Time from the end of the step before to the end of this one; `None` for the first step, which warms
    /// up, and on a GPU for a step after a validation or a checkpoint, which began on an idle device.
    pub(crate) duration: Option<Duration>,
    /// The validation after the step, if there was one.
    pub(crate) validation: Option<Validation>,
    /// Steps of the run so far whose update was skipped; `None` without a loss scale.
    pub(crate) skipped_steps: Option<u64>,
    /// Memory of this rank.
    pub(crate) memory: StepMemory,
    /// The spike of its gradient norm, if it was one.
    pub(crate) spike: Option<Spike>,
    /// Records of all ranks, on rank 0 after steps that are reported in full; otherwise none.
    pub(crate) ranks: Vec<RankStep>,
    /// Loads of experts, on rank 0 after the same steps, if there are experts.
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

/// Why steps are repeated by another session.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Repetition {
    /// The step after the last ran out of memory; it is repeated with smaller micro-batches.
    Halved(String),
    /// The gradient norm of a step was a spike; the run goes back to its last checkpoint.
    Rewound(String),
}

/// The history of a run's steps, equal on all ranks except for times.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Steps completed by earlier processes.
    pub(crate) first: u64,
    /// Steps completed, including those of earlier processes.
    pub(crate) steps: u64,
    /// One loss per completed step.
    pub(crate) losses: Vec<f32>,
    /// The validations.
    pub(crate) validations: Validations,
    /// The accuracy of the last validation in this session, of images.
    pub(crate) accuracy: Option<Accuracy>,
    /// The figures of the last validation in this session, of pairs of answers.
    pub(crate) preference: Option<PreferenceFigures>,
    /// Whether the last validation is of the last step, has the lowest loss, and is to be kept.
    pub(crate) is_best: bool,
    /// Steps whose duration is known, and those durations.
    pub(crate) timed_steps: u64,
    pub(crate) seconds: f64,
    /// Whether the run was stopped before the last step.
    pub(crate) interrupted: bool,
    /// The signal that stopped it.
    pub(crate) stopped_by: StopSignal,
    /// Why the run goes on in another session, which repeats steps.
    pub(crate) repeats: Option<Repetition>,
    /// Recent gradient norms.
    pub(crate) norms: Norms,
    /// The spike that ended the session.
    pub(crate) spike: Option<Spike>,
    /// Steps whose update was skipped to try a smaller loss scale, including those of earlier processes;
    /// `None` without a loss scale.
    pub(crate) skipped_steps: Option<u64>,
    /// Number of latest consecutive steps with a loss or norm that is not finite, without skipped ones.
    nonfinite_steps: u64,
    /// The number of such steps that ends the run.
    most_nonfinite_steps: u64,
    /// The last step, if its loss or norm was not finite.
    last_nonfinite: Option<NonFinite>,
    /// The step that ended the run because its loss or norm was not finite, or the last one of a run that
    /// ended with such a step, whose state is not saved.
    pub(crate) lost: Option<NonFinite>,
}

impl History {
    /// Returns an empty history, or that of the checkpoint from which the run continues.
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

    /// Returns the number of skipped steps including a step with `scalars`.
    pub(crate) fn skipped_with(&self, scalars: &StepScalars) -> Option<u64> {
        self.skipped_steps.map(|steps| steps + u64::from(scalars.is_skipped()))
    }

    /// Returns whether the last step ended the session: its loss or norm was not finite, or its norm a spike.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is_some() || self.spike.is_some()
    }

    /// Adds a completed step.
    pub(crate) fn add(&mut self, report: &StepReport) {
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

    /// Notes whether the run stops before its last step, and the signal that asked for it.
    pub(crate) fn stop(&mut self, stops: bool, signal: StopSignal) {
        (self.interrupted, self.stopped_by) = (stops, if stops { signal } else { StopSignal::default() });
    }

    /// Ends the history of a run that computes: its last state is lost if it is not finite, because it may
    /// not be saved.
    pub(crate) fn end(&mut self) {
        self.lost = self.lost.or(self.last_nonfinite);
    }

    /// Returns whether loss and norm of the last step are finite, or its update was skipped, so that the
    /// state may be saved.
    pub(crate) fn is_finite(&self) -> bool {
        self.nonfinite_steps == 0
    }
}
