//! The effects of planned steps on the layout of a rank's memory, where the cache is emptied between steps.
//!
//! Without that, a step soon leaves the layout as it was, and all later steps repeat it. With it, steps
//! differ: one after an emptied cache requests memory that others find. But a step of one kind has the same
//! effect whenever it begins with the same layout, so that effects by layout and kind describe a whole run.

use std::collections::BTreeMap;

use crate::calendar::StepKind;

/// The effect of a step with the verification before it and the validation after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepEffect {
    /// Index of the layout after it.
    pub next: usize,
    /// Index of the verification among the planned parts.
    pub verification: Option<usize>,
    /// Index of the step among the planned parts.
    pub step: usize,
    /// Index of the validation among the planned parts.
    pub validation: Option<usize>,
}

/// Effects by layout before the step and kind of the step. The run begins with layout 0.
#[derive(Clone, Debug, Default)]
pub struct StepEffects(BTreeMap<(usize, StepKind), StepEffect>);

impl StepEffects {
    /// Adds the effect of a step of kind `kind` that begins with layout `layout`, unless it is known: the
    /// peaks of a step that is planned again contain those of the steps since the first time.
    pub fn add(&mut self, layout: usize, kind: StepKind, effect: StepEffect) {
        self.0.entry((layout, kind)).or_insert(effect);
    }

    /// Returns the effect of a step of kind `kind` that begins with layout `layout`, if it is known.
    pub fn of(&self, layout: usize, kind: StepKind) -> Option<StepEffect> {
        self.0.get(&(layout, kind)).copied()
    }

    /// Removes all effects.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
