//! Observers of operators: called for every call as it is enqueued, in forward and in backward.

use std::fmt;
use std::rc::Rc;

use device::Label;
use tensor::Tensor;

use crate::error::{AutogradError, Result};

device::names! {
    /// The part of a pass in which an operator runs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Direction {
        /// Forward.
        Forward = "forward",
        /// Forward, repeated by a recomputed segment.
        Recompute = "recompute",
        /// Backward of the inputs; with it that of the weights, if these follow directly inside one rule.
        Backward = "backward",
        /// Backward of the weights.
        BackwardWeight = "backward weight",
    }
}

/// A call of an operator or of its backward rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Part of the pass.
    pub direction: Direction,
    /// The module that makes the call, or made it in forward.
    pub module: Label,
    /// The operator's name.
    pub operator: &'static str,
    /// Number of the micro-batch over all steps and ranks.
    pub micro_batch: u64,
    /// Number of the piece of sequences that the call computes; `None` if it computes all that are on the
    /// rank.
    pub piece: Option<usize>,
}

/// The error of an observer.
pub type ObserverError = Box<dyn std::error::Error + Send + Sync>;

/// Follows the operators of a pass. An observer that keeps no tensor and changes none changes no byte and no
/// bit. Calls nest where a rule is made of others, as that of a recomputed segment.
pub trait Observer {
    /// Called before a call's work is enqueued. Errors end the step.
    fn before(&self, call: &Call) -> std::result::Result<(), ObserverError>;

    /// Called when a call's work has been enqueued, with its outputs in forward, and in backward with the
    /// gradients of its inputs (`None` where none is wanted). A recomputed output may stay uncomputed.
    fn after(&self, call: &Call, results: &[Option<&Tensor>]) -> std::result::Result<(), ObserverError>;
}

/// The observers of a pass; none by default.
#[derive(Clone, Default)]
pub struct Observers(Rc<[Rc<dyn Observer>]>);

impl Observers {
    /// Returns `observers` as one.
    pub fn new(observers: impl IntoIterator<Item = Rc<dyn Observer>>) -> Self {
        Observers(observers.into_iter().collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn before(&self, call: impl FnOnce() -> Call) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let call = call();
        self.0.iter().try_for_each(|observer| observer.before(&call)).map_err(AutogradError::Hook)
    }

    pub(crate) fn after<'t>(
        &self,
        call: impl FnOnce() -> Call,
        results: impl Iterator<Item = Option<&'t Tensor>>,
    ) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let call = call();
        let results = results.collect::<Vec<_>>();
        self.0.iter().try_for_each(|observer| observer.after(&call, &results)).map_err(AutogradError::Hook)
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} observers", self.0.len())
    }
}
