//! Observers of operators, called for every call as it is enqueued, in forward and in backward.

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
        /// Backward of the inputs, including the weights if a rule computes both at once.
        Backward = "backward",
        /// Backward of the weights.
        BackwardWeight = "backward weight",
    }
}

/// A call of an operator or of its backward rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The part of the pass.
    pub direction: Direction,
    /// The module that makes the call, or made it in forward.
    pub module: Label,
    /// The operator's name.
    pub operator: &'static str,
    /// Number of the micro-batch, counted over all steps and ranks.
    pub micro_batch: u64,
    /// Index of the sequence piece that the call computes; `None` if it computes all pieces on the rank.
    pub piece: Option<usize>,
}

/// Error of an observer; ends the step.
pub type ObserverError = Box<dyn std::error::Error + Send + Sync>;

/// Observes the operators of a pass. If it keeps and changes no tensor, memory and results are unaffected.
/// Calls nest if a rule consists of others, such as a recomputed segment.
pub trait Observer {
    /// Called before a call's work is enqueued. Errors end the step.
    fn before(&self, call: &Call) -> std::result::Result<(), ObserverError>;

    /// Called after a call's work was enqueued. `results` are its outputs in forward, or the gradients of its
    /// inputs in backward (`None` where none is needed). A recomputed output may be uncomputed.
    fn after(&self, call: &Call, results: &[Option<&Tensor>]) -> std::result::Result<(), ObserverError>;
}

/// The observers of a pass; none by default.
#[derive(Clone, Default)]
pub struct Observers(Rc<[Rc<dyn Observer>]>);

impl Observers {
    /// Combines several observers.
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
