//! Rehearsal before the first step: the passes of one step and one validation with transports that transfer
//! nothing. The parameters stay unchanged.

use autograd::Mode;
use collective::GridGroups;
use parallel::data::WorkKind;

use super::Worker;
use crate::error::Result;
use crate::phases::Phases;

impl Worker {
    /// Rehearses step `step`, counted from 0, if there are other ranks and memory comes from a driver (or
    /// Meta imitates one).
    ///
    /// # Errors
    /// Errors of a step, for example out of memory.
    pub(crate) fn rehearse(&mut self, step: u64) -> Result<()> {
        if !self.rehearses() {
            return Ok(());
        }
        let (real, ran) = self.rehearse_passes(step)?;
        self.engine.end_rehearsal(real, ran)
    }

    /// Rehearses the first step if ranks communicate within passes and steps may be repeated after running
    /// out of memory. Afterwards the allocator holds the memory of all steps, so that no rank runs out of
    /// memory while others wait for it.
    ///
    /// # Errors
    /// [`WorkerError::Repeatable`](crate::WorkerError::Repeatable) on all ranks if one ran out of memory.
    pub(super) fn rehearse_repeatable(&mut self, step: u64) -> Result<()> {
        if !std::mem::take(&mut self.rehearses_first) {
            return Ok(());
        }
        let (real, ran) = self.rehearse_passes(step)?;
        self.engine.groups = real;
        self.share_out_of_memory(step, ran)
    }

    /// Runs the passes of a step and of a validation with transports that transfer nothing. Returns the real
    /// transports and the result of the passes.
    fn rehearse_passes(&mut self, step: u64) -> Result<(GridGroups, Result<()>)> {
        let real = self.engine.begin_rehearsal()?;
        let unused = Phases::new(&self.engine.device, &self.engine.recorder);
        let phases = std::mem::replace(&mut self.records.phases, unused);
        let steps = self.engine.setup.calendar().first_of_each_length(step);
        let ran = steps
            .into_iter()
            .try_for_each(|step| self.rehearse_step_passes(step))
            .and_then(|()| self.rehearse_repetition(step))
            .and_then(|()| self.validation_passes())
            .and_then(
                |_| if self.lacks_reference() { self.reference_passes(Some(1)) } else { Ok(Vec::new()) },
            );
        self.records.phases = phases;
        // Transports that count give no values.
        self.outdate_weights();
        Ok((real, ran.map(|_| ())))
    }

    /// Runs the passes of step `step` and reduces their gradients.
    fn rehearse_step_passes(&mut self, step: u64) -> Result<()> {
        self.batches.follow(self.numbers(step));
        self.outdate_weights();
        self.gather_for(WorkKind::Step)?;
        self.forward_backward(step, Mode::Rehearse)?;
        self.reduce_gradients()?;
        self.add_tied_gradients()
    }

    /// Returns all idle memory to the driver, and rehearses step `step`.
    ///
    /// # Errors
    /// Errors of a step.
    pub(super) fn empty_cache(&mut self, step: u64) -> Result<()> {
        // No rank may still wait on its device when another one calls its driver.
        self.engine.device.synchronize()?;
        if self.rehearses() {
            self.engine.groups.control().barrier()?;
        }
        self.engine.device.empty_cache()?;
        self.rehearse(step)
    }

    /// Returns whether a step's memory must be reserved before ranks wait for each other.
    fn rehearses(&self) -> bool {
        self.engine.device.is_cuda_like() && self.engine.grid.world_size() > 1
    }
}
