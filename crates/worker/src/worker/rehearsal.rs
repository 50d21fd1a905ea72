//! A step before the first, among ranks that are only counted.
//!
//! While ranks wait for each other on their devices, nothing may be asked of a driver: where ranks are threads of one process,
//! either can wait for the other forever. So the allocator is made to have beforehand what a step takes: the passes of a step
//! and of a validation run once on whatever lies in the buffers that others would fill. What they compute is not used; parameters
//! and buffers stay as they are.

use autograd::Mode;
use collective::Communicator;
use parallel::Planes;

use super::Worker;
use crate::error::Result;
use crate::phases::Phases;

impl Worker {
    /// Rehearses, where a driver is behind the allocator (or Meta imitates that) and there are other ranks. Errors: those of a
    /// step, out of memory among them.
    pub(crate) fn rehearse(&mut self) -> Result<()> {
        let grid = self.grid;
        if !self.device.is_cuda_like() || grid.world_size() == 1 {
            return Ok(());
        }
        let counted = Planes::new(Communicator::counted(grid.rank(), grid.world_size()), grid)?;
        let phases = Phases::new(&self.device);
        let real =
            (std::mem::replace(&mut self.planes, counted), std::mem::replace(&mut self.phases, phases));
        let first = self.setup.first_step();
        let ran = self
            .passes(first, Mode::Rehearse)
            .and_then(|()| self.complete())
            .and_then(|()| self.validation_passes());
        (self.planes, self.phases) = real;
        ran?;
        // Nobody begins while another still asks its driver.
        self.device.synchronize()?;
        Ok(self.planes.control().barrier()?)
    }
}
