//! Effects of planned steps on the layout of a rank's memory, if the cache is emptied between steps.
//!
//! Without emptying the cache, a step soon leaves the layout unchanged, and all later steps repeat it.
//! Otherwise steps differ: the first one after emptying requests memory that others find cached. A step of
//! some kind always has the same effect on the same layout, so effects by layout and kind describe a whole
//! run.

use std::collections::BTreeMap;

use crate::calendar::StepKind;

/// Effect of a step, including the verification before it and the validation after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepEffect {
    /// Index of the layout after the step.
    pub next: usize,
    /// Index of the verification among the planned parts.
    pub verification: Option<usize>,
    /// Index of the step among the planned parts.
    pub step: usize,
    /// Index of the validation among the planned parts.
    pub validation: Option<usize>,
}

/// Effects of steps, by the layout before the step and the kind of step. The run begins with layout 0.
#[derive(Clone, Debug, Default)]
pub struct StepEffects(BTreeMap<(usize, StepKind), StepEffect>);

impl StepEffects {
    /// Records the effect of a step of kind `kind` that begins with layout `layout`. A known effect is kept,
    /// because peaks of a step that is planned again include those of the steps in between.
    pub fn add(&mut self, layout: usize, kind: StepKind, effect: StepEffect) {
        self.0.entry((layout, kind)).or_insert(effect);
    }

    /// Returns the effect of a step of kind `kind` that begins with layout `layout`; `None` if unknown.
    pub fn effect(&self, layout: usize, kind: StepKind) -> Option<StepEffect> {
        self.0.get(&(layout, kind)).copied()
    }

    /// Removes all effects.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
