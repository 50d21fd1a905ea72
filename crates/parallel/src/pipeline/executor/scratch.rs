//! The sink of gradients that are no part of a step's sums.

use autograd::{GradientSink, Target, UseId, Weight};

use crate::data::GradientReduction;

/// A sink whose gradients are discarded. They use memory of the step's sums where that is idle.
#[derive(Debug)]
pub struct ScratchSink<'a>(pub(super) &'a GradientReduction);

impl GradientSink for ScratchSink<'_> {
    fn target(&mut self, use_id: UseId, weight: &Weight) -> autograd::Result<Target> {
        Ok(Target { tensor: self.0.scratch(use_id, weight)?, accumulate: false })
    }

    fn ready(&mut self, _: UseId) -> autograd::Result<()> {
        Ok(())
    }
}
