//! A rehearsal of a step before the first, with transports that only count.
//!
//! While ranks wait for each other on their devices, no driver may be called: with ranks as threads of one
//! process, both could wait forever. Therefore the allocator reserves a step's memory beforehand: the passes
//! of one step and one validation run on undefined values in the buffers that other ranks would fill. The
//! results are discarded, and the parameters are unchanged.

use autograd::Mode;
use collective::{Communicator, Planes};

use super::Worker;
use crate::error::Result;
use crate::phases::Phases;

impl Worker {
    /// Rehearses step `step`, counted from 0, if there are other ranks and the allocator has a driver (or
    /// Meta imitates one). Errors: those of a step, out of memory included.
    pub(crate) fn rehearse(&mut self, step: u64) -> Result<()> {
        let grid = self.grid;
        if !self.rehearses() {
            return Ok(());
        }
        let counted = Planes::new(Communicator::counted(grid.rank(), grid.world_size()), grid)?;
        let phases = Phases::new(&self.device);
        let real =
            (std::mem::replace(&mut self.planes, counted), std::mem::replace(&mut self.phases, phases));
        let ran = self
            .forward_backward(step, Mode::Rehearse)
            .and_then(|()| self.reduce_gradients())
            .and_then(|()| self.validation_passes());
        (self.planes, self.phases) = real;
        ran?;
        // No rank begins while another one still calls its driver.
        self.device.synchronize()?;
        Ok(self.planes.control().barrier()?)
    }

    /// Returns all idle memory to the driver, and rehearses step `step`. Errors: those of a step.
    pub(super) fn empty_cache(&mut self, step: u64) -> Result<()> {
        // No rank may still wait on its device when another one calls its driver.
        self.device.synchronize()?;
        if self.rehearses() {
            self.planes.control().barrier()?;
        }
        self.device.empty_cache()?;
        self.rehearse(step)
    }

    /// Returns whether a step's memory must be reserved before ranks wait for each other.
    fn rehearses(&self) -> bool {
        self.device.is_cuda_like() && self.grid.world_size() > 1
    }
}
