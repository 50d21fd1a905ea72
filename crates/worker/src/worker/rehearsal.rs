//! A rehearsal of a step before the first, with transports that only count: the passes of one step and one
//! validation. The parameters are unchanged.

use autograd::Mode;

use super::Worker;
use crate::error::Result;
use crate::phases::Phases;

impl Worker {
    /// Rehearses a step if there are other ranks and the allocator has a driver (or Meta imitates one).
    /// Errors: those of a step, out of memory included.
    pub(crate) fn rehearse(&mut self) -> Result<()> {
        if !self.engine.device.is_cuda_like() || self.engine.grid.world_size() == 1 {
            return Ok(());
        }
        let real = self.engine.begin_rehearsal()?;
        let phases = std::mem::replace(&mut self.phases, Phases::new(&self.engine.device));
        let first = self.engine.setup.first_step();
        let ran = self
            .forward_backward(first, Mode::Rehearse)
            .and_then(|()| self.reduce_gradients())
            .and_then(|()| self.validation_passes());
        self.phases = phases;
        self.engine.end_rehearsal(real, ran)
    }
}
