//! Observers of passes: phases, hooks, hashes and verification.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use autograd::{AutogradError, Observer, Observers, Target, UseId};
use device::{Device, Mark};
use parallel::data::GradientObserver;
use parallel::pipeline::{Action, ActionKind, ActionPart};
use telemetry::Phase;

use crate::error::Result;
use crate::observers::hooks::{Moment, Moments};
use crate::observers::tensor_hashes::TensorHashes;
use crate::phases::Phases;
use crate::verification::{Verification, VerifiedGradients};

/// Times at which the parts of a step's actions began.
pub(crate) type Marks = Vec<(Action, ActionPart, Mark)>;

/// Observers of the passes over a schedule.
pub(crate) struct Observation {
    device: Device,
    phases: Phases,
    /// Whether the passes belong to a training step, whose phases are timed.
    pub(crate) is_step: bool,
    /// Times at which the parts of actions began; recorded only for benchmarks.
    pub(crate) marks: Option<Rc<RefCell<Marks>>>,
    /// Calls the step hook, if there is one.
    pub(crate) moments: Option<Moments>,
    /// Names of the parameters by stage and use, for the step hook.
    pub(crate) names: BTreeMap<usize, Vec<String>>,
    /// Observers of all operators.
    pub(crate) observers: Vec<Rc<dyn Observer>>,
    /// Hashes the operators' results, if configured.
    pub(crate) hashes: Option<TensorHashes>,
    /// Records the micro-batch being verified, if there is one.
    pub(crate) verification: Option<Verification>,
    /// The action that began last.
    at: Option<Action>,
}

impl Observation {
    /// Returns the observation of passes outside steps, with only `phases`.
    pub(crate) fn new(device: &Device, phases: &Phases) -> Self {
        Observation {
            device: device.clone(),
            phases: phases.clone(),
            is_step: false,
            marks: None,
            moments: None,
            names: BTreeMap::new(),
            observers: Vec::new(),
            hashes: None,
            verification: None,
            at: None,
        }
    }

    /// Returns the action that began last.
    pub(crate) fn action(&self) -> Option<Action> {
        self.at
    }

    /// Begins a part of an action.
    pub(crate) fn enter(&mut self, action: Action, part: ActionPart) -> Result<()> {
        let before = self.at.replace(action);
        // A transfer overlaps compute, but not on a host.
        if !self.is_step || part == ActionPart::Moving && self.device.is_cuda_like() {
            return Ok(());
        }
        if let Some(marks) = &self.marks {
            marks.borrow_mut().push((action, part, self.device.mark()?));
        }
        if before.map_or(0, |at| at.stage) != action.stage {
            self.phases.stage(action.stage);
        }
        if before.is_none_or(|at| at.micro_batch != action.micro_batch) {
            self.phases.micro_batch(action.micro_batch);
        }
        let is_forward = action.kind == ActionKind::Forward;
        match part {
            ActionPart::Inputs => self.phases.enter(Phase::Inputs)?,
            ActionPart::Waiting | ActionPart::Moving => self.phases.enter(Phase::Pipeline)?,
            ActionPart::Computing if is_forward => self.phases.enter_pass(Phase::Forward)?,
            ActionPart::Computing => self.phases.enter_pass(Phase::Backward)?,
        }
        if part == ActionPart::Computing {
            self.tell(if is_forward { Moment::BeforeForward } else { Moment::BeforeBackward });
        }
        Ok(())
    }

    /// Ends a pass, and calls the step hook.
    pub(crate) fn leave(&self, action: Action) {
        let is_forward = action.kind == ActionKind::Forward;
        self.tell(if is_forward { Moment::AfterForward } else { Moment::AfterBackward });
    }

    /// Calls the step hook for a moment of the current pass.
    fn tell(&self, moment: Moment<'_>) {
        if let Some(moments) = &self.moments {
            moments.at(moment, self.at.map(|at| (at.stage, at.micro_batch)));
        }
    }

    /// Returns the observers for the pass of micro-batch `number` through `stage`.
    pub(crate) fn of_pass(&self, stage: usize, number: u64) -> Observers {
        // A bit that a test inverts is inverted before others see it.
        let verified = self.verification.as_ref().and_then(|verified| verified.of_stage(stage, number));
        let hashes = self.hashes.as_ref().map(|hashes| hashes.of_stage(stage));
        Observers::new(verified.into_iter().chain(self.observers.iter().cloned()).chain(hashes))
    }

    /// Returns the observer of the current pass's gradients; `None` if nothing observes them. `number`
    /// returns the number of a micro-batch. `reduces`: whether the gradients are reduced over ranks.
    pub(crate) fn of_gradients(
        &self,
        number: impl FnOnce(usize) -> Option<u64>,
        reduces: bool,
    ) -> Option<Box<dyn GradientObserver + '_>> {
        let verified = self.verification.as_ref().zip(self.at).and_then(|(verification, at)| {
            let number = number(at.micro_batch).filter(|number| verification.is_of(*number))?;
            Some(verification.gradients(at.stage, number))
        });
        // On a GPU, reduction overlaps backward, and only the exposed part is counted, after backward.
        let is_exposed = reduces && !self.device.is_cuda_like();
        let is_observed = verified.is_some() || is_exposed || self.moments.is_some();
        is_observed.then(|| Box::new(ObservedGradients { observation: self, is_exposed, verified }) as _)
    }
}

/// Observes the gradients of a pass for verification, phases and the step hook.
struct ObservedGradients<'a> {
    observation: &'a Observation,
    /// Whether the host itself adds up gradients, which is timed as reduction.
    is_exposed: bool,
    verified: Option<VerifiedGradients>,
}

impl ObservedGradients<'_> {
    /// Enters a phase, if the host itself adds up gradients.
    fn enter(&self, phase: Phase) -> autograd::Result<()> {
        if !self.is_exposed {
            return Ok(());
        }
        self.observation.phases.enter(phase).map_err(|error| AutogradError::Hook(Box::new(error)))
    }
}

impl GradientObserver for ObservedGradients<'_> {
    fn begins(&mut self, use_id: UseId, target: &Target) {
        if let Some(verified) = &mut self.verified {
            verified.begin(use_id, target);
        }
    }

    fn is_complete(&mut self, use_id: UseId) -> autograd::Result<()> {
        if let Some(verified) = &mut self.verified {
            verified.end(use_id)?;
        }
        self.enter(Phase::Reduce)
    }

    fn is_added(&mut self, use_id: UseId) -> autograd::Result<()> {
        self.enter(Phase::Backward)?;
        let Observation { moments, names, at, .. } = self.observation;
        if moments.is_some() {
            let names = at.and_then(|at| names.get(&at.stage));
            let name = names.and_then(|names| names.get(use_id.0 as usize)).map_or("", String::as_str);
            self.observation.tell(Moment::Gradient(name));
        }
        Ok(())
    }
}
